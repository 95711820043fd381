//! Curves of a chain: throughput over cache, and latency over load.

use crate::cache::{CacheControl, CacheError};
use crate::curve::{Bisection, BisectionRule, Goal, Measured, RateSearch, RepeatRule, Repeats, Trial};
use crate::error::TrainError;
use crate::measurement_core::{MeasurementCore, SATURATED_WINDOW, Setting, evaluated_windows};
use crate::profiles::{CacheProfile, CostProfile, FunctionCost, LatencyProfile, NotHeld, Occupied};
use crate::traffic::evenly;
use crate::train::{Step, without_files};
use std::sync::atomic::AtomicBool;
use tailwater_chain::chain::FunctionTime;
use tailwater_dataplane::report::{LatencyReport, RunReport, WindowReport};
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{Trace, TrafficError};

/// Sampling of both curves as in ResQ: 1 % tolerance, at most 12 points. Two of them may locate the start of a curve
/// over cache.
const CURVE: BisectionRule = BisectionRule {
    tolerance: 0.01,
    most: 12,
    most_edge: 2,
};
/// Throughput: repeated until the noise is below 1 %.
const THROUGHPUT: RepeatRule = RepeatRule {
    least: 3,
    most: 7,
    wanted: 0.01,
};
/// Latency varies more between runs.
const LATENCY: RepeatRule = RepeatRule {
    least: 3,
    most: 5,
    wanted: 0.05,
};
/// Costs of functions.
const COSTS: RepeatRule = RepeatRule {
    least: 3,
    most: 5,
    wanted: 0.02,
};
/// Number of runs without the full share after which a point counts as not held.
const NOT_HELD: u32 = 2;
/// Range of the curve's loads, percent.
const LEAST_LOAD: u32 = 10;
const WHOLE_LOAD: u32 = 100;
/// Lowest rate of the search, and its precision, as shares of the chain's throughput.
const LOWEST_RATE: f64 = 0.05;
const PRECISION: f64 = 0.01;
/// Loss ratio of the partial drop rate (PDR).
const PARTIAL: f64 = 0.005;
/// Window in which latency and loss are measured.
const WINDOW: Nanos = Nanos::from_millis(5);
/// Minimum number of windows for a result.
const ENOUGH: usize = 3;
/// Minimum number of packets of uniform traffic.
const PACKETS: u64 = 1 << 16;
/// Upper bound of a run's length, seconds, where the traffic has so many flows that one pass exceeds the requested
/// time.
const LONGEST_RUN: f64 = 0.5;
/// Maximum attempts until a packet is processed; each run is twice as long as the one before.
const TRIES: u32 = 6;
/// Passes over the traffic in a run, if time permits.
const ROUNDS: f64 = 2.0;

/// Options of measuring curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepOptions {
    /// Core to run on.
    pub core: usize,
    /// Seed of the flow table's hash.
    pub seed: u64,
    /// Length of a run.
    pub run_time: Nanos,
}

/// Reasons for a missing curve.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A run failed, or measuring was stopped.
    #[error(transparent)]
    Run(#[from] TrainError),
    /// The cache cannot be divided.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No packet was processed in a run.
    #[error("the chain processed no packets in {0}: expected longer runs")]
    Nothing(Nanos),
}

impl From<TrafficError> for SweepError {
    fn from(error: TrafficError) -> Self {
        SweepError::Run(TrainError::Traffic(error))
    }
}

/// Returns `flows` flows in round-robin order, with frames of `frame_bytes` bytes without check sequence. For
/// measurements that depend on the number of flows only.
///
/// # Errors
/// The number of flows or the frame length is out of range.
pub fn uniform(flows: u32, frame_bytes: u16, seed: u64) -> Result<Trace, TrafficError> {
    let mut source = Uniform::new(UniformConfig {
        seed,
        flows,
        size: FrameSize::Fixed(frame_bytes.saturating_add(4)),
        transport: Transport::Tcp,
        rate_pps: 1_000_000,
        packets: u64::from(flows).max(PACKETS),
    })?;
    evenly(&mut source, 1e6)
}

