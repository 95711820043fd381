//! Short runs of the data plane, and what they show.

use crate::error::TrainError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::chain::FunctionTime;
use tailwater_dataplane::batches::{BatchNotes, NotedBatch};
use tailwater_dataplane::report::{RunReport, WindowReport};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, run_noted};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::training::{Observation, TrainingNotes};
use tailwater_traffic::{Trace, TrafficError};

/// Windows of saturated runs: short, so that most have the core to themselves.
pub(crate) const SATURATED_WINDOW: Nanos = Nanos::from_millis(2);
/// Windows in which an objective is to be met.
const WINDOW: Nanos = Nanos::from_millis(3);
/// Windows without gaps that are wanted to tell whether an objective is met, and runs until there are.
const WANTED: usize = 16;
const RUNS: usize = 4;
/// Undisturbed windows that are enough to judge by.
const ENOUGH: usize = 3;
/// Saturated runs until some packet is processed, each twice as long as the one before.
const TRIES: u32 = 6;
/// Packets that the core's own queue holds where that does not matter.
pub(crate) const BUFFERS: u32 = 4096;
/// The most batches of a run that are noted.
const MOST_BATCHES: f64 = 2e6;
/// Descriptors for what comes while the core is away.
const DEEP_RING: usize = 1 << 16;
/// The most epochs of a run that are noted.
const MOST_EPOCHS: usize = 1 << 17;

/// One core to run chains on.
pub(crate) struct Lab<'a> {
    pub core: usize,
    pub seed: u64,
    pub stop: &'a AtomicBool,
}

impl Lab<'_> {
    fn run(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        nic: TraceNicConfig,
        window: Nanos,
        scaling: Option<ScalingConfig>,
        notes: Option<&BatchNotes>,
    ) -> Result<RunReport, TrainError> {
        self.check()?;
        let config = RunConfig {
            cores: vec![self.core],
            nic,
            window,
            capture_out: None,
            not_matched: 0,
            seed: self.seed,
            scaling,
            server: None,
            isolation: None,
        };
        let report = run_noted(spec, trace, &config, self.stop, notes, |_| {})?;
        // A run that was cut short shows nothing.
        self.check()?;
        Ok(report)
    }

    /// Whether to go on.
    pub fn check(&self) -> Result<(), TrainError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(TrainError::Stopped),
            false => Ok(()),
        }
    }

    /// Packets a second that the chain takes when there are always more: the median window's. The
    /// trace once, or over and over for `duration`, or longer where the machine keeps the core away for all of that.
    pub fn saturated(&self, spec: &ChainSpec, trace: Trace, duration: Option<Nanos>) -> Result<f64, TrainError> {
        let mut length = Nanos::ZERO;
        for longer in 0..TRIES {
            let nic = TraceNicConfig {
                pacing: Pacing::Saturate,
                duration: duration.map(|duration| Nanos(duration.0 << longer)),
                ..TraceNicConfig::default()
            };
            let report = self.run(spec, trace.clone(), nic, SATURATED_WINDOW, None, None)?;
            let rate = rate(&report);
            if rate > 0.0 {
                return Ok(rate);
            }
            length = Nanos::from_secs_f64(report.duration_s);
        }
        let core = self.core;
        Err(TrainError::Away { core, length })
    }

    /// A run with this setting.
    pub fn measured(&self, spec: &ChainSpec, trace: Trace, setting: &Setting) -> Result<RunReport, TrainError> {
        self.set(spec, trace, setting, None)
    }

    fn set(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        setting: &Setting,
        notes: Option<&BatchNotes>,
    ) -> Result<RunReport, TrainError> {
        let nic = TraceNicConfig {
            pacing: setting.pacing,
            duration: setting.duration,
            in_parts: setting.in_parts,
            ring: setting.ring,
            renumber: false,
            ..TraceNicConfig::default()
        };
        let scaling = setting.scaling.clone();
        self.run(spec, trace, nic, setting.window, scaling, notes)
    }

    /// The same of a run whose functions are timed, from so long after its beginning on; and what they took.
    pub fn timed(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        setting: &Setting,
        from: Nanos,
    ) -> Result<(RunReport, Vec<FunctionTime>), TrainError> {
        let notes = BatchNotes::new(0).timing_functions(from);
        let report = self.set(spec, trace, setting, Some(&notes))?;
        // One core has one instance of the chain.
        Ok((report, notes.take_times().concat()))
    }

    /// The batches of cores that are given a trace at its own pace for so long, again and again with other
    /// flows, and loses nothing.
    pub fn batches(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        length: Nanos,
        scaling: Option<ScalingConfig>,
    ) -> Result<Vec<NotedBatch>, TrainError> {
        let packets = trace.len() as f64 * length.as_secs_f64() / trace.duration().as_secs_f64();
        // What waits is noted when it is received, and when it is processed.
        let notes = BatchNotes::new((2.0 * packets).clamp(1.0, MOST_BATCHES) as usize);
        let nic = TraceNicConfig {
            duration: Some(length),
            ring: DEEP_RING,
            ..TraceNicConfig::default()
        };
        self.run(spec, trace, nic, WINDOW, scaling, Some(&notes))?;
        Ok(notes.take().concat())
    }

    /// Whether the chain keeps its objective with this traffic, for `duration`: in more than half of
    /// the windows that count. On a busy machine, several runs are made until there are enough of
    /// them. What waits passes a queue from which it could be handed over, as it does in real runs.
    pub fn keeps(
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
            let scaling = unmoved(&TrainingNotes::new(0), epoch, BUFFERS);
            let report = self.run(spec, trace()?, nic, WINDOW, Some(scaling), None)?;
            let windows = judged(&report);
            met += windows.iter().filter(|window| window.slo_met).count();
            of += windows.len();
            if of >= WANTED {
                break;
            }
        }
        Ok(2 * met > of)
    }

    /// What the core did in epochs in which it had more to do than it could.
    pub fn epochs(
        &self,
        spec: &ChainSpec,
        trace: Trace,
        epoch: Nanos,
        load: &EpochLoad,
    ) -> Result<Vec<Observation>, TrainError> {
        let notes = TrainingNotes::new(MOST_EPOCHS);
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

/// How a [measured](Lab::measured) run is made.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub pacing: Pacing,
    /// For how long the trace is repeated, its flows the same; `None`: once.
    pub duration: Option<Nanos>,
    /// As where flows may be handed over.
    pub in_parts: bool,
    pub ring: usize,
    pub window: Nanos,
    pub scaling: Option<ScalingConfig>,
}

