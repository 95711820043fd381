use super::load::{LEAST_LOAD, WHOLE_LOAD, at, reported};
use super::*;
use crate::cache::{CacheControl, Method, ShareResult};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::report::LatencyReport;
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
