//! `tailwater simulate --model flows`.

mod common;

use common::*;
use std::path::PathBuf;

/// Writes a rack of six servers with five chains on two kinds of traffic.
fn rack(folder: &Folder, more: &str) -> PathBuf {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {{name: test}}\nspec:\n  model: flows\n  \
         servers: [{{count: 6, cores: 8}}]\n  duration: 2s\n  warmUp: 1s\n  chains:\n    - name: first\n      \
         count: 3\n      servers: 1\n      slo: 200us\n      costs: {{batchNanoseconds: 320, packetNanoseconds: 490}}\n      \
         traffic: {{source: backbone}}\n    - name: second\n      count: 2\n      servers: 2\n      slo: 500us\n      \
         costs: {{packetNanoseconds: 900}}\n      traffic: {{source: as, flowsScale: 2}}\n{more}"
    );
    folder.write("rack.yaml", text)
}

fn output(rack: &std::path::Path, more: &[&str]) -> String {
    let output = simulation(rack, more);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_table_has_totals_and_chains_and_json_all_of_them() {
    let folder = Folder::new();
    let rack = rack(&folder, "");
    let table = output(&rack, &["--policy", "static,tailwater"]);
    assert!(
        table.starts_with("rack test: 6 servers, 48 cores; flow-level model"),
        "{table}"
    );
    assert!(table.contains("5 chains, "), "{table}");
    assert!(
        table.contains("\nstatic, seed 1:\n") && table.contains("\nfirst-3 "),
        "{table}"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 125), "{table}");
    let more = ["--policy", "static,tailwater", "--output", "json", "--seed", "1,2"];
    let json = output(&rack, &more);
    assert_eq!(json, output(&rack, &more), "equal inputs give equal bytes");
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["model"], "flows");
    let runs = document["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        let chains = run["chains"].as_array().unwrap();
        let names: Vec<_> = chains.iter().map(|chain| chain["chain"].as_str().unwrap()).collect();
        assert_eq!(names, ["first-1", "first-2", "first-3", "second-1", "second-2"]);
        for chain in chains {
            let count = |name: &str| chain["packets"][name].as_u64().unwrap();
            assert_eq!(count("offered"), count("delivered") + count("lost"));
            assert!(count("offered") > 100_000);
        }
    }
    // Of six servers with eight cores the first has two chains.
    let cores = |run: usize, chain: usize| runs[run]["chains"][chain]["cores"]["total"].as_f64().unwrap();
    assert_eq!(
        (cores(0, 0), cores(0, 1), cores(0, 3), cores(0, 4)),
        (4.0, 8.0, 16.0, 12.0)
    );
    assert!(cores(2, 3) < 8.0, "tailwater uses what it needs");
    let csv = output(&rack, &["--policy", "static", "--output", "csv"]);
    assert_eq!(csv.lines().count(), 6);
}

#[test]
fn what_requires_packets_is_refused() {
    let folder = Folder::new();
    let good = rack(&folder, "");
    for (more, expected) in [
        (["--find", "servers"], "--find: expected --model packets"),
        (["--resume", "runs.jsonl"], "--resume: expected --model packets"),
        (["--policy", "quadrant"], "places single flows"),
        (["--policy", "oracle"], "or is the bound"),
        (["--model", "packets"], "expected model: flows with this field"),
        (["--model", "floes"], "expected packets or flows"),
        (["--duration", "2h"], "--duration"),
    ] {
        refused_simulation(&good, &more, expected);
    }
    let capture = folder.capture("short.pcap", &mixture(10));
    let more = ["--traffic", capture.to_str().unwrap()];
    refused_simulation(&good, &more, "expected a preset at flow level");
    let short = rack(&folder, "  window: 100us\n");
    assert!(
        output(&short, &["--policy", "static"]).contains("5 chains"),
        "windows are of whole milliseconds"
    );
}
