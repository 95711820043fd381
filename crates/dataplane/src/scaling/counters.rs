//! Counters of offloading and of bucket migration.

use serde::Serialize;
use tailwater_net::Nanos;

/// Counters of dispatchers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScalingCounters {
    /// Number of decisions by mappers.
    pub decisions: u64,
    /// Decisions that moved a flow.
    pub moves: u64,
    /// Flows moved out of a dispatcher's local queue.
    pub flows_moved: u64,
    /// Splits of flows: the dispatcher runs the chain's first functions, an auxiliary core the last; and divisions of
    /// their parts.
    pub splits: u64,
    /// Joins of parts of split flows.
    pub joins: u64,
    /// Packets offloaded to auxiliary cores.
    #[serde(rename = "packets_handed")]
    pub packets_offloaded: u64,
    /// Those of them that went to other dedicated cores.
    pub packets_to_dedicated: u64,
    /// Times the relief of an overloaded auxiliary core began.
    pub relieved: u64,
    /// Packets parked until their flow had left an auxiliary core.
    #[serde(rename = "packets_held")]
    pub packets_parked: u64,
    /// Activations of auxiliary cores.
    #[serde(rename = "recruited")]
    pub activated: u64,
    /// Releases of auxiliary cores.
    pub released: u64,
    /// Activations of other dedicated cores, each of which ended once they had processed what they were sent.
    pub dedicated_activated: u64,
    /// Times boost mode began.
    pub boosts: u64,
    /// Times a mapper reported a whale (a flow beyond one core's capacity) that no split helps.
    pub whales_beyond_split: u64,
    /// Times a mapper reported insufficient cores.
    pub out_of_cores: u64,
    /// Times auxiliary cores were found to be of no benefit, and not used for a while.
    pub no_benefit: u64,
}

impl ScalingCounters {
    pub(crate) fn merge(&mut self, other: &ScalingCounters) {
        self.decisions += other.decisions;
        self.moves += other.moves;
        self.flows_moved += other.flows_moved;
        self.splits += other.splits;
        self.joins += other.joins;
        self.packets_offloaded += other.packets_offloaded;
        self.packets_to_dedicated += other.packets_to_dedicated;
        self.relieved += other.relieved;
        self.packets_parked += other.packets_parked;
        self.activated += other.activated;
        self.released += other.released;
        self.dedicated_activated += other.dedicated_activated;
        self.boosts += other.boosts;
        self.whales_beyond_split += other.whales_beyond_split;
        self.out_of_cores += other.out_of_cores;
        self.no_benefit += other.no_benefit;
    }
}

/// Counters of bucket migration, by worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCounters {
    /// Buckets that arrived at a new owner.
    pub moved: u64,
    /// Packets buffered while their bucket migrated.
    pub buffered: u64,
    /// Longest time from the new bucket table's taking effect until the new owner had the bucket.
    pub longest_move: Nanos,
}

impl BucketCounters {
    pub(crate) fn merge(&mut self, other: &BucketCounters) {
        self.moved += other.moved;
        self.buffered += other.buffered;
        self.longest_move = self.longest_move.max(other.longest_move);
    }
}

/// Server mapper section of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerReport {
    /// Number of decisions.
    pub decisions: u64,
    /// Decisions that moved a bucket.
    pub moves: u64,
    /// Buckets that moved from one dedicated core to another.
    pub buckets_moved: u64,
    /// Packets buffered while their bucket migrated.
    #[serde(rename = "packets_kept_back")]
    pub packets_buffered: u64,
    /// Longest time from the new bucket table's taking effect until the new core had the bucket, in microseconds.
    pub longest_move_us: f64,
}
