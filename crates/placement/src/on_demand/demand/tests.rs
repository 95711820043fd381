//! Demand at both sides of each threshold.

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

impl DemandEstimator {
    /// Sets the demand.
    pub(in crate::on_demand) fn set_ways(&mut self, ways: f64) {
        self.held = ways;
    }
}

fn seen(latency: u64, offered: f64, misses: Option<f64>) -> Observed {
    Observed {
        name: "a".into(),
        tasks: Vec::new(),
        latency: Some(Nanos(latency)),
        objective: Nanos(1000),
        offered,
        occupancy: None,
        misses,
        curves: None,
        instances: 1,
        most: 1,
    }
}

#[test]
fn packets_are_late_beyond_their_objective_and_not_at_it() {
    let mut want = DemandEstimator::new();
    for (latency, late, on_time) in [(1000, 0, 1), (1001, 1, 0), (1002, 2, 0), (1000, 0, 1), (1, 0, 2)] {
        want.observe(&seen(latency, 10.0, None), &config(), None, 2.0, false);
        assert_eq!((want.late, want.on_time), (late, on_time), "{latency}");
    }
    let idle = Observed {
        latency: None,
        ..seen(0, 0.0, None)
    };
    want.observe(&idle, &config(), None, 2.0, false);
    assert_eq!((want.late, want.on_time), (0, 3));
}

#[test]
fn few_misses_are_fewer_than_the_limit() {
    let limit = config().few_misses;
    for (misses, few) in [
        (None, false),
        (Some(limit), false),
        (Some(limit * 0.99), true),
        (Some(0.0), true),
    ] {
        let mut want = DemandEstimator::new();
        want.observe(&seen(1, 10.0, misses), &config(), None, 2.0, false);
        assert_eq!(want.few_misses, few, "{misses:?}");
    }
}

#[test]
fn load_is_smoothed_unless_it_jumps() {
    let mut want = DemandEstimator::new();
    for (offered, load) in [
        (100.0, 100.0),
        (120.0, 110.0),
        (88.0, 99.0),
        (130.0, 130.0),
        (10.0, 10.0),
    ] {
        want.observe(&seen(1, offered, None), &config(), None, 2.0, false);
        assert!((want.load.unwrap() - load).abs() < 1e-9, "{offered}: {:?}", want.load);
    }
}

#[test]
fn demand_rises_at_once_and_falls_to_the_most_of_a_while() {
    let config = config();
    let mut want = DemandEstimator::new();
    let mut hold = |low: f64, high: f64| {
        want.hold(NeededWays { low, high }, &config);
        want.ways()
    };
    assert_eq!(hold(4.0, 5.0), 5.0);
    // Between both margins it stays.
    assert_eq!(hold(4.9, 6.0), 5.0);
    assert_eq!(hold(5.0, 6.0), 5.0);
    assert_eq!(hold(5.1, 6.1), 6.25);
    for _ in 1..config.give_up - 1 {
        assert_eq!(hold(1.0, 2.0), 6.25);
    }
    assert_eq!(hold(1.0, 3.5), 6.25);
    assert_eq!(hold(1.0, 2.0), 3.5);
    // A tick of the same demand begins anew.
    assert_eq!(hold(1.0, 2.0), 3.5);
    assert_eq!(hold(3.0, 3.5), 3.5);
    for _ in 1..config.give_up {
        assert_eq!(hold(1.0, 2.0), 3.5);
    }
    assert_eq!(hold(1.0, 2.0), 2.0);
}

#[test]
fn failed_trials_wait_twice_as_long_up_to_a_limit() {
    let config = config();
    let mut want = DemandEstimator::new();
    let waits: Vec<u32> = (0..8)
        .map(|_| {
            want.end(&config, false);
            want.wait / config.give_up
        })
        .collect();
    assert_eq!(waits, [2, 4, 8, 16, 32, 64, 64, 64]);
    want.end(&config, true);
    assert_eq!((want.wait, want.backoff), (0, 1));
}
