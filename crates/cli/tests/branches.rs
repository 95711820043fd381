//! Commands on chains with a `classifier`.

mod common;

use common::*;
use std::path::Path;
use tailwater_dataplane::cores::available;

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Of ten packets of a [mixture], four are web traffic, of which three pass. Five are sent at once. One continues to
/// the last function, which drops the packets of hosts 100 and above.
const FUNCTIONS: &str = "[{classifier: {rules: [{to: web, protocol: tcp, destinationPorts: 80}, {to: send, protocol: udp}], \
     branches: {web: {functions: [{name: hosts, acl: {rules: [{action: deny, sourcePorts: 4002}], default: allow}}, \
     {name: web-flows, accounting: }]}}}}, {name: rest, acl: {rules: [{action: deny, sourcePorts: 4000}], default: allow}}]";

#[test]
fn packets_are_counted_by_branch() {
    let folder = Folder::new();
    let packets = mixture(1000);
    let traffic = folder.capture("in.pcap", &packets);
    let (chain, out) = (folder.spec("chain.yaml", FUNCTIONS, ""), folder.path("out.pcap"));
    let report = report(&chain, &traffic, &["--capture-out", name(&out)]);
    assert_identity(&report);
    let reasons = &report["packets"]["reasons"];
    for (reason, expected) in [
        ("classifier/to-web", 400),
        ("classifier/to-send", 500),
        ("classifier/to-next", 100),
        ("hosts/denied", 100),
        ("rest/denied", 100),
    ] {
        assert_eq!(reasons[reason], expected, "{reason}: {reasons}");
    }
    assert_eq!(count(&report, "delivered"), 800);
    // The remaining packets leave in order of arrival, whichever branch they took.
    let left = packets.iter().enumerate().filter(|(i, _)| ![0, 2].contains(&(i % 10)));
    let left: Vec<_> = left.map(|(_, (_, frame))| frame.clone()).collect();
    assert!(frames(&out) == left);
}

#[test]
fn the_example_runs() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/branches.yaml");
    let more = ["--duration", "100ms", "--rate-scale", "0.05"];
    let report = report(&example, Path::new("bursty"), &more);
    assert_identity(&report);
    let reasons = &report["packets"]["reasons"];
    let sent = ["web", "voice", "others"].map(|branch| {
        let count = &reasons[format!("classifier/to-{branch}")];
        count.as_u64().unwrap_or_default()
    });
    assert!(sent.iter().sum::<u64>() > 0, "{reasons}");
}

/// A profile contains only splits in front of functions outside branches. Runs can use it, and their decisions can be
/// explained.
#[test]
fn profiles_records_and_explanations() {
    let [dedicated, auxiliary, ..] = available()[..] else {
        eprintln!("skipped: this machine has one core");
        return;
    };
    let cores = [dedicated, auxiliary].map(|core| core.to_string());
    let folder = Folder::new();
    let chain = folder.spec_with_slo("50ms", "chain.yaml", FUNCTIONS, "  flows: {capacity: 4096}\n");
    let traffic = folder.capture("in.pcap", &mixture(2000));
    let profile = folder.path("chain.profile.yaml");
    let output = run(&[
        &"profile",
        &"capacity",
        &chain,
        &"--traffic",
        &traffic,
        &"--output",
        &"json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Of four functions, the two in the middle are in a branch.
    let splits = document["splits"].as_array().unwrap();
    assert!(splits.iter().all(|split| split["last_functions"] == 1), "{splits:?}");
    assert!(profile.exists());
    let file = folder.path("run.decisions");
    let report = report(
        &chain,
        &traffic,
        &[
            "--cores",
            &cores[0],
            "--auxiliary",
            &cores[1],
            "--record",
            name(&file),
            "--policy",
            "netblaze",
            "--profile",
            name(&profile),
        ],
    );
    assert_identity(&report);
    let explained = run(&[&"explain", &file, &"--policy", &"netblaze", &"--output", &"json"]);
    assert!(explained.status.success(), "{}", text(&explained.stderr));
    let explained: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
    if explained["lost"] == 0 {
        assert_eq!(explained["replay"]["different"], 0, "{explained}");
    }
}

#[test]
fn what_does_not_go_with_branches_is_refused() {
    let folder = Folder::new();
    let kept = folder.spec("kept.yaml", FUNCTIONS, "  state: {redis: {socket: none.sock}}\n");
    assert_refused(&run(&[&"run", &kept]), "spec.state: expected no classifier");
    let uncached = FUNCTIONS.replace("classifier: {rules", "classifier: {cache: none, rules");
    let uncached = folder.spec("uncached.yaml", &uncached, "");
    assert_refused(
        &run(&[&"run", &uncached, &"--duration", &"10ms"]),
        "expected cache: flow in classifier",
    );
}
