//! Flow state of isolated functions in a real Redis: functions are killed, `tailwater` is killed, Redis stops, freezes
//! and is full.

use crate::common::*;
use crate::processes::{family_of, processes_of, signal};
use crate::server::{RedisServer, piece_of};
use crate::{TRUSTED, alone, can_confine, process, reason, restarts};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::available;

const FLOWS: u32 = 40;

/// Writes packets, one per millisecond, of all flows in turn, with their numbers at the start of the payload.
fn traffic(folder: &Folder, name: &str, packets: u32) -> PathBuf {
    let frame = |n: u32| {
        let frame = udp(client((n % 20) as u8 + 1), 5000 + (n % FLOWS) as u16, SERVER, 53);
        (u64::from(n) * 1_000_000, frame)
    };
    folder.capture(name, &(0..packets).map(frame).collect::<Vec<_>>())
}

const FUNCTIONS: &str = "[{name: edge, acl: {default: allow, rules: [{action: deny, destinationPorts: 25}]}}, \
                         {nat: {external: [203.0.113.0/28]}}, {accounting: }]";

fn spec(folder: &Folder, server: &RedisServer, functions: &str, bounds: &str) -> PathBuf {
    let state = format!(
        "  flows: {{capacity: 8192}}\n  state: {{redis: {{socket: {}}}, {bounds}}}\n",
        server.socket().display()
    );
    folder.spec("chain.yaml", functions, &state)
}

const PATIENT: &str = "wait: 10s, packets: 32768";

/// Content of Redis: translations as bytes, without the numbers of their updates, and each flow's count.
pub(crate) struct Known {
    pub(crate) bindings: BTreeMap<Vec<u8>, Vec<u8>>,
    counts: BTreeMap<Vec<u8>, u64>,
}

impl Known {
    pub(crate) fn packets(&self) -> u64 {
        self.counts.values().sum()
    }
}

