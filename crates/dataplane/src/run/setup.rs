//! Set-up of a run: all steps that can fail before the first packet, and all memory allocation.

use super::chains::{ChainFactory, Instances};
use super::control::ReconfigureCell;
use super::run_recorder::RunRecorder;
use super::threads::{AnyWorker, OnHost, WorkerThreads};
use crate::batches::{BatchRecord, BatchRecorder};
use crate::capture::{CaptureFile, CaptureTap};
use crate::clock::Clock;
use crate::durable::{DurableRun, origin};
use crate::external::own_buckets::OwnBuckets;
use crate::external::parts::Parts;
use crate::external::worker::ExternalWorker;
use crate::kept_packets::{KeptFiles, Names, PacketKeeper};
use crate::late::LateCounters;
use crate::port::{Port, PortRequirements, PortSender, round_robin};
use crate::reload_watcher::{NotReloadable, ReloadWatcher};
use crate::report::ReloadReport;
use crate::report::collector::Collector;
use crate::run::error::RunError;
use crate::run::plan::RunConfig;
use crate::scaling::auxiliary::{AuxiliaryEnds, AuxiliaryWorker};
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use crate::scaling::helping::HelpingEnds;
use crate::scaling::spans::BufferedSpans;
use crate::scaling::{self, Connected, MOST_BUFFERS, server};
use crate::telemetry::{WindowSender, windows};
use crate::worker::Worker;
use crate::worker::config::WorkerConfig;
use std::sync::Arc;
use std::thread::JoinHandle;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, ReadClock};
use tailwater_chain::packet_traces::{PacketTraces, TracePlace, TracedFunction};
use tailwater_functions::reload::Reload;
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::WorkerCore;
use tailwater_net::Nanos;
use tailwater_policy::core::Unit;
use tailwater_policy::turns::TurnShare;
use tailwater_state::keeper::Keeper;

/// Time between the workers' start and the first packet, in which threads are pinned.
const LEAD: Nanos = Nanos::from_millis(10);

