//! `tailwater validate` and wrong input of the commands about specs.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const SERVER: &str = "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {name: edge}\nspec:\n  cores: 1\n  \
                      ports: [{name: north, traffic: bursty}]\n";

fn chain(name: &str, latency: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: {name}}}\nspec:\n  \
         functions: [{{forward: }}]\n  slo: {{latency: {latency}}}\n"
    )
}

fn run(arguments: &[&str], input: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let program = program.args(arguments).stdin(Stdio::piped());
    let mut child = program
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // The program may end before it has read its input.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    child.wait_with_output().expect("its output")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Folder of a test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn all_documents_of_all_files_are_checked() {
    let folder = Folder::new("validate");
    let right = folder.write("right.yaml", &format!("# first\n{SERVER}---\n{}", chain("a", "1ms")));
    let wrong = format!("{}---\n{}--- # third\n{SERVER}", chain("b", "1ms"), chain("c", "fast"));
    let wrong = folder.write("wrong.yaml", &wrong);
    let rules = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: d}\nspec:\n  slo: {latency: 1ms}\n  \
                 functions: [{firewall: {rules: [allow tcp, permit udp, allow tpc]}}]\n";
    let rules = folder.write("rules.yaml", rules);
    let valid = run(&["validate", &right], "");
    assert_eq!(valid.status.code(), Some(0), "{}", errors(&valid));
    let printed = String::from_utf8_lossy(&valid.stdout).into_owned();
    assert_eq!(
        printed,
        format!("{right}: Server edge: valid\n{right}: Chain a: valid\n")
    );

    let arguments = ["validate", &right, &wrong, &rules, "missing.yaml", "-o", "json"];
    let output = run(&arguments, "");
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found: Vec<_> = report["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|error| {
            (
                error["file"].as_str().unwrap_or(""),
                error["line"].as_u64(),
                error["field"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            // Line 6 of the second document, which begins on line 7.
            (wrong.as_str(), Some(13), Some("spec.slo.latency")),
            (&rules, Some(6), Some("spec.functions[0].firewall.rules[1]")),
            (&rules, Some(6), Some("spec.functions[0].firewall.rules[2]")),
            ("missing.yaml", None, None),
        ]
    );
    let documents = report["documents"].as_array().expect("documents");
    let valid: Vec<_> = documents.iter().map(|document| document["valid"].as_bool()).collect();
    assert_eq!(valid, [true, true, true, false, true, false].map(Some));
    assert_eq!(report["valid"], false);
    // The same in lines.
    let output = run(&arguments[..5], "");
    let lines = errors(&output);
    assert_eq!((output.status.code(), lines.lines().count()), (Some(2), 4), "{lines}");
    assert!(
        lines.contains(&format!("{wrong}:13:18: spec.slo.latency: expected a duration")),
        "{lines}"
    );
}

#[test]
fn standard_input_is_checked() {
    let output = run(&["validate", "-"], &chain("a", "1ms"));
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    for (input, expected) in [
        ("", "expected a spec, found an empty document"),
        (
            "a: 1",
            "kind: missing, expected one of the kinds Chain, Server, SloSet, Cluster, Rack",
        ),
        ("kind: Chian", "found \"Chian\"; did you mean \"Chain\"?"),
        ("- a", "expected a map"),
        ("a: [", "not valid YAML"),
    ] {
        let output = run(&["validate", "-"], input);
        let lines = errors(&output);
        assert_eq!(
            (output.status.code(), lines.lines().count()),
            (Some(2), 1),
            "{input}: {lines}"
        );
        assert!(lines.contains(expected), "{input}: {lines}");
    }
}

#[test]
fn clusters_in_front_of_slos_are_known() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/place");
    let [cluster, slos] = ["measured-cluster.yaml", "measured.yaml"].map(|name| format!("{place}/{name}"));
    let output = run(&["validate", &cluster, &slos], "");
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let output = run(&["validate", &slos], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        errors(&output).contains("expected servers with hardware in the cluster"),
        "{}",
        errors(&output)
    );
}

/// A shared library of an isolated function is not loaded, and may be missing.
#[test]
fn code_of_isolated_functions_is_not_run() {
    let text = chain("a", "1ms").replace("{forward: }", "{program: {file: no-such-program}}");
    let output = run(&["validate", "-"], &format!("{text}  isolation: process\n"));
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}

#[test]
fn wrong_paths_and_kinds_are_one_line() {
    for (arguments, expected) in [
        (
            &["explain-spec", "chain.spec.slo.latncy"][..],
            "Chain.spec.slo: expected one of the fields latency, network, percentile, throughput, found \
             \"latncy\"; did you mean \"latency\"?",
        ),
        (
            &["explain-spec", "chain.spek"],
            "Chain: expected one of the fields apiVersion, kind, metadata, spec, found \"spek\"; did you mean \
             \"spec\"?",
        ),
        (
            &["explain-spec", "chain.spec.cores.first"],
            "Chain.spec.cores: expected no field below it, found \"first\"",
        ),
        (
            &["explain-spec", "chian"],
            "or with a function, found \"chian\"; did you mean \"chain\"?",
        ),
        (&["schema", "Rak"], "found \"Rak\"; did you mean \"Rack\"?"),
        (&["schema", "--structural"], "KIND"),
        (&["validate"], "FILES"),
    ] {
        let output = run(arguments, "");
        let lines = errors(&output);
        assert_eq!(
            (output.status.code(), lines.lines().count()),
            (Some(2), 1),
            "{arguments:?}: {lines}"
        );
        assert!(lines.contains(expected), "{arguments:?}: {lines}");
        assert!(output.stdout.is_empty());
    }
}
