//! RSS buckets that migrate between workers of a device port, under load and at random: no loss, no reordering, state
//! as on one core of a trace NIC, whether or not the device uses the bucket table.

mod common;

use common::device::Spread;
use common::mappers::{random_buckets, random_flows};
use common::{NAT, Reference, Setup, run_through};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

fn moved_equals_single(spread: Spread, helped: bool) {
    let single = Reference::new(run_through(NAT, Setup::default())).unwrap();
    let mut moved_buckets = 0;
    let delays = [1, 200, 2000].map(Nanos::from_micros);
    for (seed, reta_delay) in [0x2545_f491, 0x9e37_79b9_7f4a, 77].into_iter().zip(delays) {
        let (server, _) = random_buckets(seed, Nanos::from_millis(2));
        let setup = Setup {
            workers: 2,
            reta_delay,
            scaling: helped.then(|| random_flows(seed, 1, Mode::Sleep)),
            server: Some(server),
            device: Some(spread),
            ..Setup::default()
        };
        let moved = run_through(NAT, setup);
        moved_buckets += moved.report().server.unwrap().buckets_moved;
        assert_eq!(single.difference(moved), None, "seed {seed}, {spread:?}");
    }
    assert!(moved_buckets > 0);
}

#[test]
fn one_worker_deals_out_what_a_device_with_one_queue_gives() {
    let spread = Spread {
        queues: 1,
        follows: false,
    };
    moved_equals_single(spread, false);
}

#[test]
fn workers_hand_over_what_a_device_spreads_by_itself() {
    let spread = Spread {
        queues: 2,
        follows: false,
    };
    moved_equals_single(spread, false);
}

#[test]
fn a_device_that_follows_the_table_leaves_stragglers() {
    let spread = Spread {
        queues: 2,
        follows: true,
    };
    moved_equals_single(spread, false);
}

#[test]
fn helpers_are_handed_a_devices_packets() {
    let spread = Spread {
        queues: 2,
        follows: true,
    };
    moved_equals_single(spread, true);
}
