//! A function's process that was killed exits at once, although its worker polls and never yields to it.

use crate::common::*;
use crate::own_rights::until;
use crate::processes::{is_there, processes_at, signal};
use crate::{alone, can_confine, ways};
use std::fs;
use std::process::Stdio;

/// Returns `true` if a process has real-time priority, as an attached one has.
fn is_attached(process: &u32) -> bool {
    /// Position of the field `policy` behind the command's name.
    const POLICY: usize = 38;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().nth(POLICY) == Some("1")
}

/// It waited for its core until the next round, while it held locks of the kernel. If the start of another function's
/// process needed these, there was no next round, and both hung for good.
#[test]
fn one_killed_while_no_packet_arrives_exits_and_is_replaced() {
    // Without real-time priority, it shares the core with its worker.
    if !can_confine() {
        return;
    }
    let _alone = alone();
    for way in ways() {
        let folder = Folder::new();
        let chain = folder.acl_nat();
        // The second one later than the end of the test.
        let packets = [0, 120_000_000_000].map(|time| (time, udp(client(1), 5000, SERVER, 53)));
        let traffic = folder.capture("idle.pcap", &packets);
        let mut run = tailwater()
            .args(["run", "--output", "json", "--isolation"])
            .args(way.split(' '))
            .arg(&chain)
            .arg("--traffic")
            .arg(&traffic)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let attached = || processes_at(run.id(), 0).into_iter().find(is_attached);
        let first = until(attached);
        signal(first, "-KILL");
        until(|| (!is_there(first)).then_some(()));
        let second = until(attached);
        assert_ne!(first, second, "{way}");
        signal(run.id(), "-INT");
        assert!(run.wait().unwrap().success(), "{way}");
    }
}
