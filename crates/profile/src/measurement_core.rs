//! Short runs of the data plane, and their evaluation.

use crate::error::TrainError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::chain::FunctionTime;
use tailwater_dataplane::batches::{BatchRecorder, BatchTimes};
use tailwater_dataplane::report::{RunReport, WindowReport};
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, Renumber, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunError, RunPlan, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::training::{Observation, TrainingRecorder};
use tailwater_traffic::{Trace, TrafficError};

/// Window of saturated runs: short, so that most windows are free of CPU interference.
pub(crate) const SATURATED_WINDOW: Nanos = Nanos::from_millis(2);
/// Window in which an objective must be met.
const WINDOW: Nanos = Nanos::from_millis(3);
/// Number of undisturbed windows needed to decide on an objective, and the maximum number of runs.
const WANTED: usize = 16;
const RUNS: usize = 4;
/// Minimum number of undisturbed windows for a result.
const ENOUGH: usize = 3;
/// Maximum attempts of saturated runs until a packet is processed; each is twice as long as the one before.
const TRIES: u32 = 6;
/// Capacity of the core's own queue, packets, where it does not matter.
pub(crate) const BUFFERS: u32 = 4096;
/// Maximum recorded batches of a run.
const MOST_BATCHES: f64 = 2e6;
/// Receive descriptors for packets that arrive while the core is preempted.
const DEEP_RING: usize = 1 << 16;
/// Maximum recorded epochs of a run.
const MOST_EPOCHS: usize = 1 << 17;

/// A core to run chains on.
pub(crate) struct MeasurementCore<'a> {
    pub core: usize,
    pub seed: u64,
    pub stop: &'a AtomicBool,
}

