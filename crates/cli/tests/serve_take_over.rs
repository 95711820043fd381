//! A new version of the program takes over from a running server: two processes, on a trace.
//!
//! `cargo test` does a few take-overs. TAKE_OVERS sets their number, for `make soak`.
#![cfg(feature = "control")]

mod common;

use common::chain_server::{Folder, PATIENCE, Serving, chain, number, wait};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_server::take_over::{Message, PROTOCOL};

const NAT: &str = "{nat: {external: [198.19.255.0/24]}}, {accounting: }";

fn take_overs() -> u32 {
    let number = std::env::var("TAKE_OVERS").ok().and_then(|number| number.parse().ok());
    number.unwrap_or(2)
}

/// Starts a process that takes over.
fn take_over(folder: &Folder, arguments: &[&str]) -> Child {
    let arguments = [&["serve", "server.yaml", "--output", "json", "--take-over"], arguments].concat();
    let mut command = folder.command(&arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a process that was taken over, or that has failed.
fn end(child: Child) -> Output {
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < PATIENCE);
    output
}

fn report(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}"))
}

/// Packets that the only chain has delivered, if a server answers.
fn delivered(folder: &Folder) -> Option<u64> {
    let output = folder.run(&["get", "chains", "-o", "json", "--socket", "edge.sock"]);
    let chains: Value = serde_json::from_slice(&output.stdout).ok()?;
    chains["chains"][0]["packets"]["delivered"].as_u64()
}

fn packets(folder: &Folder) -> u64 {
    delivered(folder).expect("a server")
}

/// Tests run one after another: their servers have the same core.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Server without repetition, of so many packets at this rate.
fn finite_server(folder: &Folder, rate: u32) {
    folder.server("");
    let path = folder.0.join("server.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = text.replace("rate: 5kpps, repeat: true", &format!("rate: {rate}pps"));
    assert!(text.contains(&format!("rate: {rate}pps}}")), "{text}");
    folder.write("server.yaml", &text);
}

fn of_chain(report: &Value) -> &Value {
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), 1, "{report}");
    &chains[0]["report"]
}

/// All packets of a trace pass one process or another: none is lost or dropped, each is counted once, and each flow is
/// opened once, so that connections keep their translation.
#[test]
fn flows_ports_and_counters_pass_from_process_to_process() {
    let _alone = alone();
    let folder = Folder::new();
    let seconds = 2 * (take_overs() + 1);
    let duration = format!("{}ms", 5 * take_overs().max(2));
    let capture = [
        "trace",
        "synth",
        "backbone",
        "--duration",
        &duration,
        "-o",
        "small.pcap",
    ];
    assert!(folder.run(&capture).status.success());
    // No flow expires, however long the test takes.
    let text = chain("only", "0.0.0.0/0", NAT) + "  flows: {idleTimeout: 86400s, capacity: 524288}\n";
    folder.write("chains/only.yaml", &text);
    let alone = folder.run(&["run", "chains/only.yaml", "--traffic", "small.pcap", "--output", "json"]);
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    let all = number(&alone["packets"]["offered"]) + number(&alone["packets"]["not_matched"]);
    assert!(all > 1000, "{alone}");
    finite_server(&folder, (all / u64::from(seconds)).max(1) as u32);
    let mut serving = Serving::start_again(&folder);
    let mut opened = 0;
    for _ in 0..take_overs() {
        let before = packets(&folder);
        wait("packets", || packets(&folder) > before);
        let next = take_over(&folder, &[]);
        let ended = report(&end(serving.0.take().unwrap()));
        serving = Serving(Some(next));
        opened += number(&of_chain(&ended)["flows"]["opened"]);
        wait("the new server", || {
            folder.run(&["get", "chains", "--socket", "edge.sock"]).status.success()
        });
        let counted = number(&of_chain(&ended)["packets"]["delivered"]);
        assert!(packets(&folder) >= counted, "the counters go on");
        wait("the event", || folder.ok(&["events"]).contains("TookOver"));
        let events = folder.ok(&["events"]);
        assert!(events.contains("ms without processing"), "{events}");
    }
    let mut before = 0;
    let until = Instant::now() + Duration::from_secs(seconds.into()) + PATIENCE;
    loop {
        // Counts are those of the last window.
        std::thread::sleep(Duration::from_millis(1500));
        let now = packets(&folder);
        if std::mem::replace(&mut before, now) == now {
            break;
        }
        assert!(Instant::now() < until, "the trace does not end");
    }
    let last = serving.stop();
    let flows = &of_chain(&last)["flows"];
    opened += number(&flows["opened"]);
    assert_eq!(
        opened,
        number(&flows["active"]),
        "flows that passed over were opened again"
    );
    let counts = &of_chain(&last)["packets"];
    let [offered, delivered, lost] = ["offered", "delivered", "lost"].map(|name| number(&counts[name]));
    assert_eq!((delivered, lost), (offered, 0), "{counts}");
    let port = &last["ports"][0];
    let [received, unmatched, lost] = ["received", "unmatched", "lost"].map(|name| number(&port[name]));
    // Those that came before the chain ran are of no chain.
    assert_eq!((received, lost), (all, 0), "{port}");
    assert_eq!(offered, received - unmatched, "{port}");
    assert!(offered > all / 2, "{port}");
    assert!(!folder.0.join("edge.sock.take-over").exists());
}

