//! What a run tells while it lasts.

use crate::histogram::LatencyHistogram;
use crate::kept::StateProgress;
use crate::report::{CoreReport, PacketReport};
use crate::scaling::buckets::BucketCounters;
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// How the run stands, a few times a second.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the first packet's arrival.
    pub elapsed: Nanos,
    /// How long packets arrive, if that is known.
    pub duration: Option<Nanos>,
    /// Packets by fate so far; the reasons are complete only at the end.
    pub packets: PacketReport,
    /// The 99th percentile of latency so far.
    pub p99: Nanos,
    /// The median of latency so far.
    pub p50: Nanos,
    /// Late and lost packets by cause so far.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// Latency buckets so far, as (upper bound, packets up to there): for metrics.
    pub latency: LatencyHistogram,
    /// Times a worker was off its core.
    pub gaps: u64,
    /// Cores used so far.
    pub cores: CoreReport,
    /// RSS buckets moved so far.
    pub buckets: BucketCounters,
    /// Flow state outside, if it is kept there.
    pub state: Option<StateProgress>,
    /// What is new of the port since the last time, in lines for a user.
    pub news: Vec<String>,
}