impl MeasurementCore<'_> {
    fn run(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        nic: TraceNicConfig,
        window: Nanos,
        scaling: Option<ScalingConfig>,
        notes: Option<&BatchRecorder>,
    ) -> Result<RunReport, TrainError> {
        self.check()?;
        let plan = self.plan(spec, nic, window, scaling)?;
        let report = run(&plan, trace, RunControl::new(self.stop).with_batches(notes))?;
        // A stopped run has no result.
        self.check()?;
        Ok(report)
    }

    fn plan(
        &self,
        spec: &ChainSpec,
        nic: TraceNicConfig,
        window: Nanos,
        scaling: Option<ScalingConfig>,
    ) -> Result<RunPlan, RunError> {
        let config = RunConfig {
            nic,
            window,
            seed: self.seed,
            scaling,
            ..RunConfig::new(vec![self.core])
        };
        RunPlan::new(spec.clone(), config)
    }

    /// Runs the chain with these settings until it is stopped, which is how such a run ends. Calls `progress` a few
    /// times per second.
    ///
    /// # Errors
    /// The run fails.
    pub fn until_stopped(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        setting: &Setting,
        progress: impl FnMut(&Progress),
    ) -> Result<RunReport, TrainError> {
        let plan = self.plan(spec, setting.nic(), setting.window, setting.scaling.clone())?;
        let control = RunControl::new(self.stop).with_progress(progress);
        Ok(run(&plan, trace, control)?)
    }

    /// Checks for a stop request.
    ///
    /// # Errors
    /// [`TrainError::Stopped`] if measuring was stopped.
    pub fn check(&self) -> Result<(), TrainError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(TrainError::Stopped),
            false => Ok(()),
        }
    }

    /// Returns the saturated throughput, packets per second, of the median window. Runs the trace once, or repeatedly
    /// for `duration`; longer if the core is preempted for all of it.
    ///
    /// # Errors
    /// The run fails or is stopped, or the core is preempted in all attempts.
    pub fn saturated(&self, spec: &ChainSpec, trace: Trace, duration: Option<Nanos>) -> Result<f64, TrainError> {
        let mut length = Nanos::ZERO;
        for longer in 0..TRIES {
            let nic = TraceNicConfig {
                pacing: Pacing::Saturate,
                duration: duration.map(|duration| Nanos(duration.0 << longer)),
                ..TraceNicConfig::default()
            };
            let report = self.run(spec, trace.clone(), nic, SATURATED_WINDOW, None, None)?;
            let rate = rate(&report, spec.packets.batch);
            if rate > 0.0 {
                return Ok(rate);
            }
            length = Nanos::from_secs_f64(report.duration_s);
        }
        let core = self.core;
        Err(TrainError::CorePreempted { core, length })
    }

    /// Runs the chain with these settings.
    ///
    /// # Errors
    /// The run fails or is stopped.
    pub fn measured(&self, spec: &ChainSpec, trace: Trace, setting: &Setting) -> Result<RunReport, TrainError> {
        self.set(spec, trace, setting, None)
    }

    fn set(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        setting: &Setting,
        notes: Option<&BatchRecorder>,
    ) -> Result<RunReport, TrainError> {
        let scaling = setting.scaling.clone();
        self.run(spec, trace, setting.nic(), setting.window, scaling, notes)
    }

    /// Like [`measured`](MeasurementCore::measured), with the time of each function from `from` after the start on.
    ///
    /// # Errors
    /// The run fails or is stopped.
    pub fn timed(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        setting: &Setting,
        from: Nanos,
    ) -> Result<(RunReport, Vec<FunctionTime>), TrainError> {
        let notes = BatchRecorder::new(0).timing_functions(from);
        let report = self.set(spec, trace, setting, Some(&notes))?;
        // One core runs one instance of the chain.
        Ok((report, notes.take_times().concat()))
    }

    /// Returns the batches of a run that repeats a trace at its own pace for `length`, with other flows in each pass,
    /// and loses nothing.
    ///
    /// # Errors
    /// The run fails or is stopped.
    pub fn batches(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        length: Nanos,
        scaling: Option<ScalingConfig>,
    ) -> Result<Vec<BatchTimes>, TrainError> {
        let packets = trace.len() as f64 * length.as_secs_f64() / trace.duration().as_secs_f64();
        // A waiting packet is recorded when it is received, and when it is processed.
        let notes = BatchRecorder::new((2.0 * packets).clamp(1.0, MOST_BATCHES) as usize);
        let nic = TraceNicConfig {
            duration: Some(length),
            ring: DEEP_RING,
            ..TraceNicConfig::default()
        };
        self.run(spec, trace, nic, WINDOW, scaling, Some(&notes))?;
        Ok(notes.take().concat())
    }

    /// Returns `true` if the chain meets its objective with this traffic for `duration`, in more than half of the
    /// evaluated windows. On a busy machine, repeats the run until there are enough. As in real runs, waiting packets
    /// pass a queue from which they could be offloaded.
    ///
    /// # Errors
    /// The traffic cannot be made, or the run fails or is stopped.
    pub fn meets_objective(
        &self,
        spec: &ChainSpec,
        trace: impl Fn() -> Result<Trace, TrafficError>,
        duration: Nanos,
        epoch: Nanos,
    ) -> Result<bool, TrainError> {
        let (mut met, mut of) = (0, 0);
        for _ in 0..RUNS {
            let nic = TraceNicConfig {
                duration: Some(duration),
                ..TraceNicConfig::default()
            };
            let scaling = unmoved(&TrainingRecorder::new(0), epoch, BUFFERS);
            let report = self.run(spec, trace()?, nic, WINDOW, Some(scaling), None)?;
            let windows = evaluated_windows(&report);
            // Windows without packets prove nothing.
            let verdicts: Vec<bool> = windows.iter().filter_map(|window| window.slo_met).collect();
            met += verdicts.iter().filter(|met| **met).count();
            of += verdicts.len();
            if of >= WANTED {
                break;
            }
        }
        Ok(2 * met > of)
    }

    /// Returns the core's load in epochs that ended with a backlog.
    ///
    /// # Errors
    /// The run fails or is stopped.
    pub fn epochs(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        epoch: Nanos,
        load: &EpochLoad,
    ) -> Result<Vec<Observation>, TrainError> {
        let notes = TrainingRecorder::new(MOST_EPOCHS);
        let scaling = unmoved(&notes, epoch, load.buffers);
        let nic = TraceNicConfig {
            ring: load.ring,
            duration: load.duration,
            ..TraceNicConfig::default()
        };
        self.run(spec, trace, nic, WINDOW, Some(scaling), None)?;
        Ok(notes.take())
    }
}

