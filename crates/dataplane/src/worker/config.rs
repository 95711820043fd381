//! Configuration of a worker.

use crate::late::LateCounters;
use tailwater_api::WhenOverloaded;
use tailwater_dispatch::Freshness;
use tailwater_net::Nanos;

/// Upper bound of the time after the end in which queued packets are still processed, so a user who pressed Ctrl-C does
/// not wait.
pub(crate) const LONGEST_DRAIN: Nanos = Nanos::from_millis(500);

/// Configuration of a worker, apart from its queue and chain.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Latency beyond which packets are late.
    pub slo: Nanos,
    /// Treatment of packets that are too late under overload.
    pub when_overloaded: WhenOverloaded,
    /// Length of a measurement window.
    pub window: Nanos,
    /// Arrival of the first packet.
    pub start: Nanos,
    /// Maximum number of packets per batch.
    pub batch: usize,
    /// Where late packets are counted for the server mapper.
    pub late: LateCounters,
}

impl WorkerConfig {
    /// Rule of a worker for packets that are too late, if it may discard them.
    pub(crate) fn freshness(&self) -> Option<Freshness> {
        (self.when_overloaded == WhenOverloaded::ServeFresh).then(|| Freshness::new(self.slo))
    }

    /// Time after the end in which queued packets are still processed: twice the SLO, but at most [`LONGEST_DRAIN`].
    pub(crate) fn drain(&self) -> Nanos {
        Nanos(self.slo.0.saturating_mul(2)).min(LONGEST_DRAIN)
    }
}
