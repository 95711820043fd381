//! Cores that several chains share: one thread per dedicated core, which polls ports and gives workers their turns, and
//! one per auxiliary core, which sleeps until it is lent to one of them.
//!
//! - `core_loop`: the loop of a core.
//! - `auxiliary_core`: the loop of an auxiliary core.
//! - `mailbox`: orders to it, between two turns.
//! - `poll_gap`: the longest time in which it polled no port.
//! - `real_time`: its priority while functions in processes of their own take turns with it.
//!
//! Workers on a core are those of any number of chains. Their order is decided by [`tailwater_policy::turns`], and the
//! use of auxiliary cores by a [core broker](tailwater_policy::broker).

mod auxiliary_core;
mod core_loop;
mod mailbox;
mod poll_gap;
mod real_time;

use crate::clock::Clock;
use crate::cores::CoreError;
use crate::port::{OpenError, Port};
use crate::scaling::AuxiliaryPool;
use crate::scaling::auxiliary::AuxiliaryWorker;
use crate::shared_port::{PollerChange, PollerControl, SharedPort, SharedPortConfig};
use crate::worker::finished::Finished;
use crate::worker::flags::WorkerFlags;
use crate::worker::hosted::{Feeds, Hosted};
use auxiliary_core::{AuxiliaryLoop, AuxiliaryOrder, HostedAuxiliary};
use core_loop::CoreLoop;
use mailbox::{Mailbox, Order, Orders, mailbox};
pub use poll_gap::PollGap;
use poll_gap::{GapMeter, LongestGap};
pub(crate) use real_time::RealTimeCore;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tailwater_handover::park::{Mode, Waker, park};
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::SharedCore;
use tailwater_net::Nanos;
use tailwater_policy::broker::CoreBroker;
use tailwater_policy::turns::TurnShare;

/// Time after which a core that does not answer is given up: it hangs in a function.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Real-time priority of auxiliary cores' threads: above ordinary programs, below all other real-time threads.
pub(crate) const HELPER_PRIORITY: u8 = 1;

/// Cores of a server.
#[derive(Debug)]
pub struct CoreHost {
    clock: Clock,
    cores: Vec<HostedCore<Order>>,
    /// Longest gap between two polls of each core, in the same order.
    gaps: Vec<Arc<LongestGap>>,
    auxiliary: Vec<(HostedCore<AuxiliaryOrder>, Waker)>,
    pool: Option<AuxiliaryPool>,
    ports: AtomicU64,
}

/// Configuration of a host.
pub struct HostConfig {
    /// Dedicated cores.
    pub cores: Vec<usize>,
    /// Idle dedicated cores poll, or sleep for this time once they have been idle as long.
    pub nap: Option<Nanos>,
    /// Auxiliary cores, none of which is a dedicated one.
    pub auxiliary: Vec<usize>,
    /// Wait strategy of auxiliary cores.
    pub park: Mode,
    /// Lends auxiliary cores.
    pub broker: Box<dyn CoreBroker>,
}

/// Core with its thread.
#[derive(Debug)]
struct HostedCore<O> {
    number: usize,
    /// Number of its thread in the kernel.
    task: u32,
    mailbox: Mailbox<O>,
    /// Time for which the core worked on packets, in nanoseconds.
    busy: Arc<AtomicU64>,
    /// The core as functions in processes of their own share it.
    shared: SharedCore,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<O> HostedCore<O> {
    /// Starts the thread of a core, pinned to it, which runs the loop that `body` makes.
    fn start<R: FnOnce() + Send + 'static>(
        (kind, number): (&str, usize),
        body: impl FnOnce(Orders<O>, Arc<AtomicU64>) -> R,
    ) -> Result<HostedCore<O>, HostError> {
        let (mailbox, orders) = mailbox();
        let busy = Arc::<AtomicU64>::default();
        let run = body(orders, Arc::clone(&busy));
        let (started, pinned) = channel();
        let thread = Builder::new().name(format!("{kind}-{number}"));
        let thread = thread.spawn(move || {
            let result = crate::cores::pin_to(number);
            let runs = result.is_ok();
            let task = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            // The host waits for it.
            let _ = started.send(result.map(|()| task));
            if runs {
                run();
            }
        })?;
        let task = match pinned.recv() {
            Ok(result) => result?,
            Err(_) => return Err(io::Error::other("the thread ended at once").into()),
        };
        Ok(HostedCore {
            number,
            task,
            mailbox,
            busy,
            shared: SharedCore::default(),
            thread: Mutex::new(Some(thread)),
        })
    }

    fn busy(&self) -> (usize, Nanos) {
        (self.number, Nanos(self.busy.load(Ordering::Relaxed)))
    }

