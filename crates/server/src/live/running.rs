//! A chain that runs, and the thread that watches it.

use super::classes::RecentClasses;
use super::details;
use super::ended::CarriedCounts;
use super::figures::{ChainFigures, Latest};
use super::news::is_of_state;
use super::unattributed::{UnattributedLosses, verdict_with_losses};
use crate::details::TracedChain;
use crate::machine::{
    ChainLoad, ChainObservation, ChainState, CoreUse, LatencyObservation, MissedShares, PacketCounts, PacketRates,
    Refusal, WindowWork,
};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_api::Slo;
use tailwater_chain::chain::Chain;
use tailwater_chain::packet_traces::PacketTraces;
use tailwater_dataplane::core_host::CoreHost;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::{LastWindow, Progress, ReconfigureCell};
use tailwater_dataplane::shared_port::{ChainPort, SharedPort, Withdrawal};
use tailwater_dataplane::{RunControl, RunError, RunPlan, run_hosted};
use tailwater_functions::build::{KeptFunction, Reconfigure};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::server::ServerCounters;
use tailwater_policy::turns::TurnShare;

/// Longest time in which a chain's functions are built.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// End of a run.
#[derive(Clone, Debug)]
pub(super) struct RunEnd {
    /// Report, unless the run did not begin.
    pub(super) report: Option<Box<RunReport>>,
    /// Reason for which it failed, if it did.
    pub(super) failure: Option<String>,
}

/// Chain that runs.
pub(super) struct RunningChain {
    name: String,
    port: String,
    plan: Arc<RunPlan>,
    stop: Arc<AtomicBool>,
    withdrawal: Withdrawal,
    latest: Latest,
    reconfigure: Arc<ReconfigureCell>,
    traces: Arc<PacketTraces>,
    thread: Option<JoinHandle<Result<RunReport, RunError>>>,
    end: Option<RunEnd>,
    draining: bool,
    /// Its counts in the process that this one has taken over from.
    pub(super) carried: CarriedCounts,
    /// Packets of the chains of its name whose place it took, once these have ended. They are in their reports.
    pub(super) earlier: PacketCounts,
    /// Name of the chain that has taken its place.
    pub(super) successor: Option<String>,
    /// News of the interfaces of external functions.
    news: News,
    weight: u32,
    /// Recent packets by class of flows.
    pub(super) classes: RecentClasses,
    /// Packets that its port lost, and that may be its own.
    pub(super) port_losses: UnattributedLosses,
}

/// Lines for the user that nobody has taken yet.
type News = Arc<Mutex<Vec<String>>>;

impl fmt::Debug for RunningChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningChain")
            .field("name", &self.name)
            .field("port", &self.port)
            .field("draining", &self.draining)
            .finish_non_exhaustive()
    }
}

/// Configurations that a chain has taken over from its successor.
pub(super) struct TakenConfigurations(Option<(Arc<Reconfigure>, ChainSpec)>);

impl TakenConfigurations {
    /// Gives the functions the configurations that they had before.
    pub(super) fn undo(self) {
        if let Some((reconfigure, before)) = self.0 {
            // They were valid a moment ago.
            let _ = reconfigure.change_to(&before);
        }
    }
}

/// Environment of a chain that starts.
pub(super) struct StartFrom<'s> {
    pub(super) name: &'s str,
    /// Weight among the chains of its core.
    pub(super) weight: u32,
    pub(super) port: &'s Arc<SharedPort>,
    pub(super) host: &'s Arc<CoreHost>,
    /// Its functions write behind what is in their files.
    pub(super) continues_files: bool,
    /// Chain on the same port whose place it takes, and the functions that it keeps.
    pub(super) replaced: Option<(&'s RunningChain, Vec<KeptFunction>)>,
}

