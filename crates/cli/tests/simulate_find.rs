//! `tailwater simulate --find`, end to end.

mod common;

use common::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Writes a rack of servers with two cores, and a chain of 5 us per packet.
fn rack(folder: &Folder, servers: usize) -> PathBuf {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {{name: test}}\nspec:\n  \
         servers: [{{count: {servers}, cores: 2}}]\n  duration: 10ms\n  chains:\n    - name: first\n      \
         slo: 2ms\n      costs: {{batchNanoseconds: 320, packetNanoseconds: 4900}}\n      \
         traffic: {{source: bursty, rateScale: 4}}\n"
    );
    folder.write(&format!("rack-{servers}.yaml"), text)
}

/// Writes the same with a quarter of the traffic, which one server can process.
fn slow(folder: &Folder) -> PathBuf {
    let text = std::fs::read_to_string(rack(folder, 2)).unwrap();
    folder.write("slow.yaml", text.replace("rateScale: 4", "rateScale: 1"))
}

fn printed(rack: &Path, more: &[&str]) -> String {
    let output = simulation(rack, more);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    text(&output.stdout)
}

fn document(rack: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&printed(rack, &[more, &["--output", "json"]].concat())).unwrap()
}

/// Returns `true` if a plain simulation meets all objectives.
fn holds(rack: &Path, more: &[&str]) -> bool {
    let document = document(rack, more);
    let chains = document["runs"][0]["chains"].as_array().unwrap();
    chains.iter().all(|chain| chain["slo_met"] == true)
}

/// The tried values agree with plain simulations, and there is no value between the answer and the next one that does
/// not hold.
#[test]
fn the_fewest_servers_are_where_trying_all_finds_a_boundary() {
    let folder = Folder::new();
    let policy = ["--policy", "static"];
    let more = [&policy[..], &["--find", "servers", "--seed", "1,2,3"]].concat();
    let (mut plain, mut ended_early) = (BTreeMap::new(), 0);
    for start in [1, 5] {
        let found = document(&rack(&folder, start), &more);
        let search = &found["searches"][0];
        let seeds = search["seeds"].as_array().unwrap();
        let mut values = Vec::new();
        for of_seed in seeds {
            let seed = of_seed["seed"].to_string();
            let mut holds = |servers: u64| {
                let more = [&policy[..], &["--seed", &seed]].concat();
                let tried = plain.entry((seed.clone(), servers));
                *tried.or_insert_with(|| holds(&rack(&folder, servers as usize), &more))
            };
            let value = of_seed["value"].as_f64().unwrap() as u64;
            assert!(holds(value) && !holds(value - 1), "{value} with seed {seed}");
            let tried = of_seed["tried"].as_array().unwrap();
            let mut outcomes = Vec::new();
            for tried in tried {
                let servers = tried["value"].as_f64().unwrap() as u64;
                assert_eq!(tried["holds"], holds(servers), "{servers} with seed {seed}");
                ended_early += usize::from(tried["complete"] == false);
                outcomes.push(holds(servers));
            }
            assert_eq!(of_seed["monotone"], outcomes.is_sorted());
            assert_eq!(of_seed["holds_at_answer"], holds(answer(search) as u64));
            values.push(value);
        }
        values.sort_unstable();
        assert_eq!(answer(search), values[1] as f64);
        let ends = [&search["hardest"], &search["easiest"]].map(|end| end.as_f64().unwrap());
        assert_eq!(ends, [values[0], values[2]].map(|end| end as f64));
        let holding = seeds.iter().filter(|seed| seed["holds_at_answer"] == true);
        assert_eq!(search["seeds_holding"], holding.count());
    }
    assert!(ended_early > 0, "what clearly does not hold is ended early");
}

fn answer(search: &Value) -> f64 {
    search["answer"].as_f64().unwrap()
}

/// Returns the answer of the first seed, and the next harder value that was tried.
fn answer_and_harder(found: &Value) -> (f64, f64) {
    let seed = &found["searches"][0]["seeds"][0];
    let answer = seed["value"].as_f64().unwrap();
    let tried = seed["tried"].as_array().unwrap();
    let place = tried.iter().position(|one| one["value"] == answer).unwrap();
    (answer, tried[place - 1]["value"].as_f64().unwrap())
}

fn assert_step(ratio: f64) {
    assert!((1.005..1.02).contains(&ratio), "{ratio}");
}

/// The answer holds and the next harder value does not, also in plain simulations.
#[test]
fn rates_and_objectives_are_found_to_a_step() {
    let folder = Folder::new();
    let rack = slow(&folder);
    let text = std::fs::read_to_string(&rack).unwrap();
    // For an objective, harder means shorter.
    let found = document(&rack, &["--find", "slo"]);
    let (answer, harder) = answer_and_harder(&found);
    assert_step(answer / harder);
    for (slo, expected) in [(answer, true), (harder, false)] {
        let slo = format!("{slo}us");
        let more = ["--policy", "tailwater", "--slo", &slo];
        assert_eq!(holds(&rack, &more), expected, "{slo}");
    }
    let found = document(&rack, &["--find", "rate", "--policy", "static"]);
    let (answer, harder) = answer_and_harder(&found);
    assert_step(harder / answer);
    for (rate, expected) in [(answer, true), (harder, false)] {
        let scaled = text.replace("rateScale: 1", &format!("rateScale: {rate}"));
        let scaled = folder.write("scaled.yaml", scaled);
        assert_eq!(holds(&scaled, &["--policy", "static"]), expected, "{rate}");
    }
}

