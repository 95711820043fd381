//! Export of events of a server or a run, and of sampled packet traces, by OpenTelemetry's protocol: OTLP over HTTP, in
//! JSON.
//!
//! One thread with a single-threaded event loop reads the latest state, and sends what is new. Nothing on the
//! data path waits for it: events are copies, and steps of traced packets come through a channel that loses and
//! counts what does not fit. Bounds: 2,048 waiting log records and as many spans, 512 of them in a request, one request
//! for each signal at a time.

mod client;
mod endpoint;
mod kept;
mod queue;
mod records;
mod sampler;
mod sender;
mod tls;

use crate::error::CliError;
pub use crate::export_sources::{ExportSources, Observed};
pub use endpoint::ExportConfig;
pub use queue::{Counts, DROP_REASONS, SIGNALS};
use queue::{LOGS, Queue, SPANS};
use records::{Resource, log_record};
use sampler::Sampler;
use sender::Sender;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Time between two looks at the server's state and at traced packets.
const PERIOD: Duration = Duration::from_millis(50);
/// Longest time to send what is left at the end.
const LAST: Duration = Duration::from_secs(2);

/// Running export. Sends what is left, for at most two seconds, and ends its thread when dropped.
#[derive(Debug)]
pub struct Exporter {
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Sends what is left, and ends the thread.
    pub fn stop(self) {
        drop(self);
    }

    /// Starts the thread. Counts go to `counts`.
    ///
    /// # Errors
    /// The event loop or its thread cannot be created.
    pub fn start(config: ExportConfig, sources: ExportSources, counts: &Arc<Counts>) -> Result<Exporter, CliError> {
        let system = |source| CliError::System {
            what: "events cannot be exported",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(system)?;
        let counts = Arc::clone(counts);
        let (stop, stopped) = watch::channel(());
        let thread = std::thread::Builder::new().name("telemetry".to_owned());
        let thread = thread
            .spawn(move || runtime.block_on(export(config, sources, counts, stopped)))
            .map_err(system)?;
        Ok(Exporter {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and affects the export only.
            let _ = thread.join();
        }
    }
}

/// Exports until `stopped` ends.
async fn export(config: ExportConfig, sources: ExportSources, counts: Arc<Counts>, mut stopped: watch::Receiver<()>) {
    let resource = Resource::new(&config, &sources.server).json();
    let queues = [LOGS, SPANS].map(|signal| Arc::new(Queue::new(signal, Arc::clone(&counts))));
    let (collected, all_collected) = watch::channel(());
    let mut senders = Vec::new();
    for (queue, endpoint) in queues.iter().zip(config.endpoints()) {
        if let Some(endpoint) = endpoint {
            let sender = Sender::new(Arc::clone(queue), endpoint, &config, &resource);
            senders.push(tokio::spawn(sender.run(all_collected.clone())));
        }
    }
    let [has_logs, has_spans] = config.endpoints().map(|endpoint| endpoint.is_some());
    let mut sampler = Sampler::new(if has_spans { sources.traced_packets } else { 0 }, sources.clock);
    let mut exported = 0;
    let mut collect = |sampler: &mut Sampler| {
        let (events, chains) = sources.observed.after(exported);
        for event in events {
            exported = event.sequence;
            if has_logs {
                queues[LOGS].push(log_record(&event));
            }
        }
        sampler.step(chains, &queues[SPANS]);
        let kept = sources.kept.iter().flat_map(Receiver::try_iter);
        kept.for_each(|span| queues[SPANS].push(span));
    };
    // Ends when the other end is dropped.
    while timeout(PERIOD, stopped.changed()).await.is_err() {
        collect(&mut sampler);
    }
    collect(&mut sampler);
    drop(collected);
    let _ = timeout(LAST, async {
        for sender in senders {
            let _ = sender.await;
        }
    })
    .await;
    queues.iter().for_each(|queue| queue.give_up());
}
