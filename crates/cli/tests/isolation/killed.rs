//! State shared by a function's processes survives the kill of any of them.

use crate::common::*;
use crate::processes::{processes_at, signal_if_there};
use crate::{alone, process, reason, restarts};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use tailwater_dataplane::cores::available;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, protocol};

/// Packets of most captures: one second.
const PACKETS: u32 = 10_000;

/// Runs a chain isolated while all processes of the functions at these indices are killed repeatedly, including standby
/// ones. Returns the report and the sent frames.
fn run_killing(chain: &Path, traffic: &Path, places: &[usize]) -> (Value, Vec<Vec<u8>>) {
    let sent = chain.with_extension("sent.pcap");
    let core = available().pop().unwrap().to_string();
    let mut run = tailwater();
    run.args(["run", "--output", "json", "--ring", "1000000", "--cores", &core]);
    run.arg("--capture-out").arg(&sent).arg("--traffic").arg(traffic);
    run.arg("--isolation").args(process().split(' ')).arg(chain);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let run = run.unwrap();
    let tailwater = run.id();
    let over = std::thread::spawn(move || run.wait_with_output().unwrap());
    // The capture is created when the first processes are attached; a failure before that ends the run.
    while !sent.exists() && !over.is_finished() {
        sleep(Duration::from_millis(10));
    }
    while !over.is_finished() {
        sleep(Duration::from_millis(300));
        for &place in places {
            for process in processes_at(tailwater, place) {
                signal_if_there(process, "-KILL");
            }
        }
    }
    let output = over.join().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_identity(&report);
    let isolation = &report["isolation"];
    let functions = isolation["functions"].as_array().unwrap();
    let killed = functions.iter().filter(|function| restarts(function) > 0);
    assert!(killed.count() >= places.len(), "{isolation}");
    (report, frames(&sent))
}

/// Writes distinct packets, one every 100 µs.
fn numbered(folder: &Folder, packets: u32) -> PathBuf {
    let frame = |n: u32| {
        let port = 1024 + (n / 250) as u16;
        udp(client((n % 250) as u8 + 1), port, SERVER, 53)
    };
    let packets = (0..packets).map(|n| (u64::from(n) * 100_000, frame(n)));
    folder.capture("numbered.pcap", &packets.collect::<Vec<_>>())
}

const KEY: &str = "cipher: aes-128-gcm, esn: true, key: '000102030405060708090a0b0c0d0e0f10111213'";

fn near() -> String {
    format!(
        "{{name: near, ipsec: {{outbound: [{{name: a, spi: 256, {KEY}, source: 192.0.2.2, destination: 192.0.2.1}}], \
         policies: [{{protect: a}}]}}}}"
    )
}

fn far() -> String {
    format!("{{name: far, ipsec: {{inbound: [{{name: a, spi: 256, {KEY}, destination: 192.0.2.1}}], default: pass}}}}")
}

/// Returns the sequence number and the initialisation vector of an ESP packet.
fn numbers(frame: &[u8]) -> (u32, u64) {
    let esp = parse(frame).unwrap().payload(frame).to_vec();
    let word = |at: usize| u32::from_be_bytes(esp[at..at + 4].try_into().unwrap());
    (word(4), u64::from(word(8)) << 32 | u64::from(word(12)))
}

