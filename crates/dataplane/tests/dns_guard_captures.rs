//! `dnsGuard` on a reflected flood, and on the DNS traffic in captures of ordinary programs, compared with the counts
//! of an independent reader (tshark).
//!
//! Needs the directory named by `TAILWATER_TEST_DATA`, and is skipped without it or without tshark, zstd and tar.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// Limits as an operator might set them.
const LIMITS: &str = "limits: {responses: 5, nodata: 5, referrals: 5, nxdomains: 5, errors: 5, all: 50}";

fn test_data() -> Option<PathBuf> {
    let folder = std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
    }
    for tool in ["tshark", "zstd", "tar"] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("skipped: {tool} is not installed");
            return None;
        }
    }
    folder
}

/// Directory that is deleted with its test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tailwater-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Counters of a guard for a capture, by reason, and the number of packets that leave under "sent".
fn counts(config: &str, capture: &Path) -> BTreeMap<String, u64> {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 200us}}\n  packets: {{malformed: pass, nonIp: pass}}\n  \
         functions: [{{name: it, dnsGuard: {{{config}}}}}]\n"
    );
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    let rss = RssHasher::default();
    let mut chain = ChainBuilder::new(&spec, &rss, 1).unwrap().instance(|_| true);
    let mut pool = BufferPool::new(1, 1 << 16).unwrap();
    let mut batch = Batch::new(&pool, 1);
    let (mut sent, mut first) = (0, None);
    let Ok(mut reader) = CaptureReader::open(capture, &ReadOptions::default()) else {
        return BTreeMap::new();
    };
    while let Some(packet) = reader.next_packet().unwrap_or_default() {
        let first = *first.get_or_insert(packet.timestamp);
        let now = Nanos::from_secs(1) + packet.timestamp.saturating_sub(first);
        let hash = parse(packet.data).map_or(0, |headers| rss.hash_headers(&headers));
        assert!(batch.push(&mut pool, packet.data, now, hash));
        chain.process(&mut batch, now);
        sent += batch.len() as u64;
        batch.release(&mut pool);
    }
    let names = chain.reasons().into_iter().map(|reason| reason.name);
    let mut counts: BTreeMap<_, _> = names.zip(chain.reason_counts()).collect();
    counts.insert("sent".to_owned(), sent);
    counts
}

/// Sum of a function's counters for a list of reasons.
fn sum(counts: &BTreeMap<String, u64>, reasons: &[&str]) -> u64 {
    let of = |reason: &&str| counts.get(&format!("it/{reason}")).copied();
    reasons.iter().filter_map(of).sum()
}

const LIMITED: [&str; 7] = [
    "responses",
    "nodata",
    "referrals",
    "nxdomains",
    "errors",
    "all",
    "amplification",
];

/// Number of packets in a capture that match a tshark filter, counting each fragment.
fn tshark(capture: &Path, filter: &str) -> u64 {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args([
            "-o",
            "ip.defragment:FALSE",
            "-Y",
            filter,
            "-T",
            "fields",
            "-e",
            "frame.number",
        ])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count() as u64
}

/// Signatures (RRSIG) of one name, reflected by many open servers to one address: 547 responses in 30 s, most of them
/// fragmented.
#[test]
fn a_reflected_flood_is_dropped() {
    let Some(data) = test_data() else { return };
    let scratch = Scratch::new("flood");
    let capture = scratch.0.join("flood.pcap");
    let status = Command::new("zstd")
        .arg("-dqo")
        .arg(&capture)
        .arg(data.join("traces/ddos_dns_rrsig_frag.pcap.zst"))
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    let responses = tshark(&capture, "udp.srcport == 53");
    let later = tshark(&capture, "ip.frag_offset > 0 && ip.proto == 17");
    let packets = tshark(&capture, "frame");

    // With rate limits: at most 5 answers and errors per second are left, including slips and leaks.
    let limited = counts(LIMITS, &capture);
    let (dropped, slipped) = (sum(&limited, &LIMITED), sum(&limited, &["slipped"]));
    eprintln!("{responses} responses, {later} fragments more: {limited:?}");
    assert!(dropped + slipped >= responses * 85 / 100);
    assert!(dropped >= responses * 45 / 100, "every second one slips");
    let fragments = sum(&limited, &["fragment"]);
    assert!(fragments >= later * 2 / 3);
    assert_eq!(limited["sent"], packets - dropped - fragments);
    assert_eq!(sum(&limited, &["not-counted", "accounts-evicted"]), 0);

    // In strict mode: none of it was requested.
    let strict = counts("mode: strict", &capture);
    eprintln!("strict: {strict:?}");
    assert!(sum(&strict, &["unsolicited"]) >= responses - 4);
    let strict = counts("mode: strict, fragments: drop", &capture);
    assert_eq!(sum(&strict, &["fragment"]), later);
    assert_eq!(strict["sent"], packets - sum(&strict, &["unsolicited", "fragment"]));
}

/// Captures of 538 programs with their DNS traffic: all of it passes, except for deliberately odd messages.
#[test]
fn ordinary_dns_passes() {
    let Some(data) = test_data() else { return };
    let scratch = Scratch::new("programs");
    let archive = data.join("traces/ndpi_app_corpus_545pcaps.tar.zst");
    let mut zstd = Command::new("zstd")
        .arg("-dcq")
        .arg(&archive)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let tar = Command::new("tar")
        .args(["-x", "--strip-components=4", "-C"])
        .arg(&scratch.0)
        .stdin(zstd.stdout.take().unwrap())
        .status();
    assert!(zstd.wait().unwrap().success() && tar.unwrap().success());
    let files = std::fs::read_dir(&scratch.0).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut sums = [0; 3];
    let (mut limited, mut unasked) = (BTreeMap::new(), BTreeMap::new());
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let counts_of = |config: &str| counts(config, file);
        let (at_rates, strict) = (counts_of(LIMITS), counts_of("mode: strict"));
        let mut reasons = LIMITED.to_vec();
        reasons.push("slipped");
        let beyond = sum(&at_rates, &reasons);
        let unsolicited = sum(&strict, &["unsolicited", "fragment"]);
        sums[0] += at_rates.get("sent").unwrap_or(&0);
        if beyond > 0 {
            limited.insert(name.clone(), beyond);
        }
        if unsolicited > 0 {
            unasked.insert(name, unsolicited);
        }
        sums[1] += beyond;
        sums[2] += unsolicited;
    }
    eprintln!("{sums:?} {limited:?} {unasked:?}");
    // A tool that exfiltrates files by DNS, 60 queries per second.
    let names: Vec<&str> = limited.keys().map(String::as_str).collect();
    assert_eq!(names, ["dns_exfiltration.pcap"]);
    // Answers that are more than five seconds late, for another name, of a fuzzer, malformed ones, and a single one.
    let names: Vec<&str> = unasked.keys().map(String::as_str).collect();
    let odd = [
        "bad-dns-traffic.pcap",
        "dns-invalid-chars.pcap",
        "dns.pcap",
        "fuzz-2006-06-26-2594.pcap",
        "malformed_dns.pcap",
    ];
    assert_eq!(names, odd);
    assert_eq!(sums[2], 46);
}
