//! What a simulation came to. Field names are stable.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tailwater_measure::attribution;
use tailwater_measure::histogram::LatencyHistogram;

pub use tailwater_measure::report::{DistributionPoint, LatencyReport};

/// Why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    /// It found a core's descriptor ring full.
    RingFull,
    /// It found the switch's buffer of its server's link full.
    Link,
    /// It waited for a row of the switch's table, with too many others.
    Table,
    /// There was no room for its flow.
    NoPlace,
    /// It was still there when the time was over.
    NotDrained,
}

impl Loss {
    /// All of them, in the order of their numbers.
    pub const ALL: [Loss; 5] = [Loss::RingFull, Loss::Link, Loss::Table, Loss::NoPlace, Loss::NotDrained];

    /// The stable name, the live report's where it has one.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::RingFull => "nic-ring-full",
            Loss::Link => "switch-buffer-full",
            Loss::Table => "switch-table",
            Loss::NoPlace => "no-place",
            Loss::NotDrained => "not-drained",
        }
    }

    /// As a cause: what is lost is late.
    pub(crate) const fn cause(self) -> Cause {
        match self {
            Loss::RingFull => Cause::Live(attribution::Cause::RingFull),
            Loss::Link | Loss::Table => Cause::Network,
            Loss::NoPlace => Cause::Live(attribution::Cause::NoPlace),
            Loss::NotDrained => Cause::Live(attribution::Cause::Minnows),
        }
    }
}

/// Why a packet was late: the live report's causes, and one that a single server does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// What the live data plane tells apart, too.
    Live(attribution::Cause),
    /// It would have been in time had it not waited in front of the server: for the link, or for a
    /// row of the switch's table.
    Network,
}

impl Cause {
    /// How many there are.
    pub(crate) const COUNT: usize = attribution::Cause::ALL.len() + 1;

    /// All of them, in the order in which they are told.
    pub const ALL: [Cause; Cause::COUNT] = [
        Cause::Live(attribution::Cause::Service),
        Cause::Live(attribution::Cause::Whale),
        Cause::Live(attribution::Cause::Minnows),
        Cause::Live(attribution::Cause::Descheduled),
        Cause::Live(attribution::Cause::Waking),
        Cause::Live(attribution::Cause::RingFull),
        Cause::Live(attribution::Cause::NoPlace),
        Cause::Live(attribution::Cause::External),
        Cause::Live(attribution::Cause::Migration),
        Cause::Network,
    ];

    /// Its number in tables.
    pub(crate) const fn number(self) -> usize {
        match self {
            Cause::Live(cause) => cause as usize,
            Cause::Network => attribution::Cause::ALL.len(),
        }
    }

    /// The stable name, the live report's where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Live(cause) => cause.name(),
            Cause::Network => "network",
        }
    }
}

/// What a simulation came to. Read back from JSON it is the same but for what is not written: see
/// [`ChainReport::latency`] and [`RackCores::per_epoch`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimReport {
    /// What each chain's packets met.
    pub chains: Vec<ChainReport>,
    /// Cores of the whole rack.
    pub cores: RackCores,
    /// From the first packet's arrival, or the end of the warm-up, to the last one's departure, in seconds.
    pub duration_s: f64,
    /// The run's seed.
    pub seed: u64,
    /// The run was ended when it was certain that a chain misses its objective, as [was asked
    /// for](crate::RunOptions::until_missed): everything is of the packets until then. Written only if so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
}

/// One chain's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainReport {
    /// The chain's name.
    pub chain: String,
    /// The traffic's name.
    pub traffic: String,
    /// The policy's name.
    pub policy: String,
    /// The latency objective, in microseconds.
    pub slo_us: f64,
    /// Whether 99 % of the packets were delivered within it. Lost packets count as late.
    pub slo_met: bool,
    /// Latencies of all delivered packets, in microseconds.
    pub latency_us: LatencyReport,
    /// Their distribution, in steps of less than 3.2 %.
    pub latency_distribution: Vec<DistributionPoint>,
    /// The same, packet by packet, to 0.8 %. Not written.
    #[serde(skip)]
    pub latency: LatencyHistogram,
    /// Packets, exactly: `offered = delivered + lost`.
    pub packets: Packets,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<String, u64>,
    /// Cores that this chain used, averaged over time: those with a queue, helpers, and both.
    pub cores: CoreUse,
    /// What the policy did.
    pub decisions: Decisions,
    /// The run over time.
    pub windows: Vec<WindowReport>,
    /// Its worst burst, if that was [asked for](crate::RunOptions::bursts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

