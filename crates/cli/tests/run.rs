//! `tailwater run`, end to end.

mod common;

use common::serving::Serving;
use common::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use tailwater_dataplane::report::{PacketEventReport, ReloadEvent, ReloadOutcome, StateReport};
use tailwater_dataplane::scaling::ScalingCounters;
use tailwater_dataplane::scaling::buckets::ServerReport;

#[test]
fn a_small_capture_through_acl_and_nat() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let out = folder.path("out.pcap");
    let more = ["--capture-out", out.to_str().unwrap()];
    let report = report(&folder.acl_nat(), &traffic, &more);
    assert_identity(&report);
    assert_eq!(report["chain"], "test");
    assert_eq!(report["slo"]["latency_us"], 250_000.0);
    assert_eq!(report["slo"]["percentile"], 99.0);
    assert!(report["slo_met"].is_boolean());
    assert_eq!(report["interrupted"], false);
    assert_eq!(count(&report, "offered"), 1000);
    assert_eq!(count(&report, "dropped_by_nf"), 100);
    let denied = serde_json::json!([
        {"function": "edge", "reason": "denied", "outcome": "dropped", "packets": 100}
    ]);
    assert_eq!(report["packets"]["drops"], denied);
    assert_eq!(report["packets"]["reasons"]["edge/denied"], 100);
    assert_eq!(report["cores"]["dedicated"], 1);
    assert_eq!(report["cores"]["avg"], 1.0);

    let sent = frames(&out);
    assert_eq!(sent.len() as u64, count(&report, "delivered"));
    assert_eq!(wrong_checksums(&sent), 0);
    for frame in &sent {
        let IpAddr::V4(source) = key(frame).source() else {
            panic!("IPv4 only");
        };
        assert_eq!(source.octets()[..3], [203, 0, 113], "{}", key(frame));
    }
}

/// Read by tshark, where it is installed.
#[test]
fn dropped_and_late_packets_are_kept_with_reasons() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(300));
    let acl = "[{name: edge, acl: {default: allow, rules: [{action: deny, destinationPorts: 25}]}}]";
    // All packets are in time, or none is.
    let kept: Vec<PathBuf> = ["250ms", "1us"]
        .into_iter()
        .map(|slo| {
            let (chain, kept) = (folder.spec_with_slo(slo, "kept.yaml", acl, ""), folder.path(slo));
            report(&chain, &traffic, &["--keep-packets", kept.to_str().unwrap()]);
            kept.join("packets-000001.pcapng")
        })
        .collect();
    let [dropped, late] = &kept[..] else { unreachable!() };
    assert!(frames(dropped).len() >= 30 && !frames(late).is_empty());
    if !tshark_is_there() {
        return println!("skipped: tshark is not installed");
    }
    let denied = "frame.comment contains \"dropped: edge/denied; core\"";
    assert_eq!(tshark_frames(dropped, denied), 30);
    assert_eq!(tshark_frames(dropped, &format!("{denied} && !(tcp.dstport == 25)")), 0);
    assert!(tshark_frames(dropped, "frame.comment contains \"before it: same core\"") > 0);
    assert_eq!(tshark_frames(dropped, "frame.comment"), frames(dropped).len() as u64);
    assert!(tshark_frames(late, "frame.comment contains \"late: \"") > 0);
}

#[test]
fn forward_changes_nothing() {
    let folder = Folder::new();
    let packets = mixture(200);
    let traffic = folder.capture("in.pcap", &packets);
    let out = folder.path("out.pcap");
    let report = report(&folder.forward(), &traffic, &["--capture-out", out.to_str().unwrap()]);
    assert_identity(&report);
    assert_eq!(count(&report, "delivered"), 200);
    assert!(report["flows"].is_null());
    let sent = frames(&out);
    assert!(sent.iter().eq(packets.iter().map(|(_, frame)| frame)));
}

