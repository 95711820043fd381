//! `tailwater simulate` with small racks and little traffic.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tailwater_sim::policies::comparable;

/// Writes a rack of two servers with a chain on each kind of traffic.
fn rack(folder: &Folder, more: &str) -> PathBuf {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {{name: test}}\nspec:\n  \
         servers: [{{count: 2, cores: 8}}]\n  duration: 20ms\n  chains:\n    - name: first\n      \
         slo: 200us\n      costs: {{batchNanoseconds: 320, packetNanoseconds: 490}}\n      \
         traffic: {{source: bursty}}\n{more}"
    );
    folder.write("rack.yaml", text)
}

/// Returns a simulation's output, and asserts that there are no notices.
fn simulated(rack: &Path, more: &[&str]) -> String {
    let output = simulation(rack, more);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(stderr, "");
    text(&output.stdout)
}

fn document(rack: &Path, more: &[&str]) -> serde_json::Value {
    let more = [more, &["--output", "json"]].concat();
    serde_json::from_str(&simulated(rack, &more)).unwrap()
}

#[test]
fn a_table_has_a_row_for_each_policy_in_order() {
    let folder = Folder::new();
    let table = simulated(&rack(&folder, ""), &[]);
    assert!(table.starts_with("rack test: 2 servers, 16 cores\n"), "{table}");
    assert!(table.contains("SLO: 99 % within 200us"), "{table}");
    let (_, rows) = table.split_once("\npolicy ").expect("the heading");
    let (rows, oracle) = rows.split_once("\n\n").expect("the oracle's line");
    let rows = rows.lines().skip(1);
    let names: Vec<_> = rows.filter_map(|row| row.split(' ').next()).collect();
    let known: Vec<_> = comparable().collect();
    assert_eq!(names, known);
    assert!(oracle.starts_with("oracle: at least "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 125), "{table}");
}

#[test]
fn the_order_is_that_of_the_list() {
    let folder = Folder::new();
    let rack = rack(&folder, "  policies: [static, metron]\n");
    let names = |document: serde_json::Value| -> Vec<String> {
        let runs = document["runs"].as_array().unwrap().clone();
        let name = |run: &serde_json::Value| run["policy"].as_str().unwrap().to_owned();
        runs.iter().map(name).collect()
    };
    assert_eq!(names(document(&rack, &[])), ["static", "metron"]);
    let list = ["--policy", "tailwater,dyssect,netblaze"];
    assert_eq!(names(document(&rack, &list)), ["tailwater", "dyssect", "netblaze"]);
}

/// The bound is listed last, is below all policies that meet the objective, and can be the only one.
#[test]
fn the_oracle_is_a_bound_on_cores() {
    let folder = Folder::new();
    let rack = rack(&folder, "  policies: [oracle, static, tailwater]\n");
    let both = document(&rack, &[]);
    let bound = |name: &str| both["bounds"][0]["cores"][name].as_f64().unwrap();
    assert!(bound("average") > 0.0);
    let runs = both["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["chains"][0]["slo_met"], true);
        let cores = |name: &str| run["cores"][name].as_f64().unwrap();
        assert!(cores("average") >= bound("average"), "{both}");
        assert!(cores("most") >= bound("most"), "{both}");
        let chain = &both["bounds"][0]["chains"][0];
        assert_eq!(run["chains"][0]["packets"]["offered"], chain["packets"]);
        assert_eq!(run["chains"][0]["packets"]["flows"], chain["flows"]);
    }
    let alone = document(&rack, &["--policy", "oracle"]);
    assert_eq!(alone["runs"], serde_json::json!([]));
    assert_eq!(alone["bounds"], both["bounds"]);
    let table = simulated(&rack, &["--policy", "oracle"]);
    assert!(table.contains("chain first: bursty, "), "{table}");
    let without = document(&rack, &["--policy", "static"]);
    assert_eq!(without["bounds"], serde_json::json!([]));
    // A flow that alone is too much for the objective.
    let frame = udp(client(1), 5000, SERVER, 53);
    let whale: Vec<_> = (0..2000).map(|i| (i * 200, frame.clone())).collect();
    let capture = folder.capture("whale.pcap", &whale);
    let more = ["--policy", "oracle", "--traffic", capture.to_str().unwrap()];
    assert!(simulated(&rack, &more).contains("no policy meets it"));
}

