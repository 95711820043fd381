//! Tests of Dyssect.

use super::Rack;
use crate::{Dyssect, DyssectConfig};
use proptest::prelude::*;
use tailwater_net::Nanos;
use tailwater_policy::flows::{FlowMapper, NewFlow};
use tailwater_policy::server::{CoreNumber, Move};

/// A packet takes 10 ms: 1 packet/s is 1 % of a core. The bound is 80 %.
fn config() -> DyssectConfig {
    DyssectConfig {
        bound: 0.8,
        ..DyssectConfig::for_median(Nanos::from_secs(1), Nanos::from_millis(10))
    }
}

fn dyssect() -> Dyssect {
    Dyssect::new(config())
}

fn cores(rack: &Rack) -> Vec<CoreNumber> {
    rack.flows.iter().map(|flow| flow.core).collect()
}

#[test]
fn the_bound_follows_from_the_median() {
    let bound = |median| DyssectConfig::for_median(Nanos(median), Nanos(1000)).bound;
    // 1084 / 1000 = 10 * 0.1084: waiting one tenth of that needs rho / (1 - rho) = 1.
    assert!((bound(1108) - 0.108 / (0.1084 + 0.108)).abs() < 1e-9);
    assert!(bound(100_000) > 0.998);
    assert!(bound(2000) < bound(3000));
}

#[test]
fn the_smallest_shard_that_suffices_leaves() {
    // 95 % of core 0, so 15 % must leave: the 20 % flow moves to core 1, which has room.
    let flows = [(0, 0, 40.0), (0, 1, 20.0), (0, 2, 25.0), (0, 3, 10.0), (1, 4, 30.0)];
    let mut rack = Rack::new(3, &[0, 0, 0, 0, 1], &flows);
    let mut mapper = dyssect();
    let plan = rack.period(&mut mapper);
    assert_eq!(plan.moves, [Move { bucket: 1, to: 1 }]);
    assert_eq!(plan.migrations, []);
    assert_eq!(mapper.place(NewFlow::in_shard(1)), 1);
    assert_eq!(cores(&rack), [0, 1, 0, 0, 1]);
}

#[test]
fn a_shard_beyond_a_core_gives_up_its_heaviest_flows() {
    let flows = [(0, 0, 20.0), (0, 0, 50.0), (0, 0, 30.0), (0, 0, 10.0)];
    let mut rack = Rack::new(3, &[0], &flows);
    let mut mapper = dyssect();
    rack.period(&mut mapper);
    assert_eq!(cores(&rack), [0, 1, 0, 0], "60 % stay");
    assert_eq!(mapper.place(NewFlow::in_shard(0)), 0, "new flows still go to the owner");
    // The flow returns when there is room below the bound by a margin, 72 %.
    rack.flows[1].rate = 13.0;
    rack.period(&mut mapper);
    assert_eq!(cores(&rack), [0, 1, 0, 0]);
    rack.flows[1].rate = 12.0;
    let plan = rack.period(&mut mapper);
    assert_eq!(cores(&rack), [0, 0, 0, 0]);
    assert_eq!(plan.reclaim, [1]);
}

#[test]
fn a_whale_stays_where_it_is() {
    let mut rack = Rack::new(3, &[0, 0], &[(0, 0, 95.0), (0, 1, 5.0)]);
    let mut mapper = dyssect();
    rack.period(&mut mapper);
    // A shard that shares its core moves to another. Alone on a core, it stays.
    assert_eq!(cores(&rack), [0, 1]);
    for _ in 0..5 {
        assert!(rack.period(&mut mapper).is_empty());
    }
}

#[test]
fn the_least_loaded_core_is_emptied_when_all_fits_elsewhere() {
    let flows = [(0, 0, 40.0), (1, 1, 20.0), (1, 2, 10.0), (2, 3, 50.0)];
    let mut rack = Rack::new(3, &[0, 1, 1, 2], &flows);
    let plan = rack.period(&mut dyssect());
    // The 20 fits on core 0 below 72 %, and so does the 10.
    assert_eq!(plan.moves, [Move { bucket: 1, to: 0 }, Move { bucket: 2, to: 0 }]);
    assert_eq!(plan.reclaim, [1]);
    // With slightly more load they do not fit, and nothing moves.
    let flows = [(0, 0, 43.0), (1, 1, 20.0), (1, 2, 10.0), (2, 3, 64.0)];
    let mut rack = Rack::new(3, &[0, 1, 1, 2], &flows);
    assert!(rack.period(&mut dyssect()).is_empty());
}

#[test]
fn guests_leave_a_core_that_is_emptied() {
    // Shard 0 is heavy: two of its flows are on core 1, and would fit on core 2.
    let flows = [(0, 0, 70.0), (1, 0, 10.0), (1, 0, 9.0), (2, 1, 30.0)];
    let mut rack = Rack::new(3, &[0, 2], &flows);
    let plan = rack.period(&mut dyssect());
    assert_eq!(cores(&rack), [0, 2, 2, 2]);
    assert_eq!(plan.reclaim, [1]);
}

proptest! {
    #[test]
    fn loads_stay_below_the_bound_where_cores_suffice(
        periods in proptest::collection::vec(proptest::collection::vec(0_u32..30, 40), 1..8),
        owners in proptest::collection::vec(0_u16..4, 8),
        shards in proptest::collection::vec(0_u16..8, 40),
        spare in any::<bool>(),
    ) {
        let flow = |&shard: &u16| (owners[usize::from(shard)], shard, 0.0);
        let flows: Vec<_> = shards.iter().map(flow).collect();
        // One core for each flow suffices, three cores do not always.
        let mut rack = Rack::new(if spare { 44 } else { 5 }, &owners, &flows);
        let mut again = rack.clone();
        let (mut mapper, mut second) = (dyssect(), dyssect());
        for rates in periods {
            for rack in [&mut rack, &mut again] {
                for (flow, &rate) in rack.flows.iter_mut().zip(&rates) {
                    flow.rate = f64::from(rate);
                }
                rack.settle();
            }
            let before = rack.clone();
            let plan = rack.period(&mut mapper);
            prop_assert_eq!(&plan, &again.period(&mut second), "deterministic");
            for core in 0..rack.cores.len() {
                let (old, new) = (before.cores[core].rate, rack.cores[core].rate);
                prop_assert!(!spare || new <= 80.0 + 1e-9, "core {} at {}", core, new);
                prop_assert!(new <= old.max(80.0) + 1e-9, "nobody is pushed beyond the bound");
            }
        }
    }
}
