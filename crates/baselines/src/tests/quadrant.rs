//! Tests of Quadrant, and of Metron's algorithm inside it.

use super::Rack;
use crate::{Quadrant, QuadrantConfig, QuadrantMetron, shed_rate};
use proptest::prelude::*;
use tailwater_net::Nanos;
use tailwater_policy::flows::{FlowMapper, FlowPlan, Migration, NewFlow};
use tailwater_policy::server::{CoreNumber, Move};

/// Objective: new flows go below 140 µs, migration starts above 180 µs.
const SLO: Nanos = Nanos::from_micros(200);
const MAX_RATE: f64 = 700.0;
const ANY: NewFlow = NewFlow::in_shard(0);

fn quadrant() -> Quadrant {
    Quadrant::new(QuadrantConfig::new(SLO, MAX_RATE))
}

/// Creates a rack with flows of (core, packets/s) and each core's estimated latency in µs.
fn rack(flows: &[(CoreNumber, f64)], latency: &[u64]) -> Rack {
    let flows: Vec<_> = flows.iter().map(|&(core, rate)| (core, 0, rate)).collect();
    let mut rack = Rack::new(latency.len(), &[], &flows);
    for (core, &latency) in rack.cores.iter_mut().zip(latency) {
        core.batch_p99 = Nanos::from_micros(latency / 2);
        core.worst_delay = Nanos::from_micros(latency);
    }
    rack
}

fn migrations(plan: &FlowPlan) -> Vec<(u32, CoreNumber)> {
    let pair = |m: &Migration| (m.flow, m.to);
    plan.migrations.iter().map(pair).collect()
}

#[test]
fn equation_four_by_hand() {
    let (late, target) = (Nanos::from_micros(200), Nanos::from_micros(140));
    for (rate, expected) in [
        // 500 * 60/200 * (700/500 - 1 = 0.4)
        (500.0, 60.0),
        // 560 * 0.3 * 0.25, where the floor begins
        (560.0, 42.0),
        // 650 * 0.3 * 0.25 instead of 0.0769
        (650.0, 48.75),
        // 800 * 0.3 * 0.25 instead of -0.125
        (800.0, 60.0),
        // 100 * 0.3 * 6: more than there is
        (100.0, 180.0),
        (0.0, 0.0),
    ] {
        let shed = shed_rate(rate, MAX_RATE, late, target);
        assert!((shed - expected).abs() < 1e-9, "{rate}: {shed}");
    }
    assert_eq!(shed_rate(500.0, MAX_RATE, target, target), 0.0);
    assert_eq!(shed_rate(500.0, MAX_RATE, Nanos::ZERO, target), 0.0);
}

#[test]
fn a_new_flow_goes_to_the_fullest_instance_below_the_lower_threshold() {
    let flows = [(0, 300.0), (1, 500.0), (2, 600.0), (3, 640.0)];
    let mut mapper = quadrant();
    // Core 2 is between the thresholds, and core 3 beyond 90 % of 700.
    rack(&flows, &[100, 139, 140, 100, 0]).period(&mut mapper);
    assert_eq!(mapper.place(ANY), 1);
    // No instance qualifies: a new one starts and is then the only one that does.
    let mut mapper = quadrant();
    rack(&flows, &[150, 160, 140, 100, 0, 0]).period(&mut mapper);
    assert_eq!(mapper.place(ANY), 4);
    assert_eq!(mapper.place(ANY), 4);
    // No core is left: the fastest instance gets the flow.
    let mut mapper = quadrant();
    rack(&flows, &[150, 160, 140, 170]).period(&mut mapper);
    assert_eq!(mapper.place(ANY), 2);
    // Initially no instance is active.
    let mut mapper = quadrant();
    rack(&[], &[0, 0]).period(&mut mapper);
    assert_eq!(mapper.place(ANY), 0);
}

#[test]
fn flows_migrate_whose_rates_sum_to_the_equation() {
    // 500 packets/s at 200 µs: 60 must leave. The 50 fits, then the lightest flow completes the sum.
    let flows = [(0, 300.0), (0, 100.0), (0, 50.0), (0, 30.0), (0, 20.0), (0, 0.0)];
    let plan = rack(&flows, &[200, 0]).period(&mut quadrant());
    assert_eq!(migrations(&plan), [(2, 1), (4, 1)]);
    // The fullest instance below the threshold that stays below 90 %. Core 2 would be at 640.
    let mut flows = flows.to_vec();
    flows.extend([(1, 100.0), (2, 590.0), (3, 610.0), (4, 400.0)]);
    let plan = rack(&flows, &[200, 10, 10, 150, 10]).period(&mut quadrant());
    assert_eq!(migrations(&plan), [(2, 4), (4, 2)]);
    // Without a qualifying instance and without a free core, all flows stay.
    let plan = rack(&[(0, 300.0), (0, 200.0), (1, 600.0)], &[200, 150]).period(&mut quadrant());
    assert_eq!(migrations(&plan), []);
    // Nothing migrates between the thresholds, and a core's only flow never does.
    let plan = rack(&[(0, 300.0), (0, 200.0)], &[180, 0]).period(&mut quadrant());
    assert_eq!(migrations(&plan), []);
    let plan = rack(&[(0, 690.0)], &[900, 0]).period(&mut quadrant());
    assert_eq!(migrations(&plan), []);
}

