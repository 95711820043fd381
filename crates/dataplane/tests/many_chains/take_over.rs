//! Servers that take over from others: here on one machine's two hosts, as two processes do.

use crate::common::alone;
use crate::rig::*;
use crate::succession::{Observer, Translated};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tailwater_chain::chain::Chain;
use tailwater_chain::function::NetworkFunction;
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::shared_port::Unmatched;
use tailwater_net::Nanos;

const NAT: &str = "{nat: {external: [203.0.113.0/28], internal: [192.0.2.0/24]}}, {accounting: }";
const SOON: Duration = Duration::from_secs(20);
/// Time between two packets: other programs may have the core for long without a loss.
const GAP: Nanos = Nanos(400_000);
/// Packets between two take-overs.
const BETWEEN: u32 = 1_250;

fn run(server: &Server, translated: &Arc<Mutex<Translated>>) -> Running {
    let translated = Arc::clone(translated);
    let make = move || -> Box<dyn NetworkFunction> { Box::new(Observer(Arc::clone(&translated))) };
    let workers = server.cores.len();
    server.run_with(
        "10.0.0.0/16",
        NAT,
        workers,
        (Some(own_function("observer", make)), None),
    )
}

/// Pauses a server, and exports the flows of its chain.
fn export(server: &Server, chain: &Running) -> (Vec<u8>, u64) {
    server.port.pause();
    let (mut bytes, mut flows) = (Vec::new(), 0);
    for worker in 0..server.cores.len() {
        let clock = server.host.clock().clone();
        let export = move |chain: &mut Chain| chain.export_flows(clock.now(), Nanos::ZERO, 1 << 24);
        let exported = chain.withdrawal.on_worker(worker, true, SOON, export);
        let (of_worker, number) = exported.expect("quiet").expect("flows");
        bytes.extend(of_worker);
        flows += number;
    }
    (bytes, flows)
}

/// One server after another takes over. Each packet passes one of them, in the order of its flow, and connections keep
/// their translation. A take-over that fails changes nothing.
#[test]
fn flows_and_packets_pass_from_server_to_server() {
    pass_over(1, 4);
}

/// The same on two cores: each worker passes its flows over, to the one that owns their buckets.
#[test]
fn flows_of_two_workers_take_over_together() {
    pass_over(2, 3);
}

fn pass_over(workers: usize, take_overs: u32) {
    let _alone = alone();
    let given = std::env::var("TAKE_OVERS").ok().and_then(|n| n.parse().ok());
    let take_overs: u32 = given.unwrap_or(take_overs);
    let packets = BETWEEN * (take_overs + 1);
    let traffic = || trace(2, GAP, packets);
    let translated = Arc::<Mutex<Translated>>::default();
    let mut server = Server::start(traffic(), workers, false, Unmatched::Drop);
    let mut chain = run(&server, &translated);
    let (mut offered, mut delivered, mut lost) = (0, 0, 0);
    // Counts at the first take-over: chains run from then on.
    let mut first = None;
    for number in 1..=take_overs {
        server.await_received(u64::from(BETWEEN * number));
        let next = Server::paused(traffic(), &server);
        let next_chain = run(&next, &translated);
        let (bytes, flows) = export(&server, &chain);
        if number % 2 == 0 {
            // The other one did not take it.
            for worker in 0..workers {
                let release = |chain: &mut Chain| chain.hold_flows(false);
                chain
                    .withdrawal
                    .on_worker(worker, false, SOON, release)
                    .expect("a turn");
            }
            server.port.unpause();
            std::thread::sleep(Duration::from_millis(20));
            drop(next_chain.drain());
            continue;
        }
        let first = first.get_or_insert(server.port.counts());
        assert!(first.lost == 0, "{first:?}");
        // A connection and its answers are two flows.
        assert_eq!(flows, 100);
        let positions = server.port.positions().expect("a trace has a position");
        let owners = round_robin(workers as u16);
        let bytes = Arc::new(bytes);
        let mut imported = 0;
        for worker in 0..workers {
            let (clock, bytes) = (next.host.clock().clone(), Arc::clone(&bytes));
            let import = move |chain: &mut Chain| {
                let owns = |bucket: u16| usize::from(owners[usize::from(bucket)]) == worker;
                chain.import_flows_of(owns, &bytes, clock.now(), Nanos::ZERO)
            };
            let of_worker = next_chain.withdrawal.on_worker(worker, true, SOON, import);
            let of_worker = of_worker.expect("quiet").expect("flows");
            assert!(of_worker.flows > 0 && of_worker.refused == 0, "{of_worker:?}");
            imported += of_worker.flows;
        }
        assert_eq!(imported, 100);
        assert!(next.port.continue_at(positions));
        next.port.unpause();
        for worker in 0..workers {
            let forgotten = chain.withdrawal.on_worker(worker, true, SOON, |chain: &mut Chain| {
                chain.forget_flows();
                chain.flows()
            });
            assert_eq!(forgotten, Some(0));
        }
        server.port.leave();
        next.port.add_counts(server.port.counts());
        let report = chain.drain().unwrap();
        assert_books(&report);
        offered += report.packets.offered;
        delivered += report.packets.delivered;
        lost += report.packets.lost;
        let opened = report.flows.as_ref().expect("flows").opened;
        assert_eq!(opened, if number == 1 { 100 } else { 0 }, "they were there");
        (server, chain) = (next, next_chain);
    }
    server.await_received(u64::from(packets));
    std::thread::sleep(Duration::from_millis(50));
    let report = chain.drain().unwrap();
    assert_books(&report);
    let counts = server.port.counts();
    let first = first.expect("a take-over");
    assert_eq!(counts.received, u64::from(packets));
    lost += report.packets.lost + counts.lost;
    offered += report.packets.offered;
    delivered += report.packets.delivered;
    assert_eq!((offered, lost), (counts.received - counts.unmatched, 0), "{counts:?}");
    assert_eq!(delivered, offered);
    // From the first take-over on, half of the packets are of the other network.
    let half = (counts.received - first.received) / 2;
    assert!(
        (counts.unmatched - first.unmatched).abs_diff(half) <= 1,
        "{first:?} {counts:?}"
    );
    let translated = translated.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(
        (translated.flows.len(), translated.moved, translated.overtaken),
        (50, 0, 0)
    );
}
