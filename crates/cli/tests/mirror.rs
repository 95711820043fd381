//! Copies of packets in whole runs.

mod common;

use common::*;
use std::path::Path;

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Copies equal the packets at their position in the chain, in a file that other programs can read. The chain's output
/// is the same as without copies.
#[test]
fn a_run_copies_what_passes() {
    let folder = Folder::new();
    let packets = mixture(2000);
    let traffic = folder.capture("traffic.pcap", &packets);
    let (before, behind) = (folder.path("before.pcap"), folder.path("behind.pcap"));
    let rules = "rules: [{action: deny, destinationPorts: 25}], default: allow";
    let mirror = |name: &str, file: &Path, more: &str| {
        let file = file.display();
        format!("{{name: {name}, mirror: {{to: {{file: {file}}}, buffer: 16MiB{more}}}}}")
    };
    let plain = format!("{{acl: {{{rules}}}}}, {{forward: {{destinationMac: '02:00:00:00:00:09'}}}}");
    let functions = format!(
        "[{}, {plain}, {}]",
        mirror("before", &before, ""),
        mirror("behind", &behind, ", sample: {every: 3}")
    );
    let sent = [format!("[{plain}]"), functions].map(|functions| {
        let chain = folder.spec("chain.yaml", &functions, "");
        let out = folder.path("sent.pcap");
        let report = report(&chain, &traffic, &["--capture-out", name(&out)]);
        assert_identity(&report);
        (report, frames(&out))
    });
    let [(_, without), (report, with)] = sent;
    assert_eq!(with.len(), 1800);
    assert_eq!(with, without);
    let arrived: Vec<_> = packets.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames(&before), arrived);
    let every_third: Vec<_> = with.iter().step_by(3).cloned().collect();
    assert_eq!(frames(&behind), every_third);
    let reasons = &report["packets"]["reasons"];
    assert_eq!(reasons["before/copied"], 2000, "{reasons}");
    assert_eq!(reasons["behind/copied"], 600, "{reasons}");
    assert!(reasons.get("before/no-room").is_none(), "{reasons}");
    if tshark_is_there() {
        assert_eq!(tshark_frames(&before, "tcp.dstport == 25"), 200);
    }
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let folder = Folder::new();
    for (to, expected) in [
        ("{interface: tw-no-such-if}", "tw-no-such-if: cannot write copies"),
        (
            "{file: /no/such/folder/copies.pcap}",
            "/no/such/folder/copies.pcap: cannot write",
        ),
    ] {
        let chain = folder.spec("chain.yaml", &format!("[{{mirror: {{to: {to}}}}}]"), "");
        assert_refused(&run(&[&"run", &chain, &"--duration", &"10ms"]), expected);
    }
}
