//! Profiles of chains by chain, configuration, traffic and machine: throughput over cache, and latency over load. Also
//! their file format.

mod compare;
mod costs;
mod curves;
mod file;
mod machine;
mod repeatable;
mod values;

pub use compare::{Change, Curve, Difference, compare};
pub use costs::{CostProfile, FunctionCost};
pub use curves::{CurvesError, Rising, placement};
pub use machine::Machine;
pub use repeatable::{Doubts, MOST_COST_NOISE, MOST_LATENCY_NOISE, MOST_THROUGHPUT_NOISE, Unrepeatable};
pub use values::{MAX_POINTS, MAX_PROFILES, MAX_TEXT, OLDEST_VERSION, VERSION};

use crate::cache::Method;
use crate::curve::{Measured, Point};

/// Identity of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The chain's name, an RFC 1123 label.
    pub chain: String,
    /// The [fingerprint](crate::fingerprint) of its configuration.
    pub configuration: String,
    /// The traffic, such as `backbone, seed 1`.
    pub traffic: String,
    /// The machine of the measurement.
    pub machine: Machine,
}

impl Key {
    /// Returns `true` if both keys have the same identity, with machines compared [by kind](Machine::is).
    pub fn is(&self, other: &Key) -> bool {
        self.chain == other.chain
            && self.configuration == other.configuration
            && self.traffic == other.traffic
            && self.machine.is(&other.machine)
    }
}

/// Measurements of a chain. Parts that were not measured are `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainProfile {
    /// Identity of the profile.
    pub key: Key,
    /// Throughput over cache.
    pub cache: Option<CacheProfile>,
    /// Latency over load.
    pub latency: Option<LatencyProfile>,
    /// Cost per packet by function, measured together with the others; absent in older files.
    pub costs: Option<CostProfile>,
}

/// Saturated packets per second of a chain on one core, over its share of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheProfile {
    /// Method of dividing the cache.
    pub method: Method,
    /// Size of a unit of [`points`](Self::points), KiB.
    pub unit_kibibytes: u32,
    /// Units of the cache that could be divided; on a shared machine, less than the whole cache.
    pub most_units: u32,
    /// Packets per second over units of cache, by units.
    pub points: Vec<Point>,
    /// Units at which the share was not held: the chain took more from the pirate, or still had lines from before its
    /// partition shrank. Not part of the curve.
    pub not_held: Vec<NotHeld>,
    /// Occupancy of the share by units, where the processor counts it.
    pub occupied: Vec<Occupied>,
    /// Verification of the share by units; absent in files of version 1.
    pub verified: Vec<Verified>,
    /// Units at which noise hides whether the curve bends.
    pub hidden_bends: Vec<u32>,
}

impl CacheProfile {
    /// Converts units to bytes.
    pub fn bytes(&self, units: u32) -> u64 {
        u64::from(units) * u64::from(self.unit_kibibytes) * 1024
    }

    /// Returns the degree to which this share was exceeded at most, if it was verified.
    pub fn verified(&self, units: u32) -> Option<f64> {
        let found = self.verified.iter().find(|verified| verified.at == units);
        found.map(|verified| verified.misses)
    }

    /// Returns the chain's occupancy at this share, bytes, if it was counted.
    pub fn occupied(&self, units: u32) -> Option<u64> {
        let found = self.occupied.iter().find(|occupied| occupied.at == units);
        found.map(|occupied| u64::from(occupied.kibibytes) * 1024)
    }
}

/// Cache occupancy of a chain at a point of the curve: the maximum over the ends of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// Share, units.
    pub at: u32,
    /// Occupancy, KiB.
    pub kibibytes: u32,
}

/// A share that was held during all runs that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verified {
    /// Share, units.
    pub at: u32,
    /// [Degree](crate::cache::ShareResult::misses) to which it was exceeded: the maximum of the runs.
    pub misses: f64,
}

/// A share that was not held, and so is not a point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NotHeld {
    /// Share, units.
    pub at: u32,
    /// [Degree](crate::cache::ShareResult::misses) to which it was not held: the minimum of the runs.
    pub misses: f64,
    /// The chain's packets per second with the cache that it had.
    pub measured: Measured,
}

/// Width to which the highest rates of a [`LatencyProfile`] are known: a rate higher by this share of itself was tried,
/// and failed.
pub const RATE_WIDTH: f64 = 0.02;

/// Latency over load, and the highest rates that meet objectives, with evenly spaced packets.
///
/// At each of these rates the chain was seen to keep up: packets left as fast as they came. A rate equal to the
/// throughput [is a lower bound](Self::is_at_least).
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyProfile {
    /// Packets per second at load 1, that is, saturated.
    pub throughput: Measured,
    /// Percentile of [`points`](Self::points).
    pub percentile: f64,
    /// Latency in microseconds over load in percent, by load.
    pub points: Vec<Point>,
    /// Objective of [`objective_rate`](Self::objective_rate), microseconds on this server.
    pub objective_us: f64,
    /// Percentile at which the objective must be met.
    pub objective_percentile: f64,
    /// Non-drop rate (NDR): highest rate without loss, packets per second. `None` if the lowest rate tried had loss.
    pub ndr: Option<f64>,
    /// Partial drop rate (PDR): the same with at most 0.5 % loss.
    pub pdr: Option<f64>,
    /// Highest rate that meets the objective.
    pub objective_rate: Option<f64>,
    /// Loads at which noise hides whether the curve bends, percent.
    pub hidden_bends: Vec<u32>,
    /// Trials of these rates with interference, because no others could be had.
    pub disturbed_trials: u32,
}

impl LatencyProfile {
    /// Returns `true` if this rate of the profile is the highest that was tried, so that the chain may keep a higher
    /// one, too.
    pub fn is_at_least(&self, rate: f64) -> bool {
        rate >= self.throughput.value
    }
}

/// Profiles of a file, each with its own identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiles {
    /// Profiles in the order of their first measurement.
    pub list: Vec<ChainProfile>,
}

impl Profiles {
    /// Adds a profile. Replaces the one with the same identity, except for parts that were not measured anew.
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
