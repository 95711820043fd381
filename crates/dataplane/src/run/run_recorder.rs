//! Recorder of a run: progress while it lasts, and the report at its end.

use super::chains::ChainFactory;
use super::threads::Ended;
use crate::batches::BatchRecorder;
use crate::capture::CaptureFile;
use crate::clock::Clock;
use crate::durable::DurableRun;
use crate::external::stage::{ExternalCounts, ExternalStage};
use crate::kept_packets::KeptFiles;
use crate::panics::catch_panic;
use crate::port::Port;
use crate::reload_watcher::{News, Reloaded};
use crate::report::CoreReport;
use crate::report::LatencyReport;
use crate::report::ReloadReport;
use crate::report::RunReport;
use crate::report::SloReport;
use crate::report::collector::Collector;
use crate::run::error::{RunError, Unrecorded};
use crate::run::plan::RunConfig;
use crate::run::progress::{FunctionProgress, Progress};
use crate::scaling::counters::{BucketCounters, ServerReport};
use crate::shared_port::succession::{Heir, RunEnds, Succession};
use crate::telemetry::WindowReceiver;
use crate::timeline::add_reasons;
use crate::worker::finished::Finished;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_chain::chain::{Chain, Outcome, Reason};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Maximum interval between progress updates.
const PROGRESS: Duration = Duration::from_millis(100);

/// Name of a worker's thread for the store, in messages.
const STATE: &str = "the state thread";

/// Name of the step that ends flows after the last packet, in messages.
const ENDS: &str = "the end of the run";

/// State needed to report on a run, and services that end after its workers.
pub(super) struct RunRecorder<'r> {
    pub(super) spec: &'r ChainSpec,
    pub(super) config: &'r RunConfig,
    pub(super) clock: Clock,
    /// Earliest arrival of the first packet.
    pub(super) start: Nanos,
    /// The same in wall-clock time.
    pub(super) began: Nanos,
    pub(super) traffic: String,
    /// Duration of the arrivals, if known.
    pub(super) duration: Option<Nanos>,
    /// Reasons for which packets are counted.
    pub(super) reasons: Vec<Reason>,
    /// Names of the functions.
    pub(super) functions: Vec<String>,
    pub(super) windows: WindowReceiver,
    pub(super) collector: Collector,
    pub(super) reloads: ReloadReport,
    pub(super) capture: Option<CaptureFile>,
    pub(super) kept: Option<KeptFiles>,
    pub(super) durable: Option<DurableRun>,
    /// Threads that talk to the store. Those of workers that never start end with their links.
    pub(super) stores: Vec<JoinHandle<()>>,
    pub(super) factory: ChainFactory,
    /// Destination of function times, if functions were timed.
    pub(super) notes: Option<&'r BatchRecorder>,
    /// Inheritance of the chain, if it took the place of another one.
    pub(super) succession: Option<Succession>,
    /// Estates for a successor, once there is one, of a chain beside others.
    pub(super) heir: Option<Heir>,
    /// The threads of the workers go on with other chains.
    pub(super) shares_core: bool,
}

