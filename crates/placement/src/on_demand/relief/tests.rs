//! Requests and limits at both sides of each threshold.

use super::super::situation::Cache;
use super::*;
use tailwater_net::Nanos;

fn config() -> Config {
    Config::new(Cache {
        ways: 10,
        way_bytes: 100,
        unusable: 0,
        classes: 4,
        least: 1,
    })
}

/// Instance with 1,000 packets per second and an objective of 10 ms, without curves.
fn seen(instances: u16) -> Observed {
    Observed {
        name: "a".into(),
        tasks: Vec::new(),
        latency: Some(Nanos::from_millis(20)),
        objective: Nanos::from_millis(10),
        offered: 1000.0,
        occupancy: None,
        misses: None,
        curves: None,
        instances,
        most: 2,
    }
}

/// Estimator with this demand in ways that has been late, or on time, for so many ticks.
fn want(late: u32, on_time: u32, ways: f64) -> DemandEstimator {
    let mut want = DemandEstimator::new();
    (want.late, want.on_time) = (late, on_time);
    want.set_ways(ways);
    want
}

#[test]
fn requests_are_by_instances_and_ways() {
    for (instances, ways, share, expected) in [
        (1, 4.0, 2.0, AskKind::ScaleOut),
        (2, 4.0, 2.0, AskKind::Move { ways: 4 }),
        (2, 3.25, 3.0, AskKind::Move { ways: 4 }),
        (2, 4.0, 4.0, AskKind::Unmet),
        (2, 4.0, 5.0, AskKind::Unmet),
    ] {
        let config = config();
        let asked = Relief::default().ask(
            Nanos(0),
            &seen(instances),
            &want(config.ask_after, 0, ways),
            share,
            &config,
        );
        assert_eq!(asked.map(|ask| ask.kind), Some(expected), "{instances} with {share}");
    }
    // No number of ways is enough: not another server.
    let mut hopeless = want(2, 0, 4.0);
    hopeless.enough = Enough::Nowhere;
    let asked = Relief::default().ask(Nanos(0), &seen(2), &hopeless, 2.0, &config());
    assert_eq!(asked.map(|ask| ask.kind), Some(AskKind::Unmet));
    hopeless.late = 1;
    assert_eq!(
        Relief::default().ask(Nanos(0), &seen(2), &hopeless, 2.0, &config()),
        None
    );
}

#[test]
fn requests_come_after_a_time_and_again_after_another() {
    let config = config();
    let mut relief = Relief::default();
    let mut ask = |at: Nanos, late| {
        let asked = relief.ask(at, &seen(1), &want(late, 0, 4.0), 2.0, &config);
        asked.is_some()
    };
    assert!(!ask(Nanos(0), config.ask_after - 1));
    let first = Nanos(5);
    assert!(ask(first, config.ask_after));
    let again = Nanos(first.0 + config.ask_again.0);
    assert!(!ask(Nanos(again.0 - 1), config.ask_after));
    assert!(ask(again, config.ask_after));
    assert!(!ask(again, config.ask_after));
}

#[test]
fn a_request_is_forgotten_once_the_instance_is_on_time() {
    let config = config();
    let ask = |on_time| {
        let mut relief = Relief::default();
        let late = want(config.ask_after, 0, 4.0);
        assert!(relief.ask(Nanos(0), &seen(1), &late, 2.0, &config).is_some());
        assert_eq!(
            relief.ask(Nanos(1), &seen(1), &want(0, on_time, 4.0), 2.0, &config),
            None
        );
        relief.ask(Nanos(2), &seen(1), &late, 2.0, &config).is_some()
    };
    assert!(!ask(config.give_up - 1));
    assert!(ask(config.give_up));
}

#[test]
fn a_limit_begins_below_the_load_falls_while_packets_are_late_and_rises_again() {
    let config = config();
    let mut relief = Relief::default();
    let mut police = |instances, late, on_time| {
        let want = want(late, on_time, 4.0);
        let found = relief.police(&seen(instances), &want, 4.0, &config);
        found.map(|policing| (policing.rate, policing.burst))
    };
    assert_eq!(police(2, config.ask_after - 1, 0), None);
    // Nine tenths, in half of the objective.
    assert_eq!(police(2, config.ask_after, 0), Some((900, 4)));
    // It falls after as many late ticks as there is patience.
    assert_eq!(police(2, 9, 0), Some((900, 4)));
    assert_eq!(police(2, 9, 0), Some((810, 4)));
    assert_eq!(police(2, 0, 1), Some((810, 4)));
    assert_eq!(police(2, 0, config.give_up), Some((826, 4)));
    // More instances take its place.
    assert_eq!(police(1, 9, 0), None);
    assert_eq!(police(2, config.ask_after - 1, 0), None);
}

#[test]
fn a_limit_is_lifted_with_headroom_above_the_load() {
    let config = config();
    for (offered, limited) in [(900.0, true), (858.0, true), (857.0, false), (800.0, false)] {
        let mut relief = Relief::default();
        assert!(relief.police(&seen(2), &want(9, 0, 4.0), 4.0, &config).is_some());
        let less = Observed { offered, ..seen(2) };
        let found = relief.police(&less, &want(0, 1, 4.0), 4.0, &config);
        assert_eq!(found.is_some(), limited, "{offered}");
    }
    // Not while packets are late.
    let mut relief = Relief::default();
    assert!(relief.police(&seen(2), &want(9, 0, 4.0), 4.0, &config).is_some());
    let less = Observed {
        offered: 1.0,
        ..seen(2)
    };
    assert!(relief.police(&less, &want(1, 0, 4.0), 4.0, &config).is_some());
}
