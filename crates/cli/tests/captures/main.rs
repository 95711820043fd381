//! Every capture of the test data through Forward and the four canonical chains: ACL and NAT; ACL, load balancer and
//! accounting; ACL, URL filter and encryption; tunnel and IP forwarding.
//!
//! Requires the directory named by `TAILWATER_TEST_DATA`, and is skipped without it.

mod balancing;
mod chains;
#[path = "../common/mod.rs"]
mod common;
mod encryption;
mod routes;

use common::*;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_net::Nanos;
use tailwater_net::parse::{Network, parse};
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions};

/// tshark's display filter for frames with a wrong checksum.
const BAD: &str = "ip.checksum.status == Bad || tcp.checksum.status == Bad || udp.checksum.status == Bad";

/// ClassBench rules in the access list.
const RULES: usize = 1500;

/// Rates for replaying captures; their own times do not matter here. A debug build sustains the first rate, except for
/// floods in which each packet opens a flow, and for encryption of long packets. These are repeated at the next rate.
const RATES: [&str; 3] = ["100kpps", "20kpps", "2kpps"];

/// Expected errors for captures that cannot be run, with the reason.
const KNOWN: [(&str, &str); 3] = [
    (
        "has an invalid captured length",
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

/// Returns the first rules of a ClassBench set.
fn rules(data: &Path) -> String {
    let archive = data.join("rules/classbench_1k_2k_all_seeds.tar.zst");
    let output = Command::new("tar")
        .args(["--zstd", "-xO", "Ruleset/2k_1/acl1_seed_1.rules", "-f"])
        .arg(archive)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rules: Vec<String> = text(&output.stdout).lines().take(RULES).map(str::to_owned).collect();
    assert_eq!(rules.len(), RULES);
    rules.join("\n")
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(captures(&path));
        } else if (name.contains(".pcap") || name.ends_with(".cap")) && !name.ends_with(".tar.zst") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the number of readable packets, and of those with a wrong checksum; `None` if none can be read.
fn read(path: &Path) -> Option<(u64, usize)> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).ok()?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().ok()? {
        frames.push(packet.data.to_vec());
    }
    Some((frames.len() as u64, wrong_checksums(&frames)))
}

/// Returns `true` if all packets of a capture can be read.
fn is_readable(path: &Path) -> bool {
    let Ok(mut reader) = CaptureReader::open(path, &ReadOptions::default()) else {
        return false;
    };
    while let Ok(packet) = reader.next_packet() {
        if packet.is_none() {
            return true;
        }
    }
    false
}

