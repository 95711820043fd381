//! `tailwater run` with its flow state in a real Redis: killed during the traffic, and run again.

mod common;
#[path = "../../state/tests/server/mod.rs"]
mod server;

use common::serving::{Serving, documented, served};
use common::{Folder, run, tailwater};
use server::{RedisServer, piece_of};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::available;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

const FLOWS: u32 = 40;

/// Frame of the flow of packet `n`.
fn frame(n: u32) -> Vec<u8> {
    let (host, port) = (Ipv4Addr::new(10, 0, 0, (n % 20) as u8), 5000 + (n % FLOWS) as u16);
    let key = FlowKey::v4(host, Ipv4Addr::new(192, 0, 2, 1), protocol::UDP, port, 53);
    FrameBuilder::new(&key).to_vec().unwrap()
}

/// Writes a capture with one packet per millisecond, of all flows in turn.
fn traffic(folder: &Folder, name: &str, packets: u32) -> PathBuf {
    let packet = |n: u32| (u64::from(n) * 1_000_000, frame(n));
    folder.capture(name, &(0..packets).map(packet).collect::<Vec<_>>())
}

/// Writes a capture of all flows in turn: the first packet of each, and milliseconds later all others at once.
fn burst(folder: &Folder, packets: u32) -> PathBuf {
    let begin = |n: u32| if n < FLOWS { 0 } else { 20_000_000 };
    let packet = |n: u32| (begin(n) + u64::from(n) * 1_000, frame(n));
    folder.capture("burst.pcap", &(0..packets).map(packet).collect::<Vec<_>>())
}

const NAT: &str = "{nat: {external: [203.0.113.0/28]}}";

fn spec(folder: &Folder, server: &RedisServer, records: &Path) -> PathBuf {
    let functions = format!("[{{accounting: {{export: {{file: {}}}}}}}, {NAT}]", records.display());
    let state = format!(
        "  state: {{redis: {{socket: {}}}, wait: 10s, packets: 32768}}\n",
        server.socket().display()
    );
    folder.spec("chain.yaml", &functions, &state)
}

/// Returns the translations in Redis as bytes, without the numbers of their updates, and the number of counted packets.
fn known(server: &RedisServer) -> (BTreeMap<Vec<u8>, Vec<u8>>, u64) {
    let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let (mut bindings, mut packets) = (BTreeMap::new(), 0);
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("tw:*").query(&mut connection).unwrap();
    for key in keys {
        let value: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        let piece = piece_of(&value).to_vec();
        if key.starts_with(b"tw:test:nat:") {
            bindings.insert(key, piece);
        } else {
            assert!(key.starts_with(b"tw:test:accounting:"));
            // After the bytes and the time of the first packet.
            packets += u64::from(u32::from_le_bytes(piece[16..20].try_into().unwrap()));
        }
    }
    (bindings, packets)
}

#[test]
fn a_run_that_was_killed_is_gone_on_with_by_the_next() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let (before, after) = (folder.path("before.csv"), folder.path("after.csv"));
    let long = traffic(&folder, "long.pcap", 20_000);
    let chain = spec(&folder, &server, &before);
    let mut killed = tailwater()
        .args([
            "run".as_ref(),
            chain.as_os_str(),
            "--traffic".as_ref(),
            long.as_os_str(),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // During the traffic, when every flow has been translated and counted.
    let until = Instant::now() + Duration::from_secs(60);
    while known(&server).1 < 500 {
        assert!(killed.try_wait().unwrap().is_none(), "the run ended by itself");
        assert!(Instant::now() < until, "nothing gets into Redis");
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (bindings, packets) = known(&server);
    assert_eq!(bindings.len() as u32, 2 * FLOWS);
    let chain = spec(&folder, &server, &after);
    let short = traffic(&folder, "short.pcap", 400);
    let output = run(&[&"run", &chain, &"--traffic", &short, &"--output", &"json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"]["delivered"], 400, "{report:#}");
    assert_eq!(report["state"]["hits"], FLOWS);
    assert_eq!(report["state"]["dropped"], 0);
    let (bindings_after, packets_after) = known(&server);
    assert_eq!(bindings_after, bindings);
    assert_eq!(packets_after, packets + 400);
    // The records contain all packets, including those before the crash.
    let records = std::fs::read_to_string(&after).unwrap();
    let counted = records
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(6).unwrap().parse::<u64>().unwrap());
    assert_eq!(counted.sum::<u64>(), packets + 400);
}

/// A run that was considered dead resumes while another one has its place, or had it. It writes nothing, and sends
/// nothing of flows that it no longer owns.
#[test]
fn a_run_that_comes_back_writes_nothing_over_its_successor() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let long = traffic(&folder, "long.pcap", 6_000);
    let chain = spec(&folder, &server, &folder.path("before.csv"));
    let mut stopped = tailwater()
        .args(["run", "--output", "json", "--traffic"])
        .args([&long, &chain])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while known(&server).1 < 500 {
        assert!(stopped.try_wait().unwrap().is_none());
        assert!(Instant::now() < until, "nothing gets into Redis");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(stopped.id(), "-STOP");
    let chain = spec(&folder, &server, &folder.path("after.csv"));
    let short = traffic(&folder, "short.pcap", 400);
    let output = run(&[&"run", &chain, &"--traffic", &short, &"--output", &"json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"]["delivered"], 400, "{report:#}");
    assert_eq!(report["state"]["fenced"], false);
    let everything = || {
        let keys = server.command(&["--scan"]);
        let mut keys: Vec<String> = keys.lines().map(str::to_owned).collect();
        keys.sort();
        (keys, known(&server))
    };
    let before = everything();
    signal(stopped.id(), "-CONT");
    let output = stopped.wait_with_output().unwrap();
    assert_eq!(everything(), before);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["state"]["fenced"], true, "{report:#}");
    // Thousands of packets were still to come.
    assert!(report["state"]["dropped"].as_u64().unwrap() > 1000, "{report:#}");
    let failure = report["state"]["last_failure"].as_str().unwrap();
    assert!(failure.contains("taken over"), "{failure}");
}

