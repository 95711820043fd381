//! `tailwater trace`, end to end.

mod common;

use common::*;

#[test]
fn a_preset_becomes_a_capture_that_can_be_measured_and_run() {
    let folder = Folder::new();
    let capture = folder.path("bursty.pcap");
    let args = ["--duration", "20ms", "--seed", "7"];
    let made = tailwater()
        .args(["trace", "synth", "bursty", "-o"])
        .arg(&capture)
        .args(args)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let packets = frames(&capture).len() as u64;
    assert!(packets > 1000);

    let info = |more: &[&str]| -> serde_json::Value {
        let mut command = tailwater();
        command
            .args(["trace", "info", "--output", "json"])
            .arg(&capture)
            .args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plain = info(&[]);
    assert_eq!(plain["packets"], packets);
    let faster = info(&["--rate-scale", "10"]);
    let duration = |info: &serde_json::Value| info["duration_ns"].as_f64().unwrap();
    assert!((duration(&plain) / duration(&faster) - 10.0).abs() < 0.01);
    let even = info(&["--rate", "1Mpps"]);
    assert_eq!(duration(&even), (packets - 1) as f64 * 1e3);

    let ran = report(&folder.acl_nat(), &capture, &[]);
    assert_identity(&ran);
    assert_eq!(count(&ran, "offered"), packets);
    // The same packets as those that the preset generates directly.
    let direct = report(&folder.acl_nat(), "bursty".as_ref(), &args);
    assert_eq!(count(&direct, "offered"), packets);
}

#[test]
fn a_faster_synthesis_has_more_packets_in_the_same_time() {
    let folder = Folder::new();
    let packets = |scale: &str| {
        let capture = folder.path(&format!("{scale}.pcap"));
        let args = [
            "trace",
            "synth",
            "bursty",
            "--duration",
            "10ms",
            "--rate-scale",
            scale,
            "-o",
        ];
        let made = tailwater().args(args).arg(&capture).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        frames(&capture).len() as f64
    };
    let (one, four) = (packets("1"), packets("4"));
    assert!((2.0..8.0).contains(&(four / one)), "{one} and {four}");
}

#[test]
fn text_is_for_people() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    let output = run(&[&"trace", &"info", &traffic]);
    let page = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(
        page.contains("in.pcap\n\n") && page.contains("10 bidirectional"),
        "{page}"
    );
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(100));
    // Truncated, so that there is a notice.
    let bytes = std::fs::read(&traffic).unwrap();
    std::fs::write(&traffic, &bytes[..bytes.len() - 1]).unwrap();
    let output = run(&[&"trace", &"info", &traffic, &"--output", &"json"]);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("notice: ") && stderr.contains("99 packets"),
        "{stderr}"
    );
    let document = serde_json::from_slice(&output.stdout).unwrap();
    let page = include_str!("../../../docs/reference/commands/trace.md");
    assert_eq!(fields(&document, &["malformed"]), documented(page, "### JSON"));
}

#[test]
fn captures_are_cut_merged_and_laid_over_themselves() {
    let folder = Folder::new();
    let capture = folder.path("in.pcap");
    let made = run(&[&"trace", &"synth", &"bursty", &"--duration", &"20ms", &"-o", &capture]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let whole = frames(&capture).len();
    let convert = |name: &str, inputs: &[&std::path::Path], args: &[&str]| -> usize {
        let output = folder.path(name);
        let mut command = tailwater();
        command.args(["trace", "convert"]).args(inputs).args(args);
        let done = command.arg("-o").arg(&output).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        frames(&output).len()
    };
    let first = convert("first.pcap", &[&capture], &["--to", "10ms"]);
    let second = convert("second.pcap", &[&capture], &["--from", "10ms"]);
    assert_eq!(first + second, whole);
    let halves = [folder.path("second.pcap"), folder.path("first.pcap")];
    assert_eq!(convert("whole.pcap", &[&halves[0], &halves[1]], &[]), whole);
    let bytes = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(bytes("whole.pcap") == bytes("in.pcap"), "the same file again");
    let copies = ["--copies", "3", "--shift", "1ms", "--speed", "2"];
    assert_eq!(convert("copies.pcap", &[&capture], &copies), 3 * whole);
    assert_eq!(convert("few.pcap", &[&capture], &["--packets", "7"]), 7);
}

#[test]
fn wrong_conversions_say_why() {
    let folder = Folder::new();
    let capture = folder.capture("in.pcap", &mixture(10));
    let convert = |args: &[&str], output: &std::path::Path| {
        let mut command = tailwater();
        command.args(["trace", "convert"]).arg(&capture).args(args);
        let done = command.arg("-o").arg(output).output().unwrap();
        assert_eq!(done.status.code(), Some(2));
        text(&done.stderr)
    };
    let other = folder.path("out.pcap");
    assert!(convert(&[], &capture).contains("would overwrite an input"));
    assert!(convert(&["--from", "2s", "--to", "1s"], &other).contains("expected a time before --to"));
    assert!(convert(&["--from", "1m"], &other).contains("no packets between --from and --to"));
    assert!(convert(&["--copies", "0"], &other).contains("1..=1024"));
}

#[test]
fn bursts_are_studied_and_drawn() {
    let folder = Folder::new();
    let picture = folder.path("bursts.svg");
    let capture = folder.capture("in.pcap", &mixture(500));
    let study = |more: &[&str]| {
        let mut command = tailwater();
        command
            .args(["trace", "info"])
            .arg(&capture)
            .args(["--service-us", "5,20", "--svg"])
            .arg(&picture)
            .args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let page = study(&[]);
    assert!(page.contains("in.pcap\n\npackets                 500\n"), "{page}");
    assert!(
        page.contains("Whales (bursts of one flow): ") && page.contains("Minnows (bursts of many flows): "),
        "{page}"
    );
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("whales"));
    let document = serde_json::from_str(&study(&["--output", "json"])).unwrap();
    let page = include_str!("../../../docs/reference/commands/trace.md");
    assert_eq!(fields(&document, &[]), documented(page, "### JSON of a study"));
    // Half the speed: twice the duration.
    let slow: serde_json::Value = serde_json::from_str(&study(&["--output", "json", "--rate-scale", "0.5"])).unwrap();
    let length = |study: &serde_json::Value| study["duration_ns"].as_u64().unwrap();
    assert!(length(&slow).abs_diff(2 * length(&document)) <= 2);
}
