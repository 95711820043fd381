//! Hosts and server names that `urlFilter` finds in captures, compared with those that an independent reader (tshark)
//! finds; and a published list of malicious URLs.
//!
//! Needs the directory named by `TAILWATER_TEST_DATA`, and is skipped without it or without tshark.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

fn test_data() -> Option<PathBuf> {
    let folder = std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
    }
    folder
}

fn spec(config: &str, folder: &Path) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 200us}}\n  packets: {{malformed: pass, nonIp: pass}}\n  \
         flows: {{capacity: 65536}}\n  functions: [{{name: url-filter, urlFilter: {config}}}]\n"
    );
    ChainSpec::parse(&text, "test", folder).unwrap_or_else(|error| panic!("{error}"))
}

fn frames(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(capture, &ReadOptions::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        frames.push(packet.data.to_vec());
    }
    frames
}

/// Counters of a filter, by reason.
fn counts(spec: &ChainSpec, frames: &[Vec<u8>]) -> BTreeMap<String, u64> {
    let rss = RssHasher::default();
    let mut chain = ChainBuilder::new(spec, &rss, 1).unwrap().instance(|_| true);
    let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
    let mut pool = BufferPool::new(32, longest + 256).unwrap();
    let mut batch = Batch::new(&pool, 32);
    for (i, frames) in frames.chunks(32).enumerate() {
        let now = Nanos::from_secs(1) + Nanos(i as u64);
        for frame in frames {
            let hash = parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
            assert!(batch.push(&mut pool, frame, now, hash));
        }
        chain.process(&mut batch, now);
        batch.release(&mut pool);
    }
    let names = chain.reasons().into_iter().map(|reason| reason.name);
    names.zip(chain.reason_counts()).collect()
}

/// Number of occurrences of each value of a field in the packets that match a tshark filter.
fn tshark(capture: &Path, filter: &str, field: &str) -> Option<BTreeMap<String, u64>> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args(["-Y", filter, "-T", "fields", "-e", field])
        .output()
        .ok()?;
    let mut seen = BTreeMap::new();
    for value in String::from_utf8_lossy(&output.stdout)
        .lines()
        .flat_map(|line| line.split(','))
    {
        let host = value.trim().to_lowercase();
        if !host.is_empty() {
            *seen.entry(host.trim_end_matches(":80").to_owned()).or_default() += 1;
        }
    }
    Some(seen)
}

/// A decompressed copy, which tshark can read.
fn decompressed(archive: &Path, name: &str) -> PathBuf {
    let copy = std::env::temp_dir().join(format!("tailwater-{}-{name}", std::process::id()));
    let status = Command::new("zstd")
        .args(["-dqf", "-o"])
        .arg(&copy)
        .arg(archive)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{archive:?}");
    copy
}

#[test]
fn hosts_and_server_names_are_those_that_tshark_sees() {
    let Some(data) = test_data() else { return };
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let mut names = 0;
    // The second number: requests that a search for "Host:" finds in the payloads, but that tshark does not count as
    // requests.
    let captures = [
        ("ndpi_reddit", 0),
        ("snabb_techcrunch", 0),
        ("fastclick_test_load_balance", 0),
        ("ndpi_webattack_rce", 3),
    ];
    for (name, more) in captures {
        let archive = data.join(format!("traces/{name}.pcap.zst"));
        let capture = decompressed(&archive, name);
        let requests = tshark(&capture, "http.request", "http.host").unwrap();
        let field = "tls.handshake.extensions_server_name";
        let hellos = tshark(&capture, field, field).unwrap();
        std::fs::remove_file(&capture).unwrap();
        let frames = frames(&archive);
        let kinds = [(&requests, "url-matched", more), (&hellos, "sni-matched", 0)];
        for (seen, reason, more) in kinds {
            for (host, &times) in seen {
                let config = format!("{{patterns: ['={host}'], action: alert}}");
                let counts = counts(&spec(&config, Path::new(".")), &frames);
                assert_eq!(counts[&format!("url-filter/{reason}")], times + more, "{name}: {host}");
                names += 1;
            }
        }
        // Only these patterns, which are in most names.
        let config = "{patterns: ['*com*', '*net*', '*org*', '*www*'], action: alert}";
        let counts = counts(&spec(config, Path::new(".")), &frames);
        let most: u64 = hellos.values().sum();
        assert!(counts["url-filter/sni-matched"] <= most, "{name}");
        assert_eq!(counts["url-filter/overlap-conflict"], 0, "{name}");
        assert_eq!(counts["url-filter/overflow-passed"], 0, "{name}");
    }
    assert!(names > 50, "only {names} names were compared");
}

#[test]
fn a_list_of_86_thousand_urls() {
    let Some(data) = test_data() else { return };
    let output = Command::new("tar")
        .args(["--zstd", "-xO", "-f"])
        .arg(data.join("rules/urlhaus_2024-09-10.tar.zst"))
        .args(["--wildcards", "*urlhaus-filter.txt"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('!')).collect();
    assert!(lines.len() > 86_000);
    let file = std::env::temp_dir().join(format!("tailwater-urls-{}.txt", std::process::id()));
    std::fs::write(&file, &text).unwrap();
    let spec = spec(
        &format!("{{patternsFile: '{}', action: alert}}", file.display()),
        Path::new("."),
    );
    std::fs::remove_file(&file).unwrap();
    // A request for every tenth of them, and for a similar host that is not listed.
    let mut requests = String::new();
    let mut expected = 0;
    for line in lines.iter().step_by(10) {
        let url = line.trim_start_matches("||").trim_end_matches("$all");
        let (host, path) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
        let slash = if path.starts_with('/') { "" } else { "/" };
        write!(requests, "GET {slash}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        write!(requests, "GET {slash}{path} HTTP/1.1\r\nHost: {host}.invalid\r\n\r\n").unwrap();
        expected += 1;
    }
    let key = tailwater_net::FlowKey::v4([10, 0, 0, 1].into(), [198, 18, 0, 1].into(), 6, 4000, 80);
    let mut sequence = 1;
    let frames: Vec<_> = requests
        .as_bytes()
        .chunks(1400)
        .map(|payload| {
            let fields = tailwater_net::builder::TcpFields {
                sequence,
                ..Default::default()
            };
            sequence += payload.len() as u32;
            let frame = tailwater_net::builder::FrameBuilder::new(&key).tcp(fields);
            frame.payload(payload).to_vec().unwrap()
        })
        .collect();
    assert_eq!(counts(&spec, &frames)["url-filter/url-matched"], expected);
}
