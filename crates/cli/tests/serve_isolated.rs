//! A server with chains whose functions run in processes of their own, as a user runs it.
#![cfg(feature = "control")]

#[path = "serve_isolated/books.rs"]
mod books;
mod common;
#[path = "isolation/processes.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod processes;

use books::{assert_books_balance, assert_flows_passed, build_books};
use common::chain_server::*;
use processes::{family_of, is_there, places_of, signal};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// User without rights.
const NOBODY: u32 = 65_534;

/// Returns `true` if this machine can isolate functions of a server; prints the reason if not.
fn can_isolate() -> bool {
    let reason = match std::thread::available_parallelism().map_or(1, usize::from) {
        _ if !rustix::process::geteuid().is_root() => "confining functions needs root",
        1 => "a server needs another core than that of its chains",
        _ => return true,
    };
    println!("skipped: {reason}");
    false
}

/// Serialises tests: servers at real-time priority never yield their core to each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A failed test has ended, too.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text of a chain with the other half of the traffic.
fn apart(functions: &str, isolation: &str) -> String {
    chain("apart", "10.0.128.0/17", functions) + isolation
}

const PROCESS: &str = "  isolation: process\n";

fn find(chains: &Value, name: &str) -> Option<Value> {
    let chains = chains["chains"].as_array().unwrap();
    chains.iter().find(|chain| chain["name"] == name).cloned()
}

fn delivered(folder: &Folder, name: &str) -> u64 {
    find(&folder.chains(), name).map_or(0, |chain| number(&chain["packets"]["delivered"]))
}

/// Waits until both chains have delivered packets more.
fn await_both(folder: &Folder) {
    for name in ["plain", "apart"] {
        let before = delivered(folder, name);
        wait(name, || delivered(folder, name) > before + 100);
    }
}

/// Names of the files in the state folder, without the numbers behind those of chains.
fn state_of(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.0.join("state")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .map(|name| name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_owned())
        .collect();
    names.sort();
    names
}

/// Processes below the server.
fn below(serving: &Serving) -> Vec<u32> {
    let server = serving.0.as_ref().unwrap().id();
    family_of(server)
        .into_iter()
        .filter(|process| *process != server)
        .collect()
}

fn await_gone(processes: &[u32]) {
    wait("the end of all processes", || {
        !processes.iter().any(|process| is_there(*process))
    });
}

