//! Every capture of the test data through ACL and NAT, and through Forward.
//!
//! Needs the folder named by `TAILWATER_TEST_DATA`, and is skipped without it.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// ClassBench rules in the access list.
const RULES: usize = 1500;

/// At a rate that a debug build bears, whatever the capture's own: its times do not matter here.
const PACE: [&str; 4] = ["--rate", "100kpps", "--ring", "1048576"];

/// What the binary says of captures that cannot be run, with the reason why that is right.
const KNOWN: [(&str, &str); 3] = [
    (
        "no capture tool writes",
        "made by a fuzzer: damaged from the first packet on",
    ),
    (
        "is not supported; supported are",
        "the link type is not Ethernet, IP or Linux cooked",
    ),
    (
        "skip such packets (--skip-bad-packets)",
        "a packet is empty or too long",
    ),
];

/// The first rules of a ClassBench set.
fn rules(data: &Path) -> String {
    let archive = data.join("rules/classbench_1k_2k_all_seeds.tar.zst");
    let output = Command::new("tar")
        .args(["--zstd", "-xO", "Ruleset/2k_1/acl1_seed_1.rules", "-f"])
        .arg(archive)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rules: Vec<String> = text(&output.stdout)
        .lines()
        .take(RULES)
        .map(str::to_owned)
        .collect();
    assert_eq!(rules.len(), RULES);
    rules.join("\n")
}

/// A chain that tries all rules, lets everything pass, and translates all IPv4 sources but those
/// of 203.0.0.0/8, where the external addresses are.
fn acl_nat(folder: &Folder, data: &Path) -> PathBuf {
    folder.write("acl1.rules", rules(data));
    let functions = "[{acl: {rulesFile: acl1.rules, matchAction: allow, default: allow}}, \
                     {nat: {external: [203.0.113.0/28], otherProtocols: pass, inbound: pass, \
                     internal: [0.0.0.0/1, 128.0.0.0/2, 192.0.0.0/5, 200.0.0.0/7, 202.0.0.0/8, \
                     204.0.0.0/6, 208.0.0.0/4]}}]";
    unhurried(folder.spec("acl-nat.yaml", functions, "  flows: {capacity: 131072}\n"))
}

/// The spec with an objective so loose that what a busy machine holds up is still drained at the end.
fn unhurried(spec: PathBuf) -> PathBuf {
    let text = std::fs::read_to_string(&spec).unwrap();
    let loose = text.replace("latency: 200us", "latency: 10s");
    assert_ne!(text, loose);
    std::fs::write(&spec, loose).unwrap();
    spec
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(captures(&path));
        } else if (name.contains(".pcap") || name.ends_with(".cap")) && !name.ends_with(".tar.zst")
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Packets that can be read, and how many of them have a wrong checksum; `None` if none can be read.
fn read(path: &Path) -> Option<(u64, usize)> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).ok()?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().ok()? {
        frames.push(packet.data.to_vec());
    }
    Some((frames.len() as u64, wrong_checksums(&frames)))
}