    /// Waits for the thread's end. A panic of the loop itself goes on: workers' panics are caught.
    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
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
    /// Starts a thread on each core.
    ///
    /// # Errors
    /// If a thread cannot be started or pinned.
    pub fn start(config: HostConfig, clock: Clock) -> Result<Arc<CoreHost>, HostError> {
        let mut host = CoreHost {
            clock: clock.clone(),
            cores: Vec::new(),
            gaps: Vec::new(),
            auxiliary: Vec::new(),
            pool: None,
            ports: AtomicU64::new(0),
        };
        for &number in &config.cores {
            let gap = Arc::<LongestGap>::default();
            let meter = GapMeter::new(Arc::clone(&gap));
            let core = HostedCore::start(("core", number), |orders, busy| {
                let core = CoreLoop::new(clock.clone(), orders, (busy, meter), config.nap);
                || core.run()
            })?;
            host.cores.push(core);
            host.gaps.push(gap);
        }
        for &number in &config.auxiliary {
            let (sleeper, waker) = park(config.park);
            let core = HostedCore::start(("helper", number), |orders, busy| {
                let core = AuxiliaryLoop::new(clock.clone(), orders, sleeper, busy);
                || {
                    // It sleeps when idle. When it has work, it preempts ordinary threads.
                    let (_priority, _refused) = Priority::fifo_or_ordinary(HELPER_PRIORITY);
                    core.run();
                }
            })?;
            host.auxiliary.push((core, waker));
        }
        if !host.auxiliary.is_empty() {
            let cores = host.auxiliary.iter().map(|(core, waker)| (core.number, waker.clone()));
            let pool = AuxiliaryPool::new(cores.collect(), host.cores.len(), config.broker);
            host.pool = Some(pool);
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

    /// Dedicated cores, with the number of each one's thread in the kernel.
    pub fn tasks(&self) -> impl Iterator<Item = (usize, u32)> {
        self.cores.iter().map(|core| (core.number, core.task))
    }

    /// Auxiliary cores, if there are any.
    pub fn auxiliary(&self) -> Option<&AuxiliaryPool> {
        self.pool.as_ref()
    }

    /// Time for which each core has worked on packets, auxiliary ones last.
    pub fn busy(&self) -> impl Iterator<Item = (usize, Nanos)> {
        let auxiliary = self.auxiliary.iter().map(|(core, _)| core.busy());
        self.cores.iter().map(HostedCore::busy).chain(auxiliary)
    }

    /// Longest time between two polls of each dedicated core since the last call.
    pub fn take_poll_gaps(&self) -> impl Iterator<Item = PollGap> {
        self.cores().zip(&self.gaps).map(|(core, gap)| gap.take(core))
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
        self.open(port, config, false)
    }

    fn open(
        self: &Arc<Self>,
        port: Box<dyn Port>,
        config: SharedPortConfig,
        is_paused: bool,
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
        for (core, mut poller) in self.cores.iter().zip(pollers) {
            if is_paused {
                poller.pause();
            }
            core.mailbox.send(Order::Poll { port: number, poller });
        }
        Ok(shared)
    }

    /// Gives a core's thread real-time priority, if that is permitted, for functions in processes of their own. Returns
    /// `None` if there is no such core, or its thread does not answer.
    pub(crate) fn real_time(&self, core: usize) -> Option<RealTimeCore> {
        if let Some(own) = self.cores.iter().find(|own| own.number == core) {
            let mailbox = own.mailbox.clone();
            let order = Box::new(move |raise, done| mailbox.send(Order::RealTime { raise, done }));
            return RealTimeCore::raise(core, order, own.shared.clone());
        }
        let (own, waker) = self.auxiliary.iter().find(|(own, _)| own.number == core)?;
        let (mailbox, waker) = (own.mailbox.clone(), waker.clone());
        let order = Box::new(move |raise, done| {
            let sent = mailbox.send(AuxiliaryOrder::RealTime { raise, done });
            // It may sleep.
            waker.wake();
            sent
        });
        RealTimeCore::raise(core, order, own.shared.clone())
    }

    /// Leaves the cores to another process for about a tenth of the time, even where functions in processes of their
    /// own require real-time priority, or no more: two servers that take over from each other have the same cores for a
    /// while.
    pub fn share_cores(&self, shares: bool) {
        for core in &self.cores {
            core.mailbox.send(Order::Share(shares));
        }
    }

    /// Same as [`open_port`](Self::open_port), for a port in which packets wait until it is
    /// [unpaused](SharedPort::unpause).
    ///
    /// # Errors
    /// Same as [`open_port`](Self::open_port).
    pub fn open_paused_port(
        self: &Arc<Self>,
        port: Box<dyn Port>,
        config: SharedPortConfig,
    ) -> Result<Arc<SharedPort>, HostError> {
        self.open(port, config, true)
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

    /// Gives a chain's worker its turns on an auxiliary core. Returns the receiver of its results, which is
    /// disconnected if there is no such core.
    pub(crate) fn run_auxiliary(
        &self,
        core: usize,
        worker: AuxiliaryWorker,
        flags: Arc<WorkerFlags>,
    ) -> Receiver<Finished> {
        let (results, result) = channel();
        if let Some((core, waker)) = self.auxiliary.iter().find(|(own, _)| own.number == core) {
            let worker = Box::new(HostedAuxiliary::new(worker, flags, results));
            core.mailbox.send(AuxiliaryOrder::Run(worker));
            waker.wake();
        }
        result
    }

    /// Orders all threads to end.
    fn order_stop(&self) {
        for core in &self.cores {
            core.mailbox.send(Order::Stop);
        }
        for (core, waker) in &self.auxiliary {
            core.mailbox.send(AuxiliaryOrder::Stop);
            waker.wake();
        }
    }

    /// Ends the pollers, and the threads once their workers have ended. Workers end by their own flags.
    pub fn stop(&self) {
        self.order_stop();
        self.cores.iter().for_each(HostedCore::join);
        self.auxiliary.iter().for_each(|(core, _)| core.join());
    }
}

impl Drop for CoreHost {
    fn drop(&mut self) {
        self.order_stop();
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