/// Under one key no sequence number and no initialisation vector is used twice, and no packet is accepted twice.
#[test]
fn numbers_of_tunnels_go_on_behind_killed_processes() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = numbered(&folder, PACKETS);
    let chain = folder.spec("near.yaml", &format!("[{}]", near()), "");
    let (report, sent) = run_killing(&chain, &traffic, &[0]);
    assert!(sent.len() > 300, "{report}");
    let (sequences, vectors): (BTreeSet<_>, BTreeSet<_>) = sent.iter().map(|frame| numbers(frame)).unzip();
    assert_eq!((sequences.len(), vectors.len()), (sent.len(), sent.len()));
    // All processes continued from where their predecessors were killed.
    let (first, last) = (sequences.first().unwrap(), sequences.last().unwrap());
    let span = u64::from(last - first) + 1;
    assert!(span <= count(&report, "offered"), "{report}");
    let vectors = vectors.last().unwrap() - vectors.first().unwrap();
    assert_eq!(vectors + 1, span);

    // Each packet twice, the second some time later, when the process that received the first is dead.
    let first = sent.iter().cloned().enumerate();
    let second = sent.iter().cloned().enumerate();
    let first = first.map(|(i, frame)| (i as u64 * 100_000, frame));
    let second = second.map(|(i, frame)| (i as u64 * 100_000 + 90_000_000, frame));
    let mut packets: Vec<_> = first.chain(second).collect();
    packets.sort_by_key(|(time, _)| *time);
    let replayed = folder.capture("replayed.pcap", &packets);
    let chain = folder.spec("far.yaml", &format!("[{}]", far()), "");
    let (report, came) = run_killing(&chain, &replayed, &[0]);
    let once: BTreeSet<_> = came.iter().collect();
    assert_eq!(once.len(), came.len(), "taken twice: {report}");
    assert!(came.len() > 300, "{report}");
    assert!(reason(&report, "far/replayed") > 0, "{report}");

    // Both ends in one chain, both killed.
    let chain = folder.spec("both.yaml", &format!("[{}, {}]", near(), far()), "");
    let (report, came) = run_killing(&chain, &traffic, &[0, 1]);
    let once: BTreeSet<_> = came.iter().collect();
    assert_eq!(once.len(), came.len(), "{report}");
    let lost = ["near/process-failed", "far/process-failed"].map(|name| reason(&report, name));
    assert_eq!(
        came.len() as u64 + lost.iter().sum::<u64>(),
        u64::from(PACKETS),
        "{report}"
    );
}

/// A process killed in a branch loses packets of that branch only; those of the other one all leave unchanged.
#[test]
fn a_branch_feels_nothing_of_processes_killed_in_another() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = numbered(&folder, PACKETS);
    let functions = "[{classifier: {rules: [{to: low, source: 10.0.0.0/25}, {to: high, source: 10.0.0.128/25}], branches: {\
                     low: {functions: [{name: killed, accounting: }]}, high: {functions: [{name: spared, accounting: }]}}}}]";
    let chain = folder.spec("branches.yaml", functions, "");
    let (report, sent) = run_killing(&chain, &traffic, &[1]);
    let lost = reason(&report, "killed/process-failed");
    assert!(lost > 0, "{report}");
    assert_eq!(sent.len() as u64 + lost, u64::from(PACKETS), "{report}");
    assert_eq!(count(&report, "lost"), lost, "{report}");
    // Source port and address identify a packet and its position.
    let numbers: Vec<(u16, IpAddr)> = sent
        .iter()
        .map(|frame| {
            let key = parse(frame).unwrap().key;
            (key.source_port(), key.source())
        })
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "out of order");
    let high = numbers.iter().filter(|(_, from)| *from >= client(128));
    let all = (0..PACKETS).filter(|n| n % 250 + 1 >= 128);
    assert_eq!(high.count(), all.count(), "{report}");
}

