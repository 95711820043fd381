//! `synthetic` on this machine: actual against declared cost of a packet.
//!
//! `cargo bench -p tailwater-functions --bench synthetic [-- NAME]` runs the figures whose names contain NAME, on one
//! core. It prints one JSON line per figure to standard output. The time of the same chain without the load is
//! subtracted.
//!
//! - `functions/synthetic/cycles/N`: ratio of measured to declared core cycles of a packet. The clock is one of the
//!   core's: a dependent chain of additions and rotations, one cycle each, measured alternately with it;
//! - `functions/synthetic/new-flow/N`: the same for a packet that opens a flow;
//! - `functions/synthetic/PATTERN/SIZE`: nanoseconds per line read, with a working set of that size;
//! - `functions/synthetic/plain-chase/SIZE`: pointer chase through an array of numbers, the reference for `chase`.

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
const RUNS: usize = 15;
/// Duration of a measurement.
const RUN: Duration = Duration::from_millis(15);
/// Flows in the figure of new flows: each measurement begins with an empty table.
const FLOWS: usize = 4096;

/// Chain and its packets, which are used repeatedly.
struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    frames: Vec<(Vec<u8>, u32)>,
    next: usize,
}

impl Rig {
    fn new(config: &str, flows: usize) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\n\
             spec:\n  slo: {{latency: 200us}}\n  flows: {{capacity: 65536}}\n  functions: [{{synthetic: {{{config}}}}}]\n"
        );
        let spec = ChainSpec::parse(&text, "bench", Path::new("."));
        let spec = spec.unwrap_or_else(|error| panic!("{error}"));
        let rss = RssHasher::default();
        let builder = ChainBuilder::new(&spec, &rss, 1);
        let mut builder = builder.unwrap_or_else(|error| panic!("{error}"));
        let pool = BufferPool::new(BATCH as u32, 2048).unwrap_or_else(|error| panic!("{error}"));
        let frames = (0..flows).map(|flow| {
            let (source, server) = ([10, 0, 0, 1].into(), [198, 18, 0, 1].into());
            let key = FlowKey::v4(source, server, protocol::UDP, flow as u16, 53);
            let frame = FrameBuilder::new(&key).payload(&[0; 18]).to_vec();
            (frame.unwrap_or_else(|error| panic!("{error}")), rss.hash(&key))
        });
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, BATCH),
            pool,
            frames: frames.collect(),
            next: 0,
        }
    }

    /// Runs a batch, including the copies that fill it.
    fn run(&mut self) {
        for _ in 0..BATCH {
            let (frame, hash) = &self.frames[self.next];
            self.next = (self.next + 1) % self.frames.len();
            self.batch.push(&mut self.pool, frame, Nanos::ZERO, *hash);
        }
        self.chain.process(&mut self.batch, Nanos::ZERO);
        assert_eq!(black_box(&self.batch).len(), BATCH, "packets were dropped");
        self.batch.release(&mut self.pool);
    }

    /// Nanoseconds per packet.
    fn packet(&mut self) -> f64 {
        let (begun, mut packets) = (Instant::now(), 0);
        while begun.elapsed() < RUN {
            (0..8).for_each(|_| self.run());
            packets += 8 * BATCH;
        }
        begun.elapsed().as_nanos() as f64 / packets as f64
    }
}

/// Nanoseconds for the first packet of each of [`FLOWS`] flows.
fn opening(config: &str) -> f64 {
    let mut rig = Rig::new(config, FLOWS);
    let begun = Instant::now();
    (0..FLOWS / BATCH).for_each(|_| rig.run());
    begun.elapsed().as_nanos() as f64 / FLOWS as f64
}

/// Nanoseconds per core cycle.
fn cycle() -> f64 {
    const STEPS: u32 = 2_000_000;
    // Operands unknown to the compiler, so that it cannot shorten the chain.
    let (add, mask) = (black_box(0x1234_5678_9abc_def1u64), black_box(0x0fed_cba9u64));
    let mut value = black_box(1u64);
    let begun = Instant::now();
    for _ in 0..STEPS {
        value = (value.wrapping_add(add) ^ mask).rotate_left(7);
    }
    black_box(value);
    begun.elapsed().as_nanos() as f64 / (3.0 * f64::from(STEPS))
}

/// Nanoseconds per step of a pointer chase through `bytes` bytes, one line per step.
fn plain_chase(bytes: usize) -> f64 {
    let lines = bytes / 64;
    let mut next = vec![0u32; bytes / 4];
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut random = 1u64;
    for at in (1..lines).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, ((random >> 33) as usize) % at);
    }
    for pair in 0..lines {
        next[16 * order[pair] as usize] = order[(pair + 1) % lines];
    }
    let (mut at, mut steps) = (order[0], 0u64);
    let begun = Instant::now();
    while begun.elapsed() < RUN {
        for _ in 0..10_000 {
            at = next[16 * at as usize];
        }
        steps += 10_000;
    }
    black_box(at);
    begun.elapsed().as_nanos() as f64 / steps as f64
}

fn print(name: &str, unit: &str, mut values: Vec<f64>) {
    let wanted = std::env::args().skip(1).find(|argument| argument != "--bench");
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let [median, min, max] = [values.len() / 2, 0, values.len() - 1].map(|place| rounded(values[place]));
    println!(
        "{}",
        serde_json::json!({
            "name": name, "value": median, "unit": unit, "min": min, "max": max, "runs": values.len()
        })
    );
}

/// Values of several runs, in which the compared variants alternate.
fn runs(mut value: impl FnMut() -> f64) -> Vec<f64> {
    value();
    (0..RUNS).map(|_| value()).collect()
}

fn main() {
    let mut floor = Rig::new("", 1);
    for cycles in [100, 1_000, 10_000] {
        let mut load = Rig::new(&format!("cycles: {cycles}"), 1);
        let values = runs(|| (load.packet() - floor.packet()) / cycle() / f64::from(cycles));
        print(&format!("functions/synthetic/cycles/{cycles}"), "ratio", values);
    }
    for cycles in [1_000, 10_000] {
        let config = format!("newFlowCycles: {cycles}");
        // The minimum load with which flows are looked up.
        let values = runs(|| (opening(&config) - opening("newFlowCycles: 1")) / cycle() / f64::from(cycles));
        print(&format!("functions/synthetic/new-flow/{cycles}"), "ratio", values);
    }
    for (size, bytes) in [
        ("16KiB", 16 << 10),
        ("256KiB", 256 << 10),
        ("1MiB", 1 << 20),
        ("8MiB", 8 << 20),
        ("64MiB", 64 << 20),
        ("256MiB", 256 << 20),
    ] {
        for pattern in ["sequential", "random", "chase"] {
            const READS: u32 = 64;
            let set = format!("reads: {READS}, workingSet: {size}, pattern: {pattern}");
            let mut load = Rig::new(&set, 1);
            let values = runs(|| (load.packet() - floor.packet()) / f64::from(READS));
            print(&format!("functions/synthetic/{pattern}/{size}"), "ns", values);
        }
        let values = runs(|| plain_chase(bytes));
        print(&format!("functions/synthetic/plain-chase/{size}"), "ns", values);
    }
}
