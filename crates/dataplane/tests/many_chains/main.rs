//! Several chains on one port and one set of cores: each gets its packets, keeps its books, and is not affected by what
//! the others do.

mod auxiliary;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../state/tests/server/mod.rs"]
mod redis_server;
mod rig;
mod succession;
mod take_over;

use common::alone;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater_dataplane::kept_packets::{KeptConfig, KeptObserver, KeptRecord};
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_dataplane::{RunConfig, RunError, RunPlan};
use tailwater_net::Nanos;

#[test]
fn each_chain_gets_its_packets_and_keeps_its_books() {
    let _alone = alone();
    const PACKETS: u32 = 20_000;
    for workers in [1, 2] {
        let server = Server::start(trace(4, Nanos(60_000), PACKETS), workers, false, Unmatched::Drop);
        let first = server.run("10.0.0.0/16", "{forward: }", 1);
        let second = server.run(
            "10.1.0.0/16",
            "{nat: {external: [203.0.113.0/28], internal: [192.0.2.0/24]}}",
            workers,
        );
        let third = server.run("10.2.0.0/16", "{accounting: }, {forward: }", 1);
        server.await_received(u64::from(PACKETS));
        let [first, second, third] = [first, second, third].map(|chain| chain.drain().unwrap());
        let counts = server.port.counts();
        assert_eq!(counts.received, u64::from(PACKETS), "{counts:?}");
        assert_eq!(counts.lost, 0, "{counts:?}");
        for report in [&first, &second, &third] {
            assert_books(report);
            assert_few_lost(report);
        }
        let offered = [&first, &second, &third].map(|report| report.packets.offered);
        assert!(
            offered.iter().all(|offered| *offered > u64::from(PACKETS) / 8),
            "{offered:?}"
        );
        // Those before the rules had all chains, and those to the fourth network.
        assert_eq!(offered.iter().sum::<u64>() + counts.unmatched, counts.received);
        assert!(counts.unmatched >= u64::from(PACKETS) / 4);
        // Both directions of each.
        assert_eq!(second.flows.as_ref().map(|flows| flows.opened), Some(100));
    }
}

/// A report names the kinds of packets for no chain: `match: {sources: [0.0.0.0/0]}` is no match for IPv6, and at the
/// start there is no chain.
#[test]
fn packets_for_no_chain_are_told_apart() {
    let _alone = alone();
    let server = Server::start(trace_of_kinds(), 1, true, Unmatched::Drop);
    server.await_received(30);
    // A poller may be between two counters when they are read.
    let are_close = |one: u64, other: u64| one.abs_diff(other) <= 512;
    let before = server.port.counts();
    assert!(are_close(before.unmatched_between, before.unmatched), "{before:?}");
    let chain = server.run("0.0.0.0/0", "{forward: }", 1);
    // Those received meanwhile have no chain, either.
    server.await_received(server.port.counts().received + 1000);
    let counts = server.port.counts();
    let report = chain.drain().unwrap();
    let [ipv6, non_ip] = [counts.unmatched_ipv6, counts.unmatched_non_ip];
    let told = counts.unmatched_between + ipv6 + non_ip;
    assert!(are_close(counts.unmatched, told), "{counts:?}");
    assert!(ipv6 > 0 && non_ip > 0 && are_close(ipv6, non_ip), "{counts:?}");
    assert!(report.packets.offered > 0);
}

