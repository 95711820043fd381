//! Functions in processes of their own: they do what they do in one process, and one that fails takes nothing else with
//! it.

#[path = "../common/mod.rs"]
mod common;

use common::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tailwater_confine::{ContainerRuntime, FIRST_USER};
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
        // Libraries have to be built first: below.
        if !text.contains("kind: Chain") || text.contains("library:") {
            continue;
        }
        // What cannot be isolated, and says so: below.
        let alone = ["- firewall:", "- ipsec:", "external:", "state:"];
        let mut lines = text.lines().map(str::trim);
        if lines.any(|line| alone.contains(&line)) {
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
    let mut more = vec![
        "--ring",
        "1000000",
        "--cores",
        cores,
        "--capture-out",
        sent.to_str().unwrap(),
        "--isolation",
    ];
    more.extend(isolation.split(' '));
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

/// Runs a chain in one process, and isolated in these ways, and compares.
fn assert_same(chain: &Path, traffic: &Path, cores: &str, ways: &[&str]) {
    let name = chain.display();
    let encrypted = name.to_string().contains("encrypt");
    let (one, sent) = run_isolated(chain, traffic, "none", cores);
    assert!(!sent.is_empty(), "{name}");
    let sent = by_flow(sent, encrypted);
    for way in ways {
        let (other, sent_by_processes) = run_isolated(chain, traffic, way, cores);
        assert_eq!(one["packets"], other["packets"], "{name}: {way}");
        assert_eq!(flows(&one), flows(&other), "{name}: {way}");
        let same = sent == by_flow(sent_by_processes, encrypted);
        assert!(same, "{name}: {way}: other packets were sent");
        let isolation = &other["isolation"];
        assert_eq!(isolation["mode"], way.split(' ').next().unwrap());
        let left_out = way.split_once("--isolation-without ");
        let left_out = left_out.map_or(vec![], |(_, left_out)| left_out.split(',').collect());
        assert_eq!(isolation["without"], json!(left_out), "{way}");
        for function in isolation["functions"].as_array().unwrap() {
            assert!(function["turns"].as_u64().unwrap() > 0, "{way}: {other}");
            assert_eq!(restarts(function), 0, "{way}: {other}");
        }
    }
}

/// Processes with the rights of `tailwater`.
const TRUSTED: &str = "process --isolation-without all";

/// Whether functions can be confined; says so if not.
fn can_confine() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: confining functions needs root");
    }
    root
}

/// In a process, with every defence if that can be.
fn process() -> &'static str {
    match can_confine() {
        true => "process",
        false => TRUSTED,
    }
}

/// All ways that this machine has.
fn ways() -> Vec<&'static str> {
    let mut ways = vec![TRUSTED];
    if can_confine() {
        ways.push("process");
        match ContainerRuntime::find() {
            Some(_) => ways.push("container"),
            None => println!("skipped in containers: no crun (apt-get install crun)"),
        }
    }
    ways
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
        let name = chain.file_name().unwrap().to_str().unwrap();
        let all = [
            "acl-nat.yaml",
            "acl-lb-accounting.yaml",
            "acl-urlfilter-encrypt.yaml",
            "router.yaml",
        ];
        match all.contains(&name) {
            true => assert_same(&chain, &traffic, &core, &ways()),
            false => assert_same(&chain, &traffic, &core, &[process()]),
        }
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
            assert_same(&chain, &traffic, &format!("{one},{other}"), &[process()]);
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
    assert_same(&chain, &traffic, &core, &ways());
    let (report, _) = run_isolated(&chain, &traffic, process(), &core);
    assert_eq!(reason(&report, "misbehaving/asked-for"), 3);
    // Counted by the function, in `process` and when flows end.
    assert_eq!(reason(&report, "misbehaving/packets"), 6003);
    assert_eq!(reason(&report, "misbehaving/new-flows"), 23);
    assert_eq!(reason(&report, "misbehaving/ended-packets"), 6003);
}

