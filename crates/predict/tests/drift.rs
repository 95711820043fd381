//! Drift: false requests and delays, on observations whose distribution is known.

mod common;

use common::Chance;
use tailwater_predict::{Drift, DriftError, DriftMonitor, DriftOptions, Estimate};

/// Interval of 90 %, 10 % wide on both sides.
fn predicted(value: f64) -> Estimate {
    Estimate {
        value,
        low: value / 1.1,
        high: value * 1.1,
        confidence: 0.9,
    }
}

fn monitor(run_length: f64) -> DriftMonitor {
    let options = DriftOptions {
        run_length,
        ..DriftOptions::default()
    };
    DriftMonitor::new(0.9, options).unwrap()
}

/// Observation that is within the interval with a probability of exactly `inside`.
fn observed(chance: &mut Chance, inside: f64) -> f64 {
    let width = if chance.next() < inside { 0.5 } else { 2.0 };
    let sign = if chance.next() < 0.5 { -1.0 } else { 1.0 };
    1.1f64.powf(sign * width)
}

/// The bound is n / run length: 2,000 / 10,000. Observations of each co-run alternate around its prediction, so that
/// none but the misses by design is outside.
#[test]
fn false_requests_are_as_rare_as_stated() {
    let runs = 40;
    let mut requests = 0;
    for seed in 0..runs {
        let (mut monitor, mut chance) = (monitor(10_000.0), Chance(seed));
        // As many new co-runs, of which one observation would count, as later observations of one.
        for at in 0..1000 {
            let name = format!("ids-{at}");
            let first = observed(&mut chance, 0.9);
            for _ in 0..8 {
                monitor.observe(&[&name], &predicted(1.0), first).unwrap();
            }
            let later = 1.0 * observed(&mut chance, 0.9);
            monitor
                .observe(&["nat"], &predicted(1.0), if at < 8 { 1.0 } else { later })
                .unwrap();
        }
        requests += u32::from(monitor.drift().is_some());
    }
    let share = f64::from(requests) / runs as f64;
    assert!(share <= 0.2, "{share}");
}

/// A co-run that is outside counts once, however long it lasts: one in ten is, by design.
#[test]
fn one_co_run_outside_of_its_interval_requests_nothing() {
    let mut monitor = monitor(1000.0);
    for _ in 0..10_000 {
        assert_eq!(monitor.observe(&["ids"], &predicted(1.0), 0.8), Ok(None));
    }
    let (names, co_run) = monitor.co_runs().next().unwrap();
    assert_eq!(names, ["ids"]);
    assert!(co_run.is_outside() && co_run.observations == 10_000);
}

#[test]
fn a_function_that_became_slower_requests_a_profile_soon() {
    for seed in 0..10 {
        let (mut monitor, mut chance) = (monitor(100_000.0), Chance(seed));
        let mut noisy = |value: f64| value * (1.0 + 0.02 * (chance.next() - 0.5));
        for _ in 0..5000 {
            assert_eq!(monitor.observe(&["ids", "nat"], &predicted(5e6), noisy(5e6)), Ok(None));
        }
        // 20 % slower. Each observation adds ln(0.3 / 0.1), so the 11th crosses ln(100,000).
        let after = (1..).find(|_| {
            let co_runners = ["nat", "ids"];
            monitor
                .observe(&co_runners, &predicted(5e6), noisy(4e6))
                .unwrap()
                .is_some()
        });
        assert_eq!(after, Some(11));
        match monitor.drift() {
            Some(Drift::Function { observations, outside }) => assert_eq!((observations, outside), (5003, 11)),
            found => panic!("{found:?}"),
        }
        monitor.reset();
        assert_eq!(monitor.drift(), None);
    }
}

#[test]
fn a_model_that_is_wrong_for_a_third_of_co_runs_is_found() {
    let mut slowest = 0;
    for seed in 0..50 {
        let (mut monitor, mut chance) = (monitor(1000.0), Chance(seed));
        let found = (1..2000).find(|at| {
            let (name, value) = (format!("ids-{at}"), observed(&mut chance, 0.65));
            (0..8).any(|_| monitor.observe(&[&name], &predicted(1.0), value).unwrap().is_some())
        });
        slowest = slowest.max(found.expect("a request"));
        assert!(
            matches!(monitor.drift(), Some(Drift::Model { .. })),
            "{:?}",
            monitor.drift()
        );
    }
    assert!(slowest < 400, "{slowest}");
}

#[test]
fn a_new_model_starts_its_co_runs_over() {
    let mut monitor = monitor(1000.0);
    for _ in 0..20 {
        monitor.observe(&["ids"], &predicted(1.0), 1.0).unwrap();
    }
    monitor.observe(&["ids"], &predicted(0.7), 0.7).unwrap();
    let (_, co_run) = monitor.co_runs().next().unwrap();
    assert_eq!((co_run.observations, co_run.predicted), (1, predicted(0.7)));
}

#[test]
fn co_runs_are_bounded() {
    let mut monitor = monitor(1000.0);
    for at in 0..3000 {
        monitor.observe(&[&at.to_string()], &predicted(1.0), 1.0).unwrap();
    }
    assert_eq!(monitor.co_runs().len(), 1024);
    assert!(monitor.co_runs().any(|(names, _)| names == ["2999"]));
    assert!(!monitor.co_runs().any(|(names, _)| names == ["0"]));
}

#[test]
fn what_is_no_observation_is_refused() {
    let mut monitor = monitor(1000.0);
    for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let found = monitor.observe(&[], &predicted(1.0), wrong);
        assert!(matches!(found, Err(DriftError::Value { .. })), "{found:?}");
    }
    let other = Estimate {
        confidence: 0.8,
        ..predicted(1.0)
    };
    assert!(matches!(
        monitor.observe(&[], &other, 1.0),
        Err(DriftError::Confidence { .. })
    ));
    assert_eq!(monitor.co_runs().len(), 0);
    let with = |change: fn(&mut DriftOptions)| {
        let mut options = DriftOptions::default();
        change(&mut options);
        DriftMonitor::new(0.9, options).is_err()
    };
    assert!(with(|of| of.missed = 0.09) && with(|of| of.missed = 1.1) && with(|of| of.missed = f64::NAN));
    assert!(with(|of| of.run_length = 1.0) && with(|of| of.first = 0));
    assert!(DriftMonitor::new(1.0, DriftOptions::default()).is_err());
}