/// Starts a server with a chain that asks for two cores, and takes over from it on the cores that `cores_of` returns
/// for each step, the start first. Each worker passes its flows over, and the file of its records is continued: the
/// header is there once, and so is each flow, with all its packets.
fn pass_over_with_a_file(cores_of: impl Fn(u32, usize) -> (String, usize)) {
    let folder = Folder::new();
    folder.server("");
    let core = folder.core();
    // For a while, a chain's ring holds what arrives: other programs may have the cores.
    let text = std::fs::read_to_string(folder.0.join("server.yaml")).unwrap();
    let text = text.replace("5kpps", "1kpps");
    let set_cores = |step| {
        let (cores, number) = cores_of(step, core);
        let changed = text.replace(&format!("cores: \"{core}\""), &format!("cores: \"{cores}\""));
        folder.write("server.yaml", &changed);
        number
    };
    let mut cores = set_cores(0);
    let functions = "{nat: {external: [198.19.255.0/24]}}, {accounting: {export: {file: flows.csv}}}";
    let text = chain("only", "0.0.0.0/0", functions)
        + &format!("  cores: {cores}\n  flows: {{idleTimeout: 86400s, capacity: 524288}}\n");
    folder.write("chains/only.yaml", &text);
    let mut serving = Serving::start(&folder);
    for step in 0..take_overs() {
        let before = packets(&folder);
        wait("packets", || packets(&folder) > before + 300);
        cores = set_cores(step + 1);
        let next = take_over(&folder, &[]);
        let ended = report(&end(serving.0.take().unwrap()));
        serving = Serving(Some(next));
        wait("the event", || {
            folder.run(&["events", "--socket", "edge.sock"]).status.success()
                && folder.ok(&["events"]).contains("TookOver")
        });
        let packets = &of_chain(&ended)["packets"];
        assert_eq!(number(&packets["lost"]), 0, "{packets}");
    }
    let before = packets(&folder);
    wait("packets", || packets(&folder) > before + 300);
    let last = serving.stop();
    assert_eq!(
        last["chains"][0]["cores"].as_array().map(Vec::len),
        Some(cores),
        "{last}"
    );
    let counts = &of_chain(&last)["packets"];
    let [offered, delivered, lost] = ["offered", "delivered", "lost"].map(|name| number(&counts[name]));
    assert_eq!((delivered, lost), (offered, 0), "{counts}");
    let records = std::fs::read_to_string(folder.0.join("flows.csv")).unwrap();
    let (headers, records): (Vec<_>, Vec<_>) = records.lines().partition(|line| line.starts_with("source,"));
    assert_eq!(headers.len(), 1);
    let mut counted = 0;
    let mut keys = BTreeSet::new();
    for record in &records {
        let fields: Vec<_> = record.split(',').collect();
        counted += fields[6].parse::<u64>().unwrap();
        assert!(keys.insert(fields[..6].join(",")), "twice: {record}");
    }
    assert_eq!(counted, delivered);
}

