//! Targets that use more than memory: accelerators, regular-expression engines (Yala).
//!
//! Each resource has a model of the target's throughput when only that resource is contended. The target's execution
//! pattern decides on the throughput when all are.

use crate::sensitivity::PredictError;

/// Order in which a target uses its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Stages work on different packets at once: the slowest one limits the throughput.
    Pipeline,
    /// A core waits for each resource before it goes on: the times add up.
    RunToCompletion,
}

/// Resource that a target shares with others.
pub trait SharedResource {
    /// Name of the resource, such as `regex engine`.
    fn name(&self) -> &str;

    /// Returns the target's packets per second when only this resource is contended. The resource holds its
    /// competition.
    ///
    /// # Errors
    /// If the competition is outside of what its model covers.
    fn throughput(&self) -> Result<f64, PredictError>;
}

/// Throughput beside competitors for all resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Combined {
    /// Packets per second.
    pub throughput: f64,
    /// Resource with the largest slowdown; `None` if none slows the target.
    pub binds: Option<String>,
}

/// Combines resources. `solo` is the throughput without competitors, in packets per second.
///
/// In a pipeline the throughput is the minimum over the resources. In run-to-completion a packet takes its time alone,
/// and from each resource the time that contention adds there.
///
/// # Errors
/// The first error of a resource.
pub fn combine(pattern: Pattern, solo: f64, resources: &[&dyn SharedResource]) -> Result<Combined, PredictError> {
    let mut least: Option<(f64, &str)> = None;
    let mut seconds = 1.0 / solo;
    for resource in resources {
        // No resource makes the target faster than alone.
        let throughput = resource.throughput()?.min(solo);
        seconds += 1.0 / throughput - 1.0 / solo;
        if throughput < least.map_or(solo, |(least, _)| least) {
            least = Some((throughput, resource.name()));
        }
    }
    Ok(Combined {
        throughput: match pattern {
            Pattern::Pipeline => least.map_or(solo, |(least, _)| least),
            Pattern::RunToCompletion => 1.0 / seconds,
        },
        binds: least.map(|(_, name)| name.to_owned()),
    })
}

/// Memory, whose contention a [`Sensitivity`](crate::Sensitivity) has predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Predicted packets per second.
    pub throughput: f64,
}

impl SharedResource for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn throughput(&self) -> Result<f64, PredictError> {
        Ok(self.throughput)
    }
}

/// Use of an accelerator's queues.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queues {
    /// Number of queues.
    pub queues: u32,
    /// Time that the accelerator takes for a request, seconds.
    pub request_seconds: f64,
    /// Requests per second that are offered; infinite if there is always one waiting.
    pub offered: f64,
}

/// Accelerator that serves one request of each queue that has one, in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Accelerator {
    /// Name of the resource.
    pub name: String,
    /// The target's queues. [`offered`](Queues::offered) is what it needs alone.
    pub target: Queues,
    /// Requests that a packet of the target makes.
    pub requests_per_packet: f64,
    /// Queues of each competitor.
    pub competitors: Vec<Queues>,
}

impl Accelerator {
    /// Returns the target's requests per second: the fair rate of a queue, at which the accelerator is just busy, times
    /// the target's queues, and at most what it offers.
    pub fn requests(&self) -> f64 {
        let everyone = || self.competitors.iter().chain([&self.target]);
        let busy = |rate: f64| {
            let used = everyone().map(|of| of.offered.min(f64::from(of.queues) * rate) * of.request_seconds);
            used.sum::<f64>()
        };
        let limit = |rate: f64| self.target.offered.min(f64::from(self.target.queues) * rate);
        // A single queue of the fastest requests gets no more than this.
        let fastest = everyone().map(|of| of.request_seconds).fold(f64::INFINITY, f64::min);
        let (mut low, mut high) = (0.0, 1.0 / fastest.max(1e-12));
        if busy(high) <= 1.0 {
            return limit(high);
        }
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            *if busy(middle) > 1.0 { &mut high } else { &mut low } = middle;
        }
        limit(low)
    }
}

impl SharedResource for Accelerator {
    fn name(&self) -> &str {
        &self.name
    }

    fn throughput(&self) -> Result<f64, PredictError> {
        Ok(self.requests() / self.requests_per_packet)
    }
}
