//! Operators with bad luck: pipes and devices in place of files, full disks, short memory, signals, arguments of
//! megabytes. Every command ends, says what was wrong, and leaves no half file.

mod common;

use common::*;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time after which a command counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

fn pipe(path: &Path) -> PathBuf {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    path.to_owned()
}

fn signal(child: &Child, signal: &str) {
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
}

/// Waits for a condition.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANGS, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the output of a command that ends by itself.
fn end(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > HANGS {
            child.kill().unwrap();
            panic!("hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn spawn(args: &[&str]) -> Child {
    let mut command = tailwater();
    command.args(args).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns `true` if a process waits for a file, and has the pipe open.
fn has_open(child: &Child, path: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else {
        return false;
    };
    open.flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|file| file == path))
}

#[test]
fn pipes_that_nobody_writes_to_end_on_a_signal() {
    let folder = Folder::new();
    let chain = folder.forward();
    let chain = chain.to_str().unwrap();
    let pipe = pipe(&folder.path("pipe"));
    let name = pipe.to_str().unwrap();
    let cases: [&[&str]; 10] = [
        &["run", name],
        &["run", chain, "--traffic", name],
        &["trace", "info", name],
        &["trace", "convert", name, "-o", "/dev/null"],
        &["simulate", name],
        &["explain", name],
        &["profile", "diff", name, name],
        &["place", name, "--cluster", name],
        &["diff", name, name],
        &["validate", name],
    ];
    let open: [&[&str]; 2] = [&["run", "-"], &["run", chain, "--traffic", "-"]];
    std::thread::scope(|scope| {
        for case in cases {
            let pipe = &pipe;
            scope.spawn(move || {
                let child = spawn(case);
                until("the pipe is not opened", || has_open(&child, pipe));
                signal(&child, "-TERM");
                let output = end(child);
                // By itself, not by the signal.
                assert_eq!(output.status.code(), Some(1), "{case:?}: {output:?}");
            });
        }
        // Standard input that stays open.
        for case in open {
            scope.spawn(move || {
                let child = spawn(case);
                std::thread::sleep(Duration::from_millis(300));
                signal(&child, "-TERM");
                let output = end(child);
                // By itself, not by the signal.
                assert_eq!(output.status.code(), Some(1), "{case:?}: {output:?}");
            });
        }
    });
}

/// Commands that compute, or wait for a terminal or a server, end with exit code 1 and a line, not by the signal.
#[test]
fn commands_that_do_not_look_at_signals_end_on_one() {
    let folder = Folder::new();
    let socket = folder.path("silent.sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let socket = socket.to_str().unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["trace", "info", "bursty", "--duration", "300m"], "-INT"),
        (&["trace", "info", "bursty", "--duration", "300m"], "-TERM"),
        (&["get", "chains", "--socket", socket], "-INT"),
        (&["events", "--watch", "--socket", socket], "-TERM"),
    ];
    std::thread::scope(|scope| {
        for (case, name) in cases {
            scope.spawn(move || {
                let child = spawn(case);
                until_signals_are_handled(&child);
                std::thread::sleep(Duration::from_millis(100));
                signal(&child, name);
                let output = end(child);
                assert_eq!(output.status.code(), Some(1), "{case:?}: {output:?}");
                let expected = "error: interrupted before the result was complete\n";
                assert_eq!((&*text(&output.stderr), output.stdout.len()), (expected, 0), "{case:?}");
            });
        }
    });
}

/// `timeout` sends a signal to its child and to the group: the second one killed the run, without its report.
#[test]
fn a_signal_that_comes_twice_at_once_ends_a_run_with_its_report() {
    let folder = Folder::new();
    let chain = folder.forward();
    for _ in 0..4 {
        let child = spawn(&["run", chain.to_str().unwrap(), "--duration", "60s", "-o", "json"]);
        until_signals_are_handled(&child);
        std::thread::sleep(Duration::from_millis(50));
        let twice = "kill -TERM $1; sleep 0.01; kill -TERM $1";
        let sent = Command::new("sh")
            .args(["-c", twice, "sh", &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let code = end(child).status.code();
        // With its report, or before its first packet.
        assert!(matches!(code, Some(0 | 1)), "{code:?}");
    }
}

/// The shell makes its child ignore SIGINT, as for `command &` in a script: only the other signal ends it.
#[test]
fn a_run_that_is_stopped_before_its_first_packet_says_so() {
    let folder = Folder::new();
    let chain = folder.forward();
    let pipe = pipe(&folder.path("pipe"));
    for shell in ["exec \"$@\"", "trap '' INT; exec \"$@\""] {
        let mut command = Command::new("sh");
        command.args(["-c", shell, "sh", env!("CARGO_BIN_EXE_tailwater"), "run"]);
        command.args([&chain, Path::new("--traffic"), &pipe]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("the pipe is not opened", || has_open(&child, &pipe));
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let is_ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << 1 != 0;
        assert!(is_ignored || !shell.starts_with("trap"), "{ignored}");
        signal(&child, if is_ignored { "-TERM" } else { "-INT" });
        let output = end(child);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty());
        let expected =
            "error: stopped before the first packet: nothing was offered to the chain, and there is no report\n";
        assert_eq!(text(&output.stderr), expected);
    }
}

/// A handler of the signal is in force here, so that an unbounded read would begin again.
#[test]
fn a_pipe_that_falls_silent_ends_on_a_signal_and_leaves_no_output() {
    let folder = Folder::new();
    let capture = folder.capture("in.pcap", &mixture(2000));
    let pipe = pipe(&folder.path("pipe"));
    let out = folder.path("out.pcap");
    let child = spawn(&["trace", "convert", pipe.to_str().unwrap(), "-o", out.to_str().unwrap()]);
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(&fs::read(&capture).unwrap()).unwrap();
    let hidden = |name: &str| name.starts_with(".out.pcap.");
    until("no output begins", || names(&folder).iter().any(|name| hidden(name)));
    signal(&child, "-TERM");
    let output = end(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("interrupted"), "{output:?}");
    assert_eq!(names(&folder), ["in.pcap", "pipe"]);
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_rules_file_replaced_by_a_pipe_is_refused_and_the_run_ends() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let rules = folder.write("edge.rules", "@0.0.0.0/0 0.0.0.0/0 0 : 65535 25 : 25 0x06/0xFF\n");
    let chain = folder.spec(
        "chain.yaml",
        "[{acl: {rulesFile: edge.rules, matchAction: deny, default: allow}}]",
        "",
    );
    let [chain, traffic] = [&chain, &traffic].map(|path| path.to_str().unwrap());
    let more = ["--output", "json", "--duration", "3s"];
    let child = spawn(&[&["run", chain, "--traffic", traffic][..], &more].concat());
    std::thread::sleep(Duration::from_millis(500));
    fs::rename(pipe(&folder.path("pipe")), &rules).unwrap();
    let output = end(child);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let expected = [
        "reload rejected",
        "edge.rules",
        "expected a regular file, found a named pipe",
    ];
    assert!(expected.iter().all(|expected| told.contains(expected)), "{told}");
    assert_identity(&serde_json::from_slice(&output.stdout).unwrap());
}

#[test]
fn an_access_list_that_a_full_disk_left_empty_is_refused() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let rules = folder.write("edge.rules", "@0.0.0.0/0 0.0.0.0/0 0 : 65535 25 : 25 0x06/0xFF\n");
    let chain = folder.spec(
        "chain.yaml",
        "[{acl: {rulesFile: edge.rules, matchAction: deny, default: allow}}]",
        "",
    );
    let [chain, traffic] = [&chain, &traffic].map(|path| path.to_str().unwrap());
    let more = ["--output", "json", "--duration", "3s"];
    let child = spawn(&[&["run", chain, "--traffic", traffic][..], &more].concat());
    std::thread::sleep(Duration::from_millis(500));
    fs::write(&rules, "").unwrap();
    let output = end(child);
    let told = text(&output.stderr);
    assert!(told.contains("reload rejected"), "{told}");
    assert!(told.contains("expected at least one rule, found none"), "{told}");
    let report = serde_json::from_slice(&output.stdout).unwrap();
    // Every tenth packet, to the end; a busy machine may have lost some.
    let [offered, lost, dropped] = ["offered", "lost", "dropped_by_nf"].map(|name| count(&report, name));
    assert!(dropped * 12 > offered - lost, "{report}");
}

#[test]
fn devices_and_folders_are_no_inputs() {
    let folder = Folder::new();
    let chain = folder.forward();
    let (chain, here) = (chain.to_str().unwrap(), folder.0.to_str().unwrap());
    for (device, expected) in [("/dev/zero", "found a device"), (here, "found a directory")] {
        let cases: [&[&str]; 6] = [
            &["run", device],
            &["run", chain, "--traffic", device],
            &["trace", "info", device],
            &["simulate", device],
            &["explain", device],
            &["place", device, "--cluster", device],
        ];
        for case in cases {
            assert_refused(&tailwater().args(case).output().unwrap(), expected);
        }
    }
    let cores = tailwater_dataplane::cores::available();
    if let [first, second, ..] = cores[..] {
        let cores = [first, second].map(|core| core.to_string());
        let more = ["--cores", &cores[0], "--auxiliary", &cores[1], "--profile", "/dev/zero"];
        let output = tailwater().args(["run", chain]).args(more).output().unwrap();
        assert_refused(&output, "found a device");
    }
    let key = folder.spec("key.yaml", "[{encrypt: {keyFile: /dev/zero}}]", "");
    assert_refused(&run(&[&"run", &key]), "found a device");
    let rules = folder.spec("rules.yaml", "[{ids: {rulesFiles: [/dev/zero]}}]", "");
    assert_refused(&run(&[&"run", &rules]), "found a device");
}

#[test]
fn specs_and_traffic_come_on_standard_input() {
    let folder = Folder::new();
    let (chain, traffic) = (folder.forward(), folder.capture("in.pcap", &mixture(100)));
    let chain_text = fs::read(&chain).unwrap();
    let [chain, traffic] = [&chain, &traffic].map(|path| path.to_str().unwrap());
    let capture = fs::read(traffic).unwrap();
    let given = |args: &[&str], bytes: &[u8]| {
        let mut child = spawn(args);
        let mut stdin = child.stdin.take().unwrap();
        // A command that refuses its arguments reads nothing.
        let _ = stdin.write_all(bytes);
        drop(stdin);
        end(child)
    };
    let json = ["--output", "json"];
    for (args, bytes) in [
        (["run", "-", "--traffic", traffic], &chain_text),
        (["run", chain, "--traffic", "-"], &capture),
    ] {
        let output = given(&[&args[..], &json].concat(), bytes);
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(count(&report, "offered"), 100);
    }
    let output = given(&["trace", "info", "-"], &capture);
    assert!(text(&output.stdout).starts_with("standard input\n"), "{output:?}");
    let wrong = given(&["run", "-"], b"kind: Chain\n");
    assert_refused(&wrong, "standard input:1:1: ");
    let both = given(&["run", "-", "--traffic", "-"], &chain_text);
    assert_refused(&both, "standard input can be read only once");
    let beside = given(&["profile", "capacity", "-"], &chain_text);
    assert_refused(&beside, "--file: expected with a chain on standard input");
}

#[test]
fn a_report_goes_to_a_pipe_and_replaces_a_file_as_a_whole() {
    let folder = Folder::new();
    let (chain, traffic) = (folder.forward(), folder.capture("in.pcap", &mixture(100)));
    let pipe = pipe(&folder.path("pipe"));
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let output = run(&[&"run", &chain, &"--traffic", &traffic, &"--report", &pipe]);
    assert!(output.status.success(), "{output:?}");
    assert!(reader.join().unwrap().trim_end().ends_with("</html>"));
    let page = folder.write("report.html", "before");
    let output = run(&[&"run", &chain, &"--traffic", &traffic, &"--report", &page]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(&page).unwrap().trim_end().ends_with("</html>"));
    assert_eq!(names(&folder), ["forward.yaml", "in.pcap", "pipe", "report.html"]);
}

/// One exit code, which is not that of wrong input: another disk would do.
#[test]
fn a_full_disk_is_exit_code_1_for_every_command() {
    let folder = Folder::new();
    let (chain, traffic) = (folder.forward(), folder.capture("in.pcap", &mixture(100)));
    let [chain, traffic] = [&chain, &traffic].map(|path| path.to_str().unwrap());
    let rack = folder.rack();
    let mirror = folder.spec("mirror.yaml", "[{mirror: {to: {file: /dev/full}}}]", "");
    let flows = folder.spec("flows.yaml", "[{flowStats: {export: [{file: /dev/full}]}}]", "");
    let [rack, mirror, flows] = [&rack, &mirror, &flows].map(|path| path.to_str().unwrap());
    let short = ["trace", "synth", "backbone", "--duration", "20ms", "-o"];
    let cases: [&[&str]; 8] = [
        &[&short[..], &["/dev/full"]].concat(),
        &["trace", "convert", traffic, "-o", "/dev/full"],
        &["trace", "info", traffic, "--service-us", "1", "--svg", "/dev/full"],
        &["run", chain, "--traffic", traffic, "--report", "/dev/full"],
        &["run", chain, "--traffic", traffic, "--capture-out", "/dev/full"],
        &["run", mirror, "--traffic", traffic],
        &["run", flows, "--traffic", traffic],
        &["simulate", rack, "--report", "/dev/full"],
    ];
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || {
                let output = tailwater().args(case).output().unwrap();
                let told = text(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{case:?}: {told}");
                assert!(told.contains("No space left on device"), "{case:?}: {told}");
            });
        }
        for case in [
            &[&short[..], &["-"]].concat()[..],
            &["trace", "info", traffic],
            &["run", chain, "--traffic", traffic],
            &["--help"],
            &["run", "--help"],
            &["help", "run"],
            &["--version"],
            &["-V"],
        ] {
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let output = tailwater().args(case).stdout(full).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{case:?}: {output:?}");
        }
    });
}

