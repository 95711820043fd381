//! Doubts about measurements: values that are not repeatable, since their noise leaves nothing of them, and values and
//! rates that were measured with interference.

use super::{CacheProfile, ChainProfile, CostProfile, Curve, LatencyProfile};
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

/// Numbers of values that a profile's reader should not rely on without a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Values that are not [repeatable](Unrepeatable).
    pub unrepeatable: usize,
    /// Values of which some runs had interference.
    pub disturbed_values: usize,
    /// These runs.
    pub disturbed_runs: u64,
    /// Trials of rates with interference.
    pub disturbed_trials: u64,
    /// Points at which noise hides whether a curve bends.
    pub hidden_bends: usize,
}

impl Doubts {
    /// Returns `true` if there are none.
    pub fn is_none(&self) -> bool {
        *self == Doubts::default()
    }

    /// Returns the number of runs and trials with interference.
    pub fn disturbed(&self) -> u64 {
        self.disturbed_runs + self.disturbed_trials
    }

    fn add(&mut self, measured: &Measured) {
        self.disturbed_values += usize::from(measured.disturbed > 0);
        self.disturbed_runs += u64::from(measured.disturbed);
    }
}

/// Formats the interference.
impl fmt::Display for Doubts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |number: u64| if number == 1 { "" } else { "s" };
        let (runs, values, trials) = (self.disturbed_runs, self.disturbed_values as u64, self.disturbed_trials);
        write!(f, "{runs} run{} of {values} value{}", s(runs), s(values))?;
        match trials {
            0 => Ok(()),
            trials => write!(f, ", {trials} trial{} of rates", s(trials)),
        }
    }
}

impl ChainProfile {
    /// Counts the values that a reader should not rely on.
    pub fn doubts(&self) -> Doubts {
        let mut doubts = Doubts {
            unrepeatable: self.unrepeatable().len(),
            ..Doubts::default()
        };
        if let Some(cache) = &self.cache {
            cache.points.iter().for_each(|point| doubts.add(&point.measured));
            cache.not_held.iter().for_each(|point| doubts.add(&point.measured));
            doubts.hidden_bends += cache.hidden_bends.len();
        }
        if let Some(latency) = &self.latency {
            doubts.add(&latency.throughput);
            latency.points.iter().for_each(|point| doubts.add(&point.measured));
            doubts.hidden_bends += latency.hidden_bends.len();
            doubts.disturbed_trials += u64::from(latency.disturbed_trials);
        }
        if let Some(CostProfile { whole, functions }) = &self.costs {
            doubts.add(whole);
            functions.iter().for_each(|of| doubts.add(&of.cost));
        }
        doubts
    }

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