/// Writes the packets of captures to one, in turn.
fn join(captures: &[PathBuf], joined: &Path) {
    let mut writer = PcapWriter::create(joined).unwrap();
    for capture in captures {
        let mut reader = CaptureReader::open(capture, &ReadOptions::default()).unwrap();
        while let Some(packet) = reader.next_packet().unwrap() {
            let timestamp = Nanos::from_micros(writer.packets());
            writer.write(&Packet { timestamp, ..packet }).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Runs a capture through a chain. Returns `None` if it is refused for a known reason.
fn run_capture(chain: &Path, capture: &Path, rate: &str, more: &[&str]) -> Option<serde_json::Value> {
    let output = tailwater()
        .args(["run", "--output", "json", "--traffic"])
        .args([capture, chain])
        .args(["--rate", rate, "--ring", "131072"])
        .args(more)
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    let told = format!("{}: {stderr}", capture.display());
    assert!(!stderr.contains("panicked"), "{told}");
    if output.status.code() == Some(2) {
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((errors.len(), stderr.lines().count()), (1, 1), "{told}");
        assert!(KNOWN.iter().any(|(known, _)| stderr.contains(known)), "{told}");
        eprintln!("{told}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_identity(&report);
    Some(report)
}

/// Serialises tests, whose workers would otherwise compete for the cores.
fn alone() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    // A failed test leaves no state behind.
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `job` on every capture, on up to two cores, since each run has a worker that spins. The job's second argument
/// is its core.
fn for_all(captures: &[PathBuf], job: impl Fn(&Path, &str) + Sync) {
    let _alone = alone();
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

/// Chains that are the same for all captures.
struct Chains {
    forward: PathBuf,
    nat: PathBuf,
    acl_nat: PathBuf,
    acl_lb_accounting: PathBuf,
    acl_url_encrypt: PathBuf,
    decrypt: PathBuf,
    tunnel_ip_forward: PathBuf,
    pop: PathBuf,
}

impl Chains {
    fn new(folder: &Folder, data: &Path) -> Chains {
        folder.write("acl1.rules", rules(data));
        Chains {
            forward: folder.forward(),
            nat: chains::nat(folder),
            acl_nat: chains::acl_nat(folder),
            acl_lb_accounting: chains::acl_lb_accounting(folder, "acl-lb-accounting.yaml", None),
            acl_url_encrypt: chains::acl_url_encrypt(folder),
            decrypt: chains::decrypt(folder),
            tunnel_ip_forward: chains::tunnel_ip_forward(folder, "tunnel-ipforward.yaml", None),
            pop: chains::pop(folder),
        }
    }
}

/// Frames sent by a chain. IP packets are in order. Others bypass the functions and may be reordered relative to them,
/// so they are sorted.
struct Sent {
    ip: Vec<Vec<u8>>,
    other: Vec<Vec<u8>>,
}

impl Sent {
    fn is_empty(&self) -> bool {
        self.ip.is_empty() && self.other.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.ip.iter().chain(&self.other)
    }
}

/// A capture that passes chains on its own core.
struct Replay<'a> {
    capture: &'a Path,
    core: &'a str,
    folder: &'a Folder,
    chains: &'a Chains,
}

impl<'a> Replay<'a> {
    /// Returns a replay of another capture with the same settings.
    fn of<'b>(&'b self, capture: &'b Path) -> Replay<'b> {
        Replay { capture, ..*self }
    }

    fn name(&self) -> String {
        let name = self.capture.file_name().unwrap();
        name.to_string_lossy().into_owned()
    }

    /// Returns a file name that is unique to this capture.
    fn file_name(&self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }

    /// Returns a path that is unique to this capture.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(&self.file_name(name))
    }

    /// Runs the capture without loss. Returns `None` if it is refused for a known reason.
    fn run(&self, chain: &Path, more: &[&str]) -> Option<serde_json::Value> {
        let mut with_core = vec!["--cores", self.core];
        with_core.extend(more);
        for rate in RATES {
            let report = run_capture(chain, self.capture, rate, &with_core)?;
            if count(&report, "lost") == 0 {
                return Some(report);
            }
            eprintln!(
                "{rate} is too much for {}: {}",
                self.name(),
                report["packets"]["reasons"]
            );
        }
        panic!("{}: lost packets at all rates", self.name());
    }

    /// Runs the capture. Returns the output file and its frames, or `None` if it is refused for a known reason.
    fn try_send(&self, chain: &Path, name: &str) -> Option<(PathBuf, Sent)> {
        let out = self.path(name);
        let report = self.run(chain, &["--capture-out", out.to_str().unwrap()])?;
        let delivered = count(&report, "delivered");
        // An empty capture cannot be read.
        let sent = if delivered > 0 { frames(&out) } else { Vec::new() };
        assert_eq!(sent.len() as u64, delivered, "{}", self.name());
        let is_ip = |frame: &Vec<u8>| parse(frame).is_ok_and(|headers| headers.network != Network::NotIp);
        let (ip, mut other): (Vec<_>, Vec<_>) = sent.into_iter().partition(is_ip);
        other.sort();
        Some((out, Sent { ip, other }))
    }

    /// Runs a capture that must not be refused. Returns the output file and its frames.
    fn send(&self, chain: &Path, name: &str) -> (PathBuf, Sent) {
        self.try_send(chain, name).expect("what ran once runs again")
    }
}

/// Runs all captures through NAT, or the access list and NAT, after which no right checksum may be wrong, and `job` on
/// those not refused. Returns the numbers of run and refused captures.
fn run_all(
    captures: &[PathBuf],
    (folder, chains): (&Folder, &Chains),
    nat: &Path,
    job: impl Fn(&Replay<'_>, u64) + Sync,
) -> (usize, usize) {
    let counts = Mutex::new((0, 0));
    for_all(captures, |capture, core| {
        let replay = Replay {
            capture,
            core,
            folder,
            chains,
        };
        let translated = replay.try_send(nat, "translated.pcap");
        let (Some((out, translated)), Some((packets, wrong))) = (translated, read(capture)) else {
            counts.lock().unwrap().1 += 1;
            return;
        };
        std::fs::remove_file(out).unwrap();
        assert!(
            wrong_checksums(translated.all()) <= wrong,
            "{}: more wrong checksums than before",
            replay.name()
        );
        job(&replay, packets);
        counts.lock().unwrap().0 += 1;
    });
    counts.into_inner().unwrap()
}

#[test]
fn traces_leave_the_chains_as_they_should() {
    let Some(data) = test_data() else { return };
    let captures = captures(&data.join("traces"));
    let totals = Mutex::new(Totals::default());
    let folder = Folder::new();
    let chains = Chains::new(&folder, &data);
    let (run, refused) = run_all(&captures, (&folder, &chains), &chains.acl_nat, |replay, packets| {
        let (out, plain) = replay.send(&replay.chains.forward, "forwarded.pcap");
        std::fs::remove_file(out).unwrap();
        assert!(plain.all().count() as u64 <= packets);
        let (decrypted, ciphertexts) = encryption::check(replay, &plain);
        let (balanced, backends) = balancing::check(replay, &plain);
        let (routed, unrouted) = routes::check(replay, &plain);
        let mut totals = totals.lock().unwrap();
        totals.packets += plain.ip.len();
        totals.decrypted += decrypted;
        totals.ciphertexts += ciphertexts;
        totals.balanced += balanced;
        totals.backends.extend(backends);
        totals.routed += routed;
        totals.unrouted += unrouted;
    });
    let totals = totals.into_inner().unwrap();
    eprintln!("{run} captures run, {refused} refused: {totals:?}");
    assert!(run >= 20, "{run} of {}", captures.len());
    assert_eq!(refused, 0);
    // The checks are significant only if they covered most packets.
    assert!(totals.decrypted * 100 > totals.packets * 99, "{totals:?}");
    assert!(totals.ciphertexts * 10 > totals.packets, "{totals:?}");
    assert!(totals.balanced * 2 > totals.packets, "{totals:?}");
    assert_eq!(totals.backends.len(), chains::BACKENDS.len(), "{totals:?}");
    assert!(totals.routed * 10 > totals.packets * 9, "{totals:?}");
    assert!(totals.unrouted > 0, "{totals:?}");
}

/// Compared packets of all captures.
#[derive(Debug, Default)]
struct Totals {
    /// Well-formed IP packets.
    packets: usize,
    decrypted: usize,
    ciphertexts: usize,
    balanced: usize,
    backends: BTreeSet<IpAddr>,
    routed: usize,
    unrouted: usize,
}

/// Captures of the corpus that run as one.
const JOINED: usize = 32;

/// 545 captures: every eighth alone through NAT, whose output is checked; all of them joined, through NAT, too, and
/// through the other chains for the balance of packets.
#[test]
fn the_corpus_of_applications_runs_through_all_chains() {
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
    let chains = Chains::new(&folder, &data);
    let alone: Vec<_> = captures.iter().step_by(8).cloned().collect();
    let (run, refused) = run_all(&alone, (&folder, &chains), &chains.nat, |_, _| {});
    eprintln!("{run} captures run, {refused} refused");
    assert!(refused * 20 < run, "{refused} of {} refused", alone.len());

    let readable = captures.into_iter().filter(|capture| is_readable(capture));
    let readable: Vec<_> = readable.collect();
    assert!(readable.len() > 500, "{}", readable.len());
    let groups = readable.chunks(JOINED).enumerate().map(|(number, group)| {
        let joined = folder.path(&format!("joined-{number}.pcap"));
        join(group, &joined);
        joined
    });
    let groups: Vec<_> = groups.collect();
    let (_, refused) = run_all(&groups, (&folder, &chains), &chains.nat, |replay, packets| {
        let all = [
            &chains.acl_nat,
            &chains.acl_lb_accounting,
            &chains.acl_url_encrypt,
            &chains.tunnel_ip_forward,
        ];
        for chain in all {
            let report = replay.run(chain, &[]).expect("what ran once runs again");
            assert_eq!(count(&report, "offered"), packets, "{}", replay.name());
        }
    });
    assert_eq!(refused, 0);
}

#[test]
fn tshark_finds_nothing_wrong_with_what_nat_sends() {
    let Some(data) = test_data() else { return };
    if !tshark_is_there() {
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let (_alone, folder) = (alone(), Folder::new());
    let Chains { forward, acl_nat, .. } = Chains::new(&folder, &data);
    for name in [
        "ndpi_reddit.pcap.zst",
        "ndpi_operavpn.pcapng.zst",
        "fastclick_test_load_balance.pcap.zst",
        "ddos_dns_rrsig_frag.pcap.zst",
        "zeek_irc_dcc_whale.pcapng.zst",
    ] {
        let capture = data.join("traces").join(name);
        // The same packets as replayed, for example padded to their wire length.
        let before = folder.path("before.pcap");
        let after = folder.path("after.pcap");
        let run = |chain: &Path, out: &Path| {
            run_capture(chain, &capture, RATES[0], &["--capture-out", out.to_str().unwrap()]).unwrap()
        };
        run(&forward, &before);
        let report = run(&acl_nat, &after);
        assert!(count(&report, "delivered") > 0, "{name}: {report}");
        let (before, after) = (tshark_frames(&before, BAD), tshark_frames(&after, BAD));
        eprintln!("{name}: {before} bad checksums before, {after} after");
        assert!(after <= before, "{name}: {before} bad checksums before, {after} after");
    }
}