/// Prepares the port, the chain, the threads, and the recorder.
pub(super) fn set_up<'r>(
    spec: &'r ChainSpec,
    (port, clock): (&mut dyn Port, Clock),
    (config, on_host): (&'r RunConfig, Option<&OnHost<'_>>),
    notes: Option<&'r BatchRecorder>,
    (reconfigured, traces): (Option<&ReconfigureCell>, Arc<PacketTraces>),
) -> Result<(WorkerThreads, RunRecorder<'r>), RunError> {
    let queues = config.cores.len() as u16;
    let reta = round_robin(queues);
    let (mappers, cuts) = scaling::mappers(config.scaling.as_ref(), queues);
    if spec.state.is_some() && mappers.first().is_some_and(|mapper| mapper.unit() == Unit::Flow) {
        return Err(RunError::STATE_BY_FLOW);
    }
    let origin = origin(clock.now());
    let succession = on_host.and_then(|on_host| on_host.succession.as_ref());
    let kept_functions = succession.map_or(&[][..], |succession| &succession.kept);
    let worker_cores = worker_cores(config, on_host);
    let mut factory = ChainFactory::new(spec, (config, &worker_cores), cuts, origin, kept_functions)?;
    let server = config.server.as_ref();
    let server = server.filter(|_| queues > 1 && port.reta_delay().is_some());
    let auxiliary = config.scaling.as_ref();
    let auxiliary = auxiliary.map_or(&[][..], |scaling| &scaling.auxiliary);
    let pools = port.open(&PortRequirements {
        workers: queues,
        auxiliary: auxiliary.len() as u16,
        buffers: buffers(config, server.is_some(), waiting(spec, &factory)),
        rss_key: *spec.rss().key(),
    })?;
    let attached = port.attached();
    let external = spec.externals().next();
    if let Some((function, _)) = external
        && attached.len() != usize::from(queues)
    {
        return Err(RunError::External {
            function: function.to_owned(),
            problem: match attached.is_empty() {
                true => "it requires ports, this run has none",
                false => "it requires ports for each core",
            },
        });
    }
    let Instances { mut chains, mut behind } = factory.instances(&reta, &pools, &attached)?;
    // A chain whose place this one takes cannot use the store from now on: little can fail after that.
    let mut durable = DurableRun::open(spec, factory.durable_functions(), origin)?;
    let reasons = match external {
        Some(_) => Parts::reasons(
            spec,
            chains.first().into_iter().chain(behind.first().into_iter().flatten()),
        ),
        None => chains.first().map(Chain::reasons).unwrap_or_default(),
    };
    let most = mappers.iter().map(|mapper| mapper.batch()).min();
    let batch = usize::from(spec.packets.batch).min(most.unwrap_or(usize::MAX));
    let workers = chains.len() + auxiliary.len();
    let (capture, taps) = match &config.capture_out {
        Some(path) => {
            let (file, taps) = CaptureFile::create(path, workers)?;
            (Some(file), taps)
        }
        None => (None, Vec::new()),
    };
    let of_first = chains.first().into_iter().chain(behind.first().into_iter().flatten());
    let functions: Vec<TracedFunction> = of_first.flat_map(Chain::traced_functions).collect();
    traces.set_functions(functions.clone());
    let kept = config.keep_packets.as_ref().map(|kept| {
        let named = functions.iter().cloned();
        let names = Names {
            chain: spec.name.clone(),
            functions: named.map(|function| (function.name, function.reasons)).collect(),
            reasons: reasons.clone(),
            slo: spec.slo.budget(),
            origin,
        };
        KeptFiles::create(kept, names)
    });
    let kept = kept.transpose()?;
    if let Some(kept) = &kept {
        port.keep_lost(&|worker| kept.ring_keeper(config.cores.get(worker).map_or(0, |core| *core as u32)));
    }
    let functions: Vec<String> = functions.into_iter().map(|function| function.name).collect();
    let (mut senders, windows) = windows(workers, [reasons.len(), functions.len()]);
    let auxiliary_senders = senders.split_off(chains.len());
    let start = clock.now() + LEAD;
    let timed_from = notes.and_then(BatchRecorder::timed_from);
    let no_parts = || Vec::new();
    behind.resize_with(chains.len(), no_parts);
    for ((first, others), core) in chains.iter_mut().zip(&mut behind).zip(&config.cores) {
        let mut functions = 0;
        for chain in [first].into_iter().chain(others) {
            match timed_from {
                Some(from) => chain.time_functions(reading(&clock), start + from),
                None => {
                    let place = TracePlace {
                        core: *core as u32,
                        first: functions,
                        is_auxiliary: false,
                    };
                    chain.sample_functions(reading(&clock), Arc::clone(&traces), place);
                }
            }
            functions += chain.function_names().count() as u16;
        }
    }
    let Connected {
        dispatches,
        helping,
        auxiliary: ends,
    } = scaling::connect(
        config.scaling.as_ref(),
        mappers,
        &pools,
        &chains,
        shared(on_host, port, pools.len()).as_ref(),
    );
    // Loads are averages over the epochs of core mappers, which last half the objective. A long epoch must not delay
    // the server mapper, though.
    let epoch = Nanos(spec.slo.budget().0 / 2).min(server::LONGEST_EPOCH);
    let times = [epoch, port.reta_delay().unwrap_or(Nanos::ZERO)];
    let late = LateCounters::default();
    let connected = server.map(|config| server::connect(config, &reta, &pools, times, clock.clone(), late.clone()));
    let (server, buckets) = connected.unzip();
    let store = durable.as_ref().map(DurableRun::health);
    let mut worker_factory = WorkerFactory {
        config: WorkerConfig {
            slo: spec.slo.budget(),
            when_overloaded: spec.when_overloaded,
            window: config.window,
            start,
            batch,
            late,
        },
        clock: clock.clone(),
        taps,
        keepers: kept.as_ref().map_or_else(Vec::new, |kept| {
            let cores = config.cores.iter().chain(auxiliary);
            cores.map(|core| kept.keeper(*core as u32)).collect()
        }),
        batch_records: (0..workers).filter_map(|_| Some(notes?.book())).collect(),
    };
    let buckets: Vec<Buckets> = buckets.unwrap_or_default();
    let buffered_spans = buckets.first().map(Buckets::spans);
    let ends = ends.into_iter().zip(auxiliary_senders);
    let mut stores = Vec::new();
    let auxiliary_workers = worker_factory.auxiliary_workers(
        port,
        (&factory, durable.as_mut(), &mut stores),
        ends,
        (buffered_spans, &traces),
        auxiliary,
    )?;
    let workers = match external {
        Some(_) => {
            let of_workers = chains.into_iter().zip(behind).zip(attached).zip(0..);
            let parts = of_workers.map(|(((front, behind), attached), worker)| {
                let chains = [front].into_iter().chain(behind).collect();
                let buckets = OwnBuckets::new(&reta, worker);
                Parts::new(spec, chains, attached, (config.seed, buckets))
            });
            let equipment = parts.zip(pools).zip(senders);
            worker_factory.external_workers(port, equipment)
        }
        None => {
            let kinds = ((dispatches, helping), buckets, durable.as_mut());
            let equipment = chains.into_iter().zip(pools).zip(senders);
            worker_factory.workers(port, equipment, kinds, (&config.cores[..], &mut stores))?
        }
    };
    let isolated = factory.isolated();
    let reconfigure = factory.reconfigure().filter(|_| !isolated).map(Arc::new);
    if let (Some(cell), Some(reconfigure)) = (reconfigured, &reconfigure) {
        // Each run has a cell of its own.
        let _ = cell.set(Arc::clone(reconfigure));
    }
    let watch = match reconfigure {
        Some(reconfigure) if !reconfigure.files().is_empty() => ReloadWatcher::new(reconfigure, spec.source.began()),
        _ => ReloadWatcher::new(NotReloadable::of(spec, isolated), None),
    };
    let threads = WorkerThreads {
        workers: config.cores.iter().copied().zip(workers).collect(),
        auxiliary: auxiliary.iter().copied().zip(auxiliary_workers).collect(),
        server: server.map(|server| server.with_store(store)),
        reload_watcher: watch,
        isolated,
        limits_workers: config
            .isolation
            .as_ref()
            .is_some_and(|isolation| isolation.limits_server),
    };
    let slo = (spec.slo.budget(), spec.slo.percentile);
    let recorder = RunRecorder {
        spec,
        config,
        clock,
        start,
        began: origin + start,
        traffic: port.traffic().to_owned(),
        duration: port.duration(),
        reasons,
        functions,
        windows,
        collector: Collector::new(slo, config.window, threads.workers.len() + auxiliary.len()),
        reloads: ReloadReport::default(),
        capture,
        kept,
        durable,
        stores,
        factory,
        notes,
        succession: on_host.and_then(|on_host| on_host.succession.clone()),
        heir: on_host.map(|on_host| Arc::clone(&on_host.ends.heir)),
        shares_core: on_host.is_some(),
    };
    Ok((threads, recorder))
}

