//! Whole flows offloaded to other cores: no loss, no reordering, state as on one core.
//!
//! The mapper here moves flows and relieves auxiliary cores at random as often as it can: a harder test of offloading
//! than any policy.

mod common;

use common::mappers::{random_flows, random_help, random_leases};
use common::traffic::{Traffic, order};
use common::{BALANCER, NAT, Reference, Setup, run_only, run_through};
use std::time::Duration;
use tailwater_handover::park::Mode;

/// Packets sent, their order within each flow, and the functions' counters and bindings are the same as on one core,
/// whatever is offloaded where.
fn scaled_equals_single(functions: &str, helpers: usize, park: Mode) {
    let single = Reference::new(run_through(functions, Setup::default())).unwrap();
    for (unit, scaling) in [
        ("flows", random_flows(0x2545_f491, helpers, park)),
        ("buckets", random_leases(0x9e37_79b9_7f4a, helpers, park, 0)),
    ] {
        let setup = Setup {
            scaling: Some(scaling),
            ..Setup::default()
        };
        let scaled = run_through(functions, setup);
        assert!(scaled.report().cores.auxiliary_avg > 0.0);
        let held = scaled.report().scaling.map(|scaling| scaling.packets_parked);
        assert!(held > Some(0), "no helper was relieved");
        assert_eq!(single.difference(scaled), None, "{unit}");
    }
}

#[test]
fn flows_handed_at_random_are_processed_as_on_one_core() {
    scaled_equals_single(NAT, 1, Mode::Sleep);
}

#[test]
fn several_helpers_that_share_cores() {
    let park = Mode::SpinThenSleep(Duration::from_micros(20));
    scaled_equals_single(BALANCER, 3, park);
}

/// Dedicated cores lend buckets to each other, at the same time and in both directions, without auxiliary cores and
/// beside them.
#[test]
fn dedicated_cores_that_help_each_other() {
    for (functions, dedicated, helpers) in [(NAT, 2, 0), (BALANCER, 3, 1)] {
        let sparse = || Setup {
            traffic: Traffic::sparse(),
            ..Setup::default()
        };
        let single = Reference::new(run_through(functions, sparse())).unwrap();
        // On a busy machine the cores may hardly ever run at the same time, or have long queues all the time.
        let is_helped = (1..=8).any(|seed| {
            let setup = Setup {
                workers: dedicated,
                scaling: Some(random_help(seed, [dedicated, helpers], Mode::Sleep, 0)),
                ..sparse()
            };
            let helped = run_through(functions, setup);
            let scaling = helped.report().scaling.unwrap();
            assert!(scaling.packets_to_dedicated <= scaling.packets_offloaded);
            assert!(scaling.dedicated_activated <= scaling.packets_to_dedicated);
            // Only auxiliary cores count as such.
            assert_eq!(helped.report().cores.auxiliary_avg > 0.0, helpers > 0);
            assert_eq!(scaling.activated > 0, helpers > 0);
            assert_eq!(single.difference(helped), None, "{dedicated} cores, seed {seed}");
            scaling.packets_to_dedicated > 0
        });
        assert!(is_helped, "{dedicated} cores");
    }
}

/// A chain without a flow table offloads packets by their RSS hash.
#[test]
fn chains_without_flow_state() {
    let setup = Setup {
        traffic: Traffic {
            packets: 20_000,
            ..Traffic::default()
        },
        ..Setup::default()
    };
    for (workers, scaling) in [
        (1, random_flows(7, 2, Mode::Sleep)),
        (1, random_leases(7, 2, Mode::Sleep, 0)),
        (2, random_help(7, [2, 0], Mode::Sleep, 0)),
    ] {
        let setup = Setup {
            workers,
            scaling: Some(scaling),
            ..setup.clone()
        };
        let scaled = run_only("forward: {}", setup);
        assert_eq!(scaled.report().packets.delivered, 20_000);
        for (flow, numbers) in order(&scaled.frames) {
            assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
        }
    }
}
