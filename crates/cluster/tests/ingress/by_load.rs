//! Skewed traffic through a switch evens out between two servers that report their load. Requires root.

use super::live::{balanced, config, server};
use super::packets::{Arrived, PORT, Rack, receive};
use super::switches::Kind;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tailwater_cluster::ingress::{ChainReport, Input, Output, Readiness, ServerReport, SteeringConfig};
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, FlowClass, ServerCounters};

/// Prefixes that a round of packets goes to, 10.N.0.0/16: the first has half of them.
const ROUND: [u8; 8] = [1, 1, 1, 1, 2, 3, 4, 5];
/// Time between two packets.
const PAUSE: Duration = Duration::from_millis(1);
/// Core time of a packet, as the servers report it. At the rate of packets here, one core does not suffice, two do.
const COST: Nanos = Nanos::from_micros(1_200);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Packets that a server has received by prefix.
fn received(arrived: &Arrived, server: u16) -> BTreeMap<u8, u32> {
    let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
    let mut packets = BTreeMap::new();
    for ((prefix, _), servers) in &*arrived {
        *packets.entry(*prefix).or_default() += servers.iter().filter(|one| **one == server).count() as u32;
    }
    packets
}

/// Report of what a server has received since the start. Classes have what came since the last report.
fn report(server: u16, now: &BTreeMap<u8, u32>, before: &BTreeMap<u8, u32>, measured: Duration) -> Input {
    let packets = u64::from(now.values().sum::<u32>());
    let class = |(prefix, packets): (&u8, &u32)| ClassLoad {
        class: FlowClass::by_source(CLIENT.into(), [10, *prefix, 0, 1].into()),
        packets: packets - before.get(prefix).copied().unwrap_or_default(),
    };
    Input::Report(ServerReport {
        server,
        chains: vec![ChainReport {
            chain: "edge".to_owned(),
            counters: ServerCounters {
                offered: packets,
                processed: packets,
                busy: Nanos(packets * COST.0),
                late: 0,
            },
            measured: Some(Nanos(measured.as_nanos() as u64)),
            dedicated: 1,
            classes: now.iter().map(class).collect(),
        }],
    })
}

#[tokio::test]
async fn skewed_traffic_evens_out_between_servers_without_a_lost_packet() {
    traffic_evens_out(Kind::OpenVSwitch).await;
}

#[tokio::test]
async fn skewed_traffic_evens_out_by_software_and_a_new_process_goes_on_with_its_rows() {
    traffic_evens_out(Kind::Software).await;
}

async fn traffic_evens_out(kind: Kind) {
    let Some((rack, switch)) = Rack::with_switch(kind) else {
        return;
    };
    let mut known: Vec<Input> = (1..=2).map(|number| server(number, Readiness::Ready)).collect();
    let mut chain = balanced("edge", &[1, 2]);
    chain.servers = vec![(1, 1), (2, 1)];
    known.push(Input::Chain(chain));
    let settings = SteeringConfig {
        audit: None,
        ..config()
    };
    let mut ingress = switch.ingress(&rack, settings.clone(), known.clone());
    ingress.written().await;
    let (arrived, done) = (Arrived::default(), Arc::new(AtomicBool::new(false)));
    let servers: Vec<_> = (1..=2_u16)
        .map(|number| {
            let (arrived, done) = (arrived.clone(), done.clone());
            rack.within(usize::from(number) + 1, move || receive(number, &arrived, &done))
        })
        .collect();
    let (sent, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let client = {
        let (sent, stop) = (sent.clone(), stop.clone());
        rack.within(1, move || {
            let socket = UdpSocket::bind((CLIENT, PORT)).unwrap();
            // The servers listen.
            thread::sleep(Duration::from_millis(100));
            while !stop.load(Ordering::Relaxed) {
                let number = sent.load(Ordering::Relaxed);
                let prefix = ROUND[number as usize % ROUND.len()];
                let mut packet = vec![prefix];
                packet.extend(number.to_be_bytes());
                socket
                    .send_to(&packet, (Ipv4Addr::new(10, prefix, 0, 1), PORT))
                    .unwrap();
                sent.store(number + 1, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        })
    };
    // Reports go on until both servers have had their part of the packets for a while.
    let began = Instant::now();
    let mut before = [BTreeMap::new(), BTreeMap::new()];
    let mut even = 0;
    while even < 10 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it never evens out: {before:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = [1, 2].map(|server| received(&arrived, server));
        let new = [0, 1].map(|at| now[at].values().sum::<u32>() - before[at].values().sum::<u32>());
        let share = f64::from(new[0]) / f64::from(new[0] + new[1]).max(1.0);
        even = if (0.3..0.7).contains(&share) { even + 1 } else { 0 };
        for server in 1..=2_u16 {
            let at = usize::from(server) - 1;
            let report = report(server, &now[at], &before[at], began.elapsed());
            ingress.send(report).await;
        }
        before = now;
    }
    stop.store(true, Ordering::Relaxed);
    client.join().unwrap();
    // Packets that are under way arrive.
    tokio::time::sleep(Duration::from_millis(200)).await;
    done.store(true, Ordering::Relaxed);
    servers.into_iter().for_each(|server| server.join().unwrap());
    let is_problem = |output: &Output| matches!(output, Output::Problem(_));
    let seen = ingress.until(|output| matches!(output, Output::MoveEnded { .. })).await;
    assert!(!seen.iter().any(is_problem), "{seen:?}");
    ingress.stop().await;
    let (arrived, sent) = (arrived.lock().unwrap().clone(), sent.load(Ordering::Relaxed));
    let mut ways: BTreeMap<u8, Vec<u16>> = BTreeMap::new();
    for number in 0..sent {
        let prefix = ROUND[number as usize % ROUND.len()];
        let servers = arrived.get(&(prefix, number)).map(Vec::as_slice).unwrap_or_default();
        let [server] = servers else {
            panic!("packet {number} of {sent}, prefix {prefix}: received by {servers:?}")
        };
        let way = ways.entry(prefix).or_default();
        if way.last() != Some(server) {
            way.push(*server);
        }
    }
    println!(
        "{kind:?}: {sent} packets, evened out after {:.1} s, by prefix: {ways:?}",
        began.elapsed().as_secs_f64() - 1.0
    );
    // Each prefix has moved once at most.
    assert!(
        ways.values().all(|way| [&[1][..], &[1, 2]].contains(&&**way)),
        "{ways:?}"
    );
    let Some(before) = switch.rules() else { return };
    // Another process begins with the rows of the last one, before it knows any chain, and takes them over.
    let mut ingress = switch.ingress(&rack, settings, known);
    assert_eq!(switch.rules(), Some(before.clone()));
    let is_connected = |output: &Output| matches!(output, Output::Connected { .. });
    let seen = ingress.until(is_connected).await;
    let rows = before.iter().filter(|rule| rule.contains("Server")).count();
    let is_whole = |output: &Output| matches!(output, Output::Connected { adopted, .. } if *adopted == rows);
    assert!(rows > 1 && seen.iter().any(is_whole), "{rows} rows: {seen:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(switch.rules(), Some(before));
    ingress.stop().await;
}