/// The chain in overload keeps packets: among them those that find its ring full.
#[test]
fn a_chain_in_overload_takes_no_packet_from_another() {
    let _alone = alone();
    // Far more than the first chain's function can do on a core.
    let server = Server::start(trace(2, Nanos(20_000), 50_000), 1, true, Unmatched::Drop);
    let directory = std::env::temp_dir().join(format!("tailwater-ring-full-{}", std::process::id()));
    let kept = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&kept);
    let observer = KeptObserver::new(move |record: &KeptRecord<'_>| {
        if (record.verdict, record.reason) == ("lost", "nic-ring-full") {
            // The destination, behind Ethernet's header.
            assert_eq!(&record.frame[30..34], [10, 0, 0, 1]);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let config = RunConfig {
        keep_packets: Some(KeptConfig {
            directory: directory.clone(),
            observer: Some(observer),
        }),
        ..RunConfig::new(server.cores.clone())
    };
    let spec = chain("10.0.0.0/16", "{synthetic: {cycles: 200000}}", "250ms");
    let slow = server.start_plan(RunPlan::new(spec, config).unwrap(), None);
    let other = server.run("10.1.0.0/16", "{forward: }", 1);
    // The time between two polls of the core is a turn of the slow chain.
    let holder = Some((server.port.number(), slow.withdrawal.slot().unwrap()));
    let began = Instant::now();
    while !server
        .host
        .take_poll_gaps()
        .any(|gap| gap.chain == holder && gap.length > Nanos::ZERO)
    {
        assert!(began.elapsed() < PATIENCE, "no gap is of the slow chain");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.await_received(100_000);
    let other = other.drain().unwrap();
    let slow = slow.drain().unwrap();
    assert_books(&slow);
    assert_books(&other);
    assert!(slow.packets.lost > 10_000, "{:?}", slow.packets);
    assert!(kept.load(Ordering::Relaxed) > 0);
    std::fs::remove_dir_all(&directory).unwrap();
    assert_few_lost(&other);
    assert!(other.packets.delivered > 30_000, "{:?}", other.packets);
}

#[test]
fn chains_come_and_go_while_others_run() {
    let _alone = alone();
    let server = Server::start(trace(3, Nanos(20_000), 3_000), 1, true, Unmatched::Forward);
    let steady = server.run(
        "10.0.0.0/16",
        "{nat: {external: [203.0.113.0/28], internal: [192.0.2.0/24]}}",
        1,
    );
    let (mut offered, mut received) = (0, 0);
    for round in 0..12 {
        let passing = server.run("10.1.0.0/16", "{accounting: }", 1);
        received = server.port.counts().received + 2_000;
        server.await_received(received);
        let report = passing.drain().unwrap();
        assert_books(&report);
        assert!(report.packets.offered > 50, "round {round}: {:?}", report.packets);
        assert_few_lost(&report);
        offered += report.packets.offered;
    }
    // No buffer has stayed away: all chains ran with fewer than one chain holds.
    server.await_received(received + 5_000);
    let steady = steady.drain().unwrap();
    assert_books(&steady);
    assert_few_lost(&steady);
    let counts = server.port.counts();
    let unmatched = counts.received - offered - steady.packets.offered;
    // Packets arrive until the counts are read.
    assert!(
        counts.unmatched >= unmatched.saturating_sub(1000) && counts.lost == 0,
        "{counts:?}"
    );
}

#[test]
fn a_panic_of_one_chain_ends_only_that_chain() {
    let _alone = alone();
    let server = Server::start(trace(2, Nanos(20_000), 3_000), 1, true, Unmatched::Drop);
    let other = server.run("10.1.0.0/16", "{forward: }", 1);
    let dying = server.run_with(
        "10.0.0.0/16",
        "{nat: {external: [203.0.113.0/28], internal: [192.0.2.0/24]}}",
        1,
        (Some(dies_after(100)), None),
    );
    server.await_received(10_000);
    let report = dying.drain();
    assert!(matches!(report, Err(RunError::Died { .. })), "{report:?}");
    let error = report.unwrap_err();
    let report = error.report().unwrap();
    assert_books(report);
    let of_dead = report.packets.offered;
    let received = server.port.counts().received;
    server.await_received(received + 10_000);
    let other = other.drain().unwrap();
    assert_books(&other);
    // The message of the panic takes its time on the core, and the first chain its packets.
    assert!(other.packets.delivered > 6_000, "{:?}", other.packets);
    server.host.stop();
    // Packets for the chain that died are known to be lost, too.
    let counts = server.port.counts();
    let offered = of_dead + other.packets.offered;
    assert_eq!(counts.received, offered + counts.unmatched + counts.lost, "{counts:?}");
}
