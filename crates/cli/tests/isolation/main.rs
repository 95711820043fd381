//! Functions in processes of their own: they do what they do in one process, and one that fails takes nothing else with
//! it.

#[path = "../common/mod.rs"]
mod common;

use common::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::available;

/// The examples, with an objective that leaves time for what a busy machine could not do at once.
fn examples(folder: &Folder) -> Vec<PathBuf> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for data in ["rules", "patterns", "routes"] {
        symlink(from.join(data).canonicalize().unwrap(), folder.path(data)).unwrap();
    }
    let mut chains = Vec::new();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Libraries have to be built first: below. Others cannot be isolated.
        let others = ["library:", "ipsec:", "external:", "firewall:"];
        if !text.contains("kind: Chain") || others.iter().any(|other| text.contains(other)) {
            continue;
        }
        let lines = text.lines().map(|line| match line.trim_start() {
            latency if latency.starts_with("latency:") => "    latency: 250ms\n".to_owned(),
            // In the folder that tailwater runs in.
            export if export.starts_with("export:") => String::new(),
            _ => format!("{line}\n"),
        });
        let name = path.file_name().unwrap().to_str().unwrap();
        chains.push(folder.write(name, lines.collect::<String>()));
    }
    assert!(chains.len() > 10, "{chains:?}");
    chains
}

/// Workers whose functions are isolated never leave their core to each other: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed is over, too.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run's report and the frames that it sent.
fn run_isolated(
    chain: &Path,
    traffic: &Path,
    isolation: &str,
    cores: &str,
) -> (Value, Vec<Vec<u8>>) {
    let sent = chain.with_extension("pcap");
    let more = [
        "--ring",
        "1000000",
        "--cores",
        cores,
        "--isolation",
        isolation,
        "--capture-out",
        sent.to_str().unwrap(),
    ];
    let report = report(chain, traffic, &more);
    assert_identity(&report);
    (report, frames(&sent))
}

/// What each flow sent, in order. What `Encrypt` sends of UDP differs from run to run: all but the headers and the
/// length.
fn by_flow(frames: Vec<Vec<u8>>, encrypted: bool) -> BTreeMap<[u64; 5], Vec<Vec<u8>>> {
    let mut flows = BTreeMap::<_, Vec<_>>::new();
    for mut frame in frames {
        let words = key(&frame).words();
        if encrypted {
            let length = frame.len();
            frame.truncate(34);
            frame.extend((length as u32).to_be_bytes());
        }
        flows.entry(words).or_default().push(frame);
    }
    flows
}

/// Traffic of many flows that come and go.
fn traffic(folder: &Folder) -> PathBuf {
    let path = folder.path("traffic.pcap");
    let made = tailwater()
        .args([
            "trace",
            "synth",
            "bursty",
            "--duration",
            "60ms",
            "--rate-scale",
            "0.05",
            "-o",
        ])
        .arg(&path)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    path
}

fn flows(report: &Value) -> [Option<u64>; 5] {
    ["active", "opened", "expired", "evicted", "refused"].map(|name| report["flows"][name].as_u64())
}

/// Runs a chain both ways and compares.
fn assert_same(chain: &Path, traffic: &Path, cores: &str) {
    let (one, sent) = run_isolated(chain, traffic, "none", cores);
    let (other, sent_by_processes) = run_isolated(chain, traffic, "process", cores);
    let name = chain.display();
    assert!(!sent.is_empty(), "{name}");
    assert_eq!(one["packets"], other["packets"], "{name}");
    assert_eq!(flows(&one), flows(&other), "{name}");
    let encrypted = name.to_string().contains("encrypt");
    let [sent, sent_by_processes] = [sent, sent_by_processes].map(|f| by_flow(f, encrypted));
    assert!(sent == sent_by_processes, "{name}: other packets were sent");
    for function in other["isolation"]["functions"].as_array().unwrap() {
        assert!(function["turns"].as_u64().unwrap() > 0, "{other}");
        assert_eq!(restarts(function), 0, "{other}");
    }
}

fn restarts(function: &Value) -> u64 {
    let causes = ["ended", "overdue", "lied", "not_attached"];
    causes
        .iter()
        .map(|cause| function["restarts"][cause].as_u64().unwrap())
        .sum()
}

