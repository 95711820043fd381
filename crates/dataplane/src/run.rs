//! A run: a chain on a trace or a port, from the first packet to the report.

use crate::batches::{BatchNotes, Book};
use crate::capture::CaptureFile;
use crate::clock::Clock;
use crate::cores::{CoreError, KeepOff, pin_to};
use crate::death::survive;
use crate::external::{Beside, ExternalWorker, Functions, Parts, Station};
use crate::isolated::Isolated;
use crate::kept::{KeptRun, StateProgress, origin};
use crate::port::{Need, OpenError, Port, RetaError, round_robin};
use crate::report::{
    Collector, CoreReport, FlowReport, LatencyReport, PacketReport, RunReport, SloReport,
};
use crate::scaling::buckets::{BucketCounters, Buckets, ServerReport};
use crate::scaling::helper::AuxiliaryWorker;
use crate::scaling::server::{self, ServerConfig};
use crate::scaling::{self, MOST_BUFFERS, ScalingConfig};
use crate::telemetry::windows;
use crate::timeline::add_reasons;
use crate::trace_nic::{TraceNic, TraceNicConfig};
use crate::watch::{Fixed, News, Watch};
use crate::worker::{Finished, Worker, WorkerConfig};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{IsolationConfig, IsolationError, PRIORITY};
use tailwater_net::Nanos;
use tailwater_nf::accounting::ExportError;
use tailwater_nf::batch::MAX_BATCH;
use tailwater_nf::build::{BuildError, ChainBuilder, Reconfigure};
use tailwater_nf::chain::{Chain, Reason};
use tailwater_nf::flow_table::FlowCounters;
use tailwater_nf::spec::ChainSpec;
use tailwater_state::redis::AccessError;
use tailwater_traffic::{Trace, TrafficError};

/// How to run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The cores to run on, a worker each.
    pub cores: Vec<usize>,
    /// The NIC of a run on a trace.
    pub nic: TraceNicConfig,
    /// The length of a measurement window.
    pub window: Nanos,
    /// Where to record what is sent.
    pub capture_out: Option<PathBuf>,
    /// Packets of the traffic that were left out because `spec.match` does not want them.
    pub not_matched: u64,
    /// Keys the flow table's hash.
    pub seed: u64,
    /// How flows are handed to auxiliary cores; without it every packet is processed where it is
    /// received.
    pub scaling: Option<ScalingConfig>,
    /// How RSS buckets move between `cores`. With one core or without pace they have nowhere to go or
    /// no time at which to move, and stay.
    pub server: Option<ServerConfig>,
    /// How functions run in processes of their own; without it they run in this one. Not with `scaling`.
    pub isolation: Option<IsolationConfig>,
}

/// Why a run cannot start, or ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The chain cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Functions cannot be isolated.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// Flows cannot be handed to auxiliary cores and have their functions isolated.
    #[error(
        "isolated functions take turns on their worker's core: no flow can be handed to an auxiliary one"
    )]
    IsolatedAndHandedOver,
    /// A core cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The run is not one for external functions.
    #[error("function {function} is external: {problem}")]
    External {
        /// The first one.
        function: String,
        /// What it would need.
        problem: &'static str,
    },
    /// The port cannot be readied.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A worker thread cannot be started.
    #[error("a worker thread cannot be started: {0}")]
    Thread(io::Error),
    /// Flow state cannot be kept where the spec says.
    #[error(transparent)]
    State(#[from] AccessError),
    /// Flow state is kept outside by workers that process what they receive.
    #[error(
        "spec.state: who writes a flow's state must be who sends its packets, when that is acknowledged, and auxiliary cores \
         write nothing: without --auxiliary, several --cores and a policy that moves RSS buckets"
    )]
    StateHandedOver,
    /// The bucket table is wrong.
    #[error(transparent)]
    Reta(#[from] RetaError),
    /// The capture cannot be created.
    #[error(transparent)]
    Capture(#[from] TrafficError),
    /// A function, or something else of a worker's, panicked. The others have ended in good order.
    #[error("{thread} died: {message}; the run was stopped, and what it had is lost (worker-died)")]
    Died {
        /// The thread: `worker-` or `helper-` with its core, or `server-mapper`.
        thread: String,
        /// What its panic said.
        message: String,
        /// The run's report.
        report: Box<RunReport>,
    },
    /// The run went well, but not everything that was sent could be recorded, or not all flow
    /// records written.
    #[error("{source}")]
    Recording {
        /// What failed.
        source: TrafficError,
        /// The run's report.
        report: Box<RunReport>,
    },
}

impl RunError {
    /// The report of a run that ended with this error, if it began.
    pub fn report(&self) -> Option<&RunReport> {
        match self {
            RunError::Died { report, .. } | RunError::Recording { report, .. } => Some(report),
            _ => None,
        }
    }
}

/// How the run stands, a few times a second.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the first packet's arrival.
    pub elapsed: Nanos,
    /// How long packets arrive, if that is known.
    pub duration: Option<Nanos>,
    /// Packets by fate so far; the reasons are complete only at the end.
    pub packets: PacketReport,
    /// The 99th percentile of latency so far.
    pub p99: Nanos,
    /// The median of latency so far.
    pub p50: Nanos,
    /// Late and lost packets by cause so far.
    pub late_by_cause: std::collections::BTreeMap<&'static str, u64>,
    /// Latency buckets so far, as (upper bound, packets up to there): for metrics.
    pub latency: crate::histogram::LatencyHistogram,
    /// Times a worker was off its core.
    pub gaps: u64,
    /// Cores used so far.
    pub cores: CoreReport,
    /// RSS buckets moved so far.
    pub buckets: BucketCounters,
    /// Flow state outside, if it is kept there.
    pub state: Option<StateProgress>,
    /// What is new of the port since the last time, in lines for a user.
    pub news: Vec<String>,
}

