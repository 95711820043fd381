use super::load::{LEAST_LOAD, WHOLE_LOAD, at, reported, trial};
use super::*;
use crate::cache::{CacheControl, Method, ShareResult};
use crate::curve::{Goal, RateSearch};
use crate::profiles::RATE_WIDTH;
use proptest::prelude::*;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::report::{LatencyReport, WindowReport};
use tailwater_functions::spec::ChainSpec;

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
    control.asked.sort_unstable();
    control.asked.dedup();
    assert!(control.asked.len() <= CURVE.most);
    // Each point says that its share was held, and to what degree.
    let verified = profile.verified.iter().map(|verified| (verified.at, verified.misses));
    assert!(verified.eq(profile.points.iter().map(|point| (point.at, 0.0))));
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

/// Seconds of a modelled trial, of its windows, and slots of its receive ring.
const TRIAL: f64 = 0.25;
const TRIAL_WINDOW: f64 = 0.005;
const RING: f64 = 1024.0;

/// Returns the settled windows of a trial at `rate` of a core that processes `capacity` packets per second, each with
/// the latency in its middle. `hiccup` is the time, from the start, at which the core is away for a millisecond.
fn modelled(rate: f64, capacity: f64, slo_s: f64, hiccup: f64) -> Vec<WindowReport> {
    let (mut waiting, mut windows) = (0.0, Vec::new());
    for number in 0..(TRIAL / TRIAL_WINDOW) as u32 {
        let start_s = f64::from(number) * TRIAL_WINDOW;
        let away = if (start_s..start_s + TRIAL_WINDOW).contains(&hiccup) {
            1e-3
        } else {
            0.0
        };
        let before: f64 = waiting;
        waiting = (before + rate * TRIAL_WINDOW - capacity * (TRIAL_WINDOW - away)).max(0.0);
        let lost = (waiting - RING).max(0.0);
        waiting -= lost;
        let wait_s = (before + waiting) / 2.0 / capacity + 1.0 / capacity;
        let offered = (rate * TRIAL_WINDOW).ceil() as u64;
        windows.push(WindowReport {
            start_s,
            offered,
            delivered: offered - (lost as u64).min(offered - 1),
            lost: lost as u64,
            late: 0,
            latency_us: LatencyReport {
                p50: wait_s * 1e6,
                ..LatencyReport::default()
            },
            gaps: 0,
            gap_us: 0.0,
            longest_gap_us: 0.0,
            flagged: false,
            // Of 100 packets, one may be late or lost.
            slo_met: Some(wait_s <= slo_s && lost <= offered as f64 / 100.0),
        });
    }
    windows.split_off(windows.len() / 2)
}

proptest! {
    /// In a trial of half a second at 14 % more than a chain of 12,000 packets/s processes, the receive ring takes
    /// what is too much: no packet was lost, and with a long objective none was late.
    #[test]
    fn no_rate_is_above_what_the_chain_processes(
        exponent in 3.0f64..6.3, over in 0.8f64..2.0, slo in 0.01f64..10.0, hiccup in 0.0f64..0.25,
    ) {
        let capacity = 10f64.powf(exponent);
        let highest = over * capacity;
        let goals = [Goal::Loss(0.0), Goal::Loss(0.005), Goal::Objective];
        let mut search = RateSearch::new(0.05 * highest, highest, RATE_WIDTH, &goals);
        while let Some(rate) = search.next() {
            let windows = modelled(rate, capacity, slo, hiccup);
            search.tell(trial(&windows.iter().collect::<Vec<_>>(), rate));
        }
        let rates = search.rates();
        // Growth by 1 % of the time, or by eight packets in the half of the trial that counts, is noise. So are losses
        // of 1 % for the objective, in a trial in which the ring becomes full.
        let most = capacity * (1.0 + 0.02f64.max(10.0 / (capacity * TRIAL / 2.0)));
        for rate in rates.iter().flatten() {
            prop_assert!(*rate <= most, "{} of {}", rate, capacity);
        }
        // PDR: the ring of a fast chain is full at once, so that loss decides.
        let pdr = rates[1].unwrap();
        prop_assert!(pdr >= highest.min(0.98 * (1.0 - RATE_WIDTH) * capacity), "{} of {}", pdr, capacity);
    }
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