impl Default for Setting {
    /// Without pace, the trace once, straight through, in windows as of saturated runs.
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

/// Packets a second of a run that always had more: the median window's. If the core was away again and again, those of
/// the window that had most of it. 0 only if none was processed.
pub(crate) fn rate(report: &RunReport) -> f64 {
    let offered = |windows: &[&WindowReport]| {
        let offered = windows.iter().map(|window| window.offered);
        // There were always more: where none came, nobody was there to take them.
        let mut offered: Vec<u64> = offered.filter(|packets| *packets > 0).collect();
        offered.sort_unstable();
        offered
    };
    let whole = whole(report);
    let good = offered(&undisturbed(report));
    let packets = match (good.len(), whole.len()) {
        (ENOUGH.., _) => good.get(good.len() / 2).copied(),
        (_, ENOUGH..) => offered(&whole.iter().collect::<Vec<_>>()).last().copied(),
        // Too short for windows.
        _ => None,
    };
    match packets {
        Some(packets) => packets as f64 / SATURATED_WINDOW.as_secs_f64(),
        None => report.packets.offered as f64 / report.duration_s.max(1e-9),
    }
}

/// Everything but flow migration: nothing is moved, so there is no need for a core to move it to.
fn unmoved(notes: &TrainingNotes, epoch: Nanos, buffers: u32) -> ScalingConfig {
    let notes = notes.clone();
    ScalingConfig {
        auxiliary: Vec::new(),
        mapper: Arc::new(move || Box::new(notes.mapper(epoch))),
        park: Mode::Sleep,
        buffers,
    }
}

/// How packets wait in a run for [`Lab::epochs`].
pub(crate) struct EpochLoad {
    /// Packets that the NIC's queue holds.
    pub ring: usize,
    /// Packets that the core's own queue holds.
    pub buffers: u32,
    /// For how long the trace is repeated; `None`: once.
    pub duration: Option<Nanos>,
}

/// The windows to judge by: [those that nothing disturbed](undisturbed), or all whole ones if these are few.
pub(crate) fn judged(report: &RunReport) -> Vec<&WindowReport> {
    let good = undisturbed(report);
    match good.len() {
        ENOUGH.. => good,
        _ => whole(report).iter().collect(),
    }
}

/// All windows but the last, which is cut, and the first: caches are cold.
fn whole(report: &RunReport) -> &[WindowReport] {
    let list = &report.windows.list;
    list.get(1..list.len().max(2) - 1).unwrap_or_default()
}

/// Whole windows without gaps, in which no backlog is left from a gap in the window before.
fn undisturbed(report: &RunReport) -> Vec<&WindowReport> {
    let pairs = report.windows.list.windows(2).take(whole(report).len());
    let good = pairs.filter(|pair| !pair[0].flagged && !pair[1].flagged);
    good.map(|pair| &pair[1]).collect()
}