pub(crate) fn known(server: &RedisServer) -> Known {
    let client = redis::Client::open(format!("unix://{}", server.socket().display())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let (mut bindings, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("tw:*").query(&mut connection).unwrap();
    for key in keys {
        let value: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
        let piece = piece_of(&value).to_vec();
        if key.starts_with(b"tw:test:nat:") {
            bindings.insert(key, piece);
        } else {
            assert!(key.starts_with(b"tw:test:accounting:"));
            // After the bytes and the time of the first packet.
            let packets = u32::from_le_bytes(piece[16..20].try_into().unwrap());
            counts.insert(key, packets.into());
        }
    }
    Known { bindings, counts }
}

fn core() -> String {
    available().pop().unwrap().to_string()
}

/// Running `tailwater run`. A thread reads its report, so that a full pipe does not keep the process from ending.
struct Run {
    child: Child,
    report: JoinHandle<Vec<u8>>,
}

impl std::ops::Deref for Run {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl std::ops::DerefMut for Run {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

fn start(chain: &Path, traffic: &Path, way: &str, more: &[&str]) -> Run {
    let mut child = tailwater()
        .args(["run", "--output", "json", "--ring", "1000000", "--cores"])
        .arg(core())
        .args(["--traffic".as_ref(), traffic, chain])
        .args(more)
        .arg("--isolation")
        .args(way.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let report = std::thread::spawn(move || {
        let mut report = Vec::new();
        stdout.read_to_end(&mut report).unwrap();
        report
    });
    Run { child, report }
}

fn ended(mut run: Run) -> Value {
    let status = run.wait().unwrap();
    assert!(status.success(), "{status:?}");
    let report: Value = serde_json::from_slice(&run.report.join().unwrap()).unwrap();
    assert_identity(&report);
    report
}

fn whole(chain: &Path, traffic: &Path, way: &str) -> Value {
    ended(start(chain, traffic, way, &[]))
}

/// Waits until this number of packets has been counted in Redis.
fn wait_for(server: &RedisServer, packets: u64, child: &mut Child) {
    let until = Instant::now() + Duration::from_secs(60);
    while known(server).packets() < packets {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        assert!(Instant::now() < until, "nothing gets into Redis");
        sleep(Duration::from_millis(20));
    }
}

/// Kills a function's process or its supervisor; another one for each `number`.
fn kill_one(child: &Child, number: usize) {
    let mut family = family_of(child.id());
    family.retain(|process| *process != child.id());
    family.sort_unstable();
    if let Some(process) = family.get(number * 7 % family.len().max(1)) {
        // It may have exited meanwhile.
        let _ = rustix::process::Pid::from_raw(*process as i32)
            .map(|process| rustix::process::kill_process(process, rustix::process::Signal::KILL));
    }
}

/// Returns all modes except containers, which do not differ from processes in these tests.
fn both() -> Vec<&'static str> {
    match can_confine() {
        true => vec!["process", TRUSTED],
        false => vec![TRUSTED],
    }
}

#[test]
fn what_functions_in_processes_knew_is_known_after_all_were_killed() {
    let _alone = alone();
    for way in both() {
        let Some(server) = RedisServer::start(&[]) else {
            return;
        };
        let folder = Folder::new();
        let chain = spec(&folder, &server, FUNCTIONS, PATIENT);
        let long = traffic(&folder, "long.pcap", 30_000);
        let mut run = start(&chain, &long, way, &[]);
        wait_for(&server, 500, &mut run);
        // Functions first, during the traffic.
        for number in 0..8 {
            kill_one(&run, number);
            sleep(Duration::from_millis(120));
        }
        let counted = known(&server).packets();
        wait_for(&server, counted + 200, &mut run);
        signal(run.id(), "-KILL");
        run.wait().unwrap();
        sleep(Duration::from_millis(100));
        let before = known(&server);
        assert_eq!(before.bindings.len() as u32, 2 * FLOWS, "{way}");
        assert_eq!(before.counts.len() as u32, FLOWS, "{way}");
        // The next run continues, isolated or not.
        let short = traffic(&folder, "short.pcap", 400);
        for (again, way) in [(1, way), (2, "none"), (3, way)] {
            let report = whole(&chain, &short, way);
            assert_eq!(report["packets"]["delivered"], 400, "{way}: {report:#}");
            assert_eq!(report["state"]["hits"], FLOWS, "{way}");
            assert_eq!(report["state"]["dropped"], 0, "{way}");
            let after = known(&server);
            assert_eq!(after.bindings, before.bindings, "{way}");
            assert_eq!(after.packets(), before.packets() + 400 * again, "{way}");
        }
    }
}

#[test]
fn killed_functions_lose_neither_bindings_nor_counts() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let chain = spec(&folder, &server, FUNCTIONS, PATIENT);
    let traffic = traffic(&folder, "in.pcap", 6000);
    let sent = folder.path("sent.pcap");
    let mut run = start(&chain, &traffic, process(), &["--capture-out", sent.to_str().unwrap()]);
    wait_for(&server, 100, &mut run);
    let mut kills = 0;
    while known(&server).packets() < 4500 && run.try_wait().unwrap().is_none() {
        kill_one(&run, kills);
        kills += 1;
        sleep(Duration::from_millis(150));
    }
    let report = ended(run);
    let functions = report["isolation"]["functions"].as_array().unwrap();
    let failed: u64 = functions.iter().map(restarts).sum();
    assert!(kills > 5 && failed > 3, "{kills}: {report:#}");
    // A connection keeps its translation, which no other one has.
    let frames = frames(&sent);
    let translations: BTreeSet<_> = frames
        .iter()
        .map(|frame| (key(frame).source(), key(frame).source_port()))
        .collect();
    assert_eq!(translations.len() as u32, FLOWS);
    let known = known(&server);
    assert_eq!(known.bindings.len() as u32, 2 * FLOWS);
    // Delivered packets were counted. Lost ones may have been counted by `accounting` before it was killed.
    let delivered = count(&report, "delivered");
    let lost = reason(&report, "accounting/process-failed");
    let counted = known.packets();
    assert!(
        (delivered..=delivered + lost).contains(&counted),
        "{counted} of {delivered} and {lost}: {report:#}"
    );
    assert_eq!(
        count(&report, "lost"),
        ["edge", "nat", "accounting"]
            .map(|function| reason(&report, &format!("{function}/process-failed")))
            .iter()
            .sum::<u64>()
            + reason(&report, "state-unavailable"),
        "{report:#}"
    );
}

/// A fault of the server during the traffic, and its end.
type Trouble = [fn(&mut RedisServer); 2];

const TROUBLES: [Trouble; 3] = [
    [RedisServer::stop, RedisServer::start_again],
    [|server| server.signal("STOP"), |server| server.signal("CONT")],
    [
        |server| drop(server.command(&["config", "set", "maxmemory", "1"])),
        |server| drop(server.command(&["config", "set", "maxmemory", "0"])),
    ],
];

#[test]
fn packets_wait_within_bounds_for_a_redis_that_is_away() {
    const PACKETS: u32 = 1800;
    let _alone = alone();
    // Each fault under `hold`, where most can go wrong, and each policy.
    for (trouble, policy) in [(0, "hold"), (1, "hold"), (2, "hold"), (1, "pass"), (0, "drop")] {
        let [begins, ends] = TROUBLES[trouble];
        let Some(mut server) = RedisServer::start(&["--maxmemory-policy", "noeviction"]) else {
            return;
        };
        let bounds = match policy {
            "hold" => "whenUnavailable: hold, wait: 10s, packets: 32768",
            "pass" => "whenUnavailable: pass, wait: 30ms",
            _ => "whenUnavailable: drop, wait: 100ms, packets: 32768",
        };
        let folder = Folder::new();
        let chain = spec(&folder, &server, FUNCTIONS, bounds);
        let traffic = traffic(&folder, "in.pcap", PACKETS);
        let mut run = start(&chain, &traffic, process(), &[]);
        wait_for(&server, 300, &mut run);
        begins(&mut server);
        sleep(Duration::from_millis(600));
        ends(&mut server);
        let report = ended(run);
        let state = &report["state"];
        let what = format!("{policy}: {report:#}");
        let number = |name: &str| state[name].as_u64().unwrap();
        assert_eq!(number("dropped"), reason(&report, "state-unavailable"));
        match policy {
            "hold" => {
                assert_eq!(count(&report, "delivered"), u64::from(PACKETS), "{what}");
                assert!(number("held_most") > 100, "{what}");
            }
            "pass" => {
                assert_eq!(count(&report, "delivered"), u64::from(PACKETS), "{what}");
                assert!(number("passed") > 100, "{what}");
            }
            _ => {
                assert!(number("dropped") > 100, "{what}");
                assert_eq!(count(&report, "lost"), number("dropped"), "{what}");
            }
        }
        // In the end Redis has the state of all delivered packets.
        let known = known(&server);
        assert_eq!(known.bindings.len() as u32, 2 * FLOWS, "{what}");
        let delivered = count(&report, "delivered");
        let counted = known.packets();
        assert!(
            (delivered..=delivered + number("dropped")).contains(&counted),
            "{counted}: {what}"
        );
    }
}

/// Functions' processes, the only confined ones here, have no connection to Redis and do not contain its users'
/// passwords.
#[test]
fn no_function_has_a_connection() {
    let _alone = alone();
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = Folder::new();
    let chain = spec(&folder, &server, FUNCTIONS, PATIENT);
    let long = traffic(&folder, "long.pcap", 20_000);
    let mut run = start(&chain, &long, process(), &[]);
    wait_for(&server, 200, &mut run);
    let sockets = |process: u32| {
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    };
    // The worker's own connections, to prove that the check can find some.
    assert!(sockets(run.id()) >= 3);
    let functions = processes_of(run.id());
    assert!(functions.len() >= 3);
    for process in family_of(run.id()).into_iter().skip(1) {
        // Its standard input, the socket to its server.
        assert!(sockets(process) <= 2, "{process}");
    }
    signal(run.id(), "-INT");
    run.wait().unwrap();
}
