//! Threads of a run, from their start to their end.

use crate::core_host::{CoreHost, HELPER_PRIORITY, RealTimeCore};
use crate::cores::{CoreError, pin_to};
use crate::external::worker::ExternalWorker;
use crate::panics::catch_panic;
use crate::port::Port;
use crate::reload_watcher::{News, ReloadWatcher, Reloaded};
use crate::run::error::RunError;
use crate::scaling::auxiliary::AuxiliaryWorker;
use crate::scaling::server::Server;
use crate::shared_port::Slot;
use crate::shared_port::succession::{RunEnds, Succession};
use crate::worker::Worker;
use crate::worker::finished::Finished;
use crate::worker::flags::WorkerFlags;
use crate::worker::hosted::{Feeds, Hosted, HostedWorker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{PRIORITY, SharedCore, limit_worker};
use tailwater_net::Nanos;
use tailwater_policy::turns::TurnShare;

/// Name of the server mapper's thread.
const SERVER_MAPPER: &str = "server-mapper";

/// Name of the thread that watches files.
const WATCH: &str = "watch";

/// Threads of a run, ready to start.
pub(super) struct WorkerThreads {
    /// Workers with their cores.
    pub(super) workers: Vec<(usize, AnyWorker)>,
    /// Auxiliary workers with their cores.
    pub(super) auxiliary: Vec<(usize, AuxiliaryWorker)>,
    pub(super) server: Option<Server>,
    pub(super) reload_watcher: ReloadWatcher,
    /// Functions run in processes of their own, which take turns with the workers.
    pub(super) isolated: bool,
    /// Workers give up the rights that they do not need.
    pub(super) limits_workers: bool,
}

/// Worker with or without external functions.
pub(super) enum AnyWorker {
    Ordinary(Box<Worker>),
    External(Box<ExternalWorker>),
}

/// Results of the threads.
pub(super) struct Ended {
    /// Workers, dedicated and auxiliary, with their threads' names.
    pub(super) workers: Vec<(String, Finished)>,
    /// Counters of the server mapper: decisions, and moves.
    pub(super) decided: [u64; 2],
    /// Other threads that panicked, with their messages.
    pub(super) deaths: Vec<(String, String)>,
    /// Reloads that `look` has not seen.
    pub(super) reloads: Vec<Reloaded>,
}

/// Flags polled by threads.
struct Flags {
    workers: Arc<WorkerFlags>,
    /// All workers have ended: the other threads end, too.
    over: AtomicBool,
}

impl Flags {
    /// A thread did not start, or panicked: workers end.
    fn failed(&self) -> &AtomicBool {
        &self.workers.failed
    }

    fn fail(&self) {
        self.workers.fail();
    }
}

/// Cores on which workers take turns with those of other chains, instead of on threads of their own.
#[derive(Clone, Debug)]
pub(crate) struct OnHost<'h> {
    pub(crate) host: &'h CoreHost,
    /// The chain's share of each core.
    pub(crate) share: TurnShare,
    /// Shared port, and the chain's slot there.
    pub(crate) chain: (usize, Slot),
    /// Workers get packets only from that port.
    pub(crate) is_only_source: bool,
    /// Flags of the workers, and their heir.
    pub(crate) ends: RunEnds,
    /// Inheritance of the chain, if it takes the place of another one.
    pub(crate) succession: Option<Succession>,
    /// The cores, if functions run in processes of their own.
    pub(crate) real_time: &'h [RealTimeCore],
}

impl OnHost<'_> {
    /// Core on which functions in processes of their own take turns with this chain and others.
    pub(super) fn shared_core(&self, core: usize) -> Option<SharedCore> {
        let mut cores = self.real_time.iter();
        let core = cores.find(|own| own.number() == core)?;
        Some(core.shared().clone())
    }
}

/// Worker that has started.
enum Started<'scope> {
    Thread(ScopedJoinHandle<'scope, Result<Finished, CoreError>>),
    Hosted(Receiver<Finished>),
}

impl Started<'_> {
    /// Waits for the worker's end.
    fn join(self) -> Result<Finished, CoreError> {
        match self {
            Started::Thread(thread) => join(thread),
            Started::Hosted(results) => Ok(results.recv().unwrap_or_else(|_| Finished {
                died: Some("its core's thread has ended".to_owned()),
                ..Finished::default()
            })),
        }
    }
}