fn reading(clock: &Clock) -> ReadClock {
    let clock = clock.clone();
    Box::new(move || clock.now())
}

/// Cores of the workers, dedicated ones first, for functions that take turns with them.
fn worker_cores(config: &RunConfig, on_host: Option<&OnHost<'_>>) -> Vec<WorkerCore> {
    let auxiliary = config.scaling.as_ref().map_or(&[][..], |scaling| &scaling.auxiliary);
    let cores = config.cores.iter().map(|core| (*core, false));
    let cores = cores.chain(auxiliary.iter().map(|core| (*core, true)));
    let core = |(number, is_auxiliary)| WorkerCore {
        number,
        shared: on_host.and_then(|on_host| on_host.shared_core(number)),
        is_auxiliary,
    };
    cores.map(core).collect()
}

/// Auxiliary cores that the run shares with other chains, if it is on a host that has some.
fn shared(on_host: Option<&OnHost<'_>>, port: &dyn Port, dispatchers: usize) -> Option<scaling::Shared> {
    let pool = on_host?.host.auxiliary()?;
    let TurnShare { objective, weight } = on_host?.share;
    let borrower = |_| Arc::new(pool.borrower(objective, weight));
    Some(scaling::Shared {
        borrowers: (0..dispatchers).map(borrower).collect(),
        store: port.packet_store()?,
    })
}