#[test]
fn every_example_does_what_it_does_in_one_process() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = traffic(&folder);
    let core = available().pop().unwrap().to_string();
    for chain in examples(&folder) {
        assert_same(&chain, &traffic, &core);
    }
}

#[test]
fn and_on_several_cores() {
    let _alone = alone();
    let cores = available();
    let [.., one, other] = cores[..] else {
        return eprintln!("skipped: one core");
    };
    let folder = Folder::new();
    let traffic = traffic(&folder);
    for chain in examples(&folder) {
        let name = chain.file_name().unwrap().to_str().unwrap();
        if [
            "acl-nat.yaml",
            "acl-lb-accounting.yaml",
            "acl-urlfilter-encrypt.yaml",
        ]
        .contains(&name)
        {
            assert_same(&chain, &traffic, &format!("{one},{other}"));
        }
    }
}

/// Builds the function that fails when it is told to. Between it and others.
fn misbehaving(folder: &Folder) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args([
            "-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I",
        ])
        .arg(sources.join("../sdk/include"))
        .arg("-o")
        .arg(folder.path("misbehaving.so"))
        .arg(sources.join("tests/isolation/misbehaving.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let functions = "[{name: front, nat: {external: [203.0.113.0/28]}}, {library: {file: misbehaving.so}}, \
                     {name: behind, accounting: }]";
    folder.spec("misbehaving.yaml", functions, "")
}

/// 6,000 packets of twenty flows in 300 ms, and at three times one that goes to this port.
fn with_orders(folder: &Folder, port: u16) -> PathBuf {
    let mut packets: Vec<_> = (0..6000u64)
        .map(|i| {
            (
                i * 50_000,
                udp(client((i % 20) as u8 + 1), 5000, SERVER, 53),
            )
        })
        .collect();
    for at in [50, 120, 190] {
        packets.push((
            at * 1_000_000 + 1,
            udp(client(200), at as u16, SERVER, port),
        ));
    }
    packets.sort_by_key(|(time, _)| *time);
    folder.capture(&format!("orders-{port}.pcap"), &packets)
}

fn reason(report: &Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}

#[test]
fn a_library_is_in_its_process_what_it_is_in_ours() {
    let _alone = alone();
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, 7000));
    let core = available().pop().unwrap().to_string();
    assert_same(&chain, &traffic, &core);
    let (report, _) = run_isolated(&chain, &traffic, "process", &core);
    assert_eq!(reason(&report, "misbehaving/asked-for"), 3);
    // Counted by the function, in `process` and when flows end.
    assert_eq!(reason(&report, "misbehaving/packets"), 6003);
    assert_eq!(reason(&report, "misbehaving/new-flows"), 23);
    assert_eq!(reason(&report, "misbehaving/ended-packets"), 6003);
}

/// A function that does this three times loses what it had in its hands, and nothing else happens.
fn assert_survived(port: u16, cause: &str) {
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, port));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, "process", &core);
    let report = json!({"packets": report["packets"], "isolation": report["isolation"]});
    let functions = report["isolation"]["functions"].as_array().unwrap();
    let failed = restarts(&functions[1]);
    assert!((1..=3).contains(&failed), "{port}: {report}");
    assert_eq!(functions[1]["restarts"][cause], failed, "{port}: {report}");
    assert_eq!(
        [restarts(&functions[0]), restarts(&functions[2])],
        [0, 0],
        "{report}"
    );
    // Every packet is sent, or was lost by the function that failed.
    let lost = reason(&report, "misbehaving/process-failed");
    assert!(lost >= failed, "{port}: {report}");
    assert_eq!(
        [count(&report, "lost"), count(&report, "dropped_by_nf")],
        [lost, 0],
        "{report}"
    );
    assert_eq!(sent.len() as u64, 6003 - lost, "{report}");
    assert!(sent.len() > 1000, "{port}: {report}");
    assert_eq!(wrong_checksums(&sent), 0);
    // Translations of before stand: every flow has one, which its process kept.
    let flows = by_flow(sent, false);
    let translated = flows.keys().filter(|words| words[4] as u16 >> 8 != 0);
    assert!(translated.count() <= 23, "{port}: {flows:?}");
}