#[test]
fn isolated_chains_run_beside_trusted_ones_and_leave_nothing() {
    let _alone = alone();
    if !can_isolate() {
        return;
    }
    let folder = Folder::new();
    folder.server("");
    folder.chain("plain", "10.0.0.0/17", "{forward: }");
    let mut serving = Serving::start(&folder);
    let apply = |text: &str, change: &str| {
        folder.write("apart.yaml", text);
        let told = folder.ok(&["apply", "-f", "apart.yaml"]);
        assert!(told.contains(change), "{told}");
    };
    // Checked, and not started.
    folder.write("apart.yaml", &apart("{accounting: }", PROCESS));
    folder.ok(&["apply", "-f", "apart.yaml", "--dry-run=server"]);
    assert_eq!(
        (below(&serving).len(), state_of(&folder)),
        (0, vec!["generation".to_owned()])
    );
    apply(
        &apart("{nat: {external: [198.19.255.0/28]}}, {accounting: }", PROCESS),
        "created",
    );
    await_both(&folder);
    // Two functions, each with a process that waits, and what confines them.
    let first = below(&serving);
    assert!(first.len() >= 4, "{first:?}");
    assert_eq!(state_of(&folder), [".chain.apart-", "generation"]);
    // All processes are killed at once: others take their place.
    first
        .iter()
        .for_each(|process| processes::signal_if_there(*process, "-KILL"));
    await_gone(&first);
    await_both(&folder);
    // Another list of functions is another chain, whose processes replace those of the one before.
    let first = below(&serving);
    apply(&apart("{accounting: }", PROCESS), "replaced");
    await_gone(&first);
    await_both(&folder);
    let second = below(&serving);
    let places: Vec<PathBuf> = second.iter().copied().flat_map(places_of).collect();
    assert!(!places.is_empty());
    // The next server starts what was applied, and removes what this one has left.
    serving.kill();
    await_gone(&second);
    let serving = Serving::start_again(&folder);
    await_both(&folder);
    assert_eq!(state_of(&folder), [".chain.apart-", "generation"]);
    assert!(!places.iter().any(|place| place.exists()), "{places:?}");
    // A chain may change between both kinds.
    let third = below(&serving);
    apply(&apart("{accounting: }", ""), "configured");
    await_gone(&third);
    await_both(&folder);
    wait("the chain's file", || state_of(&folder) == ["generation"]);
    assert_eq!(below(&serving).len(), 0);
    apply(&apart("{accounting: }", PROCESS), "configured");
    await_both(&folder);
    let fourth = below(&serving);
    let server = serving.0.as_ref().unwrap().id();
    // A process that is stopped is replaced, and stops nobody else.
    let stopped = *processes::processes_at(server, 0).first().unwrap();
    signal(stopped, "-STOP");
    wait("the end of the stopped process", || !is_there(stopped));
    await_both(&folder);
    folder.ok(&["delete", "chain", "apart"]);
    await_gone(&fourth);
    wait("the end of the processes", || below(&serving).is_empty());
    // The server notices a chain's end a moment later.
    wait("the chain's file", || state_of(&folder) == ["generation"]);
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    assert_eq!(chains.len(), 4, "{report:#}");
    for chain in chains {
        let packets = &chain["report"]["packets"];
        let count = |name: &str| number(&packets[name]);
        let ended = count("delivered") + count("dropped_by_nf") + count("lost");
        assert_eq!(count("offered"), ended, "{packets}");
        assert_eq!(chain["failure"], Value::Null);
        let isolation = &chain["report"]["isolation"];
        if !isolation.is_null() {
            assert_eq!(isolation["without"], serde_json::json!(["server"]));
            assert_eq!(isolation["failures"], serde_json::json!([]));
        }
    }
    let isolated = chains.iter().filter(|chain| !chain["report"]["isolation"].is_null());
    assert_eq!(isolated.count(), 2);
}

#[test]
fn two_isolated_chains_share_a_core_in_containers_and_processes() {
    let _alone = alone();
    if !can_isolate() {
        return;
    }
    let folder = Folder::new();
    folder.server("");
    let isolation = match tailwater_confine::ContainerRuntime::find() {
        Some(_) => "  isolation: {mode: container, overhead: 10}\n",
        None => "  isolation: {mode: process, without: [all]}\n",
    };
    folder.write(
        "chains/plain.yaml",
        &(chain("plain", "10.0.0.0/17", "{accounting: }") + isolation),
    );
    folder.write(
        "chains/apart.yaml",
        &apart("{nat: {external: [198.19.255.0/28]}}", PROCESS),
    );
    let serving = Serving::start(&folder);
    await_both(&folder);
    let processes = below(&serving);
    let report = serving.stop();
    await_gone(&processes);
    assert_eq!(state_of(&folder), ["generation"]);
    for chain in report["chains"].as_array().unwrap() {
        let function = &chain["report"]["isolation"]["functions"][0];
        assert_ne!(number(&function["turns"]), 0, "{report:#}");
    }
}

/// Starts a process that takes over.
fn take_over(folder: &Folder, more: &[&str]) -> Serving {
    let mut command = folder.command(&[&["serve", "server.yaml", "--output", "json", "--take-over"], more].concat());
    Serving(Some(
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    ))
}

/// Waits for the end of a server that was taken over. Asserts that it has lost nothing but what a process held that was
/// late on a busy machine. Returns its report.
fn assert_taken_over(mut serving: Serving, folder: &Folder) -> Value {
    let output = serving.0.take().unwrap().wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for chain in report["chains"].as_array().unwrap() {
        let packets = &chain["report"]["packets"];
        let late = packets["drops"].as_array().unwrap().iter();
        let late = late.filter(|drop| drop["reason"] == "process-failed");
        let late: u64 = late.map(|drop| number(&drop["packets"])).sum();
        assert_eq!(
            (&chain["failure"], number(&packets["lost"])),
            (&Value::Null, late),
            "{packets}"
        );
    }
    wait("the event", || {
        let events = folder.run(&["events", "--socket", "edge.sock"]);
        String::from_utf8_lossy(&events.stdout).contains("TookOver")
    });
    report
}