/// Two chains, one of which is steered to servers and offloaded to auxiliary cores.
#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let folder = Folder::new();
    let second = "    - name: second\n      slo: 500us\n      \
                  costs: {packetNanoseconds: 1400}\n      traffic: {source: smooth}\n";
    let rack = rack(&folder, second);
    let page = folder.path("report.html");
    let report = ["--report", page.to_str().unwrap()];
    let more = [&["--policy", "netblaze,oracle,static"], &report[..]].concat();
    let document = document(&rack, &more);
    assert_eq!(document["runs"].as_array().unwrap().len(), 2);
    let run = &document["runs"][0];
    let chains = run["chains"].as_array().unwrap();
    let names: Vec<_> = chains.iter().map(|chain| chain["chain"].clone()).collect();
    assert_eq!(names, ["first", "second"]);
    for chain in chains {
        let [offered, delivered, lost] =
            ["offered", "delivered", "lost"].map(|name| chain["packets"][name].as_u64().unwrap());
        assert!(offered > 0);
        assert_eq!(offered, delivered + lost);
    }
    let maps = [
        "runs[].chains[].packets.lost_by_reason",
        "runs[].chains[].late_by_cause",
    ];
    let page = include_str!("../../../docs/reference/commands/simulate.md");
    assert_eq!(fields(&document, &maps), documented(page, "## JSON"));
}

/// CSV has the documented columns, with the figures of the JSON document.
#[test]
fn csv_has_a_row_for_each_chain_of_each_run() {
    let folder = Folder::new();
    let second = "    - name: second\n      slo: 500us\n      \
                  costs: {packetNanoseconds: 1400}\n      traffic: {source: 'a,b.pcap'}\n";
    folder.capture("a,b.pcap", &mixture(500));
    let rack = rack(&folder, second);
    let more = ["--policy", "oracle,tailwater,static"];
    let document = document(&rack, &more);
    let csv = simulated(&rack, &[&more[..], &["--output", "csv"]].concat());
    let rows: Vec<Vec<String>> = csv.lines().map(cells).collect();
    let page = include_str!("../../../docs/reference/commands/simulate.md");
    let names: BTreeSet<String> = rows[0].iter().cloned().collect();
    assert_eq!(names.len(), rows[0].len());
    assert_eq!(names, documented(page, "## CSV"));
    let get = |row: &[String], name: &str| {
        let column = rows[0].iter().position(|other| other == name);
        row[column.expect(name)].clone()
    };
    let wanted = ["tailwater", "tailwater", "static", "static"];
    let chains = ["first", "second", "first", "second"];
    assert_eq!(rows.len(), 7);
    for (number, row) in rows[5..].iter().enumerate() {
        assert_eq!(row.len(), rows[0].len());
        assert_eq!(get(row, "policy"), "oracle");
        let chain = &document["bounds"][0]["chains"][number];
        assert_eq!(get(row, "cores_total"), chain["cores"].to_string());
        assert_eq!(get(row, "offered"), chain["packets"].to_string());
        assert_eq!(get(row, "p99_us"), "");
    }
    for (number, row) in rows[1..5].iter().enumerate() {
        assert_eq!(row.len(), rows[0].len());
        assert_eq!(get(row, "policy"), wanted[number]);
        assert_eq!(get(row, "chain"), chains[number]);
        let run = &document["runs"][number / 2];
        let chain = &run["chains"][number % 2];
        assert_eq!(get(row, "seed"), run["seed"].to_string());
        assert_eq!(get(row, "traffic"), chain["traffic"].as_str().unwrap());
        assert_eq!(get(row, "p99_us"), chain["latency_us"]["p99"].to_string());
        let late = &chain["late_by_cause"]["queued-behind-others"];
        assert_eq!(get(row, "late_queued-behind-others"), late.to_string());
        assert_eq!(get(row, "lost_switch-table"), "0");
    }
}

/// Returns the cells of a line of CSV.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