impl WorkerThreads {
    /// Runs until the port ends or `stop` is set. Calls `look` with news of the watched files until it returns `true`,
    /// that is, until all workers have ended. A port's first packet arrives at `start`.
    ///
    /// # Errors
    /// If a thread cannot start or be pinned. The others have ended then.
    pub(super) fn run(
        self,
        port: &dyn Port,
        start: Nanos,
        stop: &AtomicBool,
        on_host: Option<OnHost<'_>>,
        mut look: impl FnMut(&News) -> bool,
    ) -> Result<Ended, RunError> {
        let workers = on_host.as_ref().map(|on_host| Arc::clone(&on_host.ends.flags));
        let flags = Flags {
            workers: workers.unwrap_or_default(),
            over: AtomicBool::default(),
        };
        let news = News::default();
        std::thread::scope(|scope| {
            let mut threads = Threads {
                scope,
                flags: &flags,
                error: None,
            };
            let (flags, news) = (&flags, &news);
            let (isolated, limited) = (self.isolated, self.limits_workers);
            let mut workers = Vec::new();
            for (core, worker) in self.workers {
                if let Some(on_host) = &on_host {
                    workers.push(host(on_host, (core, workers.len()), worker));
                    continue;
                }
                let stopped = || stop.load(Ordering::Relaxed) || flags.failed().load(Ordering::Relaxed);
                workers.extend(threads.pinned(("worker", core), limited, move || {
                    // The same priority as the processes with which it takes turns.
                    let _priority = isolated.then(|| Priority::fifo_or_ordinary(PRIORITY));
                    match worker {
                        AnyWorker::Ordinary(it) => it.run_among_others(stopped, flags.failed()),
                        AnyWorker::External(it) => it.run(stopped, flags.failed()),
                    }
                }));
            }
            for (core, helper) in self.auxiliary {
                if let Some(on_host) = &on_host {
                    let result = on_host.host.run_auxiliary(core, helper, Arc::clone(&flags.workers));
                    workers.push((format!("helper-{core}"), Started::Hosted(result)));
                    continue;
                }
                workers.extend(threads.pinned(("helper", core), limited, move || {
                    // It sleeps when idle. When it has work, it preempts ordinary threads, and takes turns with the
                    // processes of isolated functions.
                    let priority = if isolated { PRIORITY } else { HELPER_PRIORITY };
                    let (_priority, _refused) = Priority::fifo_or_ordinary(priority);
                    helper.run(flags.failed())
                }));
            }
            let (server, watch) = (self.server, self.reload_watcher);
            let server = server
                .and_then(|server| threads.surviving(SERVER_MAPPER, move || server.run(port, start, &flags.over)));
            let watch = threads.surviving(WATCH, move || watch.run(news, &flags.over));
            let error = threads.error;
            port.on_started();
            while !look(news) {
                if stop.load(Ordering::Relaxed) {
                    flags.workers.stop.store(true, Ordering::Relaxed);
                }
            }
            flags.over.store(true, Ordering::Relaxed);
            let mut deaths = Vec::new();
            if let Some(Err(message)) = watch.map(join) {
                deaths.push((WATCH.to_owned(), message));
            }
            let decided = server.map_or(Ok([0; 2]), join);
            let decided = decided.unwrap_or_else(|message| {
                deaths.push((SERVER_MAPPER.to_owned(), message));
                [0; 2]
            });
            let workers = workers.into_iter();
            let workers = workers.map(|(name, worker)| Ok((name, worker.join()?)));
            let workers = workers.collect::<Result<Vec<_>, CoreError>>();
            match error {
                Some(error) => Err(error),
                None => Ok(Ended {
                    workers: workers?,
                    decided,
                    deaths,
                    reloads: std::mem::take(&mut *news.lock().unwrap_or_else(PoisonError::into_inner)),
                }),
            }
        })
    }
}

/// Starts threads, until one fails to start.
struct Threads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    flags: &'scope Flags,
    error: Option<RunError>,
}

/// Worker that has started, with its name.
type NamedWorker<'scope> = (String, Started<'scope>);

/// Gives the worker of this number its turns on a core.
fn host<'scope>(on_host: &OnHost<'_>, (core, number): (usize, usize), worker: AnyWorker) -> NamedWorker<'scope> {
    let (results, result) = channel();
    let succession = on_host.succession.as_ref();
    let inheritance = succession.map(|succession| succession.of(number));
    let of_run = (on_host.ends.clone(), number);
    let worker: Box<dyn Hosted> = match worker {
        AnyWorker::Ordinary(worker) => worker.hosted(of_run, results, inheritance),
        AnyWorker::External(worker) => Box::new(HostedWorker::new(*worker, of_run, results, inheritance)),
    };
    // Without such a core the worker is dropped, and with it the sender of results.
    let (port, slot) = &on_host.chain;
    let chain = slot.get().map(|slot| (*port, slot));
    let feeds = Feeds {
        only: chain.filter(|_| on_host.is_only_source),
        chain,
    };
    let _ = on_host.host.run(core, worker, on_host.share, feeds);
    (format!("worker-{core}"), Started::Hosted(result))
}

impl<'scope> Threads<'scope, '_> {
    fn start<T: Send + 'scope>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Option<ScopedJoinHandle<'scope, T>> {
        if self.error.is_some() {
            return None;
        }
        let thread = Builder::new().name(name.to_owned());
        let thread = thread.spawn_scoped(self.scope, work);
        let thread = thread.inspect_err(|_| self.flags.fail());
        thread
            .map_err(|source| self.error = Some(RunError::Thread(source)))
            .ok()
    }

    /// Starts a thread pinned to a core. `limited`: it gives up the rights that it does not need.
    fn pinned(
        &mut self,
        (kind, core): (&str, usize),
        limited: bool,
        work: impl FnOnce() -> Finished + Send + 'scope,
    ) -> Option<NamedWorker<'scope>> {
        let (name, flags) = (format!("{kind}-{core}"), self.flags);
        let thread = self.start(&name, move || {
            let limit = || match limited {
                true => limit_worker().map_err(|error| CoreError::Refused {
                    core,
                    reason: error.to_string(),
                }),
                false => Ok(()),
            };
            pin_to(core).and_then(|()| limit()).inspect_err(|_| flags.fail())?;
            Ok(work())
        });
        thread.map(|thread| (name, Started::Thread(thread)))
    }

    /// Starts a thread whose panic is caught and reported.
    fn surviving<T: Send + 'scope>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Option<ScopedJoinHandle<'scope, Result<T, String>>> {
        let flags = self.flags;
        self.start(name, move || catch_panic(work).inspect_err(|_| flags.fail()))
    }
}

/// Unparks the thread, in case it sleeps, and joins it.
fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.thread().unpark();
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
