//! Thread that starts and reaps a function's processes. Both may take a while, and meanwhile the watchdog must be able
//! to end other processes in time.

use super::error::IsolationError;
use super::process::{Detached, Process, Program, SharedByProcesses, Starting};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_confine::{ThreadRole, keep_capabilities};
use tailwater_sdk::program::ProcessPart;

/// Handle of the thread. The kernel kills trusted processes when the thread that started them exits, so it lives as
/// long as they do.
pub(super) struct Starter {
    orders: Option<Sender<StarterRequest>>,
    started: Receiver<Result<Detached, IsolationError>>,
    shutting_down: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum StarterRequest {
    Start,
    Reap(Process),
}

impl Starter {
    /// Starts the thread. `start` launches a process, and gives up soon after its flag is set at the end of the run.
    /// `limited`: the thread drops the capabilities that a start does not take.
    pub(super) fn new(
        limited: bool,
        mut start: impl FnMut(&AtomicBool) -> Result<Detached, IsolationError> + Send + 'static,
    ) -> io::Result<Starter> {
        let (orders, ordered) = channel();
        let (tell, started) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::Builder::new().name("starter".to_owned()).spawn(move || {
            if limited {
                // Dropping capabilities is always permitted.
                let _ = keep_capabilities(ThreadRole::Starter);
            }
            for order in ordered {
                match order {
                    // The receiver may be gone.
                    StarterRequest::Start => drop(tell.send(start(&is_over))),
                    StarterRequest::Reap(process) => drop(process),
                }
            }
        })?;
        Ok(Starter {
            orders: Some(orders),
            started,
            shutting_down: over,
            thread: Some(thread),
        })
    }

    /// Requests the start of a process.
    pub(super) fn start(&self) {
        self.order(StarterRequest::Start);
    }

    /// Returns the result of the last request, or `None` while it is pending.
    pub(super) fn started(&self) -> Option<Result<Detached, IsolationError>> {
        match self.started.try_recv() {
            Ok(started) => Some(started),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let gone = io::Error::other("it has ended");
                Some(Err(IsolationError::Thread(gone)))
            }
        }
    }

    /// Kills a process and leaves the wait for its exit to the thread.
    pub(super) fn reap(&self, mut process: Process) {
        process.kill();
        self.order(StarterRequest::Reap(process));
    }

    /// Sends an order to the thread. If the thread has ended, the order is dropped, so a process is reaped here.
    fn order(&self, order: StarterRequest) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.shutting_down.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Starts a process, and waits up to `patience` until it is ready.
pub(super) fn start(
    program: &Program,
    shared: &SharedByProcesses,
    part: ProcessPart,
    patience: Duration,
    over: &AtomicBool,
) -> Result<Detached, IsolationError> {
    let until = Instant::now() + patience;
    Starting::launch(program, part, shared, (until, over))?.wait_unless(until, over)
}