impl RunRecorder<'_> {
    /// Waits for a worker's window or for a while, and reports progress. Returns `true` once all workers have ended.
    pub(super) fn on_timer(&mut self, port: &dyn Port, news: &News, progress: &mut impl FnMut(&Progress)) -> bool {
        let collector = &mut self.collector;
        let received = self.windows.receive(PROGRESS, |window| collector.add(window));
        if received.is_err() {
            return true;
        }
        let elapsed = self.clock.now().saturating_sub(self.start);
        let reloaded = std::mem::take(&mut *news.lock().unwrap_or_else(PoisonError::into_inner));
        let mut news: Vec<String> = reloaded.iter().flat_map(Reloaded::notices).collect();
        news.extend(self.durable.as_mut().and_then(DurableRun::take_warning));
        for Reloaded { outcome, lines } in reloaded {
            self.reloads.add(elapsed, outcome, lines);
        }
        port.monitor(&mut |line| news.push(line));
        let (total, queues) = (&self.collector.total, self.config.cores.len() as u16);
        progress(&Progress {
            elapsed,
            duration: self.duration.filter(|duration| *duration != Nanos::MAX),
            packets: self.collector.packets(&self.reasons, self.config.not_matched),
            p99: total.latency.percentile(99.0),
            p50: total.latency.percentile(50.0),
            late_by_cause: self.collector.late_by_cause(),
            latency: total.latency.clone(),
            gaps: total.gaps,
            cores: core_report(&self.collector, queues, elapsed.as_secs_f64()),
            buckets: total.buckets,
            scaling: total.scaling,
            state: self.durable.as_ref().map(DurableRun::snapshot),
            reloads: self.reloads.counters,
            window: self.collector.last_window(),
            work: self.collector.work(),
            functions: self.function_progress(),
            flows: self.collector.flows(),
            news,
        });
        false
    }

    fn function_progress(&self) -> Vec<FunctionProgress> {
        let totals = self.collector.function_totals();
        let counts = self.collector.reason_totals();
        let dropped = |name: &str| {
            let counted = self.reasons.iter().zip(&counts);
            let of_function = counted.filter(|(reason, _)| reason.function.as_deref() == Some(name));
            of_function
                .filter(|(reason, _)| reason.outcome != Outcome::Passed)
                .map(|(_, count)| count)
                .sum()
        };
        let functions = self.functions.iter().zip(totals);
        functions
            .map(|(name, totals)| FunctionProgress {
                dropped: dropped(name),
                name: name.clone(),
                totals,
            })
            .collect()
    }

    /// Ends the workers' services, and returns the report.
    ///
    /// # Errors
    /// If a thread panicked, or not everything could be recorded. The error contains the report.
    pub(super) fn close(self, ended: Ended, port: &dyn Port, interrupted: bool) -> Result<RunReport, RunError> {
        let RunRecorder {
            spec,
            config,
            mut collector,
            mut reloads,
            reasons,
            factory: makers,
            ..
        } = self;
        let mut deaths = ended.deaths;
        let (mut chains, mut keepers, mut left) = (Vec::new(), Vec::new(), Vec::new());
        let mut externals: Vec<ExternalCounts> = Vec::new();
        for (thread, finished) in ended.workers {
            let Finished {
                chains: mut of_worker,
                externals: outside,
                buckets,
                died,
                state_counters: kept,
                left: counters,
            } = finished;
            left.extend(counters);
            if let (Some(buckets), [chain]) = (buckets, &mut of_worker[..]) {
                buckets.finish(chain);
            }
            chains.push(of_worker);
            for (function, counts) in outside.into_iter().enumerate() {
                match externals.get_mut(function) {
                    Some(all) => all.add(&counts),
                    None => externals.push(counts),
                }
            }
            keepers.extend(kept);
            deaths.extend(died.map(|message| (thread, message)));
        }
        for store in self.stores {
            if store.join().is_err() {
                deaths.push((STATE.to_owned(), "panicked".to_owned()));
            }
        }
        let state = self.durable.map(|kept| kept.report(keepers));
        let elapsed = self.clock.now().saturating_sub(self.start);
        for Reloaded { outcome, lines } in ended.reloads {
            reloads.add(elapsed, outcome, lines);
        }
        let recorded = self.capture.map(CaptureFile::finish).transpose();
        let kept = self.kept.map(KeptFiles::finish).transpose();
        if let Some(notes) = self.notes.filter(|notes| notes.timed_from().is_some()) {
            chains
                .iter()
                .flatten()
                .for_each(|chain| notes.add_times(chain.function_times()));
        }
        if self.shares_core {
            makers.leave_cores();
        }
        // Before the remaining flows end.
        // An auxiliary core may have been away at its dispatcher's end.
        chains.iter_mut().flatten().for_each(Chain::take_all_back);
        let flows = makers.flow_report(&chains, left);
        let last = finish(chains, reasons.len(), &mut deaths);
        if let Some(succession) = &self.succession
            && let Err(message) = catch_panic(|| succession.end_what_is_left(!deaths.is_empty()))
        {
            deaths.push((ENDS.to_owned(), message));
        }
        let (isolation, exported) = makers.finish(RunEnds::kept(self.heir.as_ref()));
        let recorded = recorded.map(drop).and(kept.map(drop)).map_err(Unrecorded::from);
        let recorded = recorded.and(exported.map_err(Unrecorded::from));
        let mut packets = collector.packets(&reasons, config.not_matched);
        reasons
            .iter()
            .zip(last)
            .for_each(|(reason, count)| packets.add(reason, count));
        packets.sort();
        let sent = collector.total.last_sent.saturating_sub(self.start);
        let lasted = if sent > Nanos::ZERO { sent } else { elapsed };
        let seconds = lasted.as_secs_f64();
        let per_second = |count: u64| match seconds > 0.0 {
            true => count as f64 / seconds,
            false => 0.0,
        };
        let (scaling, server) = (config.scaling.as_ref(), config.server.as_ref());
        let verdict = collector.slo_met();
        let report = RunReport {
            chain: spec.name.clone(),
            traffic: self.traffic,
            slo: SloReport {
                latency_us: spec.slo.budget().as_micros_f64(),
                network_us: spec.slo.network.as_micros_f64(),
                percentile: spec.slo.percentile,
            },
            slo_met: verdict.ok(),
            no_verdict: verdict.err(),
            latency_us: collector.latency(),
            latency_distribution: collector.distribution(),
            loss_rate: packets.lost as f64 / packets.offered.max(1) as f64,
            throughput_mpps: per_second(packets.delivered) / 1e6,
            throughput_gbps: per_second(collector.total.delivered_bytes) * 8.0 / 1e9,
            duration_s: seconds,
            cores: core_report(&collector, config.cores.len() as u16, seconds),
            late_by_cause: collector.late_by_cause(),
            scaling: scaling.map(|_| collector.total.scaling),
            wake_us: scaling.map(|_| LatencyReport::of(&collector.total.wakes)),
            server: server.map(|_| server_report(ended.decided, &collector.total.buckets)),
            flows,
            state,
            isolation,
            reloads,
            windows: collector.windows(),
            timeline: collector.timeline(&reasons, lasted),
            arrivals: collector.arrivals(),
            interrupted,
            began_us: self.began.0 / 1000,
            ports: port.report(),
            externals: externals.iter().map(ExternalCounts::report).collect(),
            packets,
        };
        let report = Box::new(report);
        if let Some((thread, message)) = deaths.into_iter().next() {
            return Err(RunError::Died {
                thread,
                message,
                report,
            });
        }
        match recorded {
            Ok(()) => Ok(*report),
            Err(source) => Err(RunError::Recording { source, report }),
        }
    }
}