impl RunningChain {
    /// Starts a chain. Returns once it gets packets.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(plan: RunPlan, from: StartFrom<'_>) -> Result<RunningChain, Refusal> {
        let (plan, stop) = (Arc::new(plan), Arc::<AtomicBool>::default());
        let (latest, reconfigure) = (Latest::default(), Arc::<ReconfigureCell>::default());
        let has_interfaces = plan.spec().externals().next().is_some();
        let news = (has_interfaces || plan.spec().state.is_some()).then(News::default);
        let traces = Arc::<PacketTraces>::default();
        let mut port = ChainPort::new(from.port, &plan.spec().match_);
        if let Some((replaced, kept)) = from.replaced {
            let workers = plan.config().cores.len() as u16;
            port = port.replacing(replaced.withdrawal.clone(), kept, workers);
        }
        let withdrawal = port.withdrawal();
        let share = TurnShare {
            objective: plan.spec().slo.budget(),
            weight: from.weight.max(1),
        };
        let thread = Builder::new().name(format!("chain-{}", from.name));
        let (of_thread, host) = (
            (
                Arc::clone(&plan),
                Arc::clone(&stop),
                Arc::clone(&latest),
                Arc::clone(&reconfigure),
                news.clone(),
                Arc::clone(&traces),
            ),
            Arc::clone(from.host),
        );
        let thread = thread.spawn(move || {
            let (plan, stop, latest, reconfigure, news, traces) = of_thread;
            let control = RunControl::new(&stop)
                .with_reconfigure(&reconfigure)
                .with_traces(traces);
            let control = control.with_progress(|progress| {
                if let Some(news) = news.as_ref().filter(|_| !progress.news.is_empty()) {
                    let mut news = news.lock().unwrap_or_else(PoisonError::into_inner);
                    let lines = progress.news.iter();
                    news.extend(lines.filter(|line| has_interfaces || is_of_state(line)).cloned());
                }
                let progress = Some(Box::new(progress.clone()));
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = progress;
            });
            let run = || run_hosted(&plan, (&mut port, &host), share, control);
            match from.continues_files {
                true => tailwater_files::continuing(run),
                false => run(),
            }
        });
        let thread = thread.map_err(|error| Refusal::new(format!("its thread cannot be started: {error}")))?;
        let mut chain = RunningChain {
            name: from.name.to_owned(),
            port: from.port.name().to_owned(),
            plan,
            stop,
            withdrawal,
            latest,
            reconfigure,
            traces,
            thread: Some(thread),
            end: None,
            draining: false,
            carried: CarriedCounts::default(),
            earlier: PacketCounts::default(),
            successor: None,
            news: news.unwrap_or_default(),
            weight: from.weight,
            classes: RecentClasses::default(),
            port_losses: UnattributedLosses::new(from.port),
        };
        chain.await_start()?;
        // Packets lost before are in no verdict.
        chain.port_losses = UnattributedLosses::new(from.port);
        Ok(chain)
    }

    /// Waits until the chain gets packets.
    fn await_start(&mut self) -> Result<(), Refusal> {
        let began = Instant::now();
        while !self.withdrawal.is_live() {
            if self.is_finished() {
                let failure = self.join().failure;
                return Err(Refusal::new(failure.unwrap_or_else(|| "it ended at once".to_owned())));
            }
            if began.elapsed() > START_TIMEOUT {
                self.drain();
                return Err(Refusal::new(format!(
                    "it has not started within {} s",
                    START_TIMEOUT.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn port(&self) -> &str {
        &self.port
    }

    /// Slot on its port, once it has one.
    pub(super) fn slot(&self) -> Option<usize> {
        self.withdrawal.slot()
    }

    pub(super) fn cores(&self) -> &[usize] {
        &self.plan.config().cores
    }

    /// Ends the delivery of packets, and the run once it has processed those that it has.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.port_losses.end();
        self.withdrawal.withdraw();
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of a run that is draining, for at most `timeout`.
    pub(super) fn await_end(&self, timeout: Duration) {
        let began = Instant::now();
        while self.draining && !self.is_finished() && began.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Figures for readers on other threads.
    pub(super) fn figures(&self) -> ChainFigures {
        ChainFigures {
            name: self.name.clone(),
            port: self.port.clone(),
            slo: self.plan.spec().slo,
            cores: self.cores().to_vec(),
            latest: Arc::clone(&self.latest),
        }
    }

    /// The plan that it runs.
    pub(super) fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Weight among the chains of its core.
    pub(super) fn weight(&self) -> u32 {
        self.weight
    }

    /// News of the interfaces of external functions, and warnings about the store of flow state, since the last call.
    pub(super) fn news(&self) -> Vec<String> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The chain.
    pub(super) fn spec(&self) -> &ChainSpec {
        self.plan.spec()
    }

    /// Returns `true` once the run has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// End of the run, if it has ended.
    pub(super) fn end(&mut self) -> Option<RunEnd> {
        self.is_finished().then(|| self.join())
    }

    /// Waits for the run's end.
    pub(super) fn join(&mut self) -> RunEnd {
        if let Some(thread) = self.thread.take() {
            self.end = Some(match thread.join() {
                Ok(Ok(report)) => RunEnd {
                    report: Some(Box::new(report)),
                    failure: None,
                },
                Ok(Err(error)) => RunEnd {
                    report: error.report().cloned().map(Box::new),
                    failure: Some(error.to_string()),
                },
                Err(_) => RunEnd {
                    report: None,
                    failure: Some("its thread panicked".to_owned()),
                },
            });
        }
        self.end.clone().unwrap_or_else(|| unreachable!("a chain had a thread"))
    }

    /// Changes the functions' configurations. Returns `None` if the spec differs in more than these.
    pub(super) fn change(&mut self, spec: &ChainSpec) -> Option<Result<(), Refusal>> {
        self.plan.spec().check_unchanged(spec).ok()?;
        let reconfigure = self.reconfigure.get()?;
        let changed = reconfigure.change_to(spec);
        Some(changed.map(drop).map_err(|lines| Refusal::new(lines.join("; "))))
    }

    /// Returns `true` if it can use auxiliary cores.
    pub(super) fn offloads(&self) -> bool {
        self.plan.config().scaling.is_some()
    }

    /// Runs `f` on a worker's functions and flows between two turns, once the worker has no packet if it
    /// `needs_quiet`. `None` if that took longer than `timeout`.
    pub(super) fn on_worker<R: Send + 'static>(
        &self,
        worker: usize,
        needs_quiet: bool,
        timeout: Duration,
        f: impl FnOnce(&mut Chain) -> R + Send + 'static,
    ) -> Option<R> {
        self.withdrawal.on_worker(worker, needs_quiet, timeout, f)
    }

    /// Calls `f` with the number of each worker, for all at the same time. Results are in the order of the numbers;
    /// `None` where `f` panicked.
    pub(super) fn for_workers<R: Send>(&self, f: impl Fn(usize) -> R + Sync) -> Vec<Option<R>> {
        match self.cores().len() {
            1 => vec![Some(f(0))],
            workers => std::thread::scope(|scope| {
                let f = &f;
                let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || f(worker))).collect();
                threads.into_iter().map(|thread| thread.join().ok()).collect()
            }),
        }
    }

    /// Returns `true` if it gets packets.
    pub(super) fn runs(&self) -> bool {
        !self.draining && !self.is_finished()
    }

    /// Gives the functions that another spec has, too, that one's configuration, if they can change while they run.
    pub(super) fn take_configurations(&self, spec: &ChainSpec) -> TakenConfigurations {
        let reconfigure = self.reconfigure.get().cloned();
        TakenConfigurations(reconfigure.and_then(|reconfigure| {
            let before = reconfigure.spec_now();
            let next = reconfigure.with_configurations_of(spec);
            reconfigure.change_to(&next).ok()?;
            Some((reconfigure, before))
        }))
    }

    /// Handle by which the functions change, if they can.
    pub(super) fn reconfigure(&self) -> Option<&Arc<Reconfigure>> {
        self.reconfigure.get()
    }

    /// State and measurements.
    pub(super) fn observe(&mut self) -> ChainObservation {
        let end = self.end();
        let state = match (&end, self.draining) {
            (Some(_), true) => ChainState::Ended,
            (Some(end), false) => {
                let failure = end.failure.clone();
                ChainState::Failed(failure.unwrap_or_else(|| "it ended by itself".to_owned()))
            }
            (None, true) => ChainState::Draining,
            (None, false) => ChainState::Running,
        };
        let mut observation = ChainObservation::new(&self.name, state);
        let slo = &self.plan.spec().slo;
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        observation.latency.objective = slo.budget();
        let bound = self.plan.spec().bound_to_core();
        observation.bound_state = bound.map(|(function, reason)| format!("function {function}: {reason}"));
        observation.cores = CoreUse {
            dedicated: self.plan.config().cores.iter().map(|core| *core as u32).collect(),
            auxiliary: latest.as_ref().map_or(0.0, |progress| progress.cores.auxiliary_avg),
        };
        let report = end.as_ref().and_then(|end| end.report.as_ref());
        let progress = latest.as_ref().map(|progress| &progress.packets);
        let packets = report.map(|report| &report.packets).or(progress);
        observation.packets = self.carried.packets;
        observation.packets += self.earlier;
        observation.packets += packets.map_or(PacketCounts::default(), |packets| PacketCounts {
            offered: packets.offered,
            delivered: packets.delivered,
            dropped: packets.dropped_by_nf,
            lost: packets.lost,
        });
        if end.is_some() {
            self.port_losses.end();
        }
        if let Some(progress) = latest.as_ref() {
            observation.total = total_latency(progress, slo, observation.packets, self.port_losses.since_start());
            let window = progress.window.filter(|_| end.is_none());
            if let Some(window) = &window {
                let port_lost = self.port_losses.in_window(window.index);
                let counts = [window.late + window.lost, window.delivered + window.lost];
                let latency = window_latency(window, slo);
                observation.latency = LatencyObservation {
                    met: verdict_with_losses(latency.met, counts, port_lost, slo.percentile),
                    port_lost,
                    ..latency
                };
            }
            observation.rates = window.map(|window| rates(&window));
            observation.work = window.map(|window| WindowWork {
                index: window.index,
                busy: window.busy,
                batches: window.batches,
                packets: window.processed,
            });
            let work = progress.work;
            observation.traces = end.is_none().then(|| TracedChain(Arc::clone(&self.traces)));
            observation.details = window.map(|_| Arc::new(details::of_chain(progress)));
            observation.load = (work.until > Nanos::ZERO && end.is_none()).then(|| ChainLoad {
                measured: work.until,
                counters: ServerCounters {
                    offered: work.offered,
                    processed: work.processed,
                    busy: work.busy,
                    late: work.late,
                },
                classes: self.classes.shown(work.until),
            });
        }
        observation
    }
}

/// Latency in a window.
pub fn window_latency(window: &LastWindow, slo: &Slo) -> LatencyObservation {
    let is_known = window.delivered > 0;
    LatencyObservation {
        p50: is_known.then_some(window.p50),
        p99: is_known.then_some(window.p99),
        objective: slo.budget(),
        met: window.slo_met,
        missed: missed_shares([window.delivered, window.lost, window.late]),
        port_lost: 0,
    }
}

/// Latency since the start. The chain's port lost `port_lost` packets since then; `packets` has those of earlier
/// versions and processes, too.
fn total_latency(progress: &Progress, slo: &Slo, packets: PacketCounts, port_lost: u64) -> LatencyObservation {
    let is_known = progress.packets.delivered > 0;
    let at = || progress.latency.percentile(slo.percentile);
    let met = is_known.then(|| at() <= slo.budget() && lost_is_within(slo.percentile, packets));
    // Of the time for which the port's losses are known.
    let own = &progress.packets;
    let late = progress.late_by_cause.values().sum::<u64>().max(own.lost);
    LatencyObservation {
        p50: is_known.then_some(progress.p50),
        p99: is_known.then_some(progress.p99),
        objective: slo.budget(),
        met: verdict_with_losses(met, [late, own.delivered + own.lost], port_lost, slo.percentile),
        missed: MissedShares::default(),
        port_lost,
    }
}

/// Shares of the packets that were lost and late.
fn missed_shares([delivered, lost, late]: [u64; 3]) -> MissedShares {
    let share = |count: u64| count as f64 / (delivered + lost).max(1) as f64;
    MissedShares {
        lost: share(lost),
        late: share(late),
    }
}

/// Rates in a window.
fn rates(window: &LastWindow) -> PacketRates {
    let per_second = |count: u64| count as f64 / window.length.as_secs_f64().max(1e-9);
    PacketRates {
        offered: per_second(window.offered),
        delivered: per_second(window.delivered),
        dropped: per_second(window.dropped),
        lost: per_second(window.lost),
        cores: window.busy.as_secs_f64() / window.length.as_secs_f64().max(1e-9),
    }
}

/// Returns `true` if no more packets are lost than may be late.
fn lost_is_within(percentile: f64, packets: PacketCounts) -> bool {
    packets.lost as f64 <= (1.0 - percentile / 100.0) * packets.offered as f64
}
