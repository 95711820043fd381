//! Dedicated cores that several chains share: one thread per core, which polls ports and gives workers their turns.
//!
//! - `core_loop`: the loop of a core.
//! - `mailbox`: orders to it, between two turns.
//!
//! Workers on a core are those of any number of chains. Their order is decided by [`tailwater_policy::turns`].

mod core_loop;
mod mailbox;

use crate::clock::Clock;
use crate::cores::CoreError;
use crate::port::{OpenError, Port};
use crate::shared_port::{PollerChange, PollerControl, SharedPort, SharedPortConfig};
use crate::worker::hosted::{Feeds, Hosted};
use core_loop::CoreLoop;
use mailbox::{Mailbox, Order, mailbox};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_policy::turns::TurnShare;

/// Time after which a core that does not answer is given up: it hangs in a function.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Cores of a server.
#[derive(Debug)]
pub struct CoreHost {
    clock: Clock,
    cores: Vec<HostedCore>,
    ports: AtomicU64,
}

/// Core with its thread.
#[derive(Debug)]
struct HostedCore {
    number: usize,
    mailbox: Mailbox,
    /// Time for which the core worked on packets, in nanoseconds.
    busy: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Cause why cores or ports of a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A core is unusable.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A thread cannot be started.
    #[error("a thread of a core cannot be started: {0}")]
    Thread(#[from] io::Error),
    /// A port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl CoreHost {
    /// Starts a thread on each of these cores. Idle cores poll, or sleep for `nap` at a time once they have been idle
    /// as long.
    ///
    /// # Errors
    /// If a thread cannot be started or pinned.
    pub fn start(cores: &[usize], clock: Clock, nap: Option<Nanos>) -> Result<Arc<CoreHost>, HostError> {
        let mut host = CoreHost {
            clock: clock.clone(),
            cores: Vec::new(),
            ports: AtomicU64::new(0),
        };
        for &number in cores {
            let (mailbox, orders) = mailbox();
            let busy = Arc::<AtomicU64>::default();
            let core = CoreLoop::new(clock.clone(), orders, Arc::clone(&busy), nap);
            let (started, pinned) = channel();
            let thread = Builder::new().name(format!("core-{number}"));
            let thread = thread.spawn(move || {
                let result = crate::cores::pin_to(number);
                let runs = result.is_ok();
                // The host waits for it.
                let _ = started.send(result);
                if runs {
                    core.run();
                }
            })?;
            host.cores.push(HostedCore {
                number,
                mailbox,
                busy,
                thread: Mutex::new(Some(thread)),
            });
            match pinned.recv() {
                Ok(result) => result?,
                Err(_) => return Err(io::Error::other("the thread ended at once").into()),
            }
        }
        Ok(Arc::new(host))
    }

    /// Clock of the host and its ports.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Numbers of the cores.
    pub fn cores(&self) -> impl Iterator<Item = usize> {
        self.cores.iter().map(|core| core.number)
    }

    /// Time for which each core has worked on packets.
    pub fn busy(&self) -> impl Iterator<Item = (usize, Nanos)> {
        let of = |core: &HostedCore| (core.number, Nanos(core.busy.load(Ordering::Relaxed)));
        self.cores.iter().map(of)
    }

    /// Opens a port that chains on these cores share: each core has a poller. The number of pollers in `config` is
    /// replaced by the number of cores.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub fn open_port(
        self: &Arc<Self>,
        port: Box<dyn Port>,
        config: SharedPortConfig,
    ) -> Result<Arc<SharedPort>, HostError> {
        let number = self.ports.fetch_add(1, Ordering::Relaxed) as usize;
        let config = SharedPortConfig {
            pollers: self.cores.len() as u16,
            ..config
        };
        let control = OnCores {
            host: Arc::clone(self),
            port: number,
        };
        let (shared, pollers) = SharedPort::open(port, config, self.clock.clone(), Box::new(control))?;
        for (core, poller) in self.cores.iter().zip(pollers) {
            core.mailbox.send(Order::Poll { port: number, poller });
        }
        Ok(shared)
    }

    /// Gives a worker its turns on a core. Returns `false` if there is no such core.
    pub(crate) fn run(&self, core: usize, worker: Box<dyn Hosted>, share: TurnShare, feeds: Feeds) -> bool {
        let core = self.cores.iter().find(|own| own.number == core);
        let Some(core) = core else {
            return false;
        };
        core.mailbox.send(Order::Run { worker, share, feeds });
        true
    }

    /// Ends the pollers, and the threads once their workers have ended. Workers end by their own flags.
    pub fn stop(&self) {
        for core in &self.cores {
            core.mailbox.send(Order::Stop);
        }
        for core in &self.cores {
            let thread = core.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A panic of the loop itself: workers' panics are caught.
            if let Some(Err(panic)) = thread.map(JoinHandle::join) {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for CoreHost {
    fn drop(&mut self) {
        for core in &self.cores {
            core.mailbox.send(Order::Stop);
        }
    }
}

/// Pollers of one port on the cores of a host.
struct OnCores {
    host: Arc<CoreHost>,
    port: usize,
}

impl PollerControl for OnCores {
    fn on_pollers(&self, change: PollerChange) {
        let (done, answers) = channel();
        let mut expected = 0;
        for (number, core) in self.host.cores.iter().enumerate() {
            let (change, done) = (Arc::clone(&change), done.clone());
            let order = Order::Change {
                port: self.port,
                change: Box::new(move |poller| {
                    change(number, poller);
                    // The other side may have given up.
                    let _ = done.send(());
                }),
            };
            expected += usize::from(core.mailbox.send(order));
        }
        drop(done);
        for _ in 0..expected {
            if answers.recv_timeout(ANSWER_TIMEOUT).is_err() {
                break;
            }
        }
    }

    fn number(&self) -> usize {
        self.port
    }
}
