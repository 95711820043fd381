//! `tailwater doctor` on this machine, whatever its state.

mod common;

use common::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Output, Stdio};

/// Returns the output, and `true` for exit code 0 rather than 3.
fn doctor(args: &[&str]) -> (String, bool) {
    let Output { status, stdout, stderr } = tailwater().arg("doctor").args(args).output().unwrap();
    assert!(stderr.is_empty(), "{}", text(&stderr));
    let realistic = match status.code() {
        Some(0) => true,
        Some(3) => false,
        other => panic!("exit code {other:?}"),
    };
    (text(&stdout).to_owned(), realistic)
}

/// Collects the names of all fields, at any depth.
fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            into.extend(fields.keys().cloned());
            fields.values().for_each(|value| names(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}

#[test]
fn a_report_for_programs_has_the_documented_fields() {
    let (json, realistic) = doctor(&["--output", "json", "--duration", "50ms", "--slo", "1ms"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["verdict"]["realistic"], realistic);
    assert_eq!(report["verdict"]["slo_us"], 1000.0);
    let mut found = BTreeSet::new();
    names(&report, &mut found);
    let page = include_str!("../../../docs/reference/commands/doctor.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| Some(line.split_once('`')?.0.to_owned()))
        .filter_map(|path| Some(path.rsplit(['.', ']']).next()?.to_owned()))
        .collect();
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(
        missing.is_empty(),
        "not in docs/reference/commands/doctor.md: {missing:?}"
    );
}

#[test]
fn every_check_is_documented() {
    let (json, _) = doctor(&["--output", "json", "--duration", "50ms"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    let page = include_str!("../../../docs/reference/commands/doctor.md");
    for finding in report["findings"].as_array().unwrap() {
        let check = finding["check"].as_str().unwrap();
        assert!(page.contains(&format!("| {check} |")), "{check}");
    }
}

#[test]
fn a_report_for_people_ends_with_the_verdict() {
    let (table, realistic) = doctor(&["--no-measuring", "--slo", "5ms"]);
    let last = table.lines().last().unwrap();
    let (start, _) = last.split_once(" realistic: ").unwrap();
    assert!(start.starts_with("p99 within 5000 us on cores "), "{last}");
    assert_eq!(start.ends_with("is not"), !realistic);
    // Nothing was measured.
    assert!(!table.contains("scheduling-gaps"), "{table}");
}

#[test]
fn wrong_values_are_refused() {
    for (args, expected) in [
        (["--slo", "fast"], "expected a duration"),
        (["--cores", "4095"], "core 4095 is not available"),
        (["--duration", "1ns"], "expected a duration from"),
    ] {
        let output = tailwater().arg("doctor").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

/// A part of the measurements gave a verdict, and exit code 3.
#[test]
fn an_interrupted_diagnosis_says_which_checks_were_not_done() {
    let mut command = tailwater();
    command.args(["doctor", "--duration", "60s"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until_signals_are_handled(&child);
    let output = interrupt(child);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "error: interrupted: the checks scheduling-gaps and memory-latency were not done; there is no \
                    verdict\n";
    assert_eq!((text(&output.stderr), output.stdout.len()), (expected.to_owned(), 0));
}

/// Nothing is changed without consent: there is no terminal here.
#[test]
fn changes_are_listed_and_not_made_without_consent() {
    let (table, _) = doctor(&["--no-measuring", "--slo", "5ms", "--fix"]);
    let (_, fixes) = table.split_once("\nChanges (--fix)\n").expect("the changes");
    assert!(!fixes.contains("  done ") && !fixes.contains("FAILED"), "{fixes}");
    // Each outcome is explained.
    for mark in ["not made ", "by hand ", "elsewhere "] {
        let line = |start: &str| fixes.lines().any(|line| line.starts_with(&format!("{start}{mark}")));
        assert_eq!(line("  "), line(""), "{fixes}");
    }
    let (json, _) = doctor(&["--no-measuring", "--fix", "--output", "json", "--slo", "5ms"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    for fix in report["fixes"].as_array().unwrap() {
        let status = fix["status"].as_str().unwrap();
        assert!(["not-made", "by-hand", "elsewhere"].contains(&status), "{fix}");
        assert!(!fix["command"].as_str().unwrap().is_empty(), "{fix}");
        let page = include_str!("../../../docs/reference/commands/doctor.md");
        fix.as_object().unwrap().keys().for_each(|name| {
            assert!(page.contains(&format!("| `fixes[].{name}` |")), "{name}");
        });
    }
    let output = tailwater()
        .args(["doctor", "--no-measuring", "--fix", "--only", "hugepages"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no check \"hugepages\"; expected one of"));
    let output = tailwater().args(["doctor", "--yes"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "--yes alone changes nothing");
}
