//! Savings of `wanOptimizer` on captures, and a check that every packet leaves the tunnel as it entered, also if some
//! are lost.
//!
//! ```text
//! cargo test --release -p tailwater-dataplane --test wan_optimizer_captures -- --nocapture
//! ```
//!
//! prints a table. Needs the directory named by `TAILWATER_TEST_DATA`, and is skipped without it.

use std::path::{Path, PathBuf};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::parse::{Network, parse};
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

fn frames(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(capture, &ReadOptions::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        // Packets truncated by the capture are not valid.
        if parse(packet.data).is_ok_and(|headers| headers.network != Network::NotIp) {
            frames.push(packet.data.to_vec());
        }
    }
    frames
}

struct End {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
}

impl End {
    fn new([local, remote]: [u8; 2], more: &str) -> End {
        let text = format!(
            "{{apiVersion: tailwater.dev/v1alpha1, kind: Chain, metadata: {{name: test}}, spec: {{\
             slo: {{latency: 200us}}, functions: [{{wanOptimizer: {{local: 192.0.2.{local}, \
             remote: 192.0.2.{remote}, streams: 1, mtu: 65535{more}}}}}]}}}}"
        );
        let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let mut builder = ChainBuilder::new(&spec, &RssHasher::default(), 1).unwrap();
        let pool = BufferPool::new(2, 65_535).unwrap();
        End {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 1),
            pool,
        }
    }

    fn run(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        assert!(self.batch.push(&mut self.pool, frame, Nanos::ZERO, 1));
        self.chain.process(&mut self.batch, Nanos::ZERO);
        let left = (!self.batch.is_empty()).then(|| self.batch.frame(0).to_vec());
        self.batch.release(&mut self.pool);
        left
    }

    fn count(&self, name: &str) -> u64 {
        let name = format!("wanOptimizer/{name}");
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let mut counts = reasons.filter(|(reason, _)| reason.name == name);
        counts.next().unwrap().1
    }
}

/// Results for a capture.
struct TunnelResult {
    /// Bytes of all IP packets before and after, including those that pass unchanged.
    bytes_in: u64,
    bytes_out: u64,
    /// Packets that go through the tunnel.
    packets: u64,
    /// Packets that were sent back because they referred to lost ones.
    missing: u64,
}

/// Sends frames through a tunnel that loses every packet for which `lost` returns `true`, and checks the output.
fn through(frames: &[Vec<u8>], more: &str, mut lost: impl FnMut() -> bool) -> TunnelResult {
    let behind = format!(", destinations: [0.0.0.0/0, '::/0']{more}");
    let (mut near, mut far) = (End::new([1, 2], &behind), End::new([2, 1], more));
    for frame in frames {
        let Some(sent) = near.run(frame) else {
            panic!("an end takes everything");
        };
        if lost() {
            continue;
        }
        let missing = far.count("missing");
        let left = far.run(&sent).unwrap();
        if far.count("missing") > missing {
            assert!(near.run(&left).is_none());
            continue;
        }
        let end = parse(frame).map_or(frame.len(), |headers| headers.end.into());
        // Ethernet padding remains only outside the tunnel.
        assert_eq!(left.get(..end), frame.get(..end));
        assert!(left.len() == end || left == *frame);
    }
    assert_eq!(far.count("damaged"), 0);
    assert_eq!(near.count("request"), far.count("missing"));
    let datagram = |frame: &Vec<u8>| parse(frame).unwrap().datagram(frame).len() as u64;
    let bytes_in: u64 = frames.iter().map(datagram).sum();
    TunnelResult {
        bytes_in,
        bytes_out: bytes_in - near.count("encoded-bytes-in") + near.count("encoded-bytes-out"),
        packets: near.count("encoded"),
        missing: far.count("missing"),
    }
}

/// One of a hundred, the same ones each time.
fn one_percent() -> impl FnMut() -> bool {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33).is_multiple_of(100)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[test]
fn captures_come_out_as_they_went_in() {
    let Some(folder) = std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from) else {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
        return;
    };
    let mut captures: Vec<PathBuf> = std::fs::read_dir(folder.join("traces"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".pcap"))
        .collect();
    captures.sort();
    assert!(!captures.is_empty());
    println!(
        "| capture | packets, of which in the tunnel | bytes | sent, `sample-byte` | sent, `max-p` | sent back at 1 % loss |"
    );
    println!("|---|---|---|---|---|---|");
    let mut all = [0; 3];
    for capture in &captures {
        let frames = frames(capture);
        let name = capture.file_name().unwrap().to_string_lossy().into_owned();
        let plain = through(&frames, "", || false);
        let max_p = through(&frames, ", fingerprints: max-p", || false);
        assert_eq!([plain.missing, max_p.missing], [0, 0], "{name}");
        let lossy = through(&frames, "", one_percent());
        println!(
            "| `{name}` | {}, {} | {} | {:.1} % | {:.1} % | {:.2} % |",
            frames.len(),
            plain.packets,
            plain.bytes_in,
            percent(plain.bytes_out, plain.bytes_in),
            percent(max_p.bytes_out, max_p.bytes_in),
            percent(lossy.missing, lossy.packets),
        );
        // In the worst case it adds its headers, 44 bytes.
        for outcome in [&plain, &max_p, &lossy] {
            assert!(outcome.bytes_out <= outcome.bytes_in + 44 * outcome.packets, "{name}");
        }
        for (sum, more) in all.iter_mut().zip([plain.bytes_in, plain.bytes_out, max_p.bytes_out]) {
            *sum += more;
        }
    }
    let [bytes_in, sample_byte, max_p] = all;
    println!(
        "| all | | {bytes_in} | {:.1} % | {:.1} % | |",
        percent(sample_byte, bytes_in),
        percent(max_p, bytes_in)
    );
    // Real traffic has more repetition than the headers take.
    assert!(sample_byte < bytes_in && max_p < bytes_in);
}