#[test]
fn every_flag_and_field_of_a_rack_is_documented() {
    let page = include_str!("../../../docs/reference/commands/simulate.md");
    let help = run(&[&"simulate", &"--help"]);
    let help = text(&help.stdout);
    for flag in help.split_whitespace().filter(|word| word.starts_with("--")) {
        let flag = flag.trim_end_matches([',', '.']);
        if !matches!(flag, "--help") {
            assert!(
                page.contains(flag),
                "{flag} is not in docs/reference/commands/simulate.md"
            );
        }
    }
    for name in comparable() {
        assert!(help.contains(name), "{name} is not in the help");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = Folder::new();
    let rack = rack(&folder, "");
    let run = |more: &[&str]| simulated(&rack, &[more, &["--output", "json"]].concat());
    let both = run(&["--policy", "netblaze,tailwater", "--seed", "7"]);
    assert_eq!(both, run(&["--policy", "netblaze,tailwater", "--seed", "7"]));
    assert_ne!(both, run(&["--policy", "netblaze,tailwater", "--seed", "8"]));
    // A policy's result does not depend on the others.
    let both: serde_json::Value = serde_json::from_str(&both).unwrap();
    let alone = document(&rack, &["--policy", "tailwater", "--seed", "7"]);
    assert_eq!(both["runs"][1], alone["runs"][0]);
}

/// Runs are ordered by policy, objective and seed, and equal on one core and on all.
#[test]
fn a_sweep_has_all_runs_in_order_on_any_number_of_cores() {
    let folder = Folder::new();
    // The second chain's packets are the same for all seeds.
    let second = "    - {name: second, slo: 1ms, costs: {packetNanoseconds: 1400}, \
                  traffic: {source: smooth, seed: 5}}\n";
    let rack = rack(&folder, second);
    let list = ["--policy", "tailwater,static", "--slo", "300us,100us"];
    let more = [&list[..], &["--seed", "3,1", "--duration", "5ms"]].concat();
    let sweep = document(&rack, &more);
    let runs = sweep["runs"].as_array().unwrap();
    let mut wanted = Vec::new();
    for policy in ["tailwater", "static"] {
        for slo in [300.0, 100.0] {
            wanted.extend([3, 1].map(|seed| (policy, slo, seed)));
        }
    }
    let named = |run: &'_ serde_json::Value| {
        let slos: Vec<_> = run["chains"].as_array().unwrap().iter().collect();
        assert_eq!(slos[0]["slo_us"], slos[1]["slo_us"]);
        let policy = run["policy"].as_str().unwrap().to_owned();
        (policy, slos[0]["slo_us"].as_f64(), run["seed"].as_u64())
    };
    let found: Vec<_> = runs.iter().map(named).collect();
    let wanted = wanted
        .into_iter()
        .map(|(policy, slo, seed)| (policy.to_owned(), Some(slo), Some(seed)));
    assert_eq!(found, wanted.collect::<Vec<_>>());
    let offered = |run: usize, chain: usize| runs[run]["chains"][chain]["packets"].clone();
    assert_ne!(offered(0, 0)["flows"], offered(1, 0)["flows"]);
    assert_eq!(offered(0, 1)["offered"], offered(1, 1)["offered"]);
    // A single run has the same result.
    let alone = ["--policy", "static", "--slo", "100us", "--seed", "1"];
    let alone = [&alone[..], &["--duration", "5ms"]].concat();
    assert_eq!(document(&rack, &alone)["runs"][0], runs[7]);
    for output in ["json", "csv", "table"] {
        let more = [&more[..], &["--output", output]].concat();
        let one_core = Command::new("taskset")
            .args(["-c", "0", env!("CARGO_BIN_EXE_tailwater"), "simulate"])
            .arg(&rack)
            .args(&more)
            .output()
            .unwrap();
        assert!(text(&one_core.stdout) == simulated(&rack, &more), "{output}");
    }
    let table = simulated(&rack, &more);
    assert_eq!(table.matches("\nchain first").count(), 2);
    assert_eq!(table.matches("\nchain second").count(), 2);
    assert_eq!(table.matches("\ntailwater  ").count(), 8);
    assert!(table.contains("flows with seed 3; SLO: 99 % within 300us"), "{table}");
}

