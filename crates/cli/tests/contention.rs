//! `tailwater profile contention`.
//!
//! No measured values are asserted: the machine may be slow or busy. Campaigns on a scripted machine are tests of the
//! crate `profile`.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tailwater_dataplane::cores::default_core;
use tailwater_predict::metric::Resource;
use tailwater_predict::{Campaign, Key, Metric, Observation, Schema, Source, Vector};
use tailwater_profile::cache::sharing;

fn chain(folder: &Folder) -> PathBuf {
    let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {name: test}\n\
                spec:\n  functions: [{accounting: }]\n  slo: {latency: 50ms}\n  \
                flows: {capacity: 4096}\n";
    folder.write("chain.yaml", text)
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the command with a small uniform traffic.
fn contention(chain: &Path, more: &[&str]) -> Command {
    let mut command = tailwater();
    command.args([
        "profile",
        "contention",
        name(chain),
        "--flows",
        "64",
        "--run-time",
        "20ms",
    ]);
    command.args(more);
    command
}

fn refused(chain: &Path, more: &[&str], expected: &str) {
    let output: Output = contention(chain, more).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(expected), "{message}");
}

/// The chain's core has another one beside it, as on nearly all machines.
fn has_two_cores() -> bool {
    let has = !sharing(default_core()).is_empty();
    if !has {
        eprintln!("skipped: expected two cores that share a cache");
    }
    has
}

#[test]
fn wrong_input_is_refused_before_anything_is_measured() {
    if !has_two_cores() {
        return;
    }
    let folder = Folder::new();
    let chain = chain(&folder);
    let file = folder.path("chain.contention.yaml");
    refused(&chain, &["--metrics", "counters"], "expected probes");
    refused(&chain, &["--points", "7"], "7 is not in 8..=5000");
    let core = default_core().to_string();
    refused(&chain, &["--beside", &core], "--beside: expected other cores");
    refused(&chain, &["-o", name(&chain)], "would overwrite the input");
    refused(
        &chain,
        &["--report", name(&file)],
        "expected another file than the campaign's",
    );
    refused(&chain, &["--error", "0"], "expected a percentage above 0, at most 50");
    // The same file by other names, which the page would replace.
    let (real, link) = (folder.write("real.yaml", ""), folder.path("link.yaml"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for (file, page) in [(name(&real), name(&link)), (name(&link), name(&real))] {
        refused(
            &chain,
            &["-o", file, "--report", page],
            "expected another file than the campaign's",
        );
    }
    for file in ["-", "/dev/null"] {
        refused(&chain, &["-o", file], "--file: expected a file");
    }
    assert!(std::fs::read(&real).unwrap().is_empty());
    assert!(!file.exists());
    let broken = folder.write("broken.yaml", "kind: Nothing\n");
    refused(&chain, &["-o", name(&broken)], "broken.yaml");
    // A campaign of another machine is not continued, and stays as it is.
    let schema = Schema::new(
        Source::Probes,
        vec![Metric::new("probe.core", "added time", Resource::Other)],
    );
    let schema = std::sync::Arc::new(schema.unwrap());
    let key = Key {
        function: "test".to_owned(),
        configuration: "0".to_owned(),
        traffic: "made up".to_owned(),
        machine: "made up".to_owned(),
    };
    let mut other = Campaign::new(key, schema.clone());
    let alone = Observation {
        group: 0,
        competitors: 0,
        competition: Vector::new(schema, vec![Some(0.0)]).unwrap(),
        throughput: 1e6,
        p99_us: None,
        own: None,
        flagged: false,
    };
    other.push(alone).unwrap();
    let other = folder.write("other.yaml", other.to_string());
    let before = std::fs::read(&other).unwrap();
    refused(&chain, &["-o", name(&other)], "-o selects another file");
    assert_eq!(std::fs::read(&other).unwrap(), before);
}

/// A first Ctrl-C leaves what was measured until then, as a file that can be read.
#[test]
fn a_campaign_that_is_interrupted_leaves_a_valid_file() {
    if !has_two_cores() {
        return;
    }
    let folder = Folder::new();
    let chain = chain(&folder);
    let file = folder.path("chain.contention.yaml");
    let mut child = contention(&chain, &["--points", "5000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Timeouts against hangs, not measurements.
    let start = Instant::now();
    while !file.exists() && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(120), "there is no first point");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Two commands would overwrite each other's points.
    refused(&chain, &[], "another `tailwater profile contention` is using it");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("the same command continues"), "{message}");
    assert!(!folder.path("chain.contention.yaml.lock").exists());
    let campaign = Campaign::read(&file).unwrap();
    assert!(!campaign.observations().is_empty());
    assert_eq!(campaign.key().function, "test");
    assert!(
        campaign
            .observations()
            .iter()
            .all(|of| of.own.is_some() || of.competitors > 0)
    );
}
