//! `tailwater demo`, end to end.

mod common;

use common::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Output;

fn demo(args: &[&str]) -> Output {
    tailwater().arg("demo").args(args).output().unwrap()
}

/// Output of a simulated demonstration.
fn simulated(more: &[&str]) -> Value {
    let args = [&["--simulate", "--seconds", "0.1", "--output", "json"], more].concat();
    let output = demo(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn set(names: &str) -> BTreeSet<&str> {
    names.split_whitespace().collect()
}

/// Checks that three policies account for all packets, and that the verdict names them.
fn assert_compared(document: &Value) {
    let policies = document["policies"].as_array().unwrap();
    let of = |name: &str| -> Vec<&Value> { policies.iter().map(|policy| &policy[name]).collect() };
    assert_eq!(of("policy"), ["static", "netblaze", "tailwater"]);
    let whole = |policy: &Value, name: &str| policy[name].as_u64().unwrap();
    for policy in policies {
        let sum: u64 = ["delivered", "dropped", "lost"]
            .iter()
            .map(|name| whole(policy, name))
            .sum();
        assert_eq!(sum, whole(policy, "offered"), "{policy}");
        assert!(whole(policy, "offered") > 0);
        let windows = whole(policy, "windows_with_interference") + whole(policy, "windows_judged");
        assert_eq!(windows, whole(policy, "windows"));
        assert_eq!(policy["over_time"].as_array().unwrap().len() as u64, windows);
        assert!(whole(policy, "windows_kept") <= whole(policy, "windows_judged"));
    }
    assert_eq!(of("auxiliary_core_s")[0], 0.0, "one core alone has no help");
    let verdict = document["verdict"].as_str().unwrap();
    for part in ["on one core", "with NetBlaze's policy", "Tailwater's"] {
        assert!(verdict.contains(part), "{verdict}");
    }
}

#[test]
fn a_simulated_demonstration_is_the_same_each_time() {
    let document = simulated(&[]);
    assert_compared(&document);
    assert_eq!(
        (&document["simulated"], &document["because"]),
        (&true.into(), &"--simulate".into())
    );
    assert_eq!(document["machine"], Value::Null);
    assert!(document == simulated(&[]));
}

/// Field names are stable.
#[test]
fn fields_have_their_names() {
    let document = simulated(&[]);
    let fields = "chain traffic simulated because machine slo one_core_pps offered_pps busiest seconds window_ms \
                  policies verdict";
    assert_eq!(names(&document), set(fields));
    assert_eq!(names(&document["slo"]), set("latency_us network_us percentile"));
    assert_eq!(names(&document["busiest"]), set("ms pps"));
    let policy = &document["policies"][0];
    let fields = "policy title latency_us offered delivered dropped lost late windows windows_with_interference \
                  windows_judged windows_kept in_time kept dedicated_core_s auxiliary_core_s over_time";
    assert_eq!(names(policy), set(fields));
    assert_eq!(names(&policy["latency_us"]), set("p50 p90 p99 p999 max mean"));
    let fields = "start_s p50_us p99_us max_us lost interference kept";
    assert_eq!(names(&policy["over_time"][0]), set(fields));
}

/// The mean load is well below one core's saturated rate, and the bursts are above it.
#[test]
fn the_load_is_a_part_of_what_one_core_takes() {
    let document = simulated(&["--traffic", "backbone"]);
    assert_compared(&document);
    let number = |value: &Value| value.as_f64().unwrap();
    let one_core = number(&document["one_core_pps"]);
    assert!(number(&document["offered_pps"]) < 0.8 * one_core, "{document}");
    assert!(number(&document["busiest"]["pps"]) > one_core, "{document}");
}

#[test]
fn the_table_has_a_column_for_each_policy_and_says_what_it_is() {
    let output = demo(&["--simulate", "--seconds", "0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let line = |starts: &str| {
        table
            .lines()
            .find(|line| line.starts_with(starts))
            .unwrap_or_else(|| panic!("{table}"))
    };
    assert!(line("chain acl-urlfilter-encrypt, traffic bursty").contains("simulated"));
    for title in ["one static core", "NetBlaze + 1 auxiliary", "Tailwater + 1 auxiliary"] {
        assert!(line("(simulated)").contains(title), "{table}");
    }
    for row in [
        "latency p50",
        "latency p99",
        "in time (within ",
        "objective ",
        "objective kept in ",
        "lost ",
        "dedicated core time",
        "auxiliary core time",
    ] {
        line(row);
    }
    assert!(
        table
            .trim_end()
            .lines()
            .last()
            .unwrap()
            .contains("(99 % is the objective)"),
        "{table}"
    );
}

#[test]
fn a_page_shows_what_is_printed() {
    let folder = Folder::new();
    let file = folder.path("demo.html");
    let printed = simulated(&["--report", file.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let (_, rest) = page.split_once("id=\"report\">").unwrap();
    let embedded: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    assert!(embedded == printed);
    for part in [
        "99th percentile over time",
        "99th percentile of all packets",
        "auxiliary core time",
        "kind: Chain",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("000102030405060708090a0b0c0d0e0f"),
        "keys are for nobody to see"
    );
}

/// On a machine where nothing can be measured the table is the simulator's, and the first line says so.
#[test]
fn a_live_demonstration_ends_with_a_table() {
    let output = demo(&["--seconds", "0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("Tailwater + 1 auxiliary"), "{table}");
    match table.starts_with("simulated: ") {
        true => assert!(table.contains("(simulated)"), "{table}"),
        false => assert!(table.contains("windows with CPU interference"), "{table}"),
    }
}

#[test]
fn wrong_input_is_refused_in_a_line() {
    let folder = Folder::new();
    let chain = folder.forward();
    let chain = chain.to_str().unwrap();
    let before = std::fs::read(chain).unwrap();
    let state = "  state: {redis: {socket: /nowhere}}\n";
    let stored = folder.spec("state.yaml", "[{nat: {external: [203.0.113.0/28]}}]", state);
    for (args, expected) in [
        (&["missing.yaml"][..], "missing.yaml"),
        (&["--traffic", "nothing"], "neither a capture file nor a traffic preset"),
        (&["--seconds", "0"], "expected seconds from 0.1 to 60"),
        (&["--slo", "1ns"], "expected a duration from"),
        (&[chain, "--report", chain], "would overwrite the input"),
        (&["--report", "/nowhere/demo.html"], "cannot write"),
        (&[stored.to_str().unwrap()], "spec.state"),
    ] {
        assert_refused(&demo(args), expected);
    }
    assert_eq!(std::fs::read(chain).unwrap(), before);
}
