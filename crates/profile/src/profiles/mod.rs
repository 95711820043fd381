//! Profiles of chains: throughput over cache, latency over load, by chain, configuration, traffic and machine; and
//! the files that they are kept in.

mod compare;
mod costs;
mod curves;
mod file;
mod machine;
mod values;

pub use compare::{Change, Curve, Difference, compare};
pub use costs::{CostProfile, FunctionCost};
pub use curves::{CurvesError, Rising, placement};
pub use machine::Machine;
pub use values::{MAX_POINTS, MAX_PROFILES, MAX_TEXT, VERSION};

use crate::cache::Method;
use crate::curve::{Measured, Point};

/// What a profile is of.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The chain's name, an RFC 1123 label.
    pub chain: String,
    /// The [fingerprint](crate::fingerprint) of its configuration.
    pub configuration: String,
    /// The traffic that it was measured with, such as `backbone, seed 1`.
    pub traffic: String,
    /// The machine that it was measured on.
    pub machine: Machine,
}

impl Key {
    /// Whether both are of the same: machines, too, as far as they [can be told](Machine::is).
    pub fn is(&self, other: &Key) -> bool {
        self.chain == other.chain
            && self.configuration == other.configuration
            && self.traffic == other.traffic
            && self.machine.is(&other.machine)
    }
}

/// What was measured of a chain. A part that was not measured is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainProfile {
    /// What it is of.
    pub key: Key,
    /// Throughput over cache.
    pub cache: Option<CacheProfile>,
    /// Latency over load.
    pub latency: Option<LatencyProfile>,
    /// What packets cost, function by function: beside the others in what is measured, and missing in older files.
    pub costs: Option<CostProfile>,
}

/// Packets per second of a chain on one core that always has more, over the cache that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheProfile {
    /// How the cache was divided.
    pub method: Method,
    /// KiB of a step of [`points`](Self::points).
    pub unit_kibibytes: u32,
    /// Steps of all the cache that there was to divide: of a machine that others use, not all there is.
    pub most_units: u32,
    /// Packets per second over units of cache, by units.
    pub points: Vec<Point>,
    /// Units at which the chain did not have what it was to have: it took more from the pirate, or still had more from
    /// before its partition became smaller. Not part of the curve.
    pub not_held: Vec<NotHeld>,
    /// How much of its share the chain had filled, by units, where the processor counts it.
    pub occupied: Vec<Occupied>,
}

impl CacheProfile {
    /// Bytes of so many units.
    pub fn bytes(&self, units: u32) -> u64 {
        u64::from(units) * u64::from(self.unit_kibibytes) * 1024
    }

    /// Bytes that the chain had in the cache with so many units, if that was counted.
    pub fn occupied(&self, units: u32) -> Option<u64> {
        let found = self.occupied.iter().find(|occupied| occupied.at == units);
        found.map(|occupied| u64::from(occupied.kibibytes) * 1024)
    }
}

/// What a chain had in the cache at the end of its runs at a point of the curve: the most of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// Where, in units.
    pub at: u32,
    /// KiB of the cache.
    pub kibibytes: u32,
}

/// A point that is none: the share was not held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NotHeld {
    /// Where, in units.
    pub at: u32,
    /// [How much](crate::cache::Held::misses) it was not held: the least of the runs.
    pub misses: f64,
    /// What the chain did with whatever it had.
    pub measured: Measured,
}

/// Latency over load, and the highest rates that keep promises; packets come evenly spaced.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyProfile {
    /// Packets per second at load 1: what the chain takes when there are always more.
    pub throughput: Measured,
    /// The percentile of [`points`](Self::points).
    pub percentile: f64,
    /// Latency in microseconds over load in percent, by load.
    pub points: Vec<Point>,
    /// The objective that [`objective_rate`](Self::objective_rate) keeps, in microseconds on this server.
    pub objective_us: f64,
    /// The percentile of packets that must keep it.
    pub objective_percentile: f64,
    /// The highest rate without loss (NDR), in packets per second; `None` where the lowest that was tried had some.
    pub ndr: Option<f64>,
    /// The same with at most 0.5 % of loss (PDR).
    pub pdr: Option<f64>,
    /// The same with the objective kept.
    pub objective_rate: Option<f64>,
}

/// Profiles of a file, each of something else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiles {
    /// In the order in which they were first measured.
    pub list: Vec<ChainProfile>,
}

impl Profiles {
    /// Adds a profile. One of the same is replaced, but for parts that were not measured anew.
    pub fn merge(&mut self, profile: ChainProfile) {
        let same = |other: &&mut ChainProfile| other.key.is(&profile.key);
        match self.list.iter_mut().find(same) {
            Some(other) => {
                other.key = profile.key;
                other.cache = profile.cache.or(other.cache.take());
                other.latency = profile.latency.or(other.latency.take());
                other.costs = profile.costs.or(other.costs.take());
            }
            None => self.list.push(profile),
        }
    }
}

#[cfg(test)]
mod tests;
