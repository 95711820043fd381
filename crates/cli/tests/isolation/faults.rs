//! Functions' flow memory is mapped before the first packet: a new flow causes no page fault.

use crate::common::*;
use crate::processes::{family_of, signal_if_there};
use crate::{alone, ways};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Returns the page faults of a process so far.
fn faults(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let minor = fields.split_whitespace().nth(7)?;
    minor.parse().ok()
}

/// Returns `true` if all of a process's flow memory is resident, in huge pages; `None` if it has none.
fn flows_are_there(process: u32) -> Option<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).ok()?;
    let (_, flows) = maps.split_once("memfd:tailwater-flows")?;
    let kilobytes = |name: &str| -> Option<u64> {
        let line = flows.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(kilobytes("ShmemPmdMapped:")? == kilobytes("Size:")?)
}

/// Returns `true` if these processes live for a while and have almost no page faults meanwhile.
fn cost_few(processes: &[u32]) -> bool {
    // The kernel may track page use, which causes a few faults.
    const FEW: u64 = 16;
    sleep(Duration::from_millis(150));
    let before: Vec<_> = processes.iter().map(|&process| faults(process)).collect();
    sleep(Duration::from_millis(350));
    let after = processes.iter().map(|&process| faults(process));
    let more = before.into_iter().zip(after);
    let more: Option<Vec<u64>> = more.map(|(before, after)| Some(after? - before?)).collect();
    let Some(more) = more else {
        // On a busy machine a process may have been overdue, and was replaced.
        return false;
    };
    assert!(more.iter().all(|more| *more <= FEW), "{more:?} page faults");
    true
}

/// Returns the functions' processes that have their memory.
fn attached(run: u32) -> Vec<u32> {
    let family = family_of(run).into_iter();
    family
        .filter(|&process| process != run && flows_are_there(process).is_some())
        .collect()
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "it takes too long");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_flow_that_begins_costs_no_page_fault() {
    let _alone = alone();
    const FLOWS: u64 = 60_000;
    for way in ways() {
        let folder = Folder::new();
        let functions = "[{acl: {default: allow, rules: [{action: deny, protocol: tcp, destinationPorts: 25}]}}, \
                         {encrypt: {key: 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f, mtu: 1508}}]";
        let chain = folder.spec("many.yaml", functions, "  flows: {capacity: 262144}\n");
        // A new flow every 100 us.
        let packets: Vec<_> = (0..FLOWS)
            .map(|i| {
                let source = client((i % 250) as u8 + 1);
                let port = 1024 + (i / 250) as u16;
                (i * 100_000, udp(source, port, SERVER, 53))
            })
            .collect();
        let traffic = folder.capture("many.pcap", &packets);
        let run = tailwater()
            .args(["run", "--output", "json", "--ring", "1000000", "--isolation"])
            .args(way.split(' '))
            .arg(&chain)
            .arg("--traffic")
            .arg(&traffic)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The processes of both functions, after their one-time work.
        let first = until(|| {
            let attached = attached(run.id());
            (attached.len() == 2 && cost_few(&attached)).then_some(attached)
        });
        // A replacement also has all of the memory at once, if it is in huge pages.
        signal_if_there(first[1], "-KILL");
        until(|| {
            let attached = attached(run.id()).into_iter();
            let next: Vec<u32> = attached.filter(|process| !first.contains(process)).collect();
            let huge = flows_are_there(*next.first()?)?;
            if !huge {
                println!("skipped: this kernel has no huge pages for memory files");
            }
            (!huge || cost_few(&next)).then_some(())
        });
        // All that matters has been seen.
        signal_if_there(run.id(), "-INT");
        let output = run.wait_with_output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_identity(&report);
        let (offered, begun) = (count(&report, "offered"), report["flows"]["opened"].as_u64().unwrap());
        assert!(
            begun > offered / 2 && begun > 1000,
            "{way}: {begun} flows of {offered} packets"
        );
    }
}