/// What became of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets that arrived at the switch, or were on their way when the warm-up ended.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Bytes of those.
    pub delivered_bytes: u64,
    /// Packets lost.
    pub lost: u64,
    /// Those, by reason; only what occurred.
    pub lost_by_reason: BTreeMap<String, u64>,
    /// Flows that began.
    pub flows: u64,
}

/// Cores of a chain, averaged over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreUse {
    /// Cores with a queue.
    pub dedicated: f64,
    /// Helpers.
    pub auxiliary: f64,
    /// Both.
    pub total: f64,
    /// The share of all cores' time that packets took.
    pub busy: f64,
}

/// Cores of the rack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackCores {
    /// Cores that were active in an epoch of 100 µs, averaged over all epochs (NetBlaze, section 4).
    pub average: f64,
    /// The most in an epoch.
    pub most: u32,
    /// Cores that were active in each epoch. Not written.
    #[serde(skip)]
    pub per_epoch: Vec<u16>,
}

/// What a policy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// Times a core mapper was asked about a queue.
    pub decisions: u64,
    /// Of those, times it moved a flow.
    pub moves: u64,
    /// Flows moved out of a core's own queue.
    pub flows_moved: u64,
    /// Packets handed to helpers.
    pub packets_handed: u64,
    /// Times a helper began to be relieved: it had too much.
    pub relieved: u64,
    /// Packets held until the helper that had their flow was done with it.
    pub packets_held: u64,
    /// Times a helper was recruited.
    pub recruited: u64,
    /// Times a helper was let go.
    pub released: u64,
    /// Times boost mode began.
    pub boosts: u64,
    /// Flows whose chain was split.
    pub splits: u64,
    /// Times a mapper knew of a whale that no split helps.
    pub whales_beyond_split: u64,
    /// Times a mapper had no cores left.
    pub out_of_cores: u64,
    /// Times a server mapper or a controller was asked.
    pub remaps: u64,
    /// RSS buckets, or rows of the switch's table, that moved between cores.
    pub buckets_moved: u64,
    /// Flows that moved between cores for good.
    pub flows_migrated: u64,
    /// Packets kept back because their bucket or flow was on its way.
    pub kept_back: u64,
    /// The longest that a bucket or flow was on its way, in nanoseconds.
    pub longest_move_ns: u64,
    /// Rows of the switch's table written for destination prefixes.
    pub rules: u64,
    /// Packets that waited for a row.
    pub waited_for_rule: u64,
}

/// One window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    /// When it starts, in seconds.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets late or lost.
    pub late: u64,
    /// Flows that began.
    pub new_flows: u64,
    /// Latencies of the packets sent, in microseconds: median,
    pub p50_us: f64,
    /// 99th percentile,
    pub p99_us: f64,
    /// 99.9th percentile,
    pub p999_us: f64,
    /// and the longest.
    pub max_us: f64,
    /// Active cores of the rack, averaged over the window's epochs of 100 µs.
    pub cores: f64,
    /// Cores with a queue at its end, of this chain.
    pub dedicated: u32,
}

/// A burst as the mappers met it: the millisecond in which most packets of the chain arrive, and what is
/// around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// When that millisecond starts, in seconds.
    pub start_s: f64,
    /// Steps of 100 µs, from 2 ms before it to 6 ms after its start, as far as the run goes.
    pub steps: Vec<BurstStep>,
}

/// A step of a burst. Batches under way at its end count as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BurstStep {
    /// When it starts, in seconds.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets late or lost.
    pub late: u64,
    /// Packets that have arrived by its end, and neither left nor got lost.
    pub waiting: u64,
    /// The most that one core with a queue has in its ring and in its hands. What it handed to helpers counts
    /// until it knows that it is done.
    pub longest_queue: u64,
    /// Cores with a queue at its end.
    pub dedicated: u32,
    /// Helpers at its end.
    pub helpers: u32,
    /// Times a core mapper was asked.
    pub decisions: u64,
    /// Flows moved out of a core's own queue.
    pub flows_moved: u64,
    /// Packets handed to helpers.
    pub packets_handed: u64,
}

/// Whether a chain meets its objective that was offered so many packets, of which so many were late.
pub(crate) fn is_met(late: u64, offered: u64) -> bool {
    late * 100 <= offered
}
