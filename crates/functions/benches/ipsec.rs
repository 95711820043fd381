//! IPsec compared with its ciphers alone: nanoseconds per packet on one core, with all packets in the cache.
//!
//! `cargo bench -p tailwater-functions --bench ipsec [-- NAME]` runs the figures whose names contain NAME. It prints
//! one JSON line per figure to standard output: `functions/ipsec/CIPHER/SIZE/WHAT`, where `SIZE` is the inner packet's
//! frame, and `WHAT` is
//!
//! - `seal`: the cipher alone, on the bytes of such a packet that ESP encrypts, in place;
//! - `into`: a batch through a chain of one `ipsec`, which puts it into a tunnel;
//! - `both`: through two, into a tunnel and out of it;
//! - `ratio`: `into`, minus a chain that only sets addresses, divided by `seal`.
//!
//! Variants alternate within a run, so that noise affects all alike; values are medians.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Packets per batch, as in the data plane.
const BATCH: usize = 32;
/// Measurements per figure; the median counts.
const RUNS: usize = 21;
/// Duration of a measurement.
const RUN: Duration = Duration::from_millis(20);

const SIZES: [usize; 4] = [64, 256, 1024, 1500];

/// Ciphers by name in specs, with algorithm and number of key and salt bytes.
const CIPHERS: [(&str, &Algorithm, usize); 3] = [
    ("aes-128-gcm", &AES_128_GCM, 20),
    ("aes-256-gcm", &AES_256_GCM, 36),
    ("chacha20-poly1305", &CHACHA20_POLY1305, 36),
];

/// Chain and its packets, which are used repeatedly.
struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    frame: Vec<u8>,
}

impl Rig {
    fn new(functions: &str, frame: &[u8]) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\n\
             spec:\n  slo: {{latency: 200us}}\n  functions: {functions}\n"
        );
        let spec = ChainSpec::parse(&text, "bench", Path::new("."));
        let spec = spec.unwrap_or_else(|error| panic!("{error}"));
        let builder = ChainBuilder::new(&spec, &RssHasher::default(), 1);
        let mut builder = builder.unwrap_or_else(|error| panic!("{error}"));
        let pool = BufferPool::new(BATCH as u32, 2048).unwrap_or_else(|error| panic!("{error}"));
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, BATCH),
            pool,
            frame: frame.to_vec(),
        }
    }

    /// Runs a batch, including the copies that fill it.
    fn run(&mut self) {
        for _ in 0..BATCH {
            self.batch.push(&mut self.pool, &self.frame, Nanos::ZERO, 0);
        }
        self.chain.process(&mut self.batch, Nanos::ZERO);
        assert_eq!(black_box(&self.batch).len(), BATCH, "packets were dropped");
        self.batch.release(&mut self.pool);
    }
}

/// Cipher alone, on a batch of plaintexts.
struct Alone {
    key: LessSafeKey,
    texts: Vec<Vec<u8>>,
    number: u64,
}

impl Alone {
    fn new(algorithm: &'static Algorithm, text: usize) -> Alone {
        let key = UnboundKey::new(algorithm, &vec![7; algorithm.key_len()]);
        Alone {
            key: LessSafeKey::new(key.unwrap_or_else(|error| panic!("{error}"))),
            texts: vec![vec![0; text + 16]; BATCH],
            number: 0,
        }
    }

    fn run(&mut self) {
        for text in &mut self.texts {
            self.number += 1;
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&self.number.to_be_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let aad = Aad::from([1; 12]);
            let at = text.len() - 16;
            let (text, icv) = text.split_at_mut(at);
            let sealed = self.key.seal_in_place_scatter(nonce, aad, text, &[], icv);
            black_box(sealed).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// Nanoseconds per packet, over the duration of a measurement.
fn nanos(mut batch: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut batches = 0;
    while start.elapsed() < RUN {
        (0..16).for_each(|_| batch());
        batches += 16;
    }
    start.elapsed().as_nanos() as f64 / (batches * BATCH) as f64
}

fn print(name: &str, unit: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let (median, last) = (values[values.len() / 2], values[values.len() - 1]);
    println!(
        "{{\"name\":\"{name}\",\"value\":{},\"unit\":\"{unit}\",\"min\":{},\"max\":{},\"runs\":{}}}",
        rounded(median),
        rounded(values[0]),
        rounded(last),
        values.len()
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, only as a smoke test.
    let runs = match arguments.iter().any(|argument| argument == "--bench") {
        true => RUNS,
        false => 1,
    };
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    for (cipher, algorithm, bytes) in CIPHERS {
        for size in SIZES {
            let name = format!("functions/ipsec/{cipher}/{size}B");
            if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
                continue;
            }
            let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 1, 2);
            // The size includes the frame check sequence.
            let payload = vec![0; size - 4 - 42];
            let frame = FrameBuilder::new(&key).payload(&payload).to_vec();
            let frame = frame.unwrap_or_else(|error| panic!("{error}"));
            let digits = "0b".repeat(bytes);
            let association =
                format!("name: a, spi: 256, cipher: {cipher}, key: '{digits}', esn: true, destination: 192.0.2.2");
            let into = format!(
                "{{name: into, ipsec: {{mtu: 9000, policies: [{{protect: a}}], \
                 outbound: [{{{association}, source: 192.0.2.1}}]}}}}"
            );
            let out_of = format!("{{name: out-of, ipsec: {{inbound: [{{{association}}}]}}}}");
            let mut alone = Alone::new(algorithm, (frame.len() - 14 + 2).next_multiple_of(4));
            let mut forward = Rig::new("[{forward: {}}]", &frame);
            let mut enters = Rig::new(&format!("[{into}]"), &frame);
            let mut leaves = Rig::new(&format!("[{into}, {out_of}]"), &frame);
            let mut found: [Vec<f64>; 4] = Default::default();
            for _ in 0..runs {
                let seal = nanos(|| alone.run());
                let plain = nanos(|| forward.run());
                let enter = nanos(|| enters.run());
                let both = nanos(|| leaves.run());
                let values = [seal, enter, both, (enter - plain) / seal];
                found.iter_mut().zip(values).for_each(|(all, value)| all.push(value));
            }
            let whats = [("seal", "ns"), ("into", "ns"), ("both", "ns"), ("ratio", "")];
            for ((what, unit), values) in whats.into_iter().zip(&mut found) {
                print(&format!("{name}/{what}"), unit, values);
            }
        }
    }
}