/// Measures throughput over cache: a saturated chain on one core, with `control` setting its share of the cache. The
/// traffic is repeated with the same flows; the first pass does not count. Points at which the share was not held are
/// [not part](CacheProfile::not_held) of the curve.
///
/// # Errors
/// See [`SweepError`].
pub fn cache_curve(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    control: &mut dyn CacheControl,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<CacheProfile, SweepError> {
    let unit = control.unit().max(1);
    let most_units = (control.most() / unit).clamp(1, 1 << 16) as u32;
    let least_units = (control.least() / unit).clamp(1, u64::from(most_units)) as u32;
    let step = |done| Step {
        name: "throughput over cache",
        done,
        of: CURVE.most,
    };
    progress(step(0));
    let sweep = Sweep::new(spec, traffic, options, stop)?;
    let mut curve = Bisection::new(least_units..=most_units, CURVE);
    let (mut not_held, mut occupied) = (Vec::new(), Vec::new());
    let mut done = 0;
    while let Some(units) = curve.next() {
        progress(step(done));
        done += 1;
        match sweep.with_cache(control, u64::from(units) * unit)? {
            Share::Held(measured, bytes) => {
                curve.tell(units, Some(measured));
                occupied.extend(bytes.map(|bytes| Occupied {
                    at: units,
                    kibibytes: u32::try_from(bytes / 1024).unwrap_or(u32::MAX),
                }));
            }
            Share::Lost { misses, measured } => {
                curve.tell(units, None);
                not_held.push(NotHeld {
                    at: units,
                    misses,
                    measured,
                });
            }
        }
    }
    not_held.sort_by_key(|point| point.at);
    occupied.sort_by_key(|point| point.at);
    Ok(CacheProfile {
        method: control.method(),
        unit_kibibytes: (unit / 1024).max(1) as u32,
        most_units,
        points: curve.points(),
        not_held,
        occupied,
    })
}

/// Measures latency over load, and the highest rates that meet objectives, with evenly spaced packets. Windows with CPU
/// interference, and those after them, are excluded if others remain.
///
/// # Errors
/// See [`SweepError`].
pub fn load_curve(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<LatencyProfile, SweepError> {
    let step = |name, done, of| Step { name, done, of };
    progress(step("throughput", 0, 1));
    let sweep = Sweep::new(spec, traffic, options, stop)?;
    let throughput = sweep.repeated(THROUGHPUT, || sweep.throughput())?;
    let percentile = reported(spec.slo.percentile);
    let mut curve = Bisection::new(LEAST_LOAD..=WHOLE_LOAD, CURVE);
    let mut done = 0;
    while let Some(load) = curve.next() {
        progress(step("latency over load", done, CURVE.most));
        done += 1;
        let rate = throughput.value * f64::from(load) / f64::from(WHOLE_LOAD);
        let latency = sweep.repeated(LATENCY, || {
            let report = sweep.paced(rate)?;
            let windows = sweep.settled(&report);
            let latencies = windows.iter().map(|window| at(&window.latency_us, percentile));
            Ok(median(latencies).unwrap_or(f64::NAN))
        })?;
        curve.tell(load, Some(latency));
    }
    let goals = [Goal::Loss(0.0), Goal::Loss(PARTIAL), Goal::Objective];
    let lowest = LOWEST_RATE * throughput.value;
    let mut search = RateSearch::new(lowest, throughput.value, PRECISION, &goals);
    let mut done = 0;
    while let Some(rate) = search.next() {
        progress(step("rates that meet the objective", done, done + 1));
        done += 1;
        let report = sweep.paced(rate)?;
        search.tell(sweep.trial(&report));
    }
    let rates = search.rates();
    let rate = |goal: usize| rates.get(goal).copied().flatten().map(f64::round);
    Ok(LatencyProfile {
        throughput: rounded(throughput),
        percentile,
        points: curve.points(),
        objective_us: spec.slo.budget().as_micros_f64(),
        objective_percentile: spec.slo.percentile,
        ndr: rate(0),
        pdr: rate(1),
        objective_rate: rate(2),
    })
}

/// Measures the cost per packet of each function on a saturated core. Only the second half of each run counts, by which
/// time one pass over the traffic is complete if time permits.
///
/// # Errors
/// See [`SweepError`].
pub fn function_costs(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &SweepOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(Step),
) -> Result<CostProfile, SweepError> {
    let step = |done| Step {
        name: "costs of functions",
        done,
        of: COSTS.most,
    };
    progress(step(0));
    let sweep = Sweep::new(spec, traffic, options, stop)?;
    let mut whole = Repeats::new(COSTS);
    let mut functions: Vec<(String, Repeats, f64)> = Vec::new();
    for done in 1..=COSTS.most {
        let (rate, times) = sweep.timed()?;
        let most = times.iter().map(|of| of.packets).max().unwrap_or(0);
        if functions.is_empty() {
            let names = times.iter().map(|of| of.function.clone());
            functions.extend(names.map(|name| (name, Repeats::new(COSTS), 0.0)));
        }
        whole.tell(1e9 / rate);
        for (of, (_, cost, share)) in times.iter().zip(&mut functions) {
            // A function without packets costs nothing.
            cost.tell(of.time.0 as f64 / of.timed.max(1) as f64);
            *share = of.packets as f64 / most.max(1) as f64;
        }
        progress(step(done));
        if whole.enough() && functions.iter().all(|(_, cost, _)| cost.enough()) {
            break;
        }
    }
    let outcome = |repeats: &Repeats| repeats.outcome().ok_or(SweepError::Nothing(options.run_time));
    let functions = functions.iter().map(|(name, cost, share)| {
        Ok(FunctionCost {
            function: name.clone(),
            cost: to_hundredths(outcome(cost)?),
            share: (share * 1e4).round() / 1e4,
        })
    });
    Ok(CostProfile {
        functions: functions.collect::<Result<_, SweepError>>()?,
        whole: to_hundredths(outcome(&whole)?),
    })
}

/// Result for one share of the cache.
enum Share {
    /// Throughput, and the most bytes that the chain occupied, if they were counted.
    Held(Measured, Option<u64>),
    Lost {
        misses: f64,
        measured: Measured,
    },
}

/// A chain and its traffic.
struct Sweep<'a> {
    lab: MeasurementCore<'a>,
    spec: ChainSpec,
    /// Evenly spaced at a million packets per second.
    traffic: Trace,
    run_time: Nanos,
    /// Length of a saturated run.
    saturated: Nanos,
}

const BASE_RATE: f64 = 1e6;

impl<'a> Sweep<'a> {
    fn new(
        spec: &ChainSpec,
        traffic: &Trace,
        options: &SweepOptions,
        stop: &'a AtomicBool,
    ) -> Result<Sweep<'a>, SweepError> {
        let lab = MeasurementCore {
            core: options.core,
            seed: options.seed,
            stop,
        };
        let mut sweep = Sweep {
            lab,
            spec: without_files(spec),
            traffic: evenly(&mut traffic.source(), BASE_RATE)?,
            run_time: options.run_time,
            saturated: options.run_time,
        };
        let rate = sweep.throughput()?;
        sweep.saturated = sweep.length(rate);
        Ok(sweep)
    }

    /// Returns the length of a run at `rate` packets per second.
    fn length(&self, rate: f64) -> Nanos {
        let wanted = ROUNDS * self.traffic.len() as f64 / rate.max(1.0);
        let wanted = Nanos::from_secs_f64(wanted.min(LONGEST_RUN));
        self.run_time.max(wanted)
    }

    /// Repeats a measurement until its noise is low enough.
    fn repeated(&self, rule: RepeatRule, run: impl Fn() -> Result<f64, SweepError>) -> Result<Measured, SweepError> {
        let mut repeats = Repeats::new(rule);
        // Runs without a figure do not count; the loop bounds their number.
        for _ in 0..2 * rule.most {
            repeats.tell(run()?);
            if repeats.enough() {
                break;
            }
        }
        repeats.outcome().ok_or(SweepError::Nothing(self.run_time))
    }

    /// Measures throughput with a share of the cache. After each run, checks that the chain had it.
    fn with_cache(&self, control: &mut dyn CacheControl, bytes: u64) -> Result<Share, SweepError> {
        control.set(bytes)?;
        let mut held = Repeats::new(THROUGHPUT);
        let (mut lost, mut misses) = (Repeats::new(THROUGHPUT), f64::INFINITY);
        let mut occupied = None;
        while !held.enough() {
            let (rate, length) = self.saturated()?;
            let share = control.held(length)?;
            if share.held {
                held.tell(rate);
                occupied = occupied.max(share.occupied);
                continue;
            }
            lost.tell(rate);
            misses = misses.min(share.misses);
            if let Some(measured) = lost.outcome()
                && measured.runs >= NOT_HELD
            {
                let measured = rounded(measured);
                return Ok(Share::Lost { misses, measured });
            }
        }
        let measured = held.outcome().ok_or(SweepError::Nothing(self.saturated))?;
        Ok(Share::Held(rounded(measured), occupied))
    }

    /// Returns the saturated throughput, packets per second.
    fn throughput(&self) -> Result<f64, SweepError> {
        self.saturated().map(|(rate, _)| rate)
    }

    /// Returns the saturated throughput, and the length of the run. If the core is preempted for a whole run, retries
    /// with longer ones.
    fn saturated(&self) -> Result<(f64, Nanos), SweepError> {
        for longer in 0..TRIES {
            let (rate, length) = self.saturated_for(Nanos(self.saturated.0 << longer))?;
            if rate > 0.0 {
                return Ok((rate, length));
            }
        }
        Err(SweepError::Nothing(self.saturated))
    }

    fn saturated_for(&self, length: Nanos) -> Result<(f64, Nanos), SweepError> {
        let setting = Setting {
            duration: Some(length),
            ..Setting::default()
        };
        let report = self.lab.measured(&self.spec, self.traffic.clone(), &setting)?;
        Ok((self.rate(&report), Nanos::from_secs_f64(report.duration_s)))
    }

    /// Returns the saturated throughput, packets per second, and the time of each function in the second half of the
    /// run. If the core is preempted for a whole run, retries with longer ones.
    fn timed(&self) -> Result<(f64, Vec<FunctionTime>), SweepError> {
        for longer in 0..TRIES {
            let length = Nanos(self.saturated.0 << longer);
            let setting = Setting {
                duration: Some(length),
                ..Setting::default()
            };
            let (traffic, half) = (self.traffic.clone(), Nanos(length.0 / 2));
            let (report, times) = self.lab.timed(&self.spec, traffic, &setting, half)?;
            let rate = self.rate(&report);
            if rate > 0.0 && times.iter().any(|of| of.packets > 0) {
                return Ok((rate, times));
            }
        }
        Err(SweepError::Nothing(self.saturated))
    }

    /// Returns the packets per second of a saturated run.
    fn rate(&self, report: &RunReport) -> f64 {
        let windows = self.settled(report);
        let packets = median(windows.iter().map(|window| window.offered as f64));
        match packets {
            Some(packets) if windows.len() >= ENOUGH => packets / SATURATED_WINDOW.as_secs_f64(),
            _ => report.packets.offered as f64 / report.duration_s.max(1e-9),
        }
    }

    /// Runs the traffic at `rate` packets per second.
    fn paced(&self, rate: f64) -> Result<RunReport, SweepError> {
        let mut traffic = self.traffic.clone();
        traffic.scale_rate(rate / BASE_RATE)?;
        let setting = Setting {
            pacing: Pacing::Arrivals,
            duration: Some(self.length(rate)),
            window: WINDOW,
            ..Setting::default()
        };
        Ok(self.lab.measured(&self.spec, traffic, &setting)?)
    }

    /// Returns the windows to evaluate: after the first pass over the traffic, or in the second half if that is
    /// incomplete.
    fn settled<'r>(&self, report: &'r RunReport) -> Vec<&'r WindowReport> {
        let mut came = 0;
        let warm = report.windows.list.iter().find(|window| {
            came += window.offered;
            came >= self.traffic.len() as u64
        });
        let half = report.duration_s / 2.0;
        let warm = warm.map_or(half, |window| window.start_s.min(half));
        let all = evaluated_windows(report);
        let settled: Vec<_> = all.iter().copied().filter(|window| window.start_s > warm).collect();
        match settled.len() {
            ENOUGH.. => settled,
            _ => all,
        }
    }

    fn trial(&self, report: &RunReport) -> Trial {
        let windows = self.settled(report);
        let sum = |of: fn(&WindowReport) -> u64| windows.iter().map(|window| of(window)).sum::<u64>();
        let kept = windows.iter().filter(|window| window.slo_met).count();
        Trial {
            loss: sum(|window| window.lost) as f64 / sum(|window| window.offered).max(1) as f64,
            met: 2 * kept > windows.len(),
        }
    }
}