/// Settings of a [measured](MeasurementCore::measured) run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub pacing: Pacing,
    /// Time for which the trace is repeated with the same flows; `None`: once.
    pub duration: Option<Nanos>,
    /// Receives packets in parts, as where flows may be offloaded.
    pub in_parts: bool,
    pub ring: usize,
    pub window: Nanos,
    pub scaling: Option<ScalingConfig>,
}

impl Setting {
    fn nic(&self) -> TraceNicConfig {
        TraceNicConfig {
            pacing: self.pacing,
            duration: self.duration,
            in_parts: self.in_parts,
            ring: self.ring,
            renumber: Renumber::None,
            ..TraceNicConfig::default()
        }
    }
}

impl Default for Setting {
    /// Saturated, the trace once, without queueing, in windows of saturated runs.
    fn default() -> Self {
        Setting {
            pacing: Pacing::Saturate,
            duration: None,
            in_parts: false,
            ring: TraceNicConfig::default().ring,
            window: SATURATED_WINDOW,
            scaling: None,
        }
    }
}

/// Returns the packets per second of a saturated run with batches of at most `batch` packets: those of the median
/// [span](span_rates) or window, without gaps in which the worker lacked its core. 0 only if no packet was processed.
pub(crate) fn rate(report: &RunReport, batch: u16) -> f64 {
    let mut rates = span_rates(whole(report), batch).unwrap_or_else(|| {
        let windows = evaluated_windows(report).into_iter();
        let rates = windows.filter_map(|of| core_rate(of.offered, of.gap_us));
        let rates: Vec<f64> = rates.filter(|rate| *rate > 0.0).collect();
        match rates.len() {
            ENOUGH.. => rates,
            _ => Vec::new(),
        }
    });
    rates.sort_by(f64::total_cmp);
    match rates.get(rates.len() / 2) {
        Some(rate) => *rate,
        // Shorter than a window, or nearly always without the core.
        None => report.packets.offered as f64 / report.duration_s.max(1e-9),
    }
}

/// Returns the packets per second, while the worker had its core, of a saturated window with so many packets and
/// microseconds of gaps. `None` if it lacked it for more than half of the window: caches are cold for the rest.
pub(crate) fn core_rate(packets: u64, gap_us: f64) -> Option<f64> {
    rate_in(SATURATED_WINDOW.as_secs_f64(), packets, gap_us)
}

/// Returns the packets per second of `whole` seconds without these gaps; `None` if they are more than half of it.
fn rate_in(whole: f64, packets: u64, gap_us: f64) -> Option<f64> {
    let had = whole - gap_us / 1e6;
    (had > 0.0 && 2.0 * had >= whole).then(|| packets as f64 / had)
}

/// Number of full batches from which on a window or span has a rate. A batch more or less is then 3 %.
const SPAN_BATCHES: u64 = 32;