/// Responses to translated connections reach the clients.
#[test]
fn nat_translates_answers_back() {
    let folder = Folder::new();
    let (chain, out) = (folder.acl_nat(), folder.path("out.pcap"));
    let capture_out = ["--capture-out", out.to_str().unwrap()];
    let requests: Vec<(u64, Vec<u8>)> = (1..=40u8)
        .map(|n| {
            let frame = match n % 2 {
                0 => tcp(client(n), 4000, SERVER, 80),
                _ => udp(client(n), 4000, SERVER, 53),
            };
            (u64::from(n) * 100_000, frame)
        })
        .collect();
    let traffic = folder.capture("requests.pcap", &requests);
    report(&chain, &traffic, &capture_out);
    let translated = frames(&out);
    assert_eq!(translated.len(), requests.len());

    // Responses to the first run's output, after the same requests.
    let answers = translated.iter().enumerate().map(|(i, frame)| {
        let answer = key(frame).reversed();
        let frame = tailwater_net::builder::FrameBuilder::new(&answer).payload(b"answer");
        (10_000_000 + i as u64 * 100_000, frame.to_vec().unwrap())
    });
    let both: Vec<_> = requests.iter().cloned().chain(answers).collect();
    let traffic = folder.capture("both.pcap", &both);
    let second = report(&chain, &traffic, &capture_out);
    assert_identity(&second);
    assert_eq!(count(&second, "delivered"), 80, "{second}");
    let sent = frames(&out);
    assert_eq!(wrong_checksums(&sent), 0);
    // The same seed gives the same bindings.
    assert_eq!(sent[..40], translated[..]);
    for (answer, (_, request)) in sent[40..].iter().zip(&requests) {
        assert_eq!(key(answer), key(request).reversed());
    }
}

#[test]
fn a_longer_duration_repeats_the_trace_with_other_flows() {
    let folder = Folder::new();
    // A pass of 100 packets takes 10 ms.
    let traffic = folder.capture("in.pcap", &mixture(100));
    let out = folder.path("out.pcap");
    let more = ["--duration", "100ms", "--capture-out", out.to_str().unwrap()];
    let report = report(&folder.forward(), &traffic, &more);
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 1000);
    let sent = frames(&out);
    assert_eq!(wrong_checksums(&sent), 0);
    let mut flows = BTreeMap::new();
    sent.iter()
        .for_each(|frame| *flows.entry(key(frame).to_string()).or_insert(0) += 1);
    if count(&report, "lost") == 0 {
        assert_eq!(flows.len(), 100, "ten flows in each of ten laps");
        assert!(flows.values().all(|packets| *packets == 10), "{flows:?}");
    } else {
        assert!(flows.len() > 10);
    }
}

#[test]
fn a_shorter_duration_cuts_the_trace() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let report = report(&folder.forward(), &traffic, &["--duration", "10ms"]);
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 100);
}

#[test]
fn rates_are_scaled_and_made() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let faster = report(&folder.forward(), &traffic, &["--rate-scale", "10"]);
    assert_identity(&faster);
    assert_eq!(count(&faster, "offered"), 1000);
    // The capture lasts ten milliseconds; this replays it at 200 kpps.
    let even = report(&folder.forward(), &traffic, &["--rate", "200kpps", "--duration", "4ms"]);
    assert_eq!(count(&even, "offered"), 800);
    let saturated = report(&folder.forward(), &traffic, &["--saturate", "--duration", "50ms"]);
    assert_identity(&saturated);
    assert_eq!(count(&saturated, "lost"), 0);
    assert!(count(&saturated, "offered") > 1000);
}

#[test]
fn packets_of_others_are_left_out() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(1000));
    let rest = "  match: {protocols: [udp], sources: [10.0.0.0/24]}\n";
    let chain = folder.spec("match.yaml", "[{forward: }]", rest);
    let report = report(&chain, &traffic, &[]);
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 500);
    assert_eq!(count(&report, "not_matched"), 500);
}

