//! Chaos run: a chain with a hostile function under load. Its processes, and the Redis with its external flow state,
//! are killed and stopped at random. Every packet is sent correctly once, or counted under a drop reason. Bindings and
//! counters are right, also in a second run that continues with the state in Redis. No resources are left behind.
//!
//! `cargo test` runs each isolation mode for some seconds, `make chaos MINUTES=5` for that long. `CHAOS_SECONDS` sets
//! the duration. `CHAOS_SEED` repeats a run: the same packets and faults, as far as timing allows.

mod havoc;
mod traffic;

use crate::common::*;
use crate::processes::signal;
use crate::server::RedisServer;
use crate::state::known;
use crate::{TRUSTED, alone, can_confine, failing, reason, ways};
use havoc::Havoc;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tailwater_net::Nanos;
use traffic::Traffic;

/// Packets per second.
const RATE: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
/// New flows per second.
const NEW_FLOWS: u64 = 50;
/// Seconds of traffic after the faults, until all processes are replaced, however long that takes.
const SPARE: u64 = 40;
/// Packets for the second run.
const MORE: usize = 2 * RATE as usize;

/// Ports that order a hostile function to fail in ways that end it under any confinement: crash, exit, never return.
const ORDERS: [u16; 3] = [7001, 7002, 7003];

fn seconds() -> u64 {
    let given = std::env::var("CHAOS_SECONDS").ok();
    given.map_or(2, |given| given.parse().expect("CHAOS_SECONDS is a number"))
}

fn seed() -> u64 {
    let given = std::env::var("CHAOS_SEED").ok();
    let given = given.filter(|given| !given.is_empty());
    given.map_or_else(
        || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs(),
        |given| given.parse().expect("CHAOS_SEED is a number"),
    )
}

/// Writes the chain. Its last function is behind the hostile one.
fn chain(folder: &Folder, accounting: &str, redis: &RedisServer) -> PathBuf {
    let functions = format!(
        "[{{name: edge, acl: {{default: allow, rules: [{{action: deny, protocol: tcp, destinationPorts: 25}}]}}}}, \
         {{nat: {{external: [203.0.113.0/28]}}}}, {{library: {{file: misbehaving.so}}}}, {{accounting: {accounting}}}]"
    );
    let socket = redis.socket();
    let more = format!(
        "  flows: {{capacity: 131072, idleTimeout: 86400s}}\n  \
         state: {{redis: {{socket: {}}}, wait: 10s, packets: 32768}}\n",
        socket.display()
    );
    folder.spec("chaos.yaml", &functions, &more)
}

/// Starts the chain on these packets.
fn start(folder: &Folder, chain: &Path, offered: &Path, sent: &Path, way: &str) -> Child {
    let cores = tailwater_dataplane::cores::available();
    tailwater()
        .current_dir(&folder.0)
        .args(["run", "--output", "json", "--window", "10s"])
        .args(["--cores", &cores.last().unwrap().to_string()])
        .args(["--ring", "1000000", "--traffic"])
        .args([offered, chain])
        .arg("--capture-out")
        .arg(sent)
        .arg("--isolation")
        .args(way.split(' '))
        .stdout(Stdio::piped())
        .stderr(File::create(folder.path("told")).unwrap())
        .spawn()
        .unwrap()
}