/// A function that does this three times loses what it had in its hands, and nothing else happens. What is told of the
/// ends of its processes.
fn assert_survived(port: u16, cause: &str, way: &str) -> String {
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, port));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, way, &core);
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
    functions[1]["ends"].to_string()
}

/// In every way; what each tells of the ends, with the way.
fn assert_survived_everywhere(port: u16, cause: &str) -> Vec<(&'static str, String)> {
    let ways = ways().into_iter();
    ways.map(|way| (way, assert_survived(port, cause, way)))
        .collect()
}

/// One that lies has to find out where to, which the filter and an empty root prevent.
fn can_look_around() -> &'static str {
    match can_confine() {
        true => "process --isolation-without filter,root",
        false => TRUSTED,
    }
}

/// The filter ends a confined process that tries this; one that is trusted is overdue.
fn assert_forbidden(port: u16, call: &str) {
    assert_survived(port, "overdue", TRUSTED);
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let told = assert_survived(port, "ended", way);
        let expected = format!("it called {call}, which functions may not");
        assert!(told.contains(&expected), "{way}: {told}");
    }
}

#[test]
fn a_function_that_crashes() {
    let _alone = alone();
    for (way, told) in assert_survived_everywhere(7001, "ended") {
        let expected = match way {
            TRUSTED => "signal 6",
            // The first process of a namespace ignores the signal, and runs into what is behind.
            "process" => "it crashed (signal 11)",
            // A runtime that is slow to tell how its program ended is not waited for.
            _ if told.contains("nobody knows how") => continue,
            _ => "signal 11",
        };
        assert!(told.contains(expected), "{way}: {told}");
    }
}

#[test]
fn a_function_that_ends() {
    let _alone = alone();
    for (way, told) in assert_survived_everywhere(7002, "ended") {
        let unknown = way == "container" && told.contains("nobody knows how");
        assert!(unknown || told.contains("exit code 7"), "{way}: {told}");
    }
}

#[test]
fn a_function_that_never_yields() {
    let _alone = alone();
    assert_survived_everywhere(7003, "overdue");
}

#[test]
fn a_function_that_sleeps_in_its_turn() {
    let _alone = alone();
    assert_forbidden(7004, "pause");
}

#[test]
fn a_function_that_is_stopped() {
    let _alone = alone();
    assert_forbidden(7005, "tgkill");
}

#[test]
fn a_function_whose_frames_reach_beyond_their_buffers() {
    let _alone = alone();
    assert_survived(7006, "lied", can_look_around());
}

#[test]
fn a_function_that_denies_packets() {
    let _alone = alone();
    assert_survived(7007, "lied", can_look_around());
}

#[test]
fn a_function_that_says_nothing_of_its_packets() {
    let _alone = alone();
    assert_survived(7008, "lied", can_look_around());
}

#[test]
fn a_function_that_destroys_its_packets_destroys_no_more() {
    let _alone = alone();
    let folder = Folder::new();
    let (chain, traffic) = (misbehaving(&folder), with_orders(&folder, 7009));
    let core = available().pop().unwrap().to_string();
    let (report, sent) = run_isolated(&chain, &traffic, can_look_around(), &core);
    // What is no packet any more is dropped by the next function; all others are sent.
    let malformed = reason(&report, "behind/other");
    assert!((3..2000).contains(&malformed), "{report}");
    assert_eq!(sent.len() as u64, 6003 - malformed, "{report}");
    assert_eq!(wrong_checksums(&sent), 0);
}

#[test]
fn a_function_that_looks_around_is_stopped() {
    let _alone = alone();
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let told = assert_survived(7006, "ended", way);
        let expected = "it called openat, which functions may not";
        assert!(told.contains(expected), "{way}: {told}");
    }
}