#[test]
fn what_nothing_holds_says_why() {
    let folder = Folder::new();
    let table = printed(&rack(&folder, 1), &["--find", "servers", "--slo", "20us"]);
    let line = table.lines().last().unwrap();
    let says = "tailwater, 20us, seed 1: no number of servers up to 256 holds: with 256, chain first has p99 ";
    assert!(line.starts_with(says), "{table}");
    assert!(line.contains(" for an SLO of 20 us; the lowest p99 of all whole runs is "));
    assert!(table.contains("none  0 of 1           1: none"), "{table}");
    let found = document(&rack(&folder, 1), &["--find", "servers", "--slo", "20us"]);
    let search = &found["searches"][0];
    assert_eq!(search["answer"], Value::Null);
    assert_eq!(search["seeds"][0]["complete"], true);
    assert_eq!(found["interrupted"], false);
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let folder = Folder::new();
    let more = ["--find", "servers", "--policy", "static,tailwater", "--slo", "2ms,3ms"];
    let more = [&more[..], &["--seed", "1,2"]].concat();
    let rack = slow(&folder);
    let found = document(&rack, &more);
    let page = include_str!("../../../docs/reference/commands/simulate.md");
    assert_eq!(fields(&found, &[]), documented(page, "### Found, as JSON"));
    let csv = printed(&rack, &[&more[..], &["--output", "csv"]].concat());
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let names = rows[0].iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(documented(page, "### Found, as CSV"), names);
    assert_eq!(rows.len(), 1 + 2 * 2 * 2);
    assert_eq!(rows[1][..3], ["servers", "static", "2000.0"]);
    assert_eq!(rows[8][..3], ["servers", "tailwater", "3000.0"]);
    let last = &found["searches"][3]["seeds"][1];
    assert_eq!(rows[8][6], last["value"].to_string());
}

#[test]
fn searches_are_the_same_on_one_core_and_when_they_go_on() {
    let folder = Folder::new();
    let rack = rack(&folder, 2);
    let file = folder.path("runs.jsonl");
    let file = file.to_str().unwrap();
    let more = ["--find", "slo", "--seed", "1,2", "--output", "json"];
    let whole = printed(&rack, &more);
    let one_core = Command::new("taskset")
        .args(["-c", "0", env!("CARGO_BIN_EXE_tailwater"), "simulate"])
        .arg(&rack)
        .args(more)
        .args(["--resume", file])
        .output()
        .unwrap();
    assert!(text(&one_core.stdout) == whole);
    // Half of the runs are missing.
    let runs = std::fs::read_to_string(file).unwrap();
    let half: Vec<&str> = runs.lines().take(runs.lines().count() / 2).collect();
    std::fs::write(file, half.join("\n") + "\n").unwrap();
    assert!(printed(&rack, &[&more[..], &["--resume", file]].concat()) == whole);
    let again = std::fs::read_to_string(file).unwrap();
    assert_eq!(again.lines().count(), runs.lines().count());
}

#[test]
fn an_interrupted_search_tells_what_is_known() {
    let folder = Folder::new();
    let file = folder.path("runs.jsonl");
    let mut child = tailwater()
        .arg("simulate")
        .arg(rack(&folder, 2))
        // Each value doubles the packets: the search never ends.
        .args([
            "--find",
            "rate",
            "--policy",
            "static",
            "--slo",
            "10s",
            "--duration",
            "50ms",
        ])
        .arg("--resume")
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let runs = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    while runs() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("notice: interrupted"));
    let table = text(&output.stdout);
    assert!(table.contains("1: ?"), "{table}");
    assert!(table.contains("static, 10s, seed 1: interrupted: 1x "), "{table}");
}

#[test]
fn wrong_input_is_refused() {
    let folder = Folder::new();
    let rack = rack(&folder, 1);
    for (more, expected) in [
        (&["--find", "cores"][..], "invalid value 'cores' for '--find"),
        (
            &["--find", "slo", "--slo", "1ms"],
            "--slo: expected none with --find slo",
        ),
        (&["--find", "servers", "--report", "x.html"], "cannot be used with"),
        (
            &["--find", "servers", "--policy", "tailwatr"],
            "did you mean \"tailwater\"?",
        ),
        (
            &["--find", "rate", "--policy", "static,oracle"],
            "found oracle, which is a lower bound on cores",
        ),
        (&["--find", "servers", "--seed", "1,1"], "found 1 twice"),
    ] {
        refused_simulation(&rack, more, expected);
    }
}
