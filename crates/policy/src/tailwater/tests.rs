use super::cost::Costs;
use super::{TailwaterMapper, TailwaterOptions};
use crate::capacity::ServiceCosts;
use crate::capacity::SplitProfile;
use crate::core::{CoreMapper, Load, Unit};
use tailwater_net::Nanos;

const MEASURED: ServiceCosts = ServiceCosts {
    batch: 320.0,
    packet: 390.0,
    byte: 0.0,
    new_flow: 800.0,
};

fn packets(packets: u32) -> Load {
    Load { flows: 0, packets }
}

#[test]
fn costs_begin_with_what_was_measured() {
    let costs = Costs::new(Some(MEASURED), Unit::Flow);
    assert_eq!(costs.of(packets(10)), 4000);
    assert_eq!((costs.packet(false), costs.packet(true)), (400, 1200));
}

#[test]
fn costs_follow_full_batches_and_not_small_ones() {
    let mut costs = Costs::new(None, Unit::Flow);
    for _ in 0..100 {
        costs.learn(32, 0, Nanos(32 * 700));
    }
    assert!(costs.packet(false).abs_diff(700) <= 1);
    for _ in 0..100 {
        costs.learn(1, 0, Nanos(5_000));
    }
    assert!(costs.packet(false).abs_diff(700) <= 1);
}

#[test]
fn what_opening_a_flow_takes_is_learnt_from_batches_of_new_flows() {
    let mut costs = Costs::new(None, Unit::Flow);
    for _ in 0..100 {
        costs.learn(32, 0, Nanos(32 * 400));
        costs.learn(32, 32, Nanos(32 * 1400));
    }
    assert!(costs.packet(true).abs_diff(1400) <= 2);
    // A queued flow costs extra in proportion to the recent share of flowlets that opened flows.
    let flow = Load { flows: 1, packets: 1 };
    assert_eq!(costs.of(flow), costs.packet(false));
    for _ in 0..1000 {
        costs.see(true);
    }
    assert!(costs.of(flow).abs_diff(1400) <= 5);
    for _ in 0..1000 {
        costs.see(false);
    }
    assert!(costs.of(flow).abs_diff(400) <= 5);
}

/// A core knows of a bucket's packets only how many there are. The batches tell how many of them open flows.
#[test]
fn packets_of_buckets_cost_their_share_of_new_flows() {
    let mut costs = Costs::new(Some(MEASURED), Unit::Bucket);
    costs.see(true);
    assert_eq!(costs.packet(false), 400, "a flowlet tells nothing");
    for _ in 0..100 {
        costs.learn(32, 8, Nanos(32 * 400 + 8 * 800));
    }
    let flow = Load { flows: 1, packets: 1 };
    assert!(costs.of(flow).abs_diff(600) <= 5, "{}", costs.of(flow));
    for _ in 0..100 {
        costs.learn(32, 0, Nanos(32 * 400));
    }
    assert!(costs.of(flow).abs_diff(400) <= 5, "{}", costs.of(flow));
}

#[test]
fn no_sample_moves_costs_beyond_their_bounds() {
    let mut costs = Costs::new(Some(MEASURED), Unit::Flow);
    for _ in 0..1000 {
        costs.learn(32, 0, Nanos(u64::MAX));
        costs.learn(u32::MAX, u32::MAX, Nanos(u64::MAX));
    }
    assert!(costs.packet(false) <= 3200 && costs.packet(true) <= 6400);
    for _ in 0..1000 {
        costs.learn(32, 0, Nanos::ZERO);
        costs.learn(0, 0, Nanos::ZERO);
    }
    assert_eq!(costs.packet(false), 50);
}

#[test]
fn with_a_loose_objective_buffers_end_first() {
    let asks_at = |buffers| {
        let options = TailwaterOptions {
            costs: Some(MEASURED),
            buffers,
            ..TailwaterOptions::new(Nanos::from_millis(5))
        };
        let mapper = TailwaterMapper::new(options, SplitProfile::new()).unwrap();
        let asks = |packets: &u32| mapper.due(Nanos::from_secs(1), *packets);
        (1..20_000).find(asks)
    };
    // 400 ns each: 60 % of the objective are 7,440 packets.
    assert_eq!(asks_at(2048), Some(683));
    assert_eq!(asks_at(60_000), Some(7441));
}

/// The table of constants in `docs/explanation/scaling.md`.
#[test]
fn documented_constants() {
    let page = include_str!("../../../../docs/explanation/scaling.md");
    let options = TailwaterOptions::new(Nanos::from_micros(200));
    let rows = [
        ("activation", options.activate_percent),
        ("sharing", options.share_percent),
        ("release", options.release_percent),
        ("relief", options.relieve_percent.expect("a limit")),
    ];
    for (name, percent) in rows {
        assert!(page.contains(&format!("| {name} | {percent} |")), "{name}: {percent}");
    }
}
