//! RSS buckets that migrate between dedicated workers of one run: no loss, no reordering, state as on one core.
//!
//! The server mapper here moves buckets at random every few milliseconds. The core mapper, if there is one, moves flows
//! at random every few microseconds.

mod common;

use common::mappers::{random_buckets, random_flows, random_help, random_leases};
use common::traffic::{PACKETS, Traffic, order};
use common::{BALANCER, NAT, Reference, Setup, run_only, run_through, run_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::Pacing;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::server::{Move, ServerMapper, ServerView};

/// Periods and table delays to try.
const TIMES: [[Nanos; 2]; 3] = [
    [Nanos::from_millis(2), Nanos::from_micros(200)],
    [Nanos::from_millis(3), Nanos::from_millis(2)],
    [Nanos::from_micros(500), Nanos::from_micros(1)],
];

/// Packets sent, their order within each flow, and the functions' counters and bindings are the same as on one core,
/// whatever moves when.
fn moved_equals_single(functions: &str, workers: usize, helped: bool) {
    let single = Reference::new(run_through(functions, Setup::default())).unwrap();
    let (mut moved_buckets, mut saw) = (0, [0; 3]);
    for (seed, [period, reta_delay]) in [0x2545_f491, 0x9e37_79b9_7f4a, 77].into_iter().zip(TIMES) {
        let (server, seen) = random_buckets(seed, period);
        let setup = Setup {
            workers,
            reta_delay,
            scaling: helped.then(|| random_flows(seed, 1, Mode::Sleep)),
            server: Some(server),
            ..Setup::default()
        };
        let moved = run_through(functions, setup);
        moved_buckets += moved.report().server.unwrap().buckets_moved;
        let seen = [&seen.rate, &seen.flows, &seen.busy];
        saw.iter_mut()
            .zip(seen)
            .for_each(|(sum, seen)| *sum += seen.load(Ordering::Relaxed));
        assert_eq!(moved.report().cores.auxiliary_avg > 0.0, helped);
        assert_eq!(single.difference(moved), None, "seed {seed}");
    }
    // On a busy machine one of the runs may have hardly any decisions.
    assert!(moved_buckets > 0);
    assert!(!saw.contains(&0), "{saw:?}");
}

#[test]
fn buckets_moved_at_random_are_processed_as_on_one_core() {
    moved_equals_single(NAT, 2, false);
}

#[test]
fn buckets_and_flows_moved_at_random() {
    moved_equals_single(NAT, 2, true);
}

#[test]
fn buckets_moved_between_three_workers() {
    moved_equals_single(BALANCER, 3, false);
}

/// Buckets migrate between dedicated cores that also lend them to each other.
#[test]
fn buckets_moved_between_cores_that_help_each_other() {
    let sparse = || Setup {
        traffic: Traffic::sparse(),
        ..Setup::default()
    };
    let single = Reference::new(run_through(NAT, sparse())).unwrap();
    // On a busy machine the cores may hardly ever run at the same time, or have long queues all the time.
    let is_both = (1..=9)
        .zip(TIMES.into_iter().cycle())
        .any(|(seed, [period, reta_delay])| {
            let (server, _) = random_buckets(seed, period);
            let setup = Setup {
                workers: 3,
                reta_delay,
                scaling: Some(random_help(seed, [3, 0], Mode::Sleep, 0)),
                server: Some(server),
                ..sparse()
            };
            let moved = run_through(NAT, setup);
            let lent = moved.report().scaling.unwrap().packets_to_dedicated;
            let moves = moved.report().server.unwrap().buckets_moved;
            assert_eq!(single.difference(moved), None, "seed {seed}");
            seed >= 3 && lent > 0 && moves > 0
        });
    assert!(is_both);
}

/// Without a flow table only the right to process moves.
#[test]
fn chains_without_flow_state() {
    for helped in [false, true] {
        let (server, _) = random_buckets(7, Nanos::from_millis(1));
        let setup = Setup {
            workers: 2,
            reta_delay: Nanos::from_micros(300),
            scaling: helped.then(|| random_leases(9, 1, Mode::Sleep, 0)),
            server: Some(server),
            ..Setup::default()
        };
        let moved = run_only("forward: {}", setup);
        assert_eq!(moved.report().packets.delivered, u64::from(PACKETS));
        assert!(moved.report().server.unwrap().buckets_moved > 0);
        for (flow, numbers) in order(&moved.frames) {
            assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
        }
    }
}

/// A run that is stopped during migration ends soon, and every packet is accounted for.
#[test]
fn stopped_while_buckets_move() {
    for seed in 1..6 {
        let (server, _) = random_buckets(seed, Nanos::from_micros(300));
        let setup = Setup {
            slo: "200us",
            workers: 2,
            reta_delay: Nanos::from_micros(500),
            duration: Some(Nanos::from_secs(60)),
            scaling: match seed % 3 {
                0 => None,
                // Both may wait for each other's packets at the end.
                1 => Some(random_help(seed, [2, 0], Mode::Sleep, 0)),
                _ => Some(random_leases(seed, 1, Mode::Sleep, 0)),
            },
            server: Some(server),
            ..Setup::default()
        };
        let stop = AtomicBool::new(false);
        let stopped = run_until(NAT, setup, &stop, |progress| {
            if progress.packets.delivered > 1000 * seed {
                stop.store(true, Ordering::Relaxed);
            }
        });
        let report = stopped.report();
        assert!(report.interrupted);
        let packets = &report.packets;
        assert_eq!(
            packets.offered,
            packets.delivered + packets.dropped_by_nf + packets.lost
        );
        assert!(!packets.reasons.contains_key("bucket-not-held"));
    }
}

/// Mapper that must not be called.
struct Never;

impl ServerMapper for Never {
    fn period(&self) -> Nanos {
        Nanos(1)
    }

    fn remap(&mut self, _: &ServerView<'_>, _: &mut Vec<Move>) {
        panic!("there is nothing to move, or no time at which to");
    }
}

#[test]
fn nothing_moves_with_one_core_or_without_pace() {
    for (workers, pacing) in [(1, Pacing::Arrivals), (2, Pacing::Saturate)] {
        let setup = Setup {
            traffic: Traffic {
                packets: 10_000,
                ..Traffic::default()
            },
            workers,
            pacing,
            server: Some(ServerConfig {
                mapper: Arc::new(|| Box::new(Never)),
            }),
            ..Setup::default()
        };
        let run = run_through(NAT, setup);
        assert_eq!(run.report().packets.lost, 0);
        assert_eq!(run.report().server.unwrap(), Default::default());
    }
}