/// Runs a capture through a chain. `None` if it is refused for a known reason.
fn run_capture(chain: &Path, capture: &Path, more: &[&str]) -> Option<serde_json::Value> {
    let run = |timing: &[&str]| {
        let mut command = tailwater();
        command
            .args(["run", "--output", "json", "--traffic"])
            .args([capture, chain]);
        command.args(timing).args(more).output().unwrap()
    };
    let output = run(&PACE);
    let stderr = text(&output.stderr);
    let told = format!("{}: {stderr}", capture.display());
    assert!(!stderr.contains("panicked"), "{told}");
    if output.status.code() == Some(2) {
        let errors: Vec<&str> = stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!((errors.len(), stderr.lines().count()), (1, 1), "{told}");
        assert!(
            KNOWN.iter().any(|(known, _)| stderr.contains(known)),
            "{told}"
        );
        eprintln!("{told}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_identity(&report);
    Some(report)
}

/// Runs `job` on every capture, on up to two cores: each run has a worker that spins. The job is
/// told its core.
fn for_all(captures: &[PathBuf], job: impl Fn(&Path, &str) + Sync) {
    let next = AtomicUsize::new(0);
    let (next, job) = (&next, &job);
    std::thread::scope(|scope| {
        for core in tailwater_dataplane::cores::available().into_iter().take(2) {
            scope.spawn(move || {
                while let Some(capture) = captures.get(next.fetch_add(1, Ordering::Relaxed)) {
                    job(capture, &core.to_string());
                }
            });
        }
    });
}

/// Runs every capture through both chains; gives how many were run, and how many refused.
fn run_all(data: &Path, folder: &Folder, captures: &[PathBuf]) -> (usize, usize) {
    let (acl_nat, forward) = (acl_nat(folder, data), unhurried(folder.forward()));
    let counts = Mutex::new((0, 0));
    for_all(captures, |capture, core| {
        let name = capture.file_name().unwrap().to_string_lossy();
        let out = folder.path(&format!("{name}.out.pcap"));
        let more = ["--cores", core, "--capture-out", out.to_str().unwrap()];
        let (Some(report), Some((packets, wrong))) =
            (run_capture(&acl_nat, capture, &more), read(capture))
        else {
            counts.lock().unwrap().1 += 1;
            return;
        };
        assert_eq!(count(&report, "offered"), packets, "{name}");
        assert_eq!(count(&report, "lost"), 0, "{name}: {report}");
        let sent = if count(&report, "delivered") > 0 {
            frames(&out)
        } else {
            Vec::new()
        };
        assert_eq!(sent.len() as u64, count(&report, "delivered"), "{name}");
        // What was wrong before stays wrong; nothing becomes wrong.
        assert!(
            wrong_checksums(&sent) <= wrong,
            "{name}: more wrong checksums than before"
        );
        std::fs::remove_file(&out).unwrap();

        let forwarded =
            run_capture(&forward, capture, &["--cores", core]).expect("what ran once runs twice");
        assert_eq!(count(&forwarded, "offered"), packets, "{name}");
        let kept = packets - count(&forwarded, "dropped_by_nf");
        assert_eq!(count(&forwarded, "delivered"), kept, "{name}: {forwarded}");
        counts.lock().unwrap().0 += 1;
    });
    counts.into_inner().unwrap()
}

#[test]
fn traces_run_through_both_chains() {
    let Some(data) = test_data() else { return };
    let folder = Folder::new();
    let captures = captures(&data.join("traces"));
    let (run, refused) = run_all(&data, &folder, &captures);
    eprintln!("{run} captures run, {refused} refused");
    assert!(run >= 20, "{run} of {}", captures.len());
    assert_eq!(refused, 0);
}

#[test]
fn the_corpus_of_applications_runs_through_both_chains() {
    let Some(data) = test_data() else { return };
    let folder = Folder::new();
    let archive = data.join("traces/ndpi_app_corpus_545pcaps.tar.zst");
    let corpus = folder.path("corpus");
    std::fs::create_dir(&corpus).unwrap();
    let tar = Command::new("tar")
        .args(["--zstd", "-xf"])
        .arg(archive)
        .arg("-C")
        .arg(&corpus)
        .status();
    assert!(tar.unwrap().success());
    let captures = captures(&corpus);
    assert!(captures.len() > 500, "{}", captures.len());
    let (run, refused) = run_all(&data, &folder, &captures);
    eprintln!("{run} captures run, {refused} refused");
    assert!(
        refused * 20 < run,
        "{refused} of {} refused",
        captures.len()
    );
}

/// Frames with a bad checksum as tshark counts them, or `None` if there is no tshark.
fn tshark_bad(capture: &Path) -> Option<usize> {
    let output = Command::new("tshark")
        .args(["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"])
        .args(["-o", "udp.check_checksum:TRUE", "-T", "fields", "-e", "frame.number"])
        .args(["-Y", "ip.checksum.status == \"Bad\" || tcp.checksum.status == \"Bad\" || udp.checksum.status == \"Bad\""])
        .arg("-r")
        .arg(capture)
        .output()
        .ok()?;
    assert!(
        output.status.success(),
        "{}: {}",
        capture.display(),
        text(&output.stderr)
    );
    Some(text(&output.stdout).lines().count())
}

#[test]
fn tshark_finds_nothing_wrong_with_what_nat_sends() {
    let Some(data) = test_data() else { return };
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let folder = Folder::new();
    let (chain, forward) = (acl_nat(&folder, &data), unhurried(folder.forward()));
    for name in [
        "ndpi_reddit.pcap.zst",
        "ndpi_operavpn.pcapng.zst",
        "fastclick_test_load_balance.pcap.zst",
        "ddos_dns_rrsig_frag.pcap.zst",
        "zeek_irc_dcc_whale.pcapng.zst",
    ] {
        let capture = data.join("traces").join(name);
        // The same packets as they are replayed: padded to their wire length, say.
        let before = folder.path("before.pcap");
        let after = folder.path("after.pcap");
        let run = |chain: &Path, out: &Path| {
            run_capture(chain, &capture, &["--capture-out", out.to_str().unwrap()]).unwrap()
        };
        run(&forward, &before);
        let report = run(&chain, &after);
        assert!(count(&report, "delivered") > 0, "{name}: {report}");
        let (before, after) = (tshark_bad(&before).unwrap(), tshark_bad(&after).unwrap());
        eprintln!("{name}: {before} bad checksums before, {after} after");
        assert!(
            after <= before,
            "{name}: {before} bad checksums before, {after} after"
        );
    }
}