/// Between the workers' start and the first packet: threads get to their cores.
const LEAD: Nanos = Nanos::from_millis(10);

/// The real-time priority of helpers: above ordinary programs, below all others.
const HELPER_PRIORITY: u8 = 1;

/// The server mapper's thread.
const SERVER_MAPPER: &str = "server-mapper";

/// What speaks to the store for a worker.
const STATE: &str = "the state thread";
/// The thread that watches files.
const WATCH: &str = "watch";

/// Where flows' ends are told to functions, after the last packet.
const ENDS: &str = "the end of the run";

/// How often progress is told at least.
const PROGRESS: Duration = Duration::from_millis(100);

/// Runs the chain of `spec` on `trace` until the traffic ends or `stop` is set. `progress` is
/// called a few times a second, from the calling thread.
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

/// As [`run`]; also notes what single batches take, if somebody wants to know.
///
/// # Errors
/// As [`run`].
pub fn run_noted(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    stop: &AtomicBool,
    notes: Option<&BatchNotes>,
    progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let clock = Clock::start();
    let mut nic = trace_nic(spec, trace, config, &clock)?;
    on_port(spec, (&mut nic, clock), config, stop, notes, progress)
}

/// As [`run`], for a chain with external functions, which are attached so.
///
/// # Errors
/// As [`run`].
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
    let mut port = Beside::new(nic, functions);
    on_port(spec, (&mut port, clock), config, stop, None, progress)
}

/// The trace NIC of a run.
fn trace_nic(
    spec: &ChainSpec,
    trace: Trace,
    config: &RunConfig,
    clock: &Clock,
) -> Result<TraceNic, RetaError> {
    let queues = config.cores.len() as u16;
    let nic_config = TraceNicConfig {
        // What is handed over is copied by who processes it.
        in_parts: config.nic.in_parts || config.scaling.is_some(),
        ..config.nic.clone()
    };
    let reta = round_robin(queues);
    TraceNic::new(trace, spec.rss(), queues, &reta, nic_config, clock.clone())
}