#[test]
fn a_chain_on_two_cores_passes_over_with_its_file() {
    let _alone = alone();
    pass_over_with_a_file(|_, core| (format!("{}-{core}", core - core.min(1)), core.min(1) + 1));
}

/// The new server has fewer cores than the running one, and the next one has more. A chain that asks for two runs on
/// one meanwhile.
#[test]
fn a_chain_passes_to_a_server_with_another_number_of_cores() {
    let _alone = alone();
    if Folder::new().core() == 0 {
        eprintln!("skipped: it needs two cores");
        return;
    }
    pass_over_with_a_file(|step, core| match step % 2 {
        0 => (format!("{}-{core}", core - 1), 2),
        _ => (core.to_string(), 1),
    });
}

/// Server whose report is read at any time, so that it can end.
struct Watched {
    child: Child,
    report: Option<JoinHandle<Vec<u8>>>,
}

impl Watched {
    fn new(mut serving: Serving) -> Watched {
        let mut child = serving.0.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let report = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            output.read_to_end(&mut bytes).unwrap();
            bytes
        });
        Watched {
            child,
            report: Some(report),
        }
    }

    /// Ends the server by SIGINT. Returns its report.
    fn stop(mut self) -> Value {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let report = self.report.take().unwrap().join().unwrap();
        serde_json::from_slice(&report).unwrap()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Message of a take-over behind its length.
fn receive(stream: &mut UnixStream) -> Message {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes).unwrap();
    Message::decode(&bytes).unwrap()
}

fn connect(folder: &Folder) -> UnixStream {
    let stream = UnixStream::connect(folder.0.join("edge.sock.take-over")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn hello(stream: &mut UnixStream, protocol: u32) -> Message {
    let server = "edge".to_owned();
    stream
        .write_all(&Message::Hello { protocol, server }.encode().unwrap())
        .unwrap();
    receive(stream)
}

/// A process that dies with everything in its hands, or at a random time, leaves the running server as it was.
#[test]
fn the_running_server_goes_on_if_the_new_one_dies() {
    let _alone = alone();
    let folder = Folder::new();
    folder.server("");
    folder.chain("only", "0.0.0.0/0", NAT);
    let mut serving = Watched::new(Serving::start(&folder));
    wait("packets", || packets(&folder) > 100);
    // It has everything, and does not say so.
    let mut stream = connect(&folder);
    let Message::Offer { generation, .. } = hello(&mut stream, PROTOCOL) else {
        panic!("no offer");
    };
    let generation = generation.number;
    stream
        .write_all(&Message::Commit { generation }.encode().unwrap())
        .unwrap();
    let Message::Handed { machine } = receive(&mut stream) else {
        panic!("nothing handed over");
    };
    assert!(
        machine.chains["only"].flows > 0 && machine.chains["only"].bytes > 0,
        "{machine:?}"
    );
    drop(stream);
    let before = packets(&folder);
    wait("packets after it", || packets(&folder) > before + 100);
    assert!(folder.ok(&["events"]).contains("TakeOverFailed"));
    // A generation that is not the current one, another version of the messages, and none at all.
    let mut stream = connect(&folder);
    hello(&mut stream, PROTOCOL);
    let other = Message::Commit {
        generation: generation + 1,
    };
    stream.write_all(&other.encode().unwrap()).unwrap();
    assert!(matches!(receive(&mut stream), Message::Refused { reason, again: true } if reason.contains("has changed")));
    let refused = hello(&mut connect(&folder), PROTOCOL + 1);
    assert!(matches!(refused, Message::Refused { reason, again: false } if reason.contains("version")));
    let mut stream = connect(&folder);
    stream.write_all(&[255; 8]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed or reset");
    // Killed at a random time: the server goes on, unless it has been taken over.
    let mut random: u64 = 0x2545_f491_4f6c_dd1d;
    for kill in 0..take_overs().div_ceil(2) {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let mut next = take_over(&folder, &[]);
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x7_ffff));
        next.kill().unwrap();
        next.wait().unwrap();
        // One that was taken over ends; any other one goes on.
        let (began, first) = (Instant::now(), delivered(&folder));
        let is_over = loop {
            if serving.child.try_wait().unwrap().is_some() {
                break true;
            }
            let goes_on = began.elapsed() > Duration::from_secs(1) && delivered(&folder) > first.or(Some(0));
            if goes_on && delivered(&folder).is_some() {
                break false;
            }
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(30));
        };
        println!(
            "kill {kill}: {}",
            if is_over { "after the take-over" } else { "before" }
        );
        if is_over {
            serving = Watched::new(Serving::start_again(&folder));
        }
        let before = packets(&folder);
        wait("packets after a kill", || packets(&folder) != before);
    }
    let last = serving.stop();
    let counts = &of_chain(&last)["packets"];
    let [offered, delivered, dropped, lost] =
        ["offered", "delivered", "dropped_by_nf", "lost"].map(|name| number(&counts[name]));
    assert_eq!(offered, delivered + dropped + lost, "{counts}");
}

