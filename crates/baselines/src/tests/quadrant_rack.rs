//! Quadrant's scaling of a rack.

use crate::{QuadrantConfig, QuadrantFlows, QuadrantScaling, shed_rate};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::rack::*;
use tailwater_placement::slo::Curves;

const SLO: Nanos = Nanos::from_micros(200);
const MAX_RATE: f64 = 1e6;

/// Instance with a batch time in us and an offered rate.
fn instance(name: &str, batch_p99: u64, offered: f64) -> InstanceView {
    InstanceView {
        name: name.into(),
        chain: "a".into(),
        server: "s".into(),
        phase: InstancePhase::Ready,
        cores: vec![1],
        promised: MAX_RATE,
        exclusive: true,
        replaces: None,
        load: InstanceLoad {
            offered,
            p99: None,
            batch_p99: Nanos::from_micros(batch_p99),
            busy: None,
        },
    }
}

fn capacity(instances: &[InstanceView], network: Nanos) -> ChainCapacity {
    let chain = ChainView {
        name: "a".into(),
        promise: Some(RackPromise {
            throughput: RackThroughput::OnDemand,
            latency: SLO,
            curves: vec![Arc::new(Curves {
                machine: "m".into(),
                cores: 1,
                cache: CacheCurve::new(vec![(1, MAX_RATE)]).expect("a curve"),
                load: LoadCurve::new(vec![(1.0, Nanos(1))]).expect("a curve"),
            })],
        }),
        objective: Some(SLO),
        cores: 1,
        least: 1,
        most: 9,
        redundancy: 1,
        pool: None,
        is_bound: false,
        demand: ChainDemand::default(),
    };
    let instances: Vec<&InstanceView> = instances.iter().collect();
    let config = QuadrantConfig {
        network,
        ..QuadrantConfig::new(SLO, MAX_RATE)
    };
    QuadrantScaling::new(config).capacity(&ChainLoad {
        now: Nanos::ZERO,
        chain: &chain,
        instances: &instances,
        instance_rate: MAX_RATE,
    })
}

fn instances(all: &[InstanceView]) -> u16 {
    let capacity = capacity(all, Nanos::ZERO);
    assert!(capacity.exclusive && capacity.idle.is_empty());
    capacity.instances
}

#[test]
fn an_instance_is_added_when_none_takes_new_flows() {
    assert_eq!(instances(&[]), 1);
    // Below 0.7 of the objective it takes some, up to 90 % of its highest rate.
    for (batch, offered, number) in [(69, 5e5, 1), (70, 5e5, 2), (69, 899_999.0, 1), (69, 9e5, 2)] {
        assert_eq!(
            instances(&[instance("0", batch, offered)]),
            number,
            "{batch} us, {offered}"
        );
    }
    let starting = InstanceView {
        phase: InstancePhase::Starting,
        ..instance("1", 0, 0.0)
    };
    assert_eq!(instances(&[instance("0", 80, 5e5), starting]), 2);
    let network = capacity(&[instance("0", 60, 5e5)], Nanos::from_micros(20));
    assert_eq!(network.instances, 2);
}

#[test]
fn equation_4_decides_how_many_take_over_what_an_overloaded_one_sheds() {
    let overloaded = |number: usize| {
        let all = (0..number).map(|at| instance(&at.to_string(), 1000, 6e6));
        all.collect::<Vec<_>>()
    };
    let shed = shed_rate(6e6, MAX_RATE, Nanos::from_micros(2000), Nanos::from_micros(140));
    assert!((9e5..1.8e6).contains(&shed), "{shed}");
    assert_eq!(instances(&overloaded(1)), 3);
    assert_eq!(instances(&overloaded(2)), 2 + (2.0 * shed / 9e5).ceil() as u16);
    // Another one has room for a part.
    let mut all = overloaded(1);
    all.push(instance("x", 10, 1e5));
    assert_eq!(instances(&all), 2 + ((shed - 8e5) / 9e5).ceil() as u16);
    // Between both thresholds nothing migrates.
    assert_eq!(instances(&[instance("0", 90, 8e5), instance("1", 10, 1e5)]), 2);
}

#[test]
fn idle_instances_are_reclaimed_except_the_last() {
    let idle = capacity(
        &[instance("0", 10, 1e5), instance("1", 0, 0.0), instance("2", 0, 0.5)],
        Nanos::ZERO,
    );
    assert_eq!((idle.instances, idle.idle), (1, vec!["1".to_owned(), "2".to_owned()]));
    let last = capacity(&[instance("0", 0, 0.0)], Nanos::ZERO);
    assert_eq!(last.instances, 1);
}

#[test]
fn flows_fill_the_fullest_instance_and_stay_until_they_end() {
    let flows = QuadrantFlows {
        ending: 0.1,
        limit: 100.0,
    };
    let mut rates = [50.0, 80.0, 0.0];
    // 45 and 72 stay; 28 and 55 fill both up, and the rest begins on the third.
    flows.step(&mut rates, &[0.0; 3], 210.0);
    assert_eq!(rates, [100.0, 100.0, 10.0]);
    // 189 stay, and 11 are new: the fullest has room for 10.
    flows.step(&mut rates, &[0.0; 3], 200.0);
    assert_eq!(rates, [100.0, 91.0, 9.0]);
    // Less than what stays: all send less.
    flows.step(&mut rates, &[0.0; 3], 90.0);
    assert_eq!(rates, [45.0, 40.95, 4.05]);
    // Half of the second moves to the first.
    let mut rates = [50.0, 100.0];
    flows.step(&mut rates, &[0.0, 45.0], 135.0);
    assert_eq!(rates, [90.0, 45.0]);
    // No room: all get a part.
    let mut rates = [100.0, 100.0];
    flows.step(&mut rates, &[0.0; 2], 240.0);
    assert_eq!(rates, [120.0, 120.0]);
}
