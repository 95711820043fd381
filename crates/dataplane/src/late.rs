//! Late packets of all workers, as the server mapper learns of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of late packets below which none counts: a wake-up of an idle machine is no want of cores.
const FEW_LATE: u64 = 64;

/// Packets of all workers, and those late for want of cores, auxiliary workers included, up to some 10 ms ago. Workers
/// add, the mapper's thread reads.
#[derive(Clone, Debug, Default)]
pub struct LateCounters {
    /// Packets offered, and those late or lost.
    counts: Arc<[AtomicU64; 2]>,
    /// The same at the last call of the mapper.
    told: [u64; 2],
}

impl LateCounters {
    /// Adds packets offered, and late ones.
    pub(crate) fn add(&self, packets: [u64; 2]) {
        for (count, more) in self.counts.iter().zip(packets) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Returns the share of late packets since the last call.
    pub(crate) fn since_last_call(&mut self) -> f64 {
        let now: [u64; 2] = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        let [offered, late] = std::array::from_fn(|at| now[at] - self.told[at]);
        self.told = now;
        if late < FEW_LATE {
            return 0.0;
        }
        // A packet is late later than it was offered.
        (late as f64 / offered.max(1) as f64).min(1.0)
    }
}
