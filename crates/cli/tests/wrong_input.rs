//! Invalid input: one clear line each, exit code 2, and no panic.

mod common;

use common::*;
use std::path::Path;

/// Asserts a single line that starts with `error: ` and contains `expected`, and exit code 2.
fn refused(args: &[&str], expected: &str) {
    let output = tailwater().args(args).output().unwrap();
    let stderr = text(&output.stderr);
    let told = format!("{args:?} says\n{stderr}");
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert_eq!(stderr.lines().count(), 1, "{told}");
    assert!(stderr.starts_with("error: "), "{told}");
    assert!(stderr.contains(expected), "{expected} is not there: {told}");
    assert!(!stderr.contains("panicked"), "{told}");
    assert!(output.stdout.is_empty(), "{told}");
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns a pcap file of records given as (claimed captured length, wire length, actual bytes).
fn pcap(records: &[(u32, u32, usize)]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_3c4d_u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(262_144u32.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    for (i, (captured, wire, bytes)) in records.iter().enumerate() {
        file.extend((i as u32).to_le_bytes());
        file.extend(0u32.to_le_bytes());
        file.extend(captured.to_le_bytes());
        file.extend(wire.to_le_bytes());
        file.extend(vec![0u8; *bytes]);
    }
    file
}

#[test]
#[cfg(feature = "top")]
fn screens() {
    let folder = Folder::new();
    let report = folder.write("run.json", r#"{"chain": "edge"}"#);
    refused(&["top", name(&report)], "expected a terminal");
    refused(
        &["top", "--once", name(&report)],
        "run.json: expected a report of `tailwater run --output json`: missing field",
    );
    refused(&["top", "--once", name(&folder.path("none.json"))], "none.json");
    refused(&["top", "--interval", "0s"], "--interval");
}

#[test]
fn traffic() {
    let folder = Folder::new();
    let chain = folder.forward();
    let same_time: Vec<_> = mixture(10).into_iter().map(|(_, frame)| (7, frame)).collect();
    let far = [
        (0, udp(client(1), 1, SERVER, 2)),
        (4_000_000_000_000_000_000, udp(client(1), 1, SERVER, 2)),
    ];
    let dense = [0, 1].map(|time| (time, udp(client(1), 1, SERVER, 2)));
    let folder_path = folder.path("folder");
    std::fs::create_dir(&folder_path).unwrap();
    for (traffic, expected) in [
        (
            folder.path("missing.pcap"),
            "is neither a capture file nor a traffic preset",
        ),
        (
            "burtsy".into(),
            "the presets are: bursty, backbone, as, smooth; did you mean \"bursty\"?",
        ),
        (
            "quux".into(),
            "\"quux\" is neither a capture file nor a traffic preset; the presets",
        ),
        ("".into(), "is neither a capture file nor a traffic preset"),
        ("a\nb".into(), "\"a\\nb\" is neither"),
        ("x".repeat(5000).into(), "cannot read"),
        (folder_path, "directory"),
        (chain.clone(), "not a capture"),
        (folder.write("empty.pcap", ""), "empty.pcap"),
        (
            folder.write("text.pcap", "hello, this is text\n".repeat(9)),
            "not a capture",
        ),
        (folder.write("header.pcap", pcap(&[])), "contains no packets"),
        (folder.write("cut.pcap", &pcap(&[])[..10]), "cut.pcap"),
        (
            folder.write("short.pcap", pcap(&[(100, 100, 50)])),
            "contains no packets",
        ),
        (
            folder.write("zero.pcap", pcap(&[(60, 60, 60), (0, 60, 0)])),
            "packet 2 is empty",
        ),
        (
            folder.write("jumbo.pcap", pcap(&[(60, 60, 60), (65_600, 65_600, 65_600)])),
            "packet 2 is 65600 bytes long",
        ),
        (
            folder.write("absurd.pcap", pcap(&[(u32::MAX, 60, 60)])),
            "contains no packets",
        ),
        (
            folder.write("bad.pcap.gz", [0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 5, 6, 7]),
            "bad.pcap.gz",
        ),
        (
            folder.write("bad.pcap.zst", [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]),
            "bad.pcap.zst",
        ),
        (folder.capture("same-time.pcap", &same_time), "with --rate"),
        (folder.capture("far.pcap", &far), "days at this rate"),
    ] {
        refused(&["run", name(&chain), "--traffic", name(&traffic)], expected);
        // A capture that cannot be run cannot be measured either, except for errors in its times.
        if !expected.contains("rate") {
            refused(&["trace", "info", name(&traffic)], expected);
        }
    }
    let dense = folder.capture("dense.pcap", &dense);
    refused(
        &["run", name(&chain), "--traffic", name(&dense), "--duration", "1s"],
        "can be paced",
    );
    // The advice in the errors works.
    let skipped = folder.path("zero.pcap");
    let ran = run(&[&"run", &chain, &"--traffic", &skipped, &"--skip-bad-packets"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).starts_with("notice: "), "{}", text(&ran.stderr));
    let same_time = folder.path("same-time.pcap");
    let ran = run(&[&"run", &chain, &"--traffic", &same_time, &"--rate", &"100kpps"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    // A damaged file is used up to the damage.
    let cut = folder.write("tail.pcap", pcap(&[(60, 60, 60), (60, 60, 60), (60, 60, 10)]));
    let ran = run(&[&"run", &chain, &"--traffic", &cut, &"--rate-scale", &"1000"]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(
        text(&ran.stderr).contains("cut or damaged after 2 packets"),
        "{}",
        text(&ran.stderr)
    );
}

/// Usage reports and sockets are refused where an input file exists, which stays unchanged.
#[test]
fn a_user_plane_writes_over_nothing_that_is_read() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(10));
    let line = "1 ue 10.60.0.1 teid 1 profile all\n";
    let sessions = folder.write("users.sessions", line);
    let chain = folder.path("upf.yaml");
    for over in [&chain, &sessions, &traffic] {
        for (field, written) in [
            ("usage.file", format!("usage: {{file: {}}}", over.display())),
            ("api", format!("api: {}", over.display())),
        ] {
            let upf = format!(
                "[{{upf: {{addresses: [192.0.2.1], profiles: {{all: {{}}}}, \
                 sessionsFile: users.sessions, {written}}}}}]"
            );
            let chain = folder.spec("upf.yaml", &upf, "");
            let before = std::fs::read(over).unwrap();
            let args = ["run", name(&chain), "--traffic", name(&traffic)];
            let expected = format!("upf: {field}: {} would overwrite", over.display());
            refused(&args, &expected);
            assert_eq!(std::fs::read(over).unwrap(), before);
        }
    }
}

/// Full capture files of `mirror` get further names. Files of these names that are read or written by others stay
/// unchanged.
#[test]
fn full_captures_take_no_name_that_is_read_or_written_by_others() {
    let folder = Folder::new();
    let copies = folder.path("copies.pcap");
    let mirror = |files: u32| {
        let to = format!("{{file: {}, files: {files}}}", copies.display());
        format!("mirror: {{to: {to}}}")
    };
    let traffic = folder.capture("copies.pcap.2", &mixture(10));
    let other = folder.capture("other.pcap", &mixture(10));
    let before = std::fs::read(&traffic).unwrap();
    let chain = folder.spec("chain.yaml", &format!("[{}]", mirror(3)), "");
    let args = ["run", name(&chain), "--traffic", name(&traffic)];
    let expected = format!("mirror: to.file: {} would overwrite the input", traffic.display());
    refused(&args, &expected);
    // With one file less, no file of that name is written.
    let fewer = folder.spec("fewer.yaml", &format!("[{}]", mirror(2)), "");
    let ran = run(&[&"run", &fewer, &"--traffic", &traffic]);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let args = ["run", name(&chain), "--traffic", name(&other)];
    for flag in ["--capture-out", "--report"] {
        let expected = format!("{} is also written by {flag}", traffic.display());
        refused(&[&args[..], &[flag, name(&traffic)]].concat(), &expected);
    }
    // Of another function, by the same name and by a link.
    let link = folder.path("link");
    std::os::unix::fs::symlink(&folder.0, &link).unwrap();
    for (its, expected) in [
        (&folder.0, "expected a separate file for each export"),
        (&link, "is also written by mirror: to.file"),
    ] {
        let export = format!("{{export: {{file: {}/copies.pcap.1}}}}", its.display());
        let both = format!("[{}, {{accounting: {export}}}]", mirror(3));
        let both = folder.spec("both.yaml", &both, "");
        refused(&["run", name(&both), "--traffic", name(&other)], expected);
    }
    assert_eq!(std::fs::read(&traffic).unwrap(), before);
}

#[test]
fn chains() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(10));
    let bad_functions = folder.spec("functions.yaml", "[{natt: }]", "");
    let nothing = folder.spec("nothing.yaml", "[{forward: }]", "  match: {sources: [172.16.0.0/12]}\n");
    // The flow records would have overwritten the traffic.
    let overwrites = format!("[{{accounting: {{export: {{file: {}}}}}}}]", traffic.display());
    let overwrites = folder.spec("overwrites.yaml", &overwrites, "");
    let folder_path = folder.path("folder");
    std::fs::create_dir(&folder_path).unwrap();
    for (chain, expected) in [
        (overwrites, "would overwrite the input"),
        (folder.path("missing.yaml"), "missing.yaml: cannot be read"),
        (folder_path, "cannot be read"),
        (
            folder.write("empty.yaml", ""),
            "expected a chain spec, found an empty file",
        ),
        (
            folder.write("binary.yaml", [0xff, 0xfe, 0x00]),
            "binary.yaml:1:1: expected UTF-8",
        ),
        (folder.write("yaml.yaml", "a: [1, 2"), "yaml.yaml"),
        (bad_functions, "functions.yaml:5:"),
        (traffic.clone(), "in.pcap"),
        (nothing, "none of its 10 packets match spec.match"),
    ] {
        refused(&["run", name(&chain), "--traffic", name(&traffic)], expected);
    }
}

#[test]
fn flags() {
    let folder = Folder::new();
    let chain = folder.forward();
    let chain = name(&chain);
    let traffic = folder.capture("in.pcap", &mixture(10));
    let most = (tailwater_dataplane::cores::available().last().unwrap() + 1).to_string();
    for (flag, value, expected) in [
        ("--cores", &*most, "is not available"),
        ("--cores", "0-1000000", "is not available"),
        ("--cores", "one", "expected a list of cores"),
        ("--cores", "", "expected a list of cores"),
        (
            "--duration",
            "3",
            "one of the units ns, us, ms, s, m: the unit is missing",
        ),
        (
            "--duration",
            "3parsecs",
            "units ns, us, ms, s, m: unknown unit \"parsecs\"",
        ),
        ("--duration", "0s", "expected a duration from 1ns"),
        ("--duration", "fast", "expected a duration"),
        ("--duration", "9999999m", "expected a duration from"),
        ("--window", "1us", "expected a duration from 1ms"),
        ("--rate-scale", "0", "expected a number above zero"),
        ("--rate-scale", "nan", "expected a number above zero"),
        ("--rate-scale", "inf", "expected a number above zero"),
        ("--rate-scale", "-1", "expected a number above zero"),
        ("--rate-scale", "1e-300", "days at this rate"),
        ("--rate", "0", "packets per second"),
        ("--rate", "nan", "packets per second"),
        ("--rate", "1Gbps", "packets per second"),
        ("--ring", "0", "0 is not in 1..=1048576"),
        ("--ring", "9999999999", "9999999999"),
        ("--seed", "x", "invalid digit"),
        ("--memory-limit", "none", "expected a number of bytes"),
        ("--memory-limit", "100", "exceeds the memory limit"),
        ("--output", "xml", "possible values: table, json"),
        ("--metrics", "somewhere", "expected a port"),
        ("--metrics", "192.0.2.1:9090", "cannot listen on 192.0.2.1:9090"),
        ("--capture-out", "/nowhere/out.pcap", "cannot write"),
        ("--capture-out", name(&folder.0), "cannot write"),
        ("--capture-out", name(&traffic), "would overwrite the input"),
        ("--capture-out", chain, "would overwrite the input"),
        ("--keep-packets", name(&traffic), "expected a directory, found the file"),
        ("--rate-sacle", "2", "a similar argument exists: '--rate-scale'"),
        ("--saturate", "--rate-scale=2", "cannot be used with"),
    ] {
        refused(&["run", chain, "--traffic", name(&traffic), flag, value], expected);
    }
    refused(&["run"], "<CHAIN.yaml>");
    refused(&["rum"], "a similar subcommand exists: 'run'");
    refused(&["run", chain, "extra"], "unexpected argument 'extra'");
    refused(
        &["trace", "info", name(&traffic), "--duration", "1s"],
        "--duration applies to presets",
    );
    refused(&["trace", "synth", "burtsy", "-o", "x"], "did you mean \"bursty\"");
    refused(&["trace", "synth", "bursty", "-o", "/nowhere/x.pcap"], "cannot write");
    refused(&["init", "/nowhere/a.yaml", "--yes"], "cannot write /nowhere/a.yaml");
    refused(&["explain-spec", "spec.slo.latncy"], "did you mean \"latency\"?");
    for text in ["{\"chain\": \"edge\"}", "[1]", "kind: Chain"] {
        let other = folder.write("other.json", text);
        let expected = "expected the JSON of `tailwater run` or `tailwater serve` (--output json)";
        refused(&["diff", name(&other), name(&other)], expected);
    }
    refused(&["run", "la\u{202e}lmay"], "la\\u{202e}lmay: cannot be read");
    // Links are the same file.
    let link = folder.path("link.pcap");
    std::os::unix::fs::symlink(&traffic, &link).unwrap();
    let capture_out = ["--capture-out", name(&link)];
    let args = ["run", chain, "--traffic", name(&traffic)];
    refused(&[&args[..], &capture_out[..]].concat(), "would overwrite the input");
    assert_eq!(frames(&traffic).len(), 10, "the input is whole");
}

/// Regression: `function-process` and `try-library` were proposed, which only this program starts.
#[test]
fn an_unknown_command_proposes_no_hidden_one() {
    for (command, proposed) in [
        ("function-proces", "function-process"),
        ("function", "function-process"),
        ("functon-process", "function-process"),
        ("try-librar", "try-library"),
        ("try", "try-library"),
    ] {
        let output = tailwater().arg(command).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.starts_with(&format!("error: unrecognized subcommand '{command}'")),
            "{stderr}"
        );
        assert!(!stderr.contains(proposed), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    refused(&["simulat"], "a similar subcommand exists: 'simulate'");
    refused(&["doktor"], "'doctor'");
}