/// Buffers that a worker may hold at a time: two batches, and packets offloaded, buffered or waiting for the store.
fn buffers(config: &RunConfig, buckets_move: bool, waiting: u32) -> u32 {
    let batches = 2 * MAX_BATCH as u32;
    let scaling = config.scaling.as_ref();
    let handed = scaling.map_or(batches, |it| it.buffers.clamp(batches, MOST_BUFFERS));
    let moving = if buckets_move { server::BUFFERS } else { 0 };
    handed.max(moving) + waiting
}

/// Packets of a worker that wait for the store.
fn waiting(spec: &ChainSpec, factory: &ChainFactory) -> u32 {
    let state = spec.state.as_ref().filter(|_| factory.durable_functions().is_some());
    state.map_or(0, |state| state.packets)
}

/// Threads that talk to the external store.
type StoreThreads = Vec<JoinHandle<()>>;

/// Creates a keeper, and starts its thread for the store, with this name.
fn connect(durable: &mut DurableRun, name: String, stores: &mut StoreThreads) -> Result<Keeper, RunError> {
    let (keeper, serve) = durable.connect();
    let thread = std::thread::Builder::new().name(name);
    stores.push(thread.spawn(serve).map_err(RunError::Thread)?);
    Ok(keeper)
}

/// Dispatchers of the workers, and their helping sides.
type Dispatching = (Vec<Dispatch>, Vec<HelpingEnds>);

/// Equipment of all workers and auxiliary cores.
struct WorkerFactory {
    config: WorkerConfig,
    clock: Clock,
    /// Taps to record sent packets, if requested.
    taps: Vec<CaptureTap>,
    /// Keepers of late, lost and dropped packets, if requested: each core's own.
    keepers: Vec<PacketKeeper>,
    /// Batch records, if requested.
    batch_records: Vec<BatchRecord>,
}

impl WorkerFactory {
    /// Keeper of a core's packets, once.
    fn keeper_of(&mut self, core: u32) -> Option<PacketKeeper> {
        let at = self.keepers.iter().position(|keeper| keeper.core() == core)?;
        Some(self.keepers.swap_remove(at))
    }

    fn tapped<S: PortSender + ?Sized>(&mut self, mut sender: Box<S>) -> Box<S> {
        if let Some(tap) = self.taps.pop() {
            sender.capture(tap);
        }
        sender
    }

    fn auxiliary_workers(
        &mut self,
        port: &mut dyn Port,
        (makers, mut durable, stores): (&ChainFactory, Option<&mut DurableRun>, &mut StoreThreads),
        ends: impl Iterator<Item = (AuxiliaryEnds, WindowSender)>,
        (buffered_spans, traces): (Option<Arc<BufferedSpans>>, &Arc<PacketTraces>),
        auxiliary: &[usize],
    ) -> Result<Vec<AuxiliaryWorker>, RunError> {
        let mut auxiliary = auxiliary.iter().copied().enumerate();
        let worker = |(ends, telemetry): (AuxiliaryEnds, _)| {
            let (index, core) = auxiliary.next().unwrap_or_default();
            let sender = self.tapped(port.sender());
            // SAFETY: parcels come only from `Dispatch`, which sends a flow's packets to one core at a time. The flow's
            // last packets have returned through a ring from the previous core before. Meanwhile `Dispatch` runs none
            // of them itself through the segments that the other core runs (`tailwater_dispatch::Backlog`, whose flows
            // each have an `Owner`). It activates every flow. If it offloads buckets, the same holds for them, and it
            // lends a bucket before it sends a packet of it that was not looked up.
            let mut chain = unsafe { makers.auxiliary_instance(index, ends.unit == Unit::Bucket) };
            let place = TracePlace {
                core: core as u32,
                first: 0,
                is_auxiliary: true,
            };
            chain.sample_functions(reading(&self.clock), Arc::clone(traces), place);
            let (clock, config, dispatchers) = (self.clock.clone(), &self.config, ends.links.len());
            let mut worker = AuxiliaryWorker::new(ends, chain, sender, clock, config, telemetry);
            if let Some(record) = self.batch_records.pop() {
                worker.note(record);
            }
            if let Some(keeper) = self.keeper_of(core as u32) {
                worker.keep_packets(keeper);
            }
            if let Some(buffered_spans) = &buffered_spans {
                worker.set_buffered_spans(Arc::clone(buffered_spans));
            }
            if let Some(durable) = &mut durable {
                let name = |dispatcher| format!("state-h{index}-{dispatcher}");
                let keepers = (0..dispatchers).map(|number| connect(durable, name(number), stores));
                worker.set_keepers(keepers.collect::<Result<_, _>>()?);
            }
            Ok(worker)
        };
        ends.map(worker).collect()
    }