/// Files below a folder with their inodes, and the contents of those of the state directory.
fn files(folder: &Folder) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![folder.0.clone()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let kind = std::fs::symlink_metadata(&path).unwrap();
            let is_state = kind.is_file() && path.starts_with(folder.0.join("state"));
            let content = is_state.then(|| std::fs::read(&path).unwrap());
            if kind.is_dir() {
                folders.push(path.clone());
            }
            files.insert(path, (kind.ino(), content.unwrap_or_default()));
        }
    }
    files
}

/// A part that a new version cannot continue is refused before anything stops, with exit code 2. Outputs, the state
/// directory and the sockets are left alone.
#[test]
fn a_take_over_is_refused_before_anything_stops() {
    let _alone = alone();
    let folder = Folder::new();
    folder.server("");
    folder.chain("walled", "10.0.0.0/17", "{dnsGuard: {limits: {responses: 10000}}}");
    folder.chain("counted", "10.0.128.0/17", "{accounting: {export: {file: flows.csv}}}");
    let before = files(&folder);
    let nobody = end(take_over(&folder, &[]));
    assert_eq!(files(&folder), before);
    let error = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert_eq!(nobody.status.code(), Some(2), "{error}");
    let expected = "edge.sock.take-over: no server to take over from: No such file or directory (os error 2); without \
                    --take-over, this one starts by itself";
    assert!(error.contains(expected), "{error}");
    let serving = Serving::start(&folder);
    let read = || std::fs::read(folder.0.join("flows.csv")).unwrap();
    let refused = |arguments: &[&str]| {
        let (before, output_before) = (files(&folder), read());
        let output = end(take_over(&folder, arguments));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("take-over refused, the running server goes on: "),
            "{error}"
        );
        assert_eq!(files(&folder), before);
        assert!(read().starts_with(&output_before));
        error
    };
    let error = refused(&[]);
    let expected = "--take-over would lose the state of function dnsGuard of chain walled; add --lose-state to accept";
    assert!(error.contains(expected), "{error}");
    // Other traffic.
    let path = folder.0.join("server.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    folder.write("server.yaml", &text.replace("small.pcap", "smooth"));
    assert!(refused(&["--lose-state"]).contains("port north: expected the traffic of the running server"));
    folder.write("server.yaml", &text);
    let before = packets(&folder);
    wait("packets", || packets(&folder) > before);
    // Accepted.
    let next = Serving(Some(take_over(&folder, &["--lose-state"])));
    let mut serving = serving;
    report(&end(serving.0.take().unwrap()));
    wait("the new server", || {
        folder.run(&["get", "chains", "--socket", "edge.sock"]).status.success()
    });
    let before = packets(&folder);
    wait("packets", || packets(&folder) > before);
    let last = next.stop();
    assert_eq!(last["chains"][0]["failure"], Value::Null);
}
