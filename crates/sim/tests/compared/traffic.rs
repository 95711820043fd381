//! Traffic for the comparison: arrival times and flows of packets.
//!
//! Integers only, so that it is the same on every machine.

use super::Service;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::Recording;

/// Arriving packet.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Nanoseconds since the start.
    at: u64,
    /// Number of its flow.
    flow: u32,
}

/// Kinds of traffic. Rates are in percent of the rate that one core can receive and process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Many flows, with random variation only.
    Smooth(u64),
    /// Background, with bursts of 0.2 to 2 ms in which many existing flows together send up to this much more.
    Bursts(u64, u64),
    /// Background, with bursts of up to 1 ms of new flows, with a packet or two each.
    Minnows(u64, u64),
    /// Background, with periods of 1 to 10 ms in which one flow sends this much more.
    Whale(u64, u64),
    /// Background, and for two thirds of the time a few hundred flows that send this much more.
    Surge(u64, u64),
    /// Background with bursts, minnows and a whale of half a core.
    Mixed(u64),
}

/// Pseudo-random numbers (a 64-bit congruential generator, upper half).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() * bound) >> 32
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns a nearly exponential gap of this mean: its probability halves with each step, and is linear between
    /// steps.
    fn gap(&mut self, mean: u64) -> u64 {
        let steps = u64::from((self.next() as u32).leading_zeros());
        mean * ((steps << 16) + (self.next() >> 16)) / (3 << 15)
    }
}

/// Slots of the background: each holds a flow for some tens of packets.
const SLOTS: u64 = 400;
/// One of this many background packets opens a flow.
const CHURN: u64 = 64;

struct Source {
    random: Random,
    arrivals: Vec<Arrival>,
    /// Background flow in each slot.
    slots: Vec<u32>,
    next_flow: u32,
    /// Core time of a packet in nanoseconds.
    packet: u64,
    new_packet: u64,
}

/// Returns `length` nanoseconds of a kind of traffic for this service.
pub fn generate(kind: Kind, service: &Service, length: u64, seed: u64) -> Arc<Recording> {
    let mut source = Source {
        random: Random::new(seed),
        arrivals: Vec::new(),
        slots: (0..SLOTS as u32).collect(),
        next_flow: SLOTS as u32,
        packet: service.per_packet() + service.new_flow / CHURN,
        new_packet: service.per_packet() + service.new_flow,
    };
    match kind {
        Kind::Smooth(load) => source.background(load, length),
        Kind::Bursts(load, more) => {
            source.background(load, length);
            source.bursts(more, length, 5_000_000);
        }
        Kind::Minnows(load, more) => {
            source.background(load, length);
            source.minnows(more, length, 5_000_000);
        }
        Kind::Whale(load, more) => {
            source.background(load, length);
            source.whales(more, length, 20_000_000);
        }
        Kind::Surge(load, more) => {
            source.background(load, length);
            let mut start = 2_000_000;
            while start < length {
                source.rush(more, start, 8_000_000, 300);
                start += 12_000_000;
            }
        }
        Kind::Mixed(load) => {
            source.background(load, length);
            source.bursts(100, length, 8_000_000);
            source.minnows(100, length, 8_000_000);
            source.whales(50, length, 20_000_000);
        }
    }
    let mut arrivals = source.arrivals;
    arrivals.retain(|arrival| arrival.at < length);
    arrivals.sort_by_key(|arrival| arrival.at);
    let packets = arrivals.iter();
    let packets = packets.map(|arrival| (Nanos(arrival.at), arrival.flow, 100));
    Arc::new(Recording::of_packets("made by integers", packets, 1))
}

impl Source {
    fn new_flow(&mut self) -> u32 {
        self.next_flow += 1;
        self.next_flow - 1
    }

    /// Adds background traffic: some flows send often, most rarely.
    fn background(&mut self, load: u64, length: u64) {
        let mut at = 0;
        let mean = self.packet * 100 / load;
        while at < length {
            at += self.random.gap(mean);
            let (a, b) = (self.random.below(1 << 16), self.random.below(1 << 16));
            let slot = ((SLOTS * a / (1 << 16) * b) >> 16) as usize;
            if self.random.below(CHURN) == 0 {
                self.slots[slot] = self.new_flow();
            }
            let flow = self.slots[slot];
            self.arrivals.push(Arrival { at, flow });
        }
    }

    /// Adds flows that are new at `start` and continue for some time.
    fn rush(&mut self, load: u64, start: u64, length: u64, flows: u64) {
        let first = self.next_flow;
        self.next_flow += flows as u32;
        let mut at = start;
        while at < start + length {
            at += self.random.gap(self.packet * 100 / load);
            let flow = first + self.random.below(flows) as u32;
            self.arrivals.push(Arrival { at, flow });
        }
    }

    fn bursts(&mut self, load: u64, length: u64, mean: u64) {
        let mut start = self.random.between(0, mean);
        while start < length {
            let lasts = self.random.between(200_000, 2_000_000);
            let load = self.random.between(load / 2, load);
            self.rush(load, start, lasts, 100);
            start += self.random.between(mean / 2, mean * 3 / 2);
        }
    }

    fn minnows(&mut self, load: u64, length: u64, mean: u64) {
        let mut start = self.random.between(0, mean);
        while start < length {
            let lasts = self.random.between(200_000, 1_000_000);
            let mut at = start;
            while at < start + lasts {
                at += self.random.gap(self.new_packet * 100 / load);
                let flow = self.new_flow();
                self.arrivals.push(Arrival { at, flow });
                if self.random.below(4) == 0 {
                    let at = at + self.random.between(2_000, 40_000);
                    self.arrivals.push(Arrival { at, flow });
                }
            }
            start += self.random.between(mean / 2, mean * 3 / 2);
        }
    }

    fn whales(&mut self, load: u64, length: u64, mean: u64) {
        let mut start = self.random.between(0, mean);
        while start < length {
            let lasts = self.random.between(1_000_000, 10_000_000);
            self.rush(load, start, lasts, 1);
            start += lasts + self.random.between(mean / 2, mean * 3 / 2);
        }
    }
}
