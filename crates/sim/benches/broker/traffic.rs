//! Traffic of unequal bursts.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{FlowOptions, Recording};
use tailwater_traffic::generate::preset;

/// Kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Steady flows, and superbursts of many flows (minnows) at random times.
    Bursts,
    /// Presets that correspond to NetBlaze's traces.
    Presets,
}

/// Memory limit for a chain's packets.
const MEMORY: u64 = 2 << 30;

/// Presets, and factors on their flows, each taken in turn.
const PRESETS: [&str; 2] = ["backbone", "as"];
const SCALES: [f64; 5] = [1.0, 4.0, 2.0, 6.0, 0.5];

/// Returns a preset's packets.
pub fn presets(number: usize, seed: u64, seconds: f64) -> (String, Arc<Recording>) {
    let (trace, scale) = (PRESETS[number % PRESETS.len()], SCALES[number % SCALES.len()]);
    let source = preset(trace).unwrap_or_else(|error| panic!("{error}")).scaled(scale);
    let source = source.with(seed, Nanos::from_secs_f64(seconds));
    let source = source.arrivals().unwrap_or_else(|error| panic!("{error}"));
    let packets = Recording::load(source, FlowOptions::default(), MEMORY);
    let packets = packets.unwrap_or_else(|error| panic!("{error}"));
    (format!("{trace} x {scale}"), Arc::new(packets))
}

/// Load of the steady flows in cores, load of a burst, and mean time between bursts in ms, each taken in turn. Their
/// numbers have no common factor, so that few chains are alike.
const STEADY: [f64; 3] = [0.2, 0.5, 0.3];
const HEIGHTS: [f64; 5] = [2.0, 4.0, 3.0, 6.0, 5.0];
const GAPS: [f64; 4] = [40.0, 80.0, 60.0, 120.0];
/// Shortest and longest burst in ms: a superburst lasts 10 ms or less (NetBlaze, section 2).
const LENGTHS: (f64, f64) = (2.0, 10.0);
/// Steady flows, and flows of a burst.
const FLOWS: u64 = 1_000;
const BURST_FLOWS: u64 = 500;
/// Bytes of a packet.
const BYTES: u16 = 900;

/// Returns the packets of steady flows with superbursts, for a chain of `packet` nanoseconds per packet.
///
/// `times` is a factor on its rates.
pub fn superbursts(number: usize, (seed, times): (u64, f64), seconds: f64, packet: f64) -> (String, Arc<Recording>) {
    let packet = packet / times;
    let steady = STEADY[number % STEADY.len()];
    let (height, gap) = (HEIGHTS[number % HEIGHTS.len()], GAPS[number % GAPS.len()]);
    let mut random = Random(seed);
    let end = seconds * 1e9;
    let mut packets: Vec<(u64, u32)> = Vec::new();
    let mut add = |random: &mut Random, from: f64, to: f64, cores: f64, first: u64, flows: u64| {
        let mut now = from;
        loop {
            now += random.gap(packet / cores);
            if now >= to.min(end) {
                break;
            }
            packets.push((now as u64, (first + random.below(flows)) as u32));
        }
    };
    add(&mut random, 0.0, end, steady, 0, FLOWS);
    let (mut at, mut first) = (0.0, FLOWS);
    loop {
        at += random.gap(gap * 1e6);
        if at >= end {
            break;
        }
        let length = (LENGTHS.0 + (LENGTHS.1 - LENGTHS.0) * random.unit()) * 1e6;
        add(&mut random, at, at + length, height, first, BURST_FLOWS);
        first += BURST_FLOWS;
        at += length;
    }
    packets.sort_unstable();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, BYTES));
    let name = format!("{steady}, {height} every {gap} ms");
    (name.clone(), Arc::new(Recording::of_packets(&name, packets, 50)))
}

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed time with this mean.
    fn gap(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}