/// Both servers have processes on the core at real-time priority for a while, and none of them naps.
#[test]
fn isolated_chains_pass_to_a_process_that_takes_over() {
    let _alone = alone();
    if !can_isolate() {
        return;
    }
    let folder = Folder::new();
    folder.server("");
    let text = fs::read_to_string(folder.0.join("server.yaml")).unwrap();
    folder.write("server.yaml", &text.replace("5kpps", "1kpps"));
    folder.chain("plain", "10.0.0.0/18", "{nat: {external: [198.19.255.0/28]}}");
    build_books(&folder);
    let kept = "{nat: {external: [198.19.254.0/24]}}, {accounting: }, \
                {policer: {limits: [{per: flow, rate: 1Gbps, burst: 1000000}]}}, {library: {file: ./books.so}}";
    let flows = "  flows: {idleTimeout: 86400s, capacity: 8192}\n";
    folder.write("chains/apart.yaml", &(apart(kept, PROCESS) + flows));
    // A second chain takes most of the test's time.
    let has_walled = std::env::var_os("TAKE_OVERS").is_some();
    if has_walled {
        // No connection ends by itself.
        let timeouts = "handshake established closing timeWait closed udp udpAnswered icmp other otherAnswered denied";
        let timeouts = timeouts.replace(' ', ": 86400s, ");
        let walled = format!(
            "{{firewall: {{zones: {{all: {{prefixes: any}}}}, rules: [allow], \
             tcp: {{windows: liberal, midstream: allow}}, \
             timeouts: {{{timeouts}: 86400s}}}}}}, \
             {{loadBalancer: {{services: [{{address: 0.0.0.0/0, port: any, protocol: udp, \
             backends: [{{address: 192.0.2.1}}, {{address: 192.0.2.2}}]}}]}}}}, {{library: {{file: ./books.so}}}}"
        );
        let walled = chain("walled", "10.0.64.0/18", &walled) + PROCESS + flows;
        folder.write("chains/walled.yaml", &walled);
    }
    let serving = Serving::start(&folder);
    await_both(&folder);
    let first = below(&serving);
    let next = take_over(&folder, &[]);
    let before = assert_taken_over(serving, &folder);
    await_both(&folder);
    await_gone(&first);
    let second = below(&next);
    assert!(second.len() >= 4, "{second:?}");
    match has_walled {
        true => assert_eq!(state_of(&folder), [".chain.apart-", ".chain.walled-", "generation"]),
        false => assert_eq!(state_of(&folder), [".chain.apart-", "generation"]),
    }
    // State that only the function's process can read does not pass.
    let text = apart(
        "{count: {counters: [{name: all}]}}, {urlFilter: {patterns: [x.example]}}",
        PROCESS,
    );
    folder.write("apart.yaml", &text);
    folder.ok(&["apply", "-f", "apart.yaml"]);
    folder.write("chains/apart.yaml", &text);
    let refused = take_over(&folder, &[]).0.take().unwrap().wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    let expected = "--take-over would lose the state of function urlFilter of chain apart; add --lose-state to accept";
    assert!(refused.status.code() == Some(2) && told.contains(expected), "{told}");
    let third = below(&next);
    let last = take_over(&folder, &["--lose-state"]);
    let after = assert_taken_over(next, &folder);
    assert_flows_passed("apart", &[&before, &after]);
    assert_books_balance("apart", &after);
    await_gone(&third);
    // Processes that replace others find their chain's file, which the old server's end has left.
    let fourth = below(&last);
    fourth
        .iter()
        .for_each(|process| processes::signal_if_there(*process, "-KILL"));
    await_gone(&fourth);
    await_both(&folder);
    let report = last.stop();
    for chain in report["chains"].as_array().unwrap() {
        assert_eq!(chain["failure"], Value::Null, "{report:#}");
    }
    if has_walled {
        assert_flows_passed("walled", &[&before, &after, &report]);
    }
}

/// Builds an example as a program, `rate`.
fn build_rate_limit(folder: &Folder) {
    let example = |file: &str| {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        project.join("examples/functions/rate-limit").join(file)
    };
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-pthread", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/include"))
        .arg("-o")
        .arg(folder.0.join("rate"))
        .args(["rate_limit.c", "main.c"].map(example))
        .arg(common::libtailwater_nf().join("libtailwater_nf.a"));
    assert!(cc.status().unwrap().success());
}

