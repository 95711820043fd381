//! Function in C on several cores: its flow state moves with the packets, as that of built-in functions does.

mod common;

use common::library::function_in_c;
use common::mappers::{random_buckets, random_flows, random_splits};
use common::traffic::order;
use common::{NAT, Reference, RunResult, Setup, run_through};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// The function has counted every packet once, when all flows have ended.
fn counted_all(outcome: &RunResult) {
    let report = outcome.report();
    let reasons = &report.packets.reasons;
    assert_eq!(reasons["numbered/packets-of-ended-flows"], report.packets.delivered);
    let flows = order(&outcome.frames).len() as u64;
    assert_eq!(reasons["numbered/flows"], flows);
}

/// However flows and buckets move, the packets sent are the same as on one core. The function itself ends the run if it
/// sees packets of a flow out of order, or another flow's state.
fn moved_equals_single(test: &str, setups: impl IntoIterator<Item = Setup>) {
    let functions = format!("{{{}}}, {NAT}", function_in_c(test, true));
    let single = run_through(&functions, Setup::default());
    counted_all(&single);
    let single = Reference::new(single).unwrap();
    for setup in setups {
        let moved = run_through(&functions, setup);
        counted_all(&moved);
        assert_eq!(single.difference(moved), None);
    }
}

#[test]
fn flows_handed_to_other_instances() {
    let scaling = [
        random_flows(0x2545_f491, 2, Mode::Sleep),
        random_splits(77, 1, Mode::Sleep, 3),
    ];
    let setups = scaling.map(|scaling| Setup {
        scaling: Some(scaling),
        ..Setup::default()
    });
    moved_equals_single("handed", setups);
}

#[test]
fn buckets_moved_to_other_instances() {
    let (server, _) = random_buckets(11, Nanos::from_millis(1));
    let setup = Setup {
        workers: 2,
        reta_delay: Nanos::from_micros(300),
        scaling: Some(random_flows(9, 1, Mode::Sleep)),
        server: Some(server),
        ..Setup::default()
    };
    moved_equals_single("moved", [setup]);
}