#[test]
fn two_workers_share_the_traffic() {
    let cores = tailwater_dataplane::cores::available();
    let [first, second, ..] = cores[..] else {
        eprintln!("skipped: one core only");
        return;
    };
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let out = folder.path("out.pcap");
    let list = format!("{first},{second}");
    let more = ["--cores", &list, "--capture-out", out.to_str().unwrap()];
    let report = report(&folder.acl_nat(), &traffic, &more);
    assert_identity(&report);
    assert_eq!(count(&report, "offered"), 2000);
    assert_eq!(report["cores"]["dedicated"], 2);
    let sent = frames(&out);
    assert_eq!(sent.len() as u64, count(&report, "delivered"));
    assert_eq!(wrong_checksums(&sent), 0);
}

#[test]
fn a_preset_runs_for_its_duration() {
    let folder = Folder::new();
    let chain = folder.acl_nat();
    let run = |seed: &str| {
        let more = ["--duration", "20ms", "--seed", seed];
        report(&chain, "bursty".as_ref(), &more)
    };
    let (one, again, other) = (run("1"), run("1"), run("2"));
    assert_identity(&one);
    assert_eq!(one["traffic"], "bursty");
    assert!(count(&one, "offered") > 1000);
    assert_eq!(count(&one, "offered"), count(&again, "offered"));
    assert_ne!(count(&one, "offered"), count(&other, "offered"));
}

/// SIGINT ends a run early, with its report.
#[test]
fn an_interrupt_ends_with_the_report() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let mut serving = Serving::start(&folder, &traffic, &["--output", "json"]);
    // Packets flow.
    serving.page_with("edge/denied");
    let report: serde_json::Value = serde_json::from_str(&serving.stop("-INT")).unwrap();
    assert_identity(&report);
    assert_eq!(report["interrupted"], true);
    // Three million would arrive in five minutes.
    let offered = count(&report, "offered");
    assert!(0 < offered && offered < 1_000_000, "{offered}");
}

#[test]
fn without_a_terminal_there_is_no_progress() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let output = run(&[&"run", &folder.forward(), &"--traffic", &traffic]);
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "");
    let table = text(&output.stdout);
    assert!(table.is_ascii() && !table.contains('\u{1b}'), "{table}");
    for part in ["chain ", "SLO ", "p99.9", "packets offered", "throughput", "windows"] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
}

#[test]
fn notices_are_lines_on_standard_error() {
    let folder = Folder::new();
    let mut packets = mixture(100);
    packets.swap(10, 50);
    let traffic = folder.capture("in.pcap", &packets);
    let output = run(&[&"run", &folder.forward(), &"--traffic", &traffic, &"--output", &"json"]);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("notice: ") && stderr.contains("out of time order"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
}

#[test]
fn a_missed_objective_is_an_exit_code_only_on_demand() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(10_000));
    let chain = folder.forward();
    // All packets arrive at once at a queue of one: nearly all are lost.
    let args = ["--rate-scale", "1e9", "--ring", "1", "--output", "json"];
    let run = |more: &[&str]| {
        let mut command = tailwater();
        command
            .arg("run")
            .arg(&chain)
            .arg("--traffic")
            .arg(&traffic)
            .args(args)
            .args(more);
        command.output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_identity(&report);
    assert_eq!(report["slo_met"], false);
    assert!(count(&report, "lost") > 9_000);
    assert_eq!(run(&["--check-slo"]).status.code(), Some(3));
}