/// Alerts, accounting records and usage reports that a full disk refuses are counted as their function's.
#[test]
fn records_that_a_full_disk_refuses_are_counted() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(2000));
    folder.write(
        "all.rules",
        "alert ip any any -> any any (msg:\"all\"; sid:1; rev:1;)\n",
    );
    let upf = format!(
        "[{{upf: {{addresses: [192.0.2.1], usage: {{file: /dev/full}}, profiles: {{all: {{}}}}, \
         sessions: ['1 ue {SERVER} teid 1 peer 192.0.2.10 peerTeid 2 profile all']}}}}]"
    );
    // One for each flow, and one session.
    for (functions, counter, expected) in [
        (
            "[{accounting: {export: {file: /dev/full}}}]",
            "accounting/records-unwritten",
            10,
        ),
        (
            "[{flowStats: {export: [{file: /dev/full}]}}]",
            "flowStats/records-unsent",
            10,
        ),
        (
            "[{ids: {rulesFiles: [all.rules], eve: /dev/full}}]",
            "ids/alerts-unwritten",
            10,
        ),
        (&*upf, "upf/usage-unwritten", 1),
    ] {
        let chain = folder.spec("chain.yaml", functions, "");
        let output = run(&[&"run", &chain, &"--traffic", &traffic, &"--output", &"json"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("No space left on device"), "{told}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = counted(&report, counter);
        assert_eq!(found, Some(expected), "{counter}: {report}");
    }
}

/// Returns a function's counter.
fn counted(report: &serde_json::Value, name: &str) -> Option<u64> {
    let (function, reason) = name.split_once('/')?;
    let events = report["packets"]["packet_events"].as_array()?;
    let event = events
        .iter()
        .find(|event| event["function"] == function && event["reason"] == reason)?;
    event["count"].as_u64()
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let mut child = spawn(&["trace", "synth", "backbone", "-o", "-"]);
    let mut head = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let help = tailwater().arg("--help").stdout(closed).output().unwrap();
    for output in [end(child), help] {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_reader_that_reads_nothing_does_not_outlive_a_signal() {
    let child = spawn(&["trace", "synth", "backbone", "-o", "-"]);
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "-TERM");
    let mut child = child;
    let began = Instant::now();
    // Its standard output stays open, and full.
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < HANGS);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn an_interrupted_capture_leaves_no_half_file() {
    let folder = Folder::new();
    let out = folder.write("out.pcap", "before");
    let child = spawn(&[
        "trace",
        "synth",
        "backbone",
        "--duration",
        "20s",
        "-o",
        out.to_str().unwrap(),
    ]);
    until("no output begins", || names(&folder).len() == 2);
    signal(&child, "-INT");
    let output = end(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("interrupted after"), "{output:?}");
    assert_eq!(names(&folder), ["out.pcap"]);
    assert_eq!(fs::read(&out).unwrap(), b"before");
}

#[test]
fn names_of_megabytes_are_refused_at_once() {
    let folder = Folder::new();
    // One argument can have 128 KiB.
    let long = "a".repeat(120_000);
    for args in [&[&*format!("--{long}")][..], &["run", "--traffic", &long], &[&long]] {
        let output = tailwater().args(args).output().unwrap();
        assert_refused(&output, "expected at most 16384 bytes, found 12000");
    }
    let name = "a".repeat(2 << 20);
    for (functions, expected) in [
        (format!("[{{acl: {{? {name} : 1}}}}]"), "expected one of the fields"),
        (format!("[{{? {name} : 1}}]"), "aaa..."),
    ] {
        let chain = folder.spec("chain.yaml", &functions, "");
        assert_refused(&run(&[&"run", &chain]), expected);
    }
    folder.write("a.rules", format!("alert ip any any -> any any (sid:1; {name}:1;)\n"));
    let chain = folder.spec("chain.yaml", "[{ids: {rulesFiles: [a.rules]}}]", "");
    let traffic = folder.capture("in.pcap", &mixture(10));
    let output = run(&[&"run", &chain, &"--traffic", &traffic]);
    let told = text(&output.stderr);
    assert!(
        told.contains("1 option aaa") && told.len() < 500,
        "{} bytes",
        told.len()
    );
}

/// Neither a table without room nor a request in the middle of the work aborts the program (code 134).
#[test]
fn memory_that_runs_out_is_a_clear_error() {
    let folder = Folder::new();
    let nat = "[{nat: {external: [203.0.113.0/28]}}]";
    let chain = folder.spec("chain.yaml", nat, "  flows: {capacity: 4000000}\n");
    let traffic = folder.capture("in.pcap", &mixture(100));
    let limited = |kib: u32, args: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v $1; shift; exec \"$@\"", "sh", &kib.to_string()]);
        shell.arg(env!("CARGO_BIN_EXE_tailwater")).args(args).output().unwrap()
    };
    let run = ["run", chain.to_str().unwrap(), "--traffic", traffic.to_str().unwrap()];
    let output = limited(500_000, &run);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("not enough memory for a flow table"), "{told}");
    // The least with which the program and its libraries are loaded at all.
    let info = ["trace", "info", "backbone", "--duration", "300ms"];
    let mut outputs = (30_000..).step_by(2_000).map(|kib| limited(kib, &info));
    let output = outputs
        .find(|output| output.status.code().is_some_and(|code| code < 126))
        .unwrap();
    let told = text(&output.stderr);
    match output.status.code() {
        // Another build may have enough.
        Some(0) => {}
        code => {
            assert_eq!(code, Some(1), "{told}");
            assert!(told.contains("out of memory"), "{told}");
        }
    }
}
