//! Overloaded workers that discard packets which are too late (`whenOverloaded: serve-fresh`): every packet is counted
//! once, and what is sent keeps its order.

mod common;

use common::mappers::{random_flows, random_leases};
use common::traffic::{Traffic, order};
use common::{Folder, Setup, run_spec, spec_text};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_api::WhenOverloaded;
use tailwater_dataplane::report::RunReport;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

const PACKETS: u32 = 30_000;

/// Runs far more packets than any core can process within the objective.
fn run(when_overloaded: WhenOverloaded, setup: Setup) -> RunReport {
    let text = spec_text("synthetic: {cycles: 60000, newFlowCycles: 1}", "2ms");
    let mut spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    spec.when_overloaded = when_overloaded;
    let setup = Setup {
        traffic: Traffic {
            packets: PACKETS,
            spacing: Nanos(2_000),
            ..Traffic::default()
        },
        ..setup
    };
    let ran = run_spec(spec, setup, &Folder::new(), &AtomicBool::new(false), |_| {});
    for (flow, numbers) in order(&ran.frames) {
        assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
    }
    let report = ran.result.expect("the run goes well");
    let packets = &report.packets;
    assert_eq!(packets.offered, u64::from(PACKETS));
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost
    );
    assert_eq!(packets.delivered, ran.frames.len() as u64);
    let late: u64 = report.late_by_cause.values().sum();
    assert!(late >= packets.lost, "a lost packet is late, too");
    report
}

fn too_late(report: &RunReport) -> u64 {
    let drops = report.packets.drops.iter().filter(|drop| drop.reason == "too-late");
    drops.map(|drop| drop.packets).sum()
}

#[test]
fn one_core_discards_what_it_cannot_process_in_time() {
    let report = run(WhenOverloaded::ServeFresh, Setup::default());
    assert!(too_late(&report) > 0, "{:?}", report.packets);
    let report = run(WhenOverloaded::InOrder, Setup::default());
    assert_eq!(too_late(&report), 0);
}

#[test]
fn dispatchers_and_auxiliary_cores_discard_and_keep_the_order() {
    for scaling in [random_flows(11, 2, Mode::Sleep), random_leases(11, 2, Mode::Sleep, 0)] {
        let setup = Setup {
            scaling: Some(scaling),
            ..Setup::default()
        };
        let report = run(WhenOverloaded::ServeFresh, setup);
        assert!(too_late(&report) > 0, "{:?}", report.packets);
    }
}