#[test]
fn as_compared_signals_are_smoothed_and_half_of_the_flows_move() {
    let config = QuadrantConfig::as_compared(SLO, MAX_RATE);
    // 100 packets/s at 500 µs would move everything: 100 * 360/500 * 6.
    let flows = [(0, 20.0); 5];
    let mut rack = rack(&flows, &[500, 0]);
    let mut mapper = Quadrant::new(config);
    // Each 50 ms adds a quarter of the new value: 125, then 219 µs.
    assert_eq!(migrations(&rack.period(&mut mapper)), []);
    assert_eq!(migrations(&rack.period(&mut mapper)), [(0, 1), (1, 1)]);
    // Unsmoothed: at once, and all flows but one.
    let config = QuadrantConfig {
        smoothing: Nanos::ZERO,
        most_flows: 1.0,
        ..config
    };
    let mut rack = self::rack(&flows, &[500, 0]);
    let plan = rack.period(&mut Quadrant::new(config));
    assert_eq!(plan.migrations.len(), 4);
}

#[test]
fn idle_cores_are_reclaimed() {
    let mut mapper = quadrant();
    let mut rack = rack(&[(0, 10.0), (2, 10.0)], &[10, 10, 10]);
    rack.cores[1].active = true;
    let plan = rack.period(&mut mapper);
    assert_eq!(plan.reclaim, [1]);
    assert_eq!(rack.active(), 2);
    rack.flows.clear();
    assert_eq!(rack.period(&mut mapper).reclaim, [0, 2]);
    // An instance stays if it got a flow that the view does not show yet.
    let core = mapper.place(ANY);
    rack.cores[usize::from(core)].active = true;
    assert!(rack.period(&mut mapper).is_empty());
    assert_eq!(rack.period(&mut mapper).reclaim, [core]);
}

proptest! {
    #[test]
    fn thresholds_are_respected(
        flows in proptest::collection::vec((0_u16..5, 0_u32..120), 1..60),
        latency in proptest::collection::vec(0_u64..200, 7),
        compared in any::<bool>(),
    ) {
        let flow = |&(core, rate): &(CoreNumber, u32)| (core, f64::from(rate));
        let flows: Vec<_> = flows.iter().map(flow).collect();
        let config = if compared {
            let config = QuadrantConfig::as_compared(SLO, MAX_RATE);
            QuadrantConfig { smoothing: Nanos::ZERO, ..config }
        } else {
            QuadrantConfig::new(SLO, MAX_RATE)
        };
        // Gives both signals the same value.
        let latency: Vec<_> = latency.iter().map(|latency| latency * 2).collect();
        let before = rack(&flows, &latency);
        let (mut after, mut again) = (before.clone(), before.clone());
        let mut mapper = Quadrant::new(config);
        let plan = after.period(&mut mapper);
        prop_assert_eq!(&plan, &again.period(&mut Quadrant::new(config)), "deterministic");
        for (core, &latency) in latency.iter().enumerate() {
            let on = |flow: u32| usize::from(flows[flow as usize].0) == core;
            let rates = |flows_of: &[u32]| -> f64 {
                flows_of.iter().map(|&flow| flows[flow as usize].1).sum()
            };
            let mine: Vec<_> = (0..flows.len() as u32).filter(|&flow| on(flow)).collect();
            let left = plan.migrations.iter().map(|m| m.flow).filter(|&flow| on(flow));
            let left: Vec<_> = left.collect();
            if let Some((_, but_last)) = left.split_last() {
                prop_assert!(latency > 180);
                prop_assert!(left.len() < mine.len(), "never all");
                prop_assert!(!compared || left.len() <= mine.len() / 2, "at most half");
                let (late, target) = (Nanos::from_micros(latency), Nanos::from_micros(140));
                let due = shed_rate(rates(&mine), MAX_RATE, late, target);
                prop_assert!(rates(but_last) < due, "no more flows than are due");
            }
            if plan.migrations.iter().any(|m| usize::from(m.to) == core) {
                // Signals of inactive cores are meaningless.
                prop_assert!(!before.cores[core].active || latency < 140);
                prop_assert!(after.cores[core].rate <= 0.9 * MAX_RATE + 1e-9);
            }
        }
        let placed = usize::from(mapper.place(ANY));
        prop_assert!(placed < 7);
    }
}

#[test]
fn quadrant_metron_splits_shards_with_their_flows() {
    let mut rack = Rack::new(3, &[0, 0, 0, 0], &[(0, 0, 5.0), (0, 3, 5.0), (0, 2, 5.0)]);
    rack.cores[0].lost = 7;
    let mut mapper = QuadrantMetron::new();
    let plan = rack.period(&mut mapper);
    assert_eq!(plan.moves, [Move { bucket: 2, to: 1 }, Move { bucket: 3, to: 1 }]);
    assert_eq!(rack.flows.iter().map(|f| f.core).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(mapper.place(NewFlow::in_shard(3)), 1);
    // Without losses the idle halves merge again, after the counters have settled.
    rack.cores[0].lost = 0;
    assert!(rack.period(&mut mapper).is_empty());
    let plan = rack.period(&mut mapper);
    assert_eq!((plan.moves.len(), &plan.reclaim[..]), (2, &[1][..]));
    assert_eq!(mapper.place(NewFlow::in_shard(3)), 0);
    assert_eq!(rack.active(), 1);
}
