//! Interface to a model of contention between instances of a node.

use std::sync::Arc;

/// Chain on a machine, as a number of the predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u32);

/// Predicted value with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Lower end of the interval.
    pub low: f64,
    /// Predicted value.
    pub value: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Band {
    /// Exact value.
    pub const fn exact(value: f64) -> Band {
        Band {
            low: value,
            value,
            high: value,
        }
    }

    /// Returns the sum of each part.
    pub fn plus(self, other: Band) -> Band {
        Band {
            low: self.low + other.low,
            value: self.value + other.value,
            high: self.high + other.high,
        }
    }
}

/// Effect of other instances of a node on an instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Throughput relative to that alone: above 0, at most 1.
    pub throughput: Band,
    /// Latency relative to that alone at the same share of load: at least 1. Its upper end belongs to the lower one of
    /// the throughput.
    pub latency: Band,
}

impl Effect {
    /// Effect of no other instance.
    pub const NONE: Effect = Effect {
        throughput: Band::exact(1.0),
        latency: Band::exact(1.0),
    };
}

/// Resource that binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name of the resource.
    pub resource: String,
    /// Its metric that matters most.
    pub metric: String,
}

/// Model of contention between instances of a node.
pub trait CoRunPredictor {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns the probability with which its intervals hold.
    fn confidence(&self) -> f64;

    /// Returns the number of a chain on a machine, or `None` without a model of it.
    fn member(&self, chain: &str, machine: &str) -> Option<Member>;

    /// Returns the packets per second of a chain alone on a node, if known.
    fn alone(&self, member: Member) -> Option<f64>;

    /// Returns the effect of `others`, in any order, on an instance of `target`. All have the same machine.
    ///
    /// # Errors
    /// The reason why there is no prediction, such as a metric outside of its measured range.
    fn effect(&self, target: Member, others: &[Member]) -> Result<Effect, Arc<str>>;

    /// Returns the resource that causes most of the effect.
    fn binding(&self, target: Member, others: &[Member]) -> Option<Binding>;
}