#[test]
fn flags_replace_what_the_rack_says() {
    let folder = Folder::new();
    let rack = rack(&folder, "");
    let capture = folder.capture("in.pcap", &mixture(1000));
    let capture = capture.to_str().unwrap();
    let all = ["--policy", "static", "--traffic", capture, "--duration", "1m"];
    let whole = document(&rack, &all);
    let chain = &whole["runs"][0]["chains"][0];
    assert_eq!(chain["packets"]["offered"], 1000);
    assert_eq!(chain["slo_us"], 200.0);
    // Packets are 100 us apart, so the rack's 20 ms have 200 of them.
    let part = ["--policy", "static", "--traffic", capture, "--slo", "300us"];
    let part = document(&rack, &part);
    let chain = &part["runs"][0]["chains"][0];
    assert_eq!(chain["packets"]["offered"], 200);
    assert_eq!(chain["slo_us"], 300.0);
}

#[test]
fn wrong_input_is_refused_simulation() {
    let folder = Folder::new();
    refused_simulation(
        &rack(&folder, "  sed: 1\n"),
        &[],
        "rack.yaml:12:3: spec.sed: expected one of the fields model, servers, coreSharing, switch, timing, ingress, \
         chains, policies, duration, warmUp, window, seed, found \"sed\"; did you mean \"seed\"?",
    );
    let warm = rack(&folder, "  warmUp: 10ms\n");
    refused_simulation(
        &warm,
        &["--duration", "5ms"],
        "spec.warmUp: expected less than the 5ms in which packets arrive, found 10ms",
    );
    let capture = folder.capture("short.pcap", &mixture(10));
    // The duration of a whole capture is known only at its end.
    let whole = std::fs::read_to_string(rack(&folder, "  warmUp: 10s\n")).unwrap();
    refused_simulation(
        &folder.write("rack.yaml", whole.replace("  duration: 20ms\n", "")),
        &["--traffic", capture.to_str().unwrap(), "--policy", "static"],
        "spec.warmUp: expected less than the time in which packets arrive",
    );
    refused_simulation(&folder.path("missing.yaml"), &[], "missing.yaml: cannot be read");
    refused_simulation(&folder.forward(), &[], "kind: expected Rack, found \"Chain\"");
    let good = rack(&folder, "");
    for (more, expected) in [
        (["--policy", "metro"], "did you mean \"metron\"?"),
        (["--policy", ""], "unknown policy \"\""),
        (["--traffic", "backbon"], "did you mean \"backbone\"?"),
        (["--slo", "1ns"], "--slo"),
        (["--slo", "11s"], "--slo"),
        (["--duration", "0s"], "--duration"),
        (["--seed", "x"], "expected a whole number from 0 to"),
        (["--seed", "1,2,"], "--seed"),
        (["--seed", "1,2,1"], "--seed: expected different values, found 1 twice"),
        (
            ["--slo", "1ms,1000us"],
            "--slo: expected different values, found 1ms twice",
        ),
        (["--slo", "100us,1"], "--slo"),
        (["--policy", "static,static"], "found static twice"),
        (["--output", "xml"], "--output"),
    ] {
        refused_simulation(&good, &more, expected);
    }
    let empty = folder.write("empty.pcap", "");
    refused_simulation(&good, &["--traffic", empty.to_str().unwrap()], "empty.pcap");
    // More chains than a server has cores.
    let text = std::fs::read_to_string(&good).unwrap();
    let text = text.replace("{count: 2, cores: 8}", "{cores: 1}");
    let second = "    - {name: b, slo: 1ms, costs: {packetNanoseconds: 1}, traffic: {source: as}}\n";
    let crowded = folder.write("crowded.yaml", text + second);
    refused_simulation(&crowded, &[], "a core for each on every server; found 2 chains");
}

#[test]
fn an_interrupted_comparison_tells_what_is_done() {
    let folder = Folder::new();
    // More packets than any machine simulates meanwhile.
    let child = tailwater()
        .arg("simulate")
        .arg(rack(&folder, ""))
        .args(["--duration", "50m", "--output", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_signals_are_handled(&child);
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(0));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["interrupted"], true);
    assert_eq!(document["runs"].as_array().map(Vec::len), Some(0));
    assert!(text(&output.stderr).contains("interrupted: 0 of 16 runs"));
}