/// Ends all flows of the workers' chains, and returns the counts by reason. Each worker has an instance of the chain,
/// or of each of its parts.
fn finish(workers: Vec<Vec<Chain>>, reasons: usize, deaths: &mut Vec<(String, String)>) -> Vec<u64> {
    let mut last = vec![0; reasons];
    for parts in workers {
        // Instances of the whole chain count the same reasons, parts of it one after another.
        let mut before = Vec::new();
        for chain in parts {
            let own = before.len() + chain.reasons().len();
            // A function of a panicked worker may panic again: its final counts are then missing.
            match catch_panic(|| chain.drain()) {
                Ok(counts) => add_reasons(&mut last, &[&before[..], &counts].concat()),
                Err(message) => deaths.push((ENDS.to_owned(), message)),
            }
            before.resize(own + ExternalStage::REASONS, 0);
        }
    }
    last
}

/// Cores used in a run of `seconds` seconds.
fn core_report(collector: &Collector, queues: u16, seconds: f64) -> CoreReport {
    let average = |time: Nanos| match seconds > 0.0 {
        true => time.as_secs_f64() / seconds,
        false => 0.0,
    };
    let dedicated = f64::from(queues);
    // Workers may have yielded their cores for longer than packets arrived.
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
        packets_buffered: buckets.buffered,
        longest_move_us: buckets.longest_move.as_micros_f64(),
    }
}