#[test]
fn a_function_that_crashes() {
    let _alone = alone();
    assert_survived(7001, "ended");
}

#[test]
fn a_function_that_ends() {
    let _alone = alone();
    assert_survived(7002, "ended");
}

#[test]
fn a_function_that_never_yields() {
    let _alone = alone();
    assert_survived(7003, "overdue");
}

#[test]
fn a_function_that_sleeps_in_its_turn() {
    let _alone = alone();
    assert_survived(7004, "overdue");
}

#[test]
fn a_function_that_is_stopped() {
    let _alone = alone();
    assert_survived(7005, "overdue");
}

#[test]
fn a_function_whose_frames_reach_beyond_their_buffers() {
    let _alone = alone();
    assert_survived(7006, "lied");
}

#[test]
fn a_function_that_denies_packets() {
    let _alone = alone();
    assert_survived(7007, "lied");
}

#[test]
fn a_function_that_says_nothing_of_its_packets() {
    let _alone = alone();
    assert_survived(7008, "lied");
}

#[test]
fn a_function_that_destroys_its_packets_destroys_no_more() {
    let _alone = alone();
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, 7009));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, "process", &core);
    // What is no packet any more is dropped by the next function; all others are sent.
    let malformed = reason(&report, "behind/other");
    assert!((3..2000).contains(&malformed), "{report}");
    assert_eq!(sent.len() as u64, 6003 - malformed, "{report}");
    assert_eq!(wrong_checksums(&sent), 0);
}

/// Processes of functions that were started by this one.
fn processes_of(parent: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten();
    let of_threads = threads
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all = of_threads.collect::<Vec<_>>().join(" ") + &children;
    let mut processes: Vec<u32> = all
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect();
    processes.sort_unstable();
    processes.dedup();
    processes
}

fn is_there(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // One that has ended and that nobody has asked about yet is gone, too.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Runs a chain for long, does something to `tailwater`, and checks that no process of its stays.
fn assert_nothing_stays(end: impl FnOnce(u32)) {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let mut child = tailwater()
        .args(["run", "--isolation", "process", "--duration", "60s"])
        .arg(&chain)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    // Two functions, each with a process that waits.
    while processes_of(child.id()).len() < 4 {
        assert!(Instant::now() < until, "{:?}", processes_of(child.id()));
        sleep(Duration::from_millis(20));
    }
    let processes = processes_of(child.id());
    end(child.id());
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while let Some(left) = processes.iter().find(|&&process| is_there(process)) {
        assert!(Instant::now() < until, "process {left} is still there");
        sleep(Duration::from_millis(20));
    }
}

fn signal(process: u32, signal: &str) {
    let killed = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(killed.unwrap().success());
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let _alone = alone();
    assert_nothing_stays(|tailwater| signal(tailwater, "-INT"));
}

#[test]
fn a_killed_run_leaves_nothing() {
    let _alone = alone();
    assert_nothing_stays(|tailwater| signal(tailwater, "-KILL"));
}

#[test]
fn what_cannot_be_isolated_is_refused() {
    let _alone = alone();
    let folder = Folder::new();
    let chain = folder.spec(
        "export.yaml",
        "[{accounting: {export: {file: flows.csv}}}]",
        "",
    );
    if let [.., one, other] = available()[..] {
        let cores = format!("{one},{other}");
        let refused = run(&[
            &"run",
            &chain,
            &"--isolation",
            &"process",
            &"--cores",
            &cores,
        ]);
        assert_refused(&refused, "export.file can be written by one process only");
    }
    // Numbers would begin anew with every process.
    let tunnel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ipsec.yaml");
    let refused = run(&[
        &"run",
        &tunnel,
        &"--isolation",
        &"process",
        &"--duration",
        &"10ms",
    ]);
    assert_refused(&refused, "which it cannot do from a process of its own");
    let handed_over = run(&[
        &"run",
        &chain,
        &"--isolation",
        &"process",
        &"--auxiliary",
        &"0",
    ]);
    assert_refused(&handed_over, "cannot be used with");
    let alone = run(&[&"function-process", &chain, &"0"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(
        text(&alone.stderr).contains("started by"),
        "{}",
        text(&alone.stderr)
    );
}