/// Connections survive killed processes: their responses pass, and nothing unsolicited does.
#[test]
fn connections_outlive_a_firewalls_processes() {
    let _alone = alone();
    let folder = Folder::new();
    const CLIENTS: u32 = 40;
    const PACKETS: u32 = 12_000;
    let (outside, asks) = (Ipv4Addr::new(203, 0, 113, 9), |n: u32| (n / CLIENTS).is_multiple_of(40));
    // A request from time to time, otherwise responses and unsolicited packets.
    let frame = |n: u32| {
        let inside = client((n % CLIENTS) as u8 + 1);
        let key = FlowKey::v4(inside, SERVER, protocol::UDP, 2000, 53);
        let other = FlowKey::v4(outside, inside, protocol::UDP, 53, 2000);
        let key = match n / CLIENTS % 2 {
            _ if asks(n) => key,
            0 => other,
            _ => key.reversed(),
        };
        let payload = n.to_be_bytes();
        FrameBuilder::new(&key).payload(&payload).to_vec().unwrap()
    };
    let packets = (0..PACKETS).map(|n| (u64::from(n) * 150_000, frame(n)));
    let traffic = folder.capture("answers.pcap", &packets.collect::<Vec<_>>());
    let functions = "[{firewall: {zones: {lan: {prefixes: [10.0.0.0/8]}}, rules: [allow from lan]}}]";
    let chain = folder.spec("firewall.yaml", functions, "  flows: {capacity: 4096}\n");
    let (report, sent) = run_killing(&chain, &traffic, &[0]);
    assert!(sent.iter().all(|frame| key(frame).source() != outside));
    let number = |frame: &Vec<u8>| {
        let bytes = parse(frame).unwrap().payload(frame)[..4].try_into();
        u32::from_be_bytes(bytes.unwrap())
    };
    let sent: BTreeSet<u32> = sent.iter().map(number).collect();
    // After a connection's first request that passed, all its packets pass, except those that a killed process held. A
    // connection whose state a killed process was changing is exempt, too.
    let mut missing = 0;
    for connection in 0..CLIENTS {
        let of_it = |n: &u32| n % CLIENTS == connection;
        let Some(first) = sent.iter().copied().find(of_it) else {
            continue;
        };
        assert!(asks(first), "{first} passed, and nobody had asked");
        let passes = |n: &u32| of_it(n) && (asks(*n) || n / CLIENTS % 2 == 1);
        let due = (first..PACKETS).filter(passes);
        missing += due.filter(|n| !sent.contains(n)).count() as u64;
    }
    let lost = reason(&report, "firewall/process-failed");
    let kills = restarts(&report["isolation"]["functions"][0]);
    assert!(sent.len() > 300, "{report}");
    assert!(missing <= lost + 20 * kills, "{missing} are missing: {report}");
    let opened = reason(&report, "firewall/opened");
    assert!(opened <= u64::from(CLIENTS) + kills, "{report}");
}

/// Data of all processes of a function outlives each: sessions with their usage, streams, and alerts on their way to
/// the file.
#[test]
fn sessions_usage_and_alerts_survive_a_kill() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = numbered(&folder, PACKETS);
    let [eve, usage] = ["eve.json", "usage.csv"].map(|name| folder.path(name));
    // The access side: users are the senders.
    let functions = format!(
        "[{{ids: {{eve: {}, rules: ['alert udp any any -> any 53 (msg: \"asks\"; content: \"query\"; sid: 1;)']}}}}, \
         {{upf: {{role: access, addresses: [192.0.2.10], profiles: {{all: {{}}}}, default: pass, usage: {{file: {}}}, \
         sessions: [1 ue {} teid 1 peer 192.0.2.1 peerTeid 1 profile all]}}}}]",
        eve.display(),
        usage.display(),
        client(1),
    );
    let chain = folder.spec("kept.yaml", &functions, "  flows: {capacity: 32768}\n");
    let (report, sent) = run_killing(&chain, &traffic, &[0, 1]);
    let lines = std::fs::read_to_string(&eve).unwrap().lines().count() as u64;
    let [alerts, unwritten] = ["alerts", "alerts-unwritten"].map(|name| reason(&report, &format!("ids/{name}")));
    // A process that is killed may have sent alerts of a batch that it has yet to count.
    assert!(
        lines + unwritten >= alerts && lines <= u64::from(PACKETS),
        "{lines}: {report}"
    );
    assert!(lines + unwritten >= sent.len() as u64, "{lines}: {report}");
    let text = std::fs::read_to_string(&usage).unwrap();
    let last: Vec<_> = text.lines().filter(|line| line.contains(",end,")).collect();
    let [last] = last[..] else {
        panic!("{text}");
    };
    let packets: u64 = last.rsplit(',').nth(1).unwrap().parse().unwrap();
    let through_tunnel = sent
        .iter()
        .filter(|frame| key(frame).destination_port() == 2152)
        .count() as u64;
    assert!(
        (through_tunnel..=u64::from(PACKETS) / 250).contains(&packets),
        "{last}: {report}"
    );
    assert!(
        through_tunnel > 0 && reason(&report, "upf/encapsulated") > 0,
        "{report}"
    );
}
