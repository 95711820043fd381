//! `tailwater trace` from end to end.

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
    // The same packets as the preset makes on the fly.
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
    // Cut, so that there is a notice.
    let bytes = std::fs::read(&traffic).unwrap();
    std::fs::write(&traffic, &bytes[..bytes.len() - 1]).unwrap();
    let output = run(&[&"trace", &"info", &traffic, &"--output", &"json"]);
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("notice: ") && stderr.contains("99 packets"),
        "{stderr}"
    );
    let document = serde_json::from_slice(&output.stdout).unwrap();
    let page = include_str!("../../../docs/trace.md");
    assert_eq!(
        fields(&document, &["malformed"]),
        documented(page, "### JSON")
    );
}
