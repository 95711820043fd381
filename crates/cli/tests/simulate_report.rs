//! `tailwater simulate --report`, end to end.

mod common;

use common::*;
use std::path::Path;
use std::process::Output;

fn simulate(rack: &Path, report: &Path, more: &[&str]) -> Output {
    let mut command = tailwater();
    command.arg("simulate").arg(rack).arg("--report").arg(report);
    command.args(["--policy", "netblaze,static"]).args(more);
    command.output().unwrap()
}

#[test]
fn a_comparison_writes_a_page_of_its_own() {
    let folder = Folder::new();
    let (rack, file) = (folder.rack(), folder.path("report.html"));
    let output = simulate(&rack, &file, &["--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let (_, rest) = page.split_once("id=\"report\">").unwrap();
    let embedded: serde_json::Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(embedded == printed, "what is printed is what is shown");
    for part in [
        "Cores over time",
        "99th percentile against cores, chain b",
        "Latency distributions",
        "Late packets by cause",
        "Burst: arrivals",
        "Burst: packets in the system",
        "Burst: active cores",
        "Burst: decisions",
        "kind: Rack",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Bursts exist only for policies with a core mapper, and only with a report.
    let burst = |document: &serde_json::Value, run: usize| document["runs"][run]["chains"][1].get("burst").is_some();
    assert_eq!([burst(&printed, 0), burst(&printed, 1)], [true, false]);
    let plain = tailwater()
        .args(["simulate", rack.to_str().unwrap(), "--policy", "netblaze,static"])
        .args(["--output", "json"])
        .output()
        .unwrap();
    let mut without = printed;
    for run in without["runs"].as_array_mut().unwrap() {
        for chain in run["chains"].as_array_mut().unwrap() {
            chain.as_object_mut().unwrap().remove("burst");
        }
    }
    let plain: serde_json::Value = serde_json::from_slice(&plain.stdout).unwrap();
    assert!(plain == without, "a report changes nothing else");
}

#[test]
fn a_page_is_the_same_when_runs_are_read_back() {
    let folder = Folder::new();
    let rack = folder.rack();
    let runs = folder.path("runs.jsonl");
    let mut pages = Vec::new();
    for name in ["first.html", "second.html"] {
        let file = folder.path(name);
        let output = simulate(&rack, &file, &["--resume", runs.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        pages.push(std::fs::read(&file).unwrap());
    }
    assert!(pages[0] == pages[1]);
    let file = folder.path("plain.html");
    simulate(&rack, &file, &[]);
    assert!(pages[0] == std::fs::read(&file).unwrap());
}

/// If the page cannot be written, the error is printed before any simulation, in one line.
#[test]
fn a_page_that_cannot_be_written_is_refused_at_once() {
    let folder = Folder::new();
    let rack = folder.rack();
    let capture = folder.path("in.pcap");
    let other = folder.capture("other.pcap", &mixture(5));
    let other = other.to_str().unwrap();
    let before = [&rack, &capture].map(|path| std::fs::read(path).unwrap());
    let runs = folder.path("runs.jsonl");
    let same = runs.to_str().unwrap();
    for (out, more, expected) in [
        (folder.path("missing/report.html"), &[][..], "cannot write"),
        (folder.0.clone(), &[], "cannot write"),
        (rack.clone(), &[], "would overwrite the input"),
        (capture.clone(), &[], "would overwrite the input"),
        (other.into(), &["--traffic", other], "would overwrite the input"),
        (runs.clone(), &["--resume", same], "--report and --resume are both"),
    ] {
        let output = simulate(&rack, &out, more);
        assert_refused(&output, expected);
    }
    assert_eq!(before, [&rack, &capture].map(|path| std::fs::read(path).unwrap()));
    assert!(!runs.exists());
}