#[test]
fn a_run_that_delivers_nothing_has_no_verdict() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let chain = folder.spec(
        "denies.yaml",
        "[{name: edge, acl: {default: deny, rules: [{action: deny, protocol: udp}]}}]",
        "",
    );
    let run = |more: &[&str]| {
        let mut command = tailwater();
        command.arg("run").arg(&chain).arg("--traffic").arg(&traffic).args(more);
        command.output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let line = "NO VERDICT: the chain dropped all 100 packets (edge/denied 100)\n";
    assert!(text(&output.stdout).contains(line), "{}", text(&output.stdout));
    let output = run(&["--check-slo", "--output", "json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no verdict: the chain dropped all 100 packets"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["slo_met"], serde_json::Value::Null);
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(10));
    let mut child = tailwater()
        .args(["run", "--traffic"])
        .args([&traffic, &folder.forward()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let mut report = report(&folder.acl_nat(), &traffic, &[]);
    // Null in a run without auxiliary cores, and a machine may have only one core.
    report["scaling"] = serde_json::to_value(ScalingCounters::default()).unwrap();
    report["wake_us"] = report["latency_us"].clone();
    // Null if no RSS buckets move.
    report["server"] = serde_json::to_value(ServerReport::default()).unwrap();
    // Present with `spec.state` only; the list contains a name.
    let state = StateReport {
        functions: vec!["tw:edge:nat".to_owned()],
        ..StateReport::default()
    };
    report["state"] = serde_json::to_value(state).unwrap();
    let event = PacketEventReport {
        function: Some("nat".to_owned()),
        reason: "translated".to_owned(),
        count: 1,
    };
    report["reloads"]["list"] = serde_json::to_value([ReloadEvent {
        at_s: 1.0,
        outcome: ReloadOutcome::Rejected,
        lines: vec!["chain.yaml:1:1: wrong".to_owned()],
    }])
    .unwrap();
    report["packets"]["packet_events"] = serde_json::to_value([event]).unwrap();
    let found = fields(
        &report,
        &[
            "packets.reasons",
            "timeline.list[].dropped_by_reason",
            "timeline.list[].lost_by_reason",
        ],
    );
    let page = include_str!("../../../docs/reference/commands/run.md");
    assert_eq!(found, documented(page, "## JSON"));
}

/// `tailwater init`: a chain, a server and a rack that are valid and run at once, and that it does not overwrite.
#[test]
fn a_first_chain_is_written_and_runs() {
    let folder = Folder::new();
    let init = |args: &[&str]| {
        let mut command = tailwater();
        command.current_dir(&folder.0).arg("init").args(args);
        command.output().unwrap()
    };
    let printed = init(&["-", "--slo", "50ms"]);
    assert!(text(&printed.stdout).contains("kind: Chain"), "{printed:?}");
    assert_refused(&init(&["-", "--server"]), "-: expected a file");
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0);
    let output = init(&["edge.yaml", "--slo", "50ms", "--server", "--cores", "0", "--rack"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for line in [
        "  edge.yaml",
        "  server.yaml",
        "  rack.yaml",
        "  tailwater run edge.yaml",
        "  tailwater serve server.yaml",
        "  tailwater simulate rack.yaml",
    ] {
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    let files = ["edge.yaml", "server.yaml", "rack.yaml"].map(|name| folder.path(name));
    let [chain, server, rack] = &files;
    let valid = run(&[&"validate", chain, server, rack]);
    assert!(valid.status.success(), "{}", text(&valid.stderr));
    // Errors are where they belong among the valid files, also if all goes to one pipe.
    let wrong = folder.write("wrong.yaml", "kind: Chian\n");
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        "exec \"$0\" validate \"$@\" 2>&1",
        env!("CARGO_BIN_EXE_tailwater"),
    ]);
    let lines = text(&shell.args([chain, &wrong, server]).output().unwrap().stdout);
    let ends: Vec<_> = lines.lines().map(|line| line.ends_with(": valid")).collect();
    assert_eq!(ends, [true, false, true], "{lines}");
    let traffic = folder.capture("in.pcap", &mixture(100));
    let printed = report(chain, &traffic, &[]);
    assert_eq!(
        (&printed["chain"], &printed["packets"]["offered"]),
        (&"edge".into(), &100.into())
    );

    let before = std::fs::read(chain).unwrap();
    std::fs::remove_file(rack).unwrap();
    let output = init(&["edge.yaml", "--functions", "forward", "--rack"]);
    assert_refused(
        &output,
        "edge.yaml already exists: nothing was written (--force overwrites it)",
    );
    assert_eq!(std::fs::read(chain).unwrap(), before);
    assert!(!rack.exists());
    let output = init(&["edge.yaml", "--functions", "forward", "--rack", "--force"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(std::fs::read_to_string(chain).unwrap().contains("- forward:"));
    assert_refused(
        &init(&["other.yaml", "--traffic", "nothing"]),
        "\"nothing\" is neither a capture file nor",
    );
    assert_refused(
        &init(&["server.yaml", "--server", "--force"]),
        "expected another name for the chain",
    );
}
