//! The programs of a rack on Kubernetes, as far as they go without an API server.

#[path = "common/mod.rs"]
mod common;

use common::{assert_refused, tailwater, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Folder of the Helm chart.
fn chart() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/tailwater")
}

#[test]
fn the_charts_definitions_are_those_of_the_program() {
    let printed = tailwater().arg("definitions").output().unwrap();
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let path = chart().join("crds/tailwater.yaml");
    let of_chart = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        of_chart == text(&printed.stdout),
        "tailwater definitions > deploy/helm/tailwater/crds/tailwater.yaml"
    );
}

/// Every value has a schema, and no other one has: Helm refuses a name that was mistyped.
#[test]
fn the_charts_values_are_those_of_its_schema() {
    let values = std::fs::read_to_string(chart().join("values.yaml")).unwrap();
    let (mut section, mut found) = ("", BTreeSet::new());
    for line in values.lines() {
        let name = line.trim_start().split(':').next().unwrap();
        if name.is_empty() || name.starts_with(['#', '-']) {
            continue;
        }
        match line.len() - line.trim_start().len() {
            0 => section = name,
            2 => drop(found.insert(format!("{section}.{name}"))),
            _ => {}
        }
    }
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let mut known = BTreeSet::new();
    for (section, schema) in schema["properties"].as_object().unwrap() {
        let names = schema["properties"].as_object().into_iter().flatten();
        known.extend(names.map(|(name, _)| format!("{section}.{name}")));
    }
    assert!(!found.is_empty());
    assert_eq!(found, known);
}

/// Without a cluster's environment, and without a file.
fn away(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .args(arguments)
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap()
}

#[test]
fn without_an_api_server_each_program_says_so_in_one_line() {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/server/server.yaml");
    let programs: [&[&str]; 3] = [
        &["controller"],
        &["ingress", "--switch", "unix:/nowhere/br0.mgmt"],
        &["agent", server.to_str().unwrap()],
    ];
    for arguments in programs {
        assert_refused(&away(arguments), "there is no API server");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (
            &["controller", "--lease", "1500ms"][..],
            "--lease: expected whole seconds, at least 2",
        ),
        (&["ingress", "--switch", "br0"], "br0"),
        (
            &["ingress", "--port", "interface=a", "--unmatched", "leave"],
            "--unmatched leave: expected drop or normal with --port",
        ),
        (&["ingress", "--port", "eth0"], "interface=eth0"),
        (
            &["ingress", "--switch", "unix:/nowhere/br0.mgmt", "--state", "rows"],
            "--state: expected --port in place of --switch",
        ),
        (
            &["ingress", "--switch", "unix:/nowhere/br0.mgmt", "--port", "interface=a"],
            "cannot be used with",
        ),
        (
            &["agent", "server.yaml", "--report-to", "10.0.0.1:7443"],
            "--report-to: expected --tls FOLDER",
        ),
    ] {
        assert_refused(&away(arguments), expected);
    }
}
