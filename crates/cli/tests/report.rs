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

/// Runs `tailwater diff`, and returns the exit code and both outputs.
fn diff(args: &[&dyn AsRef<std::ffi::OsStr>]) -> (Option<i32>, String, String) {
    let output = tailwater().arg("diff").args(args).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
    (output.status.code(), stdout, stderr)
}

/// A run has no differences from itself. One with a tenth of its packets denied and other latencies has.
#[test]
fn runs_are_compared() {
    let folder = Folder::new();
    // 20 windows of 1 ms at least.
    let packets = mixture(2000).into_iter().enumerate();
    let packets: Vec<_> = packets
        .map(|(number, (_, frame))| (number as u64 * 10_000, frame))
        .collect();
    let traffic = folder.capture("in.pcap", &packets);
    let mut run = report(&folder.acl_nat(), &traffic, &["--window", "1ms"]);
    // On a busy machine, few of the 20 steps have packets.
    let steps = run["timeline"]["list"].as_array().unwrap().iter();
    let full = steps.max_by_key(|step| step["delivered"].as_u64()).unwrap().clone();
    let steps = (0..40).map(|number| {
        let mut step = full.clone();
        let latency = step["latency_us"].as_object_mut().unwrap().values_mut();
        latency.for_each(|value| *value = (100 + number * 7 % 11).into());
        step
    });
    run["timeline"]["list"] = steps.collect::<Vec<_>>().into();
    let before = folder.write("before.json", run.to_string());
    let (code, table, _) = diff(&[&before, &before]);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.ends_with("no difference that these runs can show\n"), "{table}");
    assert!(
        table.contains("p99_us") && table.contains("in pairs since the traffic is the same"),
        "{table}"
    );

    let mut other = run.clone();
    let ten = |value: &mut serde_json::Value| *value = (value.as_f64().unwrap() * 10.0).into();
    let times = |latency: &mut serde_json::Value| latency.as_object_mut().unwrap().values_mut().for_each(ten);
    times(&mut other["latency_us"]);
    let steps = other["timeline"]["list"].as_array_mut().unwrap();
    steps.iter_mut().for_each(|step| times(&mut step["latency_us"]));
    let after = folder.write("after.json", other.to_string());
    let (code, table, _) = diff(&[&before, &after]);
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("p50_us higher, p99_us higher"), "{table}");
    // Runs of their own have other durations.
    let three = |name: &str, run: &serde_json::Value| {
        [1.0, 2.0, 3.0].map(|more| {
            let mut run = run.clone();
            run["duration_s"] = (run["duration_s"].as_f64().unwrap() + more).into();
            folder.write(&format!("{name}-{more}.json"), run.to_string())
        })
    };
    let ([a, b, c], [d, e, f]) = (three("after", &other), three("before", &run));
    let (code, json, _) = diff(&[&"--before", &a, &b, &c, &"--after", &d, &e, &f, &"-o", &"json"]);
    assert_eq!(code, Some(1), "{json}");
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["different"], true);
    let chain = &document["chains"][0];
    assert_eq!((&chain["method"], &chain["runs_after"]), (&"runs".into(), &3.into()));
    let p99 = chain["figures"]
        .as_array()
        .unwrap()
        .iter()
        .find(|figure| figure["figure"] == "p99_us")
        .unwrap();
    assert_eq!(p99["verdict"], "lower");
    let page = include_str!("../../../docs/reference/commands/diff.md");
    for name in chain.as_object().unwrap().keys().chain(p99.as_object().unwrap().keys()) {
        assert!(page.contains(name), "{name}");
    }

    // Copies show nothing of how runs vary: they count as one.
    let (code, json, notices) = diff(&[&"--before", &a, &a, &a, &"--after", &d, &d, &d, &"-o", &"json"]);
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    let chain = &document["chains"][0];
    let counted = (&chain["method"], &chain["runs_before"], &chain["runs_after"]);
    assert_eq!(
        (code, counted),
        (Some(1), (&"block-bootstrap".into(), &1.into(), &1.into()))
    );
    assert_eq!(
        notices.matches("given 3 times, or copied: counted as one run").count(),
        2,
        "{notices}"
    );
    let (code, table, notices) = diff(&[
        &"--tolerance",
        &"1e-9%",
        &"--before",
        &a,
        &b,
        &c,
        &"--after",
        &c,
        &a,
        &b,
    ]);
    assert_eq!(code, Some(0), "{table}");
    assert_eq!(notices.matches("have the same content").count(), 3, "{notices}");

    other["chain"] = "another".into();
    let another = folder.write("another.json", other.to_string());
    other["timeline"].as_object_mut().unwrap().remove("list");
    let old = folder.write("old.json", other.to_string());
    let rack = folder.write("rack.json", "{\"rack\": \"r\"}");
    for (second, expected) in [
        (
            &another,
            "expected runs of the same chains, found test before and another after",
        ),
        (&old, "old.json:1:"),
        (&rack, "rack.json: expected a measured run, found a simulation"),
        (&folder.path("missing.json"), "missing.json: cannot be read"),
    ] {
        let (code, stdout, stderr) = diff(&[&before, second]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{stderr}");
    }
}