/// Returns the lowest reported percentile that is at least `percentile`, or the highest.
fn reported(percentile: f64) -> f64 {
    let all = [50.0, 90.0, 99.0];
    let found = all.into_iter().find(|reported| percentile <= *reported);
    found.unwrap_or(99.9)
}

fn at(latency: &LatencyReport, percentile: f64) -> f64 {
    match percentile {
        50.0 => latency.p50,
        90.0 => latency.p90,
        99.0 => latency.p99,
        _ => latency.p999,
    }
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.filter(|figure| *figure > 0.0).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Rounds a time to two decimals; no clock is more precise.
fn to_hundredths(measured: Measured) -> Measured {
    let hundredths = |figure: f64| (figure * 100.0).round() / 100.0;
    Measured {
        value: hundredths(measured.value),
        noise: hundredths(measured.noise),
        ..measured
    }
}

fn rounded(measured: Measured) -> Measured {
    Measured {
        value: measured.value.round().max(1.0),
        noise: measured.noise.round(),
        ..measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Method, ShareResult};
    use std::path::Path;
    use std::sync::atomic::Ordering;

    /// Accepts any share, and reports those below some size as not held.
    struct Fake {
        asked: Vec<u64>,
        held_from: u64,
        /// Minimum share that may be requested.
        least: u64,
    }

    impl CacheControl for Fake {
        fn method(&self) -> Method {
            Method::Resctrl
        }

        fn most(&self) -> u64 {
            8 << 20
        }

        fn unit(&self) -> u64 {
            1 << 20
        }

        fn least(&self) -> u64 {
            self.least
        }

        fn set(&mut self, bytes: u64) -> Result<(), CacheError> {
            self.asked.push(bytes);
            Ok(())
        }

        fn held(&mut self, _: Nanos) -> Result<ShareResult, CacheError> {
            let held = self.asked.last().is_some_and(|bytes| *bytes >= self.held_from);
            let misses = if held { 0.0 } else { 0.5 };
            let occupied = Some(5000);
            Ok(ShareResult { held, misses, occupied })
        }
    }

    fn chain() -> ChainSpec {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
                    spec:\n  functions: [{accounting: }]\n  slo: {latency: 50ms}\n  flows: {capacity: 4096}\n";
        ChainSpec::parse(text, "test.yaml", Path::new("")).unwrap()
    }

    fn options() -> SweepOptions {
        SweepOptions {
            core: tailwater_dataplane::cores::default_core(),
            seed: 1,
            run_time: Nanos::from_millis(20),
        }
    }

    #[test]
    fn what_is_not_held_is_marked_and_left_out() {
        let traffic = uniform(64, 60, 1).unwrap();
        let stop = AtomicBool::new(false);
        let mut control = Fake {
            asked: Vec::new(),
            held_from: 3 << 20,
            least: 1 << 20,
        };
        let profile = cache_curve(&chain(), &traffic, &options(), &mut control, &stop, |_| {}).unwrap();
        assert_eq!((profile.unit_kibibytes, profile.most_units), (1024, 8));
        assert!(profile.points.iter().all(|point| point.at >= 3));
        assert_eq!(profile.points.last().unwrap().at, 8);
        let occupied = profile.occupied.iter().map(|point| point.at);
        assert!(occupied.eq(profile.points.iter().map(|point| point.at)));
        assert_eq!(profile.occupied(8), Some(4096));
        assert!(profile.not_held.iter().all(|point| point.at < 3 && point.misses == 0.5));
        assert_eq!(profile.not_held[0].at, 1);
        assert!(control.asked.len() <= CURVE.most);
    }

    #[test]
    fn a_curve_begins_at_the_least_share() {
        let traffic = uniform(64, 60, 1).unwrap();
        let stop = AtomicBool::new(false);
        let mut control = Fake {
            asked: Vec::new(),
            held_from: 0,
            least: 3 << 20,
        };
        let profile = cache_curve(&chain(), &traffic, &options(), &mut control, &stop, |_| {}).unwrap();
        assert_eq!(profile.points[0].at, 3);
        assert!(control.asked.iter().all(|bytes| *bytes >= 3 << 20));
    }

    #[test]
    fn latency_is_measured_up_to_the_whole_load() {
        let traffic = uniform(64, 60, 1).unwrap();
        let stop = AtomicBool::new(false);
        let profile = load_curve(&chain(), &traffic, &options(), &stop, |_| {}).unwrap();
        let loads: Vec<u32> = profile.points.iter().map(|point| point.at).collect();
        assert_eq!((loads.first(), loads.last()), (Some(&LEAST_LOAD), Some(&WHOLE_LOAD)));
        assert!((3..=CURVE.most).contains(&loads.len()));
        assert_eq!((profile.percentile, profile.objective_us), (99.0, 50_000.0));
        // Every rate in the result is one that was tried.
        let most = profile.throughput.value;
        let all = [profile.ndr, profile.pdr, profile.objective_rate];
        assert!(all.into_iter().flatten().all(|rate| rate > 0.0 && rate <= most + 1.0));
        stop.store(true, Ordering::Relaxed);
        let stopped = load_curve(&chain(), &traffic, &options(), &stop, |_| {});
        assert!(matches!(stopped, Err(SweepError::Run(TrainError::Stopped))));
    }

    #[test]
    fn each_functions_cost_is_its_own() {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\nspec:\n  functions:\n    \
                    - {name: light, synthetic: {cycles: 0}}\n    - {name: heavy, synthetic: {cycles: 3000}}\n    \
                    - {acl: {rules: [{action: deny}]}}\n    - {name: none, accounting: }\n  \
                    slo: {latency: 50ms}\n";
        let spec = ChainSpec::parse(text, "test.yaml", Path::new("")).unwrap();
        let traffic = uniform(64, 60, 1).unwrap();
        let stop = AtomicBool::new(false);
        let costs = function_costs(&spec, &traffic, &options(), &stop, |_| {}).unwrap();
        let names: Vec<_> = costs.functions.iter().map(|of| &*of.function).collect();
        assert_eq!(names, ["light", "heavy", "acl", "none"]);
        let shares: Vec<_> = costs.functions.iter().map(|of| of.share).collect();
        assert_eq!(shares, [1.0, 1.0, 1.0, 0.0]);
        let of = |i: usize| costs.functions[i].cost.value;
        // No core executes that many cycles in less time.
        assert!(of(1) > 300.0 && costs.whole.value > 300.0, "{costs:?}");
        assert_eq!(of(3), 0.0);
        stop.store(true, Ordering::Relaxed);
        let stopped = function_costs(&spec, &traffic, &options(), &stop, |_| {});
        assert!(matches!(stopped, Err(SweepError::Run(TrainError::Stopped))));
    }

    #[test]
    fn percentiles_are_those_of_reports() {
        let latency = LatencyReport {
            p50: 1.0,
            p90: 2.0,
            p99: 3.0,
            p999: 4.0,
            ..LatencyReport::default()
        };
        for (wanted, found, value) in [
            (50.0, 50.0, 1.0),
            (75.0, 90.0, 2.0),
            (99.0, 99.0, 3.0),
            (99.99, 99.9, 4.0),
        ] {
            assert_eq!(reported(wanted), found);
            assert_eq!(at(&latency, found), value);
        }
    }
}