/// Process that plays a pod, ended with the test.
struct Pod(std::process::Child);

impl Pod {
    fn start(folder: &Folder) -> Pod {
        let mut command = Command::new(folder.0.join("rate"));
        command.env("TAILWATER_FUNCTION_SOCKET", folder.0.join("pod/limit.sock"));
        Pod(command.uid(NOBODY).gid(NOBODY).spawn().unwrap())
    }

    fn processes(&self) -> Vec<u32> {
        processes::processes_of(self.0.id())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes of a program that somebody else has started join a chain beside a trusted one. They are replaced by others
/// that join when they fail, when the chain is changed, and when the server or their pod is another one.
#[test]
fn processes_join_by_a_socket() {
    let _alone = alone();
    if !can_isolate() {
        return;
    }
    let folder = Folder::new();
    build_rate_limit(&folder);
    fs::create_dir(folder.0.join("pod")).unwrap();
    folder.server("");
    folder.chain("plain", "10.0.0.0/17", "{forward: }");
    let mut serving = Serving::start(&folder);
    let pod = Pod::start(&folder);
    let with_burst = |burst: u32| {
        let config = format!("{{packetsPerSecond: 100000, burst: {burst}}}");
        let program = format!("{{program: {{socket: pod/limit.sock, user: {NOBODY}, config: {config}}}}}");
        folder.write("apart.yaml", &apart(&format!("{{accounting: }}, {program}"), ""));
        folder.ok(&["apply", "-f", "apart.yaml"]);
    };
    with_burst(64);
    await_both(&folder);
    // The server has started nothing. One process works, one is its standby, and one waits.
    assert!(below(&serving).is_empty());
    wait("three processes", || pod.processes().len() == 3);
    let socket = fs::metadata(folder.0.join("pod/limit.sock")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (NOBODY, 0o600));
    for _ in 0..2 {
        let first = pod.processes();
        first
            .iter()
            .for_each(|process| processes::signal_if_there(*process, "-KILL"));
        await_gone(&first);
        await_both(&folder);
    }
    // A hanging process is ended by the server.
    wait("three processes", || pod.processes().len() == 3);
    let stopped = *pod.processes().first().unwrap();
    signal(stopped, "-STOP");
    wait("the end of the stopped process", || !is_there(stopped));
    await_both(&folder);
    with_burst(32);
    await_both(&folder);
    // Processes end with their server, and join the next one.
    let before = pod.processes();
    serving.kill();
    let serving = Serving::start_again(&folder);
    await_both(&folder);
    assert!(pod.processes().iter().any(|process| !before.contains(process)));
    // Another pod takes the place of the one before.
    drop(pod);
    let pod = Pod::start(&folder);
    await_both(&folder);
    folder.ok(&["delete", "chain", "apart"]);
    wait("the socket's end", || !folder.0.join("pod/limit.sock").exists());
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    let apart = chains.iter().find(|chain| chain["name"] == "apart").unwrap();
    let isolation = &apart["report"]["isolation"];
    assert_eq!(
        (&isolation["mode"], &isolation["real_time"]),
        (&"joined".into(), &true.into())
    );
    assert_eq!(isolation["functions"].as_array().unwrap().len(), 1, "{report:#}");
    drop(pod);
}

/// A program of somebody else beside a trusted chain: it is replaced when it is killed, and nothing of it remains.
#[test]
fn a_third_party_program_runs_on_a_server() {
    let _alone = alone();
    if !can_isolate() {
        return;
    }
    let folder = Folder::new();
    build_rate_limit(&folder);
    folder.server("");
    folder.chain("plain", "10.0.0.0/17", "{forward: }");
    let serving = Serving::start(&folder);
    let of_program = |burst: &str| {
        let program = format!("{{program: {{file: rate, config: {{packetsPerSecond: 100000, burst: {burst}}}}}}}");
        folder.write("apart.yaml", &apart(&program, PROCESS));
    };
    // The program itself refuses.
    of_program("many");
    let output = folder.run(&["apply", "-f", "apart.yaml", "--socket", "edge.sock"]);
    assert_refused(&output, 2, "config.burst: expected a whole number");
    wait("the end of the program", || below(&serving).is_empty());
    assert_eq!(state_of(&folder), ["generation"]);
    of_program("64");
    folder.ok(&["apply", "-f", "apart.yaml"]);
    await_both(&folder);
    let first = below(&serving);
    let places: Vec<PathBuf> = first.iter().copied().flat_map(places_of).collect();
    first
        .iter()
        .for_each(|process| processes::signal_if_there(*process, "-KILL"));
    await_gone(&first);
    await_both(&folder);
    folder.ok(&["delete", "chain", "apart"]);
    wait("the end of the processes", || below(&serving).is_empty());
    wait("the chain's file", || state_of(&folder) == ["generation"]);
    assert!(!places.iter().any(|place| place.exists()), "{places:?}");
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    let apart = chains.iter().find(|chain| chain["name"] == "apart").unwrap();
    let function = &apart["report"]["isolation"]["functions"][0];
    assert_ne!(number(&function["turns"]), 0, "{report:#}");
}

/// Asserts that the server refuses with this exit code, in one line with this text.
fn assert_refused(output: &Output, code: i32, expected: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains(expected), "{told}");
}

#[test]
fn what_cannot_be_isolated_is_refused() {
    let _alone = alone();
    let folder = Folder::new();
    folder.server("");
    folder.chain("plain", "10.0.0.0/17", "{forward: }");
    folder.write("apart.yaml", &apart("{accounting: }", PROCESS));
    let refused = |text: &str, code: i32, expected: &str| {
        folder.write("wrong.yaml", text);
        for more in [&["--dry-run=server"][..], &[]] {
            let arguments = ["apply", "-f", "wrong.yaml", "--socket", "edge.sock"];
            assert_refused(&folder.run(&[&arguments, more].concat()), code, expected);
        }
    };
    if rustix::process::geteuid().is_root() {
        let mut serving = Serving::start(&folder);
        refused(
            &apart("{mirror: {to: {file: copies.pcap}}}", PROCESS),
            1,
            "trust the function with spec.isolation.except mirror",
        );
        refused(
            &apart("{accounting: }", "  isolation: {mode: process, except: [nat]}\n"),
            2,
            "wrong.yaml:8:39: spec.isolation.except[0]: expected a function of the chain, found nat",
        );
        serving.kill();
        let server = fs::read_to_string(folder.0.join("server.yaml")).unwrap();
        let core = folder.core();
        folder.write(
            "server.yaml",
            &server.replace(&format!("cores: \"{core}\""), &format!("cores: \"0-{core}\"")),
        );
        let serving = Serving::start_again(&folder);
        refused(
            &apart("{accounting: }", PROCESS),
            1,
            "expected a core of this machine that is not in spec.cores",
        );
        serving.stop();
        folder.write("server.yaml", &server);
        fs::remove_dir_all(folder.0.join("state")).unwrap();
        for path in ["", "chains", "chains/plain.yaml", "server.yaml", "small.pcap"] {
            chown(folder.0.join(path), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let nobody = |arguments: &[&str]| -> Command {
        let mut command = folder.command(arguments);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        } else {
            folder.run(&["trace", "synth", "backbone", "--duration", "100ms", "-o", "small.pcap"]);
        }
        command
    };
    if let Err(error) = nobody(&["--version"]).output() {
        return println!("skipped: this program cannot be run by nobody: {error}");
    }
    let server = nobody(&["serve", "server.yaml", "--output", "json"])
        .stdout(Stdio::piped())
        .spawn();
    let serving = Serving(Some(server.unwrap()));
    wait("the socket", || {
        folder.run(&["get", "chains", "--socket", "edge.sock"]).status.success()
    });
    refused(
        &apart("{accounting: }", PROCESS),
        1,
        "confining functions requires root",
    );
    // Trusted functions run in processes of their own without root.
    folder.write(
        "trusted.yaml",
        &apart("{accounting: }", "  isolation: {mode: process, without: [all]}\n"),
    );
    folder.ok(&["apply", "-f", "trusted.yaml"]);
    await_both(&folder);
    let report = serving.stop();
    let chains = report["chains"].as_array().unwrap();
    let apart = chains.iter().find(|chain| chain["name"] == "apart").unwrap();
    assert_eq!(apart["report"]["isolation"]["real_time"], false);
}