fn ended(folder: &Folder, child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    let told = fs::read_to_string(folder.path("told")).unwrap_or_default();
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a chaos test in this isolation mode, and prints its events.
fn chaos(way: &str) {
    let _alone = alone();
    let Some(redis) = RedisServer::start(&["--appendonly", "yes"]) else {
        return;
    };
    let (seconds, seed) = (seconds(), seed());
    println!("chaos: {way}: CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let folder = Folder::new();
    failing::misbehaving(&folder);
    let mut traffic = Traffic::new(
        seed,
        (NEW_FLOWS * (seconds + SPARE) + 256) as usize,
        (RATE * (seconds + SPARE)) as usize,
        &ORDERS,
    );

    // Predicts the bindings: those to a remote end of their own do not depend on other flows.
    let (first, bound) = (folder.path("first.pcap"), folder.path("bound.pcap"));
    traffic.write_first_of_each(&first);
    let nat = folder.spec("nat.yaml", "[{nat: {external: [203.0.113.0/28]}}]", "");
    report(
        &nat,
        &first,
        &["--ring", "1000000", "--capture-out", bound.to_str().unwrap()],
    );
    traffic.learn(&bound);

    let [offered, sent, rest, sent_then] =
        ["offered", "sent", "rest", "then"].map(|name| folder.path(&format!("{name}.pcap")));
    let apart = Nanos(1_000_000_000 / RATE);
    traffic.write(&offered, apart);
    let counts_are_kept = way == TRUSTED;
    let accounting = match counts_are_kept {
        true => "{export: {file: flows.csv}}",
        false => "",
    };
    let chain = chain(&folder, accounting, &redis);
    let child = start(&folder, &chain, &offered, &sent, way);
    let mut havoc = Havoc::new(child.id(), folder.path("told"), redis, seed);
    // The server, and for each function a process and a standby one, except for a function that writes a file. Each
    // container has a supervising process.
    let processes = match way {
        TRUSTED => 8,
        "process" => 9,
        _ => 17,
    };
    // A process that is killed before it is attached ends the run.
    let before = havoc.settled(|now| now.children == processes && now.is_attached);
    println!("it begins with {before:?}");
    let half = Duration::from_secs(seconds) / 2;
    havoc.wreak(4, Instant::now() + half);
    let halfway = havoc.settled(|now| now.is_as(&before));
    havoc.wreak(4, Instant::now() + half);
    let after = havoc.settled(|now| now.is_as(&before));
    after.assert_as(&before, &halfway, havoc.strikes);
    signal(child.id(), "-INT");
    let report = ended(&folder, child);
    havoc.assert_nothing_is_left(way != TRUSTED);
    let told =
        serde_json::json!({"packets": report["packets"], "isolation": report["isolation"], "state": report["state"]});
    let strikes = (havoc.strikes, havoc.redis_strikes);
    println!("{strikes:?} strikes; {before:?}, then {after:?}; {told}");
    let first = count(&report, "offered");
    assert!(first < RATE * (seconds + SPARE), "it was over before: {told}");
    traffic.stopped_behind(first as usize, MORE, &rest, apart);
    let received = traffic.check(&sent);
    assert_eq!(received, count(&report, "delivered"), "{told}");
    assert!(received > first / 4, "{told}");
    let records = counts_are_kept.then(|| {
        let records = folder.path("before.csv");
        fs::rename(folder.path("flows.csv"), &records).unwrap();
        records
    });

    // A second run continues with the state in Redis.
    let then = ended(&folder, start(&folder, &chain, &rest, &sent_then, way));
    let again = traffic.check(&sent_then);
    assert_eq!(again, count(&then, "delivered"), "{then}");
    assert!(again > MORE as u64 / 4 && count(&then, "offered") == MORE as u64);
    assert_ne!(then["state"]["hits"], 0, "{then}");
    assert_balanced([&report, &then], &traffic);
    // A connection whose first packets are lost may be bound otherwise, since a binding opened by its responses is in
    // the way.
    let [left, foreseen] = traffic.as_foreseen();
    // While Redis is unavailable for long, most first packets of these are lost.
    assert!(foreseen > left / 4, "{foreseen} of {left}: {told}");
    let lost = [&report, &then]
        .map(|report| ["accounting/process-failed", "state-unavailable"].map(|name| reason(report, name)));
    let lost = lost.iter().flatten().sum();
    let known = known(&havoc.redis);
    assert!(known.bindings.len() >= 2 * traffic.left(), "{then}");
    let counted = received + again..=received + again + lost;
    assert!(
        counted.contains(&known.packets()),
        "{} not in {counted:?}",
        known.packets()
    );
    if let Some(records) = records {
        traffic.check_counts(&[records, folder.path("flows.csv")], lost);
    }
    // The faults hit the functions.
    let functions = report["isolation"]["functions"].as_array().unwrap();
    let restarts: u64 = functions.iter().map(crate::restarts).sum();
    assert!(
        restarts > 0 && functions.iter().all(|it| it["restarts"]["lied"] == 0),
        "{told}"
    );
    assert!(strikes.1 > 0);
}

/// Asserts that every offered packet is accounted for under an expected reason.
fn assert_balanced(reports: [&Value; 2], traffic: &Traffic) {
    let [packets, refused, answers, orders] = traffic.sent();
    assert!(orders > 0 && refused > 0 && answers > 0);
    let offered = reports.map(|report| count(report, "offered"));
    assert_eq!(offered.iter().sum::<u64>(), packets, "{reports:?}");
    for report in reports {
        assert_identity(report);
        let reasons = report["packets"]["reasons"].as_object().unwrap();
        let mut sum = 0;
        for (name, count) in reasons {
            let count = count.as_u64().unwrap();
            let most = match &**name {
                "edge/denied" => refused,
                // Responses of connections whose first packets were lost.
                "nat/no-binding" => answers,
                "nic-ring-full" | "not-drained" | "state-unavailable" => packets,
                // Counters of the function for packets that pass.
                "misbehaving/packets" | "misbehaving/new-flows" | "misbehaving/ended-packets" => {
                    continue;
                }
                // Records of delivered packets and of those that were lost behind.
                name if name.starts_with("accounting/records") => continue,
                name if name.ends_with("/process-failed") => packets,
                _ => panic!("{name}: {report}"),
            };
            assert!(count <= most, "{name}: {count} of {most}");
            sum += count;
        }
        let gone = ["dropped_by_nf", "lost"].map(|name| count(report, name));
        assert_eq!(sum, gone.iter().sum::<u64>(), "{report}");
    }
}

#[test]
fn trusted_processes_in_chaos() {
    chaos(TRUSTED);
}

#[test]
fn confined_processes_in_chaos() {
    if can_confine() {
        chaos("process");
    }
}

#[test]
fn containers_in_chaos() {
    if ways().contains(&"container") {
        chaos("container");
    }
}
