//! Progress of a run: source of the metrics. `run_recorder.rs` fills it from the collector's totals.

use crate::durable::StateProgress;
use crate::histogram::LatencyHistogram;
use crate::report::{CoreReport, PacketReport, ReloadCounters};
use crate::scaling::counters::{BucketCounters, ScalingCounters};
use std::collections::BTreeMap;
use tailwater_chain::chain::FunctionTotals;
use tailwater_net::Nanos;

/// State of a run, reported a few times per second.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the first packet's arrival.
    pub elapsed: Nanos,
    /// Duration of the arrivals, if known.
    pub duration: Option<Nanos>,
    /// Packet counts so far. The reasons are complete only at the end.
    pub packets: PacketReport,
    /// 99th percentile of latency so far.
    pub p99: Nanos,
    /// Median latency so far.
    pub p50: Nanos,
    /// Late and lost packets by cause so far.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// Latency histogram so far, for metrics.
    pub latency: LatencyHistogram,
    /// Number of preemptions of workers.
    pub gaps: u64,
    /// Cores used so far.
    pub cores: CoreReport,
    /// RSS buckets moved so far.
    pub buckets: BucketCounters,
    /// Offloading so far.
    pub scaling: ScalingCounters,
    /// External flow state, if there is any.
    pub state: Option<StateProgress>,
    /// Reloads of the chain's files so far.
    pub reloads: ReloadCounters,
    /// Last window that has ended, if one has.
    pub window: Option<LastWindow>,
    /// Work of its workers in all windows that have ended.
    pub work: RunWork,
    /// Functions in chain order, in all windows that have ended.
    pub functions: Vec<FunctionProgress>,
    /// Flows of all workers at the last window's end.
    pub flows: u64,
    /// News of the port and of reloads since the last update, as lines for the user.
    pub news: Vec<String>,
}

/// Work of a function so far. Functions behind the ports of a third-party program are those of its part of the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionProgress {
    /// Name of the function.
    pub name: String,
    /// Packets that reached it, and the time spent on those that were timed.
    pub totals: FunctionTotals,
    /// Packets that it dropped or lost.
    pub dropped: u64,
}

/// Figures of the last window that has ended, of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LastWindow {
    /// Windows before it since the run's start.
    pub index: u64,
    /// Length of the window.
    pub length: Nanos,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped by the chain.
    pub dropped: u64,
    /// Packets lost.
    pub lost: u64,
    /// Delivered packets that exceeded the objective.
    pub late: u64,
    /// Time spent on packets.
    pub busy: Nanos,
    /// Batches on which this time was spent.
    pub batches: u64,
    /// Packets of these batches.
    pub processed: u64,
    /// Median latency; 0 if no packet was delivered.
    pub p50: Nanos,
    /// 99th percentile of latency; 0 if no packet was delivered.
    pub p99: Nanos,
    /// Whether the objective was met. `None` if no packet was delivered or lost.
    pub slo_met: Option<bool>,
}

/// Work of a run's workers in all windows that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunWork {
    /// End of these windows, since the run's start.
    pub until: Nanos,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets of the batches on which time was spent.
    pub processed: u64,
    /// Time spent on packets.
    pub busy: Nanos,
    /// Late and lost packets for causes that more cores can remedy.
    pub late: u64,
}