    /// Workers of a run with external functions, each with its parts of the chain and the pool of returned packets.
    fn external_workers(
        &mut self,
        port: &mut dyn Port,
        equipment: impl Iterator<Item = (((Parts, BufferPool), BufferPool), WindowSender)>,
    ) -> Vec<AnyWorker> {
        let back = port.goes_back();
        let queues = port.queues(self.config.start).into_iter();
        let worker = |(queue, ((parts, pool), telemetry))| {
            let (clock, config) = (self.clock.clone(), self.config.clone());
            let queue = self.tapped(queue);
            let worker = ExternalWorker::new(queue, parts, back, pool, clock, config, telemetry);
            AnyWorker::External(Box::new(worker))
        };
        queues.zip(equipment).map(worker).collect()
    }

    /// Workers, with offloading, migration of RSS buckets, or external flow state, as the run requires. Adds their
    /// threads for the store to `stores`.
    fn workers(
        &mut self,
        port: &mut dyn Port,
        equipment: impl Iterator<Item = ((Chain, BufferPool), WindowSender)>,
        ((dispatches, helping), buckets, mut kept): (Dispatching, Vec<Buckets>, Option<&mut DurableRun>),
        (cores, stores): (&[usize], &mut StoreThreads),
    ) -> Result<Vec<AnyWorker>, RunError> {
        let (mut dispatches, mut buckets) = (dispatches.into_iter(), buckets.into_iter());
        let mut helping = helping.into_iter();
        let mut cores = cores.iter();
        let queues = port.queues(self.config.start).into_iter();
        let worker = |(i, (queue, ((chain, pool), telemetry)))| {
            let (clock, config) = (self.clock.clone(), self.config.clone());
            let queue = self.tapped(queue);
            let worker = Worker::new(queue, chain, pool, clock, config, telemetry);
            let worker = worker.napping(port.naps());
            let worker = with(worker, dispatches.next(), Worker::dispatching);
            // SAFETY: as for auxiliary cores. All parcels come from other workers' `Dispatch`, which sends a bucket's
            // packets to one core at a time, and lends the bucket before.
            let worker = with(worker, helping.next(), |worker, ends| unsafe { worker.helping(ends) });
            let worker = with(worker, buckets.next(), Worker::moving);
            let worker = with(worker, self.batch_records.pop(), Worker::noting);
            let keeper = cores.next().and_then(|core| self.keeper_of(*core as u32));
            let worker = with(worker, keeper, Worker::keeping);
            let kept = kept.as_deref_mut();
            let keeper = kept
                .map(|kept| connect(kept, format!("state-{i}"), stores))
                .transpose()?;
            let worker = with(worker, keeper, Worker::with_keeper);
            Ok(AnyWorker::Ordinary(Box::new(worker)))
        };
        let equipped = queues.zip(equipment).enumerate();
        equipped.map(worker).collect()
    }
}

/// Applies `fit` to the worker, if there is a piece.
fn with<T>(worker: Worker, piece: Option<T>, fit: impl FnOnce(Worker, T) -> Worker) -> Worker {
    match piece {
        Some(piece) => fit(worker, piece),
        None => worker,
    }
}
