//! `tailwater run --report`, end to end.

mod common;

use common::*;
use std::path::Path;

/// Returns the report in a page.
fn embedded(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"report\">").expect("the report");
    serde_json::from_str(rest.split_once("</script>").expect("its end").0).unwrap()
}

fn sum<'a>(values: impl IntoIterator<Item = &'a serde_json::Value>) -> u64 {
    values.into_iter().map(|n| n.as_u64().unwrap()).sum()
}

/// Returns the sum of a map's counts.
fn counts(map: &serde_json::Value) -> u64 {
    sum(map.as_object().unwrap().values())
}

/// Asserts that the time series add up to the totals.
fn assert_series(report: &serde_json::Value) {
    let packets = &report["packets"];
    assert_eq!(
        sum(report["arrivals"]["packets"].as_array().unwrap()),
        packets["offered"].as_u64().unwrap(),
        "arrivals"
    );
    let steps = report["timeline"]["list"].as_array().unwrap();
    for name in ["offered", "delivered", "dropped_by_nf", "lost"] {
        let total = sum(steps.iter().map(|step| &step[name]));
        assert_eq!(total, packets[name].as_u64().unwrap(), "{name}");
    }
    for step in steps {
        assert_eq!(counts(&step["dropped_by_reason"]), step["dropped_by_nf"]);
        assert_eq!(counts(&step["lost_by_reason"]), step["lost"]);
    }
    for (cause, total) in report["late_by_cause"].as_object().unwrap() {
        let steps = steps.iter().map(|step| &step["late_by_cause"][cause]);
        assert_eq!(sum(steps), total.as_u64().unwrap(), "{cause}");
    }
    let distribution = report["latency_distribution"].as_array().unwrap();
    if let Some(last) = distribution.last() {
        assert_eq!(last["packets"], packets["delivered"]);
        assert_eq!(last["latency_us"], report["latency_us"]["max"]);
    }
}

/// Runs with a report, and returns the page.
fn page(folder: &Folder, chain: &Path, traffic: &Path, more: &[&str]) -> String {
    let out = folder.path("report.html");
    let mut args = vec!["--report", out.to_str().unwrap()];
    args.extend(more);
    let printed = report(chain, traffic, &args);
    let page = std::fs::read_to_string(&out).unwrap();
    assert!(embedded(&page) == printed, "what is printed is what is shown");
    assert_identity(&printed);
    assert_series(&printed);
    page
}

#[test]
fn a_run_writes_a_page_of_its_own() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(3000));
    let page = page(&folder, &folder.acl_nat(), &traffic, &["--window", "20ms"]);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
    for part in [
        "id=\"verdict\"",
        "Latency distribution",
        "Latency over time",
        "Arrivals and bursts",
        "Drops and losses",
        "edge/denied (dropped)",
        "Late packets by cause",
        "Flow table",
        "kind: Chain",
        "external: [203.0.113.0/28]",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    assert!(!page.contains("http://") && !page.contains("https://"));
}

/// Losses are in the series, too: by a full ring, in the chain, and at the end.
#[test]
fn an_overloaded_run_loses_nothing_from_its_series() {
    let folder = Folder::new();
    let traffic = folder.capture("in.pcap", &mixture(20_000));
    let more = ["--rate-scale", "1e4", "--ring", "4", "--window", "1ms"];
    let text = page(&folder, &folder.acl_nat(), &traffic, &more);
    assert!(text.contains("nic-ring-full (lost)"));
    assert!(text.contains("SLO missed"));
    let small = "[{nat: {external: [203.0.113.0/28]}}]";
    let small = folder.spec("small.yaml", small, "  flows: {capacity: 512}\n");
    page(&folder, &small, "bursty".as_ref(), &["--duration", "50ms"]);
    page(
        &folder,
        &small,
        "bursty".as_ref(),
        &["--duration", "50ms", "--saturate"],
    );
}

#[test]
fn names_of_files_are_text() {
    let folder = Folder::new();
    let traffic = folder.capture("<script>alert(1)<:script>&.pcap", &mixture(100));
    let page = page(&folder, &folder.forward(), &traffic, &[]);
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;:script&gt;&amp;.pcap"));
}

/// If the page cannot be written, the error is printed before the run, in one line.
#[test]
fn a_report_that_cannot_be_written_is_refused_at_once() {
    let folder = Folder::new();
    let (chain, traffic) = (folder.forward(), folder.capture("in.pcap", &mixture(10)));
    let before = std::fs::read(&traffic).unwrap();
    let missing = folder.path("missing/report.html");
    for (out, more, expected) in [
        (missing.as_path(), &[][..], "cannot write"),
        (&folder.0, &[], "cannot write"),
        (&traffic, &[], "would overwrite the input"),
        (&chain, &[], "would overwrite the input"),
        (&folder.path("x"), &["--capture-out", "x"], "are both"),
    ] {
        let output = tailwater()
            .current_dir(&folder.0)
            .args(["run", "--duration", "1s", "--traffic"])
            .args([&traffic, &chain])
            .arg("--report")
            .arg(out)
            .args(more)
            .output();
        let output = output.unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(expected), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(std::fs::read(&traffic).unwrap(), before);
    assert!(!folder.path("x").exists(), "nothing is left behind");
}
