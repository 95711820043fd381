//! Run of a chain on a trace or a port, from the first packet to the report.

use crate::batches::BatchRecorder;
use crate::clock::Clock;
use crate::cores::AvoidCores;
use crate::external::{Functions, WithExternals};
use crate::port::{Port, RetaError, round_robin};
use crate::reload_watcher::News;
use crate::report::RunReport;
use crate::scaling::ScalingConfig;
use crate::scaling::server::ServerConfig;
use crate::trace_nic::{TraceNic, TraceNicConfig};
use setup::{check, set_up};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::IsolationConfig;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;

mod chains;
mod error;
mod progress;
mod run_recorder;
mod setup;
mod threads;

pub use error::{RunError, Unrecorded};
pub use progress::Progress;

/// Configuration of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Cores to run on, one worker each.
    pub cores: Vec<usize>,
    /// Trace NIC, for a run on a trace.
    pub nic: TraceNicConfig,
    /// Length of a measurement window.
    pub window: Nanos,
    /// File to record sent packets to.
    pub capture_out: Option<PathBuf>,
    /// Packets of the traffic excluded by `spec.match`.
    pub not_matched: u64,
    /// Seed of the flow table's hash.
    pub seed: u64,
    /// Offloading of flows to auxiliary cores. Without it every packet is processed where it is received.
    pub scaling: Option<ScalingConfig>,
    /// Migration of RSS buckets between `cores`. With one core there is no destination, and without pacing no time at
    /// which to move: buckets stay.
    pub server: Option<ServerConfig>,
    /// Isolation of functions in separate processes. `None` runs them in this one. Incompatible with `scaling`.
    pub isolation: Option<IsolationConfig>,
}

/// Runs the chain of `spec` on `trace` until the traffic ends or `stop` is set. `progress` is called a few times per
/// second, from the calling thread.
///
/// # Errors
/// If the run cannot be set up, or its capture not be written.
pub fn run(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    run_noted(spec, trace, config, stop, None, progress)
}

/// Like [`run`], and also records times of single batches in `notes`, if given.
///
/// # Errors
/// See [`run`].
pub fn run_noted(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    stop: &AtomicBool,
    notes: Option<&BatchRecorder>,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let clock = Clock::start();
    let mut nic = trace_nic(spec, trace, config, &clock)?;
    on_port(spec, (&mut nic, clock), config, stop, notes, progress)
}

/// Like [`run`], for a chain with external functions, which `functions` attaches.
///
/// # Errors
/// See [`run`].
pub fn run_attached(
    spec: &ChainSpec,
    trace: Trace,
    functions: impl Functions<TraceNic>,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let clock = Clock::start();
    let nic = trace_nic(spec, trace, config, &clock)?;
    let mut port = WithExternals::new(nic, functions);
    on_port(spec, (&mut port, clock), config, stop, None, progress)
}

/// Creates the trace NIC of a run.
fn trace_nic(spec: &ChainSpec, trace: Trace, config: &RunConfig, clock: &Clock) -> Result<TraceNic, RetaError> {
    let queues = config.cores.len() as u16;
    let nic_config = TraceNicConfig {
        // The core that processes an offloaded packet copies its payload.
        in_parts: config.nic.in_parts || config.scaling.is_some(),
        ..config.nic.clone()
    };
    let reta = round_robin(queues);
    TraceNic::new(trace, spec.rss(), queues, &reta, nic_config, clock.clone())
}

/// Like [`run`], but on packets from `port`, whose times are on `clock`. Initially buckets are assigned to queues
/// round-robin.
///
/// # Errors
/// See [`run`].
pub fn run_on(
    spec: &ChainSpec,
    port: &mut dyn Port,
    clock: Clock,
    config: &RunConfig,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    on_port(spec, (port, clock), config, stop, None, progress)
}

/// See [`run_on`] and [`run_noted`].
fn on_port(
    spec: &ChainSpec,
    (port, clock): (&mut dyn Port, Clock),
    config: &RunConfig,
    stop: &AtomicBool,
    notes: Option<&BatchRecorder>,
    mut progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    check(spec, config)?;
    // Reporting and recording threads get the other cores, if there are any.
    let _elsewhere = AvoidCores::new(&config.cores);
    let (threads, mut recorder) = set_up(spec, (&mut *port, clock), config, notes)?;
    let port = &*port;
    let start = recorder.start;
    let look = |news: &News| recorder.on_timer(port, news, &mut progress);
    let ended = threads.run(port, start, stop, look)?;
    recorder.close(ended, port, stop.load(Ordering::Relaxed))
}