fn signal(process: u32, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn the_report_says_what_was_done_and_wrong_specs_what_is_wrong() {
    let Some(mut server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let chain = spec(&folder, &server, &folder.path("flows.csv"));
    let short = traffic(&folder, "short.pcap", 200);
    server.command(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let output = run(&[&"run", &chain, &"--traffic", &short]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let notices = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        notices.contains("maxmemory-policy allkeys-lru): expected noeviction"),
        "{notices}"
    );
    assert!(text.contains("40 flows requested, 0 found"), "{text}");
    let refused = |arguments: &[&dyn AsRef<std::ffi::OsStr>], expected: &str| {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.trim().lines().count(), 1, "{text}");
        assert!(text.contains(expected), "{text}");
    };
    // Policies that offload flows are refused before any measurement for them.
    refused(
        &[
            &"run",
            &chain,
            &"--traffic",
            &short,
            &"--cores",
            &"1",
            &"--auxiliary",
            &"0",
            &"--policy",
            &"netblaze",
        ],
        "spec.state: auxiliary cores",
    );
    server.command(&["config", "set", "requirepass", "secret"]);
    refused(&[&"run", &chain, &"--traffic", &short], "NOAUTH");
    server.stop();
    refused(
        &[&"run", &chain, &"--traffic", &short],
        &server.socket().display().to_string(),
    );
}

/// A burst that is too long for the dedicated core goes to the auxiliary core in part, with the flows' state. The next
/// run, on one core, goes on with it.
#[test]
fn a_burst_on_an_auxiliary_core_leaves_its_state_in_redis() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let [auxiliary, .., dedicated] = available()[..] else {
        return println!("skipped: this needs two cores");
    };
    let folder = Folder::new();
    let state = format!(
        "  state: {{redis: {{socket: {}}}, wait: 10s, packets: 32768}}\n",
        server.socket().display()
    );
    let chain =
        |name: &str, functions: &str| folder.spec_with_slo("250ms", name, &format!("[{NAT}{functions}]"), &state);
    let slow = chain("slow.yaml", ", {synthetic: {cycles: 20000}}");
    // Made up, since measuring one takes seconds. Packets take less, so that all leave in time.
    let profile = folder.write(
        "made-up.yaml",
        "apiVersion: tailwater.dev/v1alpha2\nkind: CapacityProfile\nchain: test\nconfiguration: \"0\"\n\
         machine: elsewhere\nsloNanoseconds: 250000000\nepochNanoseconds: 125000000\nfrontier: [[any, 400]]\n\
         costs: {batchNanoseconds: 1000, packetNanoseconds: 500000, byteNanoseconds: 0, newFlowNanoseconds: 1000}\n",
    );
    let burst = burst(&folder, 2_000);
    let (dedicated, auxiliary) = (dedicated.to_string(), auxiliary.to_string());
    let output = run(&[
        &"run",
        &slow,
        &"--traffic",
        &burst,
        &"--output",
        &"json",
        &"--ring",
        &"65536",
        &"--cores",
        &dedicated,
        &"--auxiliary",
        &auxiliary,
        &"--profile",
        &profile,
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let first: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packets = &first["packets"];
    let of = |name: &str| packets[name].as_u64().unwrap();
    assert_eq!(of("delivered") + of("lost") + of("dropped_by_nf"), 2_000, "{packets}");
    let offloaded = first["scaling"]["packets_handed"].as_u64();
    assert!(offloaded > Some(100), "{}", first["scaling"]);
    assert_eq!(first["state"]["reads"], FLOWS, "{}", first["state"]);
    assert_eq!(first["state"]["dropped"], 0, "{}", first["state"]);
    let (bindings, _) = known(&server);
    assert_eq!(bindings.len() as u32, 2 * FLOWS);
    let next = chain("next.yaml", "");
    let short = traffic(&folder, "short.pcap", 200);
    let output = run(&[&"run", &next, &"--traffic", &short, &"--output", &"json"]);
    let next: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(next["packets"]["delivered"], 200, "{next:#}");
    assert_eq!(next["state"]["hits"], FLOWS);
    assert_eq!(known(&server).0, bindings);
}

/// A run with external state serves all metrics that the page documents for it.
#[test]
fn documentation_and_page_name_the_same_metrics_of_state() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let chain = spec(&folder, &server, &folder.path("flows.csv"));
    let long = traffic(&folder, "long.pcap", 60_000);
    let mut command = tailwater();
    command.args(["run", "--traffic"]).args([&long, &chain]);
    let mut serving = Serving::run(&mut command);
    let served = served(&serving.page_with("tailwater_state_reads"));
    let of_state = |name: &&str| name.starts_with("tailwater_state_");
    let found: BTreeSet<&str> = served.iter().map(String::as_str).filter(of_state).collect();
    let documented: BTreeSet<&str> = documented().into_iter().filter(of_state).collect();
    assert!(!documented.is_empty());
    assert_eq!(found, documented);
    serving.stop("-TERM");
}
