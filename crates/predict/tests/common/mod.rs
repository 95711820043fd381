//! Functions on a toy server, whose performance is known: an independent source for all tests.
#![allow(dead_code)]

use std::sync::Arc;
use tailwater_predict::metric::{ACCESS_RATE, OCCUPANCY, Resource, WORKING_SET};
use tailwater_predict::{Campaign, Key, Metric, Observation, Schema, Source, Vector};

/// Cache of the toy server, MiB.
pub const CACHE: f64 = 20.0;

/// Deterministic pseudo-random numbers from 0 to 1 (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Target: what it occupies alone (MiB), its sensitivity to misses and to memory bandwidth, packets/s alone.
#[derive(Clone, Copy)]
pub struct Toy {
    pub occupancy: f64,
    pub cache: f64,
    pub memory: f64,
    pub solo: f64,
}

pub const ROUTER: Toy = Toy {
    occupancy: 8.0,
    cache: 0.6,
    memory: 0.3,
    solo: 5e6,
};

impl Toy {
    /// Slowdown by piecewise functions as in section 5.2 of the paper: little happens until both fill the cache, and
    /// from there on the access rate decides. Memory bandwidth adds to it.
    pub fn throughput(&self, rate: f64, occupancy: f64, bandwidth: f64) -> f64 {
        let over = ((self.occupancy + occupancy - CACHE) / CACHE).clamp(0.0, 1.0);
        let misses = self.cache * over * (0.3 + 0.7 * rate / (rate + 2e7));
        let waiting = self.memory * (bandwidth / 40.0).powi(2);
        self.solo / (1.0 + misses + waiting)
    }
}

pub fn schema(source: Source) -> Arc<Schema> {
    let metrics = vec![
        Metric::new(ACCESS_RATE, "accesses/s", Resource::Cache),
        Metric::new(OCCUPANCY, "MiB", Resource::Cache),
        Metric::new(WORKING_SET, "MiB", Resource::Cache),
        Metric::new("memoryRead", "GB/s", Resource::MemoryBandwidth),
        Metric::ratio("l3HitRate", "ratio", Resource::Cache),
    ];
    Arc::new(Schema::new(source, metrics).unwrap())
}

pub fn key(function: &str) -> Key {
    Key {
        function: function.to_owned(),
        configuration: "0123456789abcdef".to_owned(),
        traffic: "64B, 400k flows".to_owned(),
        machine: "toy \"server\"".to_owned(),
    }
}

pub fn observation(toy: &Toy, schema: &Arc<Schema>, chance: &mut Chance, noise: f64, group: u32) -> Observation {
    let competitors = 1 + (chance.next() * 3.999) as u32;
    let rate = 1e8 * chance.next();
    let set = 30.0 * chance.next();
    let occupancy = set.min(CACHE * rate / (rate + 1e7));
    let bandwidth = 30.0 * chance.next();
    let values = [rate, occupancy, set, bandwidth, 1.0 - bandwidth / 60.0];
    let mut noisy = |value: f64| value * (noise * (chance.next() + chance.next() - 1.0)).exp();
    let throughput = noisy(toy.throughput(rate, occupancy, bandwidth));
    let vector = |values: [f64; 5]| Vector::new(schema.clone(), values.map(Some).to_vec()).unwrap();
    let share = 1.0 / f64::from(competitors);
    let own = [2e7 * share, toy.occupancy * share, toy.occupancy, 2.0 * share, 0.9];
    Observation {
        group,
        competitors,
        competition: vector(values),
        throughput,
        p99_us: Some(50.0 * toy.solo / throughput),
        own: Some(vector(own)),
        flagged: false,
    }
}

pub fn alone(toy: &Toy, schema: &Arc<Schema>) -> Observation {
    let vector = |values: [f64; 5]| Vector::new(schema.clone(), values.map(Some).to_vec()).unwrap();
    Observation {
        group: u32::MAX,
        competitors: 0,
        competition: vector([0.0, 0.0, 0.0, 0.0, 1.0]),
        throughput: toy.solo,
        p99_us: Some(50.0),
        own: Some(vector([
            2e7 * toy.cache,
            toy.occupancy,
            toy.occupancy,
            6.0 * toy.memory,
            0.9,
        ])),
        flagged: false,
    }
}

pub fn campaign(toy: &Toy, function: &str, count: u32, noise: f64, seed: u64) -> Campaign {
    let schema = schema(Source::Modelled);
    let mut campaign = Campaign::new(key(function), schema.clone());
    let mut chance = Chance(seed);
    campaign.push(alone(toy, &schema)).unwrap();
    for group in 0..count {
        let observation = observation(toy, &schema, &mut chance, noise, group);
        campaign.push(observation).unwrap();
    }
    campaign
}