/// Returns the packets per second, while the worker had its core, of successive spans of successive saturated windows,
/// each span of at least [`SPAN_BATCHES`] batches of `batch` packets: spans without CPU interference, or all if these
/// are few, or all windows as one span if they have fewer batches. `None` if most windows have as many packets, and so
/// a rate, or if there are fewer than two.
///
/// A report lists windows with packets only, and a batch may take longer than a window: such windows have one batch
/// each, whatever the rate. So the time of a span comes from the starts of its windows. It begins when the packets of
/// the window before it have come, and ends when its last ones have.
pub(crate) fn span_rates(windows: &[WindowReport], batch: u16) -> Option<Vec<f64>> {
    let enough = SPAN_BATCHES * u64::from(batch.max(1));
    let mut offered: Vec<u64> = windows.iter().map(|window| window.offered).collect();
    offered.sort_unstable();
    if *offered.get(offered.len() / 2)? >= enough {
        return None;
    }
    let (undisturbed, _) = spans(windows, enough, true);
    if undisturbed.len() >= ENOUGH {
        return Some(undisturbed);
    }
    let (mut rates, rest) = spans(windows, enough, false);
    if rates.is_empty() {
        rates.extend(rest);
    }
    (!rates.is_empty()).then_some(rates)
}

/// Returns the rates of the spans of at least `enough` packets, and of the windows after the last of them. With
/// `is_undisturbed` no span has a window with CPU interference, or begins at one.
fn spans(windows: &[WindowReport], enough: u64, is_undisturbed: bool) -> (Vec<f64>, Option<f64>) {
    let (mut rates, mut rest, mut begin) = (Vec::new(), None, None);
    let (mut packets, mut gap_us) = (0, 0.0);
    for window in windows {
        if is_undisturbed && window.flagged {
            begin = None;
            continue;
        }
        let rate = begin.and_then(|begin| {
            packets += window.offered;
            gap_us += window.gap_us;
            rate_in(window.start_s - begin, packets, gap_us)
        });
        rest = rate.filter(|rate| *rate > 0.0);
        if begin.is_none() || packets >= enough {
            rates.extend(rest.take());
            (begin, packets, gap_us) = (Some(window.start_s), 0, 0.0);
        }
    }
    (rates, rest)
}

/// Scaling configuration for training: records epochs and migrates no flow, so it needs no auxiliary core.
fn unmoved(notes: &TrainingRecorder, epoch: Nanos, buffers: u32) -> ScalingConfig {
    let notes = notes.clone();
    ScalingConfig {
        auxiliary: Vec::new(),
        dedicated_help: false,
        mapper: Arc::new(move || Box::new(notes.mapper(epoch))),
        park: Mode::Sleep,
        buffers,
    }
}

/// Queue sizes and duration of a run for [`MeasurementCore::epochs`].
pub(crate) struct EpochLoad {
    /// Capacity of the NIC's queue, packets.
    pub ring: usize,
    /// Capacity of the core's own queue, packets.
    pub buffers: u32,
    /// Time for which the trace is repeated; `None`: once.
    pub duration: Option<Nanos>,
}

/// Returns the windows to evaluate: [undisturbed ones](undisturbed), or all whole ones if these are few.
pub(crate) fn evaluated_windows(report: &RunReport) -> Vec<&WindowReport> {
    let good = undisturbed(report);
    match good.len() {
        ENOUGH.. => good,
        _ => whole(report).iter().collect(),
    }
}

/// Returns `true` if too few windows are free of CPU interference for a result.
pub(crate) fn has_few_windows(report: &RunReport) -> bool {
    undisturbed(report).len() < ENOUGH.min(whole(report).len())
}

/// Returns the time that workers lost between two readings of the clock.
pub(crate) fn lost(report: &RunReport) -> Nanos {
    let micros: f64 = report.windows.list.iter().map(|window| window.gap_us).sum();
    Nanos::from_secs_f64(micros / 1e6)
}

/// Returns all windows but the first, whose caches are cold, and the last, which is incomplete.
pub(crate) fn whole(report: &RunReport) -> &[WindowReport] {
    let list = &report.windows.list;
    list.get(1..list.len().max(2) - 1).unwrap_or_default()
}

/// Returns the whole windows that have no CPU interference, nor a backlog from interference in the window before.
fn undisturbed(report: &RunReport) -> Vec<&WindowReport> {
    let pairs = report.windows.list.windows(2).take(whole(report).len());
    let good = pairs.filter(|pair| !pair[0].flagged && !pair[1].flagged);
    good.map(|pair| &pair[1]).collect()
}
