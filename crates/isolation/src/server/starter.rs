//! Where a function's processes are started and buried: on a thread of its own, for both may take a while, and other
//! processes are to be ended in time meanwhile.

use super::error::IsolationError;
use super::process::{Detached, Process, Program, Starting};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The thread. The kernel ends trusted processes with the thread that started them, so it stays for as long as they do.
pub(super) struct Starter {
    orders: Option<Sender<Order>>,
    started: Receiver<Result<Detached, IsolationError>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Start,
    Bury(Process),
}

impl Starter {
    /// One that starts processes by `start`, which gives up soon when told that the run is over.
    pub(super) fn new(
        mut start: impl FnMut(&AtomicBool) -> Result<Detached, IsolationError> + Send + 'static,
    ) -> io::Result<Starter> {
        let (orders, ordered) = channel();
        let (tell, started) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::Builder::new().name("starter".to_owned()).spawn(move || {
            for order in ordered {
                match order {
                    // Whoever asked may be gone.
                    Order::Start => drop(tell.send(start(&is_over))),
                    Order::Bury(process) => drop(process),
                }
            }
        })?;
        Ok(Starter {
            orders: Some(orders),
            started,
            over,
            thread: Some(thread),
        })
    }

    /// Has a process started.
    pub(super) fn start(&self) {
        self.order(Order::Start);
    }

    /// What has become of it, if that is known by now.
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

    /// Kills a process, and waits elsewhere until nothing is left of it.
    pub(super) fn bury(&self, mut process: Process) {
        process.kill();
        self.order(Order::Bury(process));
    }

    /// A thread that is gone takes none: what is to be buried is buried here then.
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Starts a process, and waits until it is ready, for at most `patience`.
pub(super) fn start(
    (program, commons): (&Program, Option<Arc<File>>),
    part: [u16; 2],
    patience: Duration,
    over: &AtomicBool,
) -> Result<Detached, IsolationError> {
    let until = Instant::now() + patience;
    Starting::launch(program, part, commons)?.wait_unless(until, over)
}
