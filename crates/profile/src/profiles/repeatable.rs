//! Measurements that are not repeatable: their noise leaves nothing of the value.

use super::{CacheProfile, ChainProfile, Curve, LatencyProfile};
use crate::curve::Measured;
use std::fmt;

/// Noise of a latency, as a share of it, up to which it is repeatable: up to twice the value, where tails vary most.
pub const MOST_LATENCY_NOISE: f64 = 1.0;
/// The same of a throughput.
pub const MOST_THROUGHPUT_NOISE: f64 = 0.5;
/// The same of a function's cost.
pub const MOST_COST_NOISE: f64 = 0.5;

/// A value of a profile that is not repeatable. Placement does not use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unrepeatable {
    /// Curve that contains the value.
    pub curve: Curve,
    /// Position on it: KiB of cache, or load in percent.
    pub at: u64,
    /// Value with its noise.
    pub measured: Measured,
}

impl fmt::Display for Unrepeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.curve {
            Curve::Cache => write!(f, "throughput with {} KiB of cache", self.at)?,
            Curve::Throughput => write!(f, "throughput")?,
            Curve::Latency => write!(f, "latency at load {:.2}", self.at as f64 / 100.0)?,
        }
        let Measured { runs, .. } = self.measured;
        let noise = self.measured.relative_noise() * 100.0;
        write!(f, " (± {noise:.0} %, {runs} run{})", if runs == 1 { "" } else { "s" })
    }
}

impl ChainProfile {
    /// Returns the values of both curves that are not repeatable.
    pub fn unrepeatable(&self) -> Vec<Unrepeatable> {
        let latency = self.latency.iter().flat_map(LatencyProfile::unrepeatable);
        latency
            .chain(self.cache.iter().flat_map(CacheProfile::unrepeatable))
            .collect()
    }
}

impl LatencyProfile {
    /// Returns the values of this curve that are not repeatable.
    pub fn unrepeatable(&self) -> Vec<Unrepeatable> {
        let throughput = (!self.throughput.is_repeatable(MOST_THROUGHPUT_NOISE)).then_some(Unrepeatable {
            curve: Curve::Throughput,
            at: 100,
            measured: self.throughput,
        });
        let points = self.points.iter().filter_map(|point| {
            (!point.measured.is_repeatable(MOST_LATENCY_NOISE)).then_some(Unrepeatable {
                curve: Curve::Latency,
                at: point.at.into(),
                measured: point.measured,
            })
        });
        throughput.into_iter().chain(points).collect()
    }
}

impl CacheProfile {
    /// Returns the values of this curve that are not repeatable.
    pub fn unrepeatable(&self) -> Vec<Unrepeatable> {
        let points = self.points.iter().filter_map(|point| {
            (!point.measured.is_repeatable(MOST_THROUGHPUT_NOISE)).then_some(Unrepeatable {
                curve: Curve::Cache,
                at: u64::from(point.at) * u64::from(self.unit_kibibytes),
                measured: point.measured,
            })
        });
        points.collect()
    }
}