/// Runs the chain of `spec` on what comes from `port`, whose times are on `clock`, as [`run`] does on
/// a trace. Buckets are dealt out to queues in turn at first.
///
/// # Errors
/// As [`run`].
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
    notes: Option<&BatchNotes>,
    mut progress: impl FnMut(&Progress),
) -> Result<RunReport, RunError> {
    let rss = spec.rss();
    let queues = config.cores.len() as u16;
    let reta = round_robin(queues);
    // The threads that report and record get the other cores, if there are any.
    let _elsewhere = KeepOff::new(&config.cores);
    let (mappers, cuts) = scaling::mappers(config.scaling.as_ref(), queues);
    check_external(spec, config)?;
    if spec.state.is_some() && config.scaling.is_some() {
        return Err(RunError::StateHandedOver);
    }
    if config.isolation.is_some() && config.scaling.is_some() {
        return Err(RunError::IsolatedAndHandedOver);
    }
    // At external functions the chain is cut; what is in front of the first one, or all of it:
    let parts = spec.parts();
    let isolation = config.isolation.as_ref();
    let isolation = isolation.map(|isolation| Isolated::start(isolation, &parts, &config.cores));
    let mut isolation = isolation.transpose()?;
    let (front, behind) = parts
        .split_first()
        .unwrap_or_else(|| unreachable!("a chain has a part"));
    let mut builder = match &isolation {
        None => ChainBuilder::with_cuts(front, &rss, config.seed, cuts)?,
        Some(isolation) => isolation.builder(0, front, &rss, config.seed)?,
    };
    let behind = behind.iter().zip(1..);
    let behind = behind.map(|(part, number)| match &isolation {
        None => ChainBuilder::with_cuts(part, &rss, config.seed, cuts),
        Some(isolation) => isolation.builder(number, part, &rss, config.seed),
    });
    let mut behind = behind.collect::<Result<Vec<_>, _>>()?;
    let origin = origin(clock.now());
    builder.set_origin(origin);
    let traffic = port.traffic().to_owned();
    let duration = port.duration();
    let owns = |queue: u16| move |bucket: u16| reta[usize::from(bucket)] == queue;
    let mut chains: Vec<Chain> = Vec::new();
    let mut chains_behind: Vec<Chain> = Vec::new();
    if isolation.is_none() {
        chains.extend((0..queues).map(|queue| builder.instance(owns(queue))));
        let behind = behind.iter_mut();
        chains_behind.extend(behind.map(|builder| builder.instance(|_| true)));
    }
    let mut kept = KeptRun::open(spec, builder.kept_functions(), origin)?;
    let auxiliary: &[usize] = match &config.scaling {
        Some(scaling) => &scaling.auxiliary,
        None => &[],
    };
    let buffers = match &config.scaling {
        Some(scaling) => scaling.buffers.clamp(2 * MAX_BATCH as u32, MOST_BUFFERS),
        None => 2 * MAX_BATCH as u32,
    };
    let server = config.server.as_ref();
    let server = server.filter(|_| queues > 1 && port.reta_delay().is_some());
    let buffers = match server {
        Some(_) => buffers.max(server::BUFFERS),
        None => buffers,
    };
    let buffers = buffers + kept.as_ref().map_or(0, KeptRun::buffers);
    let pools = port.open(&Need {
        workers: queues,
        helpers: auxiliary.len() as u16,
        buffers,
        rss_key: *rss.key(),
    })?;
    let attached = port.attached();
    if let (Some(isolation), Some(pool)) = (&mut isolation, pools.first()) {
        isolation.attach(0, &builder, pool.memory().buffer_bytes())?;
        let chain = |queue| isolation.chain(0, &mut builder, queue, owns(queue));
        chains.extend((0..queues).map(chain));
        // What comes from external functions is in buffers of their own.
        let pool = attached.as_ref().map_or(pool, |attached| &attached.pool);
        for (builder, part) in behind.iter_mut().zip(1..) {
            isolation.attach(part, builder, pool.memory().buffer_bytes())?;
            chains_behind.push(isolation.chain(part, builder, 0, |_| true));
        }
    }
    let workers = chains.len() + auxiliary.len();
    let (capture, mut taps) = match &config.capture_out {
        Some(path) => {
            let (file, taps) = CaptureFile::create(path, workers)?;
            (Some(file), taps)
        }
        None => (None, Vec::new()),
    };
    taps.reverse();
    let most = mappers.iter().map(|mapper| mapper.batch()).min();
    let batch = usize::from(spec.packets.batch).min(most.unwrap_or(usize::MAX));
    if let Some((function, _)) = spec.externals().next()
        && attached.is_none()
    {
        return Err(RunError::External {
            function: function.to_owned(),
            problem: "this run has no ports for it",
        });
    }
    let reasons = match (&attached, &chains[..]) {
        (Some(_), [chain]) => Parts::reasons(spec, std::iter::once(chain).chain(&chains_behind)),
        _ => chains.first().map(Chain::reasons).unwrap_or_default(),
    };
    let (mut senders, receiver) = windows(workers, reasons.len());
    let helper_senders = senders.split_off(chains.len());
    let mut books: Vec<Book> = (0..workers).filter_map(|_| Some(notes?.book())).collect();
    let start = clock.now() + LEAD;
    let worker_config = WorkerConfig {
        slo: spec.slo.budget(),
        window: config.window,
        start,
        batch,
    };
    let mut collector = Collector::new(
        (spec.slo.budget(), spec.slo.percentile),
        config.window,
        workers,
    );
    let scaling = config.scaling.as_ref();
    let (dispatches, helpers) = scaling::connect(scaling, mappers, &pools, &chains);
    let mut dispatches = dispatches.into_iter();
    // Loads are averages over the epochs of core mappers, which last half the objective; but the server
    // mapper is not to wait for a long one.
    let epoch = Nanos(spec.slo.budget().0 / 2).min(server::LONGEST_EPOCH);
    let times = [epoch, port.reta_delay().unwrap_or(Nanos::ZERO)];
    let connected =
        server.map(|config| server::connect(config, &reta, &pools, times, clock.clone()));
    let (server, buckets) = connected.unzip();
    let store = kept.as_ref().map(KeptRun::health);
    let server = server.map(|server| server.keeping(store));
    let buckets: Vec<Buckets> = buckets.unwrap_or_default();
    let kept_back = buckets.first().map(Buckets::kept);
    let mut buckets = buckets.into_iter();
    let mut auxiliaries = Vec::new();
    for ((helper, core), sender) in helpers.into_iter().zip(auxiliary).zip(helper_senders) {
        let mut queue = port.sender();
        if let Some(tap) = taps.pop() {
            queue.capture(tap);
        }
        // SAFETY: parcels come from `Dispatch` only, which hands a flow's packets to one place at a
        // time, after its last packets have come back through a ring from where it was before, and
        // meanwhile runs none of them itself through the segments from which they go on there
        // (`Backlog`, `Owner`). It activates every flow.
        let chain = unsafe { builder.helper_instance() };
        let clock = clock.clone();
        let mut worker = AuxiliaryWorker::new(helper, chain, queue, clock, &worker_config, sender);
        if let Some(book) = books.pop() {
            worker.note(book, start);
        }
        if let Some(kept_back) = &kept_back {
            worker.know(Arc::clone(kept_back));
        }
        auxiliaries.push((*core, worker));
    }
    let goes_back = port.goes_back();
    let mut attached = attached.map(|attached| (attached, chains_behind));
    let parts = port
        .queues(start)
        .into_iter()
        .zip(chains)
        .zip(pools)
        .zip(senders);
    let mut workers = Vec::new();
    // Those of workers that never start end with them.
    let mut servers = Vec::new();
    let cores = &config.cores;
    for (i, (((mut queue, chain), pool), sender)) in parts.enumerate() {
        if let Some(tap) = taps.pop() {
            queue.capture(tap);
        }
        let (clock, worker_config) = (clock.clone(), worker_config.clone());
        if let Some((attached, behind)) = attached.take() {
            let chains = std::iter::once(chain).chain(behind).collect();
            let parts = Parts::new(spec, chains, attached, config.seed);
            let (config, back) = (worker_config, goes_back);
            let worker = ExternalWorker::new(queue, parts, back, pool, clock, config, sender);
            let worker = AnyWorker::External(Box::new(worker));
            workers.push((cores[i], worker));
            continue;
        }
        let worker = Worker::new(queue, chain, pool, clock, worker_config, sender);
        let worker = worker.napping(port.naps());
        let worker = match dispatches.next() {
            Some(dispatch) => worker.dispatching(dispatch),
            None => worker,
        };
        let worker = match buckets.next() {
            Some(buckets) => worker.moving(buckets),
            None => worker,
        };
        let worker = match books.pop() {
            Some(book) => worker.noting(book),
            None => worker,
        };
        let worker = match &mut kept {
            Some(kept) => {
                let (keeper, serve) = kept.connect();
                let thread = std::thread::Builder::new().name(format!("state-{i}"));
                servers.push(thread.spawn(serve).map_err(RunError::Thread)?);
                worker.keeping(keeper)
            }
            None => worker,
        };
        workers.push((cores[i], AnyWorker::Ordinary(Box::new(worker))));
    }
    // Set when a worker cannot start, so that those that did end.
    let failed = AtomicBool::new(false);
    let builders = || std::iter::once(&builder).chain(&behind);
    let watch = match Reconfigure::of(builders()) {
        Some(reconfigure) if isolation.is_none() => Watch::new(reconfigure),
        _ => Watch::new(Fixed::of(spec, isolation.is_some())),
    };
    let told = News::default();
    // Set when all workers have ended.
    let over = AtomicBool::new(false);
    let finished: Result<_, RunError> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut error = None;
        for (core, worker) in workers {
            let (failed, stop) = (&failed, Both(stop, &failed));
            let isolated = isolation.is_some();
            let name = format!("worker-{core}");
            let thread = std::thread::Builder::new().name(name.clone()).spawn_scoped(
                scope,
                move || -> Result<Finished, CoreError> {
                    pin_to(core).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                    // As that of the processes with which it takes turns.
                    let _priority = isolated.then(|| Priority::fifo_or_ordinary(PRIORITY));
                    Ok(match worker {
                        AnyWorker::Ordinary(worker) => {
                            worker.run_among_others(|| stop.is_set(), failed)
                        }
                        AnyWorker::External(worker) => worker.run(|| stop.is_set(), failed),
                    })
                },
            );
            match thread {
                Ok(thread) => threads.push((name, thread)),
                Err(source) => {
                    failed.store(true, Ordering::Relaxed);
                    error = Some(RunError::Thread(source));
                    break;
                }
            }
        }
        for (core, worker) in auxiliaries {
            let failed = &failed;
            let name = format!("helper-{core}");
            let thread = std::thread::Builder::new().name(name.clone()).spawn_scoped(
                scope,
                move || -> Result<Finished, CoreError> {
                    pin_to(core).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                    // It sleeps when it has nothing to do; when it has, it goes before others.
                    let (_priority, _refused) = Priority::fifo_or_ordinary(HELPER_PRIORITY);
                    Ok(worker.run(failed))
                },
            );
            match thread {
                Ok(thread) => threads.push((name, thread)),
                Err(source) => {
                    failed.store(true, Ordering::Relaxed);
                    error = Some(RunError::Thread(source));
                    break;
                }
            }
        }
        let server = server.and_then(|server| {
            let (nic, over, failed) = (&*port, &over, &failed);
            let thread = std::thread::Builder::new()
                .name(SERVER_MAPPER.to_owned())
                .spawn_scoped(scope, move || {
                    survive(|| server.run(nic, start, over))
                        .inspect_err(|_| failed.store(true, Ordering::Relaxed))
                });
            thread
                .inspect_err(|_| failed.store(true, Ordering::Relaxed))
                .map_err(|source| error = Some(RunError::Thread(source)))
                .ok()
        });
        let (told, ended, broken) = (&told, &over, &failed);
        let watch = std::thread::Builder::new()
            .name(WATCH.to_owned())
            .spawn_scoped(scope, move || {
                survive(|| watch.run(told, ended))
                    .inspect_err(|_| broken.store(true, Ordering::Relaxed))
            });
        let watch = watch
            .inspect_err(|_| failed.store(true, Ordering::Relaxed))
            .map_err(|source| error = Some(RunError::Thread(source)))
            .ok();
        while receiver
            .receive(PROGRESS, |window| collector.add(window))
            .is_ok()
        {
            let mut news =
                std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
            port.tend(&mut |line| news.push(line));
            let elapsed = clock.now().saturating_sub(start);
            progress(&Progress {
                news,
                state: kept.as_ref().map(KeptRun::snapshot),
                ..snapshot(&collector, &reasons, (elapsed, duration), config)
            });
        }
        over.store(true, Ordering::Relaxed);
        let watched = watch.map_or(Ok(()), |thread| {
            thread.thread().unpark();
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let decisions = server.map_or(Ok([0; 2]), |thread| {
            thread.thread().unpark();
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let workers = threads.into_iter().map(|(name, thread)| {
            let finished = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((name, finished?))
        });
        let workers: Result<Vec<(String, Finished)>, RunError> = workers.collect();
        error
            .map_or(workers, Err)
            .map(|workers| (workers, decisions, watched))
    });
    let (finished, decisions, watched) = finished?;
    let mut deaths = Vec::new();
    deaths.extend(watched.err().map(|message| (WATCH.to_owned(), message)));
    let decisions = decisions.unwrap_or_else(|message| {
        deaths.push((SERVER_MAPPER.to_owned(), message));
        [0; 2]
    });
    let mut keepers = Vec::new();
    let mut externals = Vec::new();
    let chains = finished.into_iter().flat_map(|(thread, finished)| {
        let Finished {
            mut chains,
            externals: of_worker,
            buckets,
            died,
            kept,
        } = finished;
        keepers.extend(kept);
        if let (Some(buckets), [chain]) = (buckets, &mut chains[..]) {
            buckets.finish(chain);
        }
        externals.extend(of_worker);
        deaths.extend(died.map(|message| (thread, message)));
        chains
    });
    let chains: Vec<Chain> = chains.collect();
    for server in servers {
        if server.join().is_err() {
            deaths.push((STATE.to_owned(), "it panicked".to_owned()));
        }
    }
    let state = kept.map(|kept| kept.report(keepers));
    let elapsed = clock.now().saturating_sub(start);
    let recorded = capture.map(CaptureFile::finish).transpose();
    let memory = builders()
        .map(ChainBuilder::flow_memory_bytes)
        .sum::<usize>();
    let flows = flow_report(&chains, memory as u64);
    // Ends all flows: after they have been counted.
    let mut last_counts = vec![0; reasons.len()];
    // Instances of the whole chain count the same reasons, parts of it one after another.
    let mut before = Vec::new();
    for chain in chains {
        let own = before.len() + chain.reasons().len();
        // A function of a worker that died may do so again: it goes without its last words.
        match survive(|| chain.finish()) {
            Ok(counts) => add_reasons(&mut last_counts, &[&before[..], &counts].concat()),
            Err(message) => deaths.push((ENDS.to_owned(), message)),
        }
        if !externals.is_empty() {
            before.resize(own + Station::REASONS, 0);
        }
    }
    let isolation = isolation.map(Isolated::finish);
    // All of them, also after an error: no thread stays behind.
    let exported: Vec<_> = builders().map(ChainBuilder::finish_exports).collect();
    let exported: Result<Vec<_>, _> = exported.into_iter().collect();
    let recorded = recorded.and(exported.map(|_| ()).map_err(not_exported));
    let interrupted = stop.load(Ordering::Relaxed);
    let mut packets = collector.packets(&reasons, config.not_matched);
    let named = reasons.iter().map(|reason| &reason.name);
    for (name, count) in named.zip(last_counts).filter(|(_, count)| *count > 0) {
        *packets.reasons.entry(name.clone()).or_default() += count;
    }
    let sent = collector.total.last_sent.saturating_sub(start);
    let lasted = if sent > Nanos::ZERO { sent } else { elapsed };
    let seconds = lasted.as_secs_f64();
    let per_second = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    let cores = core_report(&collector, queues, seconds);
    let report = RunReport {
        chain: spec.name.clone(),
        traffic,
        slo: SloReport {
            latency_us: spec.slo.budget().as_micros_f64(),
            network_us: spec.slo.network.as_micros_f64(),
            percentile: spec.slo.percentile,
        },
        slo_met: collector.slo_met(),
        latency_us: collector.latency(),
        latency_distribution: collector.distribution(),
        loss_rate: packets.lost as f64 / packets.offered.max(1) as f64,
        throughput_mpps: per_second(packets.delivered) / 1e6,
        throughput_gbps: per_second(collector.total.delivered_bytes) * 8.0 / 1e9,
        duration_s: seconds,
        cores,
        late_by_cause: collector.late_by_cause(),
        scaling: config.scaling.as_ref().map(|_| collector.total.scaling),
        wake_us: config
            .scaling
            .as_ref()
            .map(|_| LatencyReport::of(&collector.total.wakes)),
        server: config
            .server
            .as_ref()
            .map(|_| server_report(decisions, &collector.total.buckets)),
        flows,
        state,
        isolation,
        windows: collector.windows(),
        timeline: collector.timeline(&reasons, lasted),
        arrivals: collector.arrivals(),
        interrupted,
        ports: port.report(),
        externals,
        packets,
    };
    if let Some((thread, message)) = deaths.into_iter().next() {
        return Err(RunError::Died {
            thread,
            message,
            report: Box::new(report),
        });
    }
    match recorded {
        Ok(_) => Ok(report),
        Err(source) => Err(RunError::Recording {
            source,
            report: Box::new(report),
        }),
    }
}

/// Refuses external functions where one core does not do it all: each would need queues of its own to each
/// function, and a function spreads what it gives back as it likes.
fn check_external(spec: &ChainSpec, config: &RunConfig) -> Result<(), RunError> {
    let Some((function, _)) = spec.externals().next() else {
        return Ok(());
    };
    let problem = if config.cores.len() > 1 {
        "it runs on one core; name one with --cores"
    } else if config.scaling.is_some() {
        "its packets cannot be handed to auxiliary cores; leave --auxiliary out"
    } else if spec.state.is_some() {
        "what flows are behind it is not known, so that their state cannot be kept; leave spec.state out"
    } else {
        return Ok(());
    };
    Err(RunError::External {
        function: function.to_owned(),
        problem,
    })
}

/// A worker, with or without external functions.
enum AnyWorker {
    Ordinary(Box<Worker>),
    External(Box<ExternalWorker>),
}

/// Cores in use in a run of `seconds`.
fn core_report(collector: &Collector, queues: u16, seconds: f64) -> CoreReport {
    let average = |time: Nanos| match seconds > 0.0 {
        true => time.as_secs_f64() / seconds,
        false => 0.0,
    };
    let dedicated = f64::from(queues);
    // Workers may have rested for longer than packets came.
    let dedicated_avg = (dedicated - average(collector.total.rested)).max(0.0);
    let auxiliary_avg = average(collector.total.auxiliary);
    CoreReport {
        dedicated: u64::from(queues),
        dedicated_avg,
        auxiliary_avg,
        avg: dedicated_avg + auxiliary_avg,
    }
}

fn server_report([decisions, moves]: [u64; 2], buckets: &BucketCounters) -> ServerReport {
    ServerReport {
        decisions,
        moves,
        buckets_moved: buckets.moved,
        packets_kept_back: buckets.kept_back,
        longest_move_us: buckets.longest_move.as_micros_f64(),
    }
}

fn not_exported(error: ExportError) -> TrafficError {
    let (file, source) = match error {
        ExportError::Write { file, source } => (file, source),
        ExportError::Copies { to, source } => (to, source),
        ExportError::Lost { ref file, .. } | ExportError::Undelivered { ref file, .. } => {
            (file.clone(), io::Error::other(error.to_string()))
        }
    };
    let file = file.display().to_string();
    TrafficError::Write { file, source }
}

/// Either of two flags.
#[derive(Clone, Copy)]
struct Both<'a>(&'a AtomicBool, &'a AtomicBool);

impl Both<'_> {
    #[inline]
    fn is_set(self) -> bool {
        self.0.load(Ordering::Relaxed) || self.1.load(Ordering::Relaxed)
    }
}

fn snapshot(
    collector: &Collector,
    reasons: &[Reason],
    (elapsed, duration): (Nanos, Option<Nanos>),
    config: &RunConfig,
) -> Progress {
    let queues = config.cores.len() as u16;
    Progress {
        elapsed,
        duration: duration.filter(|duration| *duration != Nanos::MAX),
        news: Vec::new(),
        state: None,
        packets: collector.packets(reasons, config.not_matched),
        p99: collector.total.latency.percentile(99.0),
        p50: collector.total.latency.percentile(50.0),
        late_by_cause: collector.late_by_cause(),
        latency: collector.total.latency.clone(),
        gaps: collector.total.gaps,
        cores: core_report(collector, queues, elapsed.as_secs_f64()),
        buckets: collector.total.buckets,
    }
}

fn flow_report(chains: &[Chain], memory_bytes: u64) -> Option<FlowReport> {
    let counters: Vec<FlowCounters> = chains.iter().filter_map(Chain::flow_counters).collect();
    let sum = |count: fn(&FlowCounters) -> u64| counters.iter().map(count).sum();
    (!counters.is_empty()).then(|| FlowReport {
        active: chains.iter().map(|chain| chain.flows() as u64).sum(),
        opened: sum(|c| c.opened),
        expired: sum(|c| c.expired),
        evicted: sum(|c| c.evicted),
        refused: sum(|c| c.refused),
        memory_bytes,
    })
}