/// What only root may read reaches the function that it is for, whatever files `tailwater` makes by default.
#[test]
fn keys_of_root_s_are_read_by_the_function_that_needs_them() {
    let _alone = alone();
    if !can_confine() {
        return;
    }
    let folder = Folder::new();
    let key = folder.write("key", format!("{}\n", "0123456789abcdef".repeat(4)));
    let rules = folder.write(
        "edge.rules",
        "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00\n",
    );
    let kept = folder.path("kept");
    std::fs::create_dir(&kept).unwrap();
    for file in [&key, &rules] {
        std::fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        // By a link in a directory that nobody else may look into.
        symlink(file, kept.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::set_permissions(&kept, Permissions::from_mode(0o700)).unwrap();
    let functions = "[{acl: {rulesFile: kept/edge.rules, matchAction: allow, default: deny}}, \
                     {encrypt: {keyFile: kept/key, midstream: encrypt}}]";
    let chain = folder.spec("chain.yaml", functions, "");
    std::fs::set_permissions(&chain, Permissions::from_mode(0o600)).unwrap();
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        let run = Command::new("sh")
            .current_dir(&folder.0)
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_tailwater"))
            .args([
                "run",
                "chain.yaml",
                "--duration",
                "50ms",
                "--output",
                "json",
            ])
            .args(["--isolation", way])
            .output()
            .unwrap();
        assert!(run.status.success(), "{way}: {}", text(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        assert!(count(&report, "delivered") > 0, "{way}: {report}");
    }
}

#[test]
fn each_defence_can_be_left_out_and_that_is_told() {
    let _alone = alone();
    if !can_confine() {
        return;
    }
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let traffic = folder.capture("in.pcap", &mixture(60));
    for way in ways().into_iter().filter(|way| *way != TRUSTED) {
        for defence in ["filter", "groups", "limits", "namespaces", "root", "user"] {
            let run = run(&[
                &"run",
                &chain,
                &"--traffic",
                &traffic,
                &"--isolation",
                &way,
                &"--isolation-without",
                &defence,
                &"--output",
                &"json",
            ]);
            let told = text(&run.stderr);
            assert!(run.status.success(), "{way} without {defence}: {told}");
            let warning = format!("warning: functions are confined without {defence} ");
            assert!(told.contains(&warning), "{told}");
            let report: Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!(report["isolation"]["without"], json!([defence]));
            assert!(count(&report, "delivered") > 0, "{report}");
        }
    }
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

/// A process and all that it started, and they.
fn family_of(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(&process) = family.get(next) {
        family.extend(processes_of(process));
        next += 1;
    }
    family
}

/// Directories and control groups of a confined function's process; none of another process.
fn places_of(process: u32) -> Vec<PathBuf> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = user.and_then(|users| users.split_whitespace().next()?.parse::<u32>().ok());
    let Some(number) = user.and_then(|user| user.checked_sub(FIRST_USER)) else {
        return Vec::new();
    };
    let number = number.to_string();
    let groups = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    let hierarchies = groups.flatten().map(|entry| entry.path());
    let hierarchies = hierarchies.chain(["/sys/fs/cgroup".into()]);
    let groups = hierarchies.map(|path| path.join("tailwater").join(&number));
    let directory = Path::new("/run/tailwater/functions").join(&number);
    groups
        .chain([directory])
        .filter(|path| path.exists())
        .collect()
}

/// Runs a chain for long, does something to `tailwater`, and checks that nothing of it stays: no process; of confined
/// ones, no directory and no control group either, after the next run has begun if `swept`.
fn assert_nothing_stays(way: &str, swept: bool, end: impl FnOnce(u32)) {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let mut child = tailwater()
        .args(["run", "--duration", "60s", "--isolation"])
        .args(way.split(' '))
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
    // And all of them are seated.
    sleep(Duration::from_millis(300));
    let mut processes = family_of(child.id());
    processes.retain(|process| *process != child.id());
    let places: Vec<PathBuf> = processes.iter().copied().flat_map(places_of).collect();
    assert_eq!(places.is_empty(), way == TRUSTED, "{way}: {places:?}");
    end(child.id());
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while let Some(left) = processes.iter().find(|&&process| is_there(process)) {
        assert!(Instant::now() < until, "process {left} is still there");
        sleep(Duration::from_millis(20));
    }
    if swept && way != TRUSTED {
        let traffic = folder.capture("in.pcap", &mixture(10));
        report(&chain, &traffic, &["--isolation", way]);
    }
    let left: Vec<_> = places.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{way}: {left:?}");
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
    for way in ways() {
        assert_nothing_stays(way, false, |tailwater| signal(tailwater, "-INT"));
    }
}

#[test]
fn a_killed_run_leaves_nothing() {
    let _alone = alone();
    for way in ways() {
        assert_nothing_stays(way, true, |tailwater| signal(tailwater, "-KILL"));
    }
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
            &"--isolation-without",
            &"all",
            &"--cores",
            &cores,
        ]);
        let refused = text(&refused.stderr);
        let expected = "export.file can be written by one process only";
        assert!(refused.contains(expected), "{refused}");
    }
    if can_confine() {
        let refused = run(&[&"run", &chain, &"--isolation", &"process"]);
        assert_refused(&refused, "by a function that may write no files");
    }
    let [option, all] = ["--isolation-without", "all"];
    assert_refused(&run(&[&"run", &chain, &option, &all]), "is for --isolation");
    if ways().contains(&"container") {
        let refused = run(&[&"run", &chain, &"--isolation", &"container", &option, &all]);
        assert_refused(&refused, "has defences of its own");
    }
    // Numbers would begin anew with every process; both directions of a connection belong to one function.
    for (example, told) in [
        ("ipsec.yaml", "which it cannot do from a process of its own"),
        ("firewall.yaml", "decides about connections"),
    ] {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut tailwater = tailwater();
        tailwater.args(["run", "--duration", "10ms", "--isolation"]);
        let refused = tailwater
            .args(process().split(' '))
            .arg(examples.join(example));
        let refused = refused.output().unwrap();
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    }
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

#[test]
fn containers_without_their_runtime_are_refused() {
    if !can_confine() {
        return;
    }
    let Some(runtime) = ContainerRuntime::find() else {
        return println!("skipped: no crun, as every run in a container would say");
    };
    let folder = Folder::new();
    let chain = folder.acl_nat();
    // Something else in its place, which this run alone sees.
    let hidden = Command::new("unshare")
        .args([
            "-m",
            "sh",
            "-c",
            "mount --bind /dev/null \"$0\" && exec \"$@\"",
        ])
        .arg(runtime.path())
        .arg(env!("CARGO_BIN_EXE_tailwater"))
        .args(["run", "--isolation", "container"])
        .arg(&chain)
        .output();
    assert_refused(&hidden.unwrap(), "--isolation container needs crun");
}

#[test]
fn who_is_not_root_is_told_that_functions_cannot_be_confined() {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    std::fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&chain, Permissions::from_mode(0o644)).unwrap();
    let nobody = || {
        let mut tailwater = tailwater();
        if rustix::process::geteuid().is_root() {
            tailwater.uid(65_534);
        }
        tailwater
    };
    if let Err(error) = nobody().arg("--version").output() {
        return println!("skipped: this program cannot be run by nobody: {error}");
    }
    let run = |without: &[&str]| {
        let mut command = nobody();
        command.args(["run", "--duration", "20ms", "--isolation", "process"]);
        command.args(without).arg(&chain).output().unwrap()
    };
    assert_refused(&run(&[]), "this program must be root");
    let trusted = run(&["--isolation-without", "all"]);
    assert!(trusted.status.success(), "{}", text(&trusted.stderr));
    assert!(text(&trusted.stderr).contains("warning: functions are not confined"));
}
