//! Report of a simulation. Field names are stable.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tailwater_measure::attribution;
use tailwater_measure::histogram::LatencyHistogram;

pub use tailwater_measure::report::{DistributionPoint, LatencyReport};

/// Drop reason of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    /// A core's descriptor ring was full.
    RingFull,
    /// The switch's buffer for its server's link was full.
    Link,
    /// Too many packets waited for a row of the switch's table.
    Table,
    /// There was no room for its flow.
    FlowTableFull,
    /// It was still in the system when the time was over.
    NotDrained,
    /// Its flow had more than its share of the packet buffers, of which few were left.
    FlowOverload,
    /// It could not meet its objective any more, and others waited behind it.
    TooLate,
    /// It was at a server that failed, or was steered there afterwards.
    ServerLost,
}

impl Loss {
    /// All reasons, in numerical order.
    pub const ALL: [Loss; 8] = [
        Loss::RingFull,
        Loss::Link,
        Loss::Table,
        Loss::FlowTableFull,
        Loss::NotDrained,
        Loss::FlowOverload,
        Loss::TooLate,
        Loss::ServerLost,
    ];

    /// Returns the stable name. It equals that of the live report where one exists.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::RingFull => "nic-ring-full",
            Loss::Link => "switch-buffer-full",
            Loss::Table => "switch-table",
            Loss::FlowTableFull => "no-resources",
            Loss::NotDrained => "not-drained",
            Loss::FlowOverload => "flow-overload",
            Loss::TooLate => "too-late",
            Loss::ServerLost => "server-lost",
        }
    }

    /// Returns the cause of lateness: a lost packet counts as late. One that is too late has the cause of a late one.
    pub(crate) const fn cause(self) -> Cause {
        match self {
            Loss::RingFull => Cause::Live(attribution::Cause::RingFull),
            Loss::Link | Loss::Table | Loss::ServerLost => Cause::Network,
            Loss::FlowTableFull => Cause::Live(attribution::Cause::ResourceExhausted),
            Loss::NotDrained | Loss::TooLate => Cause::Live(attribution::Cause::QueuedBehindOthers),
            Loss::FlowOverload => Cause::Live(attribution::Cause::QueuedBehindOwnFlow),
        }
    }
}

/// Cause of a late packet: those of the live report, and one that a single server does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Cause that the live data plane distinguishes, too.
    Live(attribution::Cause),
    /// The packet would have been in time without its wait in front of the server: for the link, or for a row of the
    /// switch's table. Or its server failed.
    Network,
}

impl Cause {
    /// Number of causes.
    pub(crate) const COUNT: usize = attribution::Cause::ALL.len() + 1;

    /// All causes, in the order of the report.
    pub const ALL: [Cause; Cause::COUNT] = [
        Cause::Live(attribution::Cause::Service),
        Cause::Live(attribution::Cause::QueuedBehindOwnFlow),
        Cause::Live(attribution::Cause::QueuedBehindOthers),
        Cause::Live(attribution::Cause::Preempted),
        Cause::Live(attribution::Cause::Waking),
        Cause::Live(attribution::Cause::RingFull),
        Cause::Live(attribution::Cause::ResourceExhausted),
        Cause::Live(attribution::Cause::External),
        Cause::Live(attribution::Cause::Migration),
        Cause::Network,
    ];

    /// Returns its index in tables.
    pub(crate) const fn number(self) -> usize {
        match self {
            Cause::Live(cause) => cause as usize,
            Cause::Network => attribution::Cause::ALL.len(),
        }
    }

    /// Returns the stable name. It equals that of the live report where one exists.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Live(cause) => cause.name(),
            Cause::Network => "network",
        }
    }
}

/// Results of a simulation. Reading it back from JSON gives the same report, except for fields that are not written:
/// see [`ChainReport::latency`] and [`RackCores::per_epoch`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimReport {
    /// Results of each chain.
    pub chains: Vec<ChainReport>,
    /// Cores of the whole rack.
    pub cores: RackCores,
    /// Time from the first packet's arrival, or the end of the warm-up, to the last one's departure, in seconds.
    pub duration_s: f64,
    /// Seed of the run.
    pub seed: u64,
    /// `true` if the run ended early because a chain certainly misses its objective, as
    /// [requested](crate::RunOptions::until_missed). All values then cover the packets up to that time. Written only if
    /// `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
}

/// One chain's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainReport {
    /// Name of the chain.
    pub chain: String,
    /// Name of the traffic.
    pub traffic: String,
    /// Name of the policy.
    pub policy: String,
    /// Latency objective, in microseconds.
    pub slo_us: f64,
    /// `true` if 99 % of the packets were delivered within it. Lost packets count as late. `None` without a verdict:
    /// fewer than [100](tailwater_measure::verdict::packets_required) packets arrived.
    pub slo_met: Option<bool>,
    /// Latencies of all delivered packets, in microseconds.
    pub latency_us: LatencyReport,
    /// Their distribution, in steps of less than 3.2 %.
    pub latency_distribution: Vec<DistributionPoint>,
    /// The same with a resolution of 0.8 %. Not written.
    #[serde(skip)]
    pub latency: LatencyHistogram,
    /// Packet counts, with exactly `offered = delivered + lost`.
    pub packets: Packets,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<String, u64>,
    /// Cores that this chain used, averaged over time: those with a queue, auxiliary cores, and both.
    pub cores: CoreUse,
    /// Actions of the policy.
    pub decisions: Decisions,
    /// Results by window.
    pub windows: Vec<WindowReport>,
    /// Worst burst, if [requested](crate::RunOptions::bursts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

/// Packets by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets that arrived at the switch, or were in the system when the warm-up ended.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Bytes of these packets.
    pub delivered_bytes: u64,
    /// Packets lost.
    pub lost: u64,
    /// Lost packets by reason. Only reasons that occurred are listed.
    pub lost_by_reason: BTreeMap<String, u64>,
    /// Flows that began.
    pub flows: u64,
}

/// Cores of a chain, averaged over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreUse {
    /// Cores with a queue.
    pub dedicated: f64,
    /// Auxiliary cores.
    pub auxiliary: f64,
    /// Both.
    pub total: f64,
    /// Share of all cores' time spent on packets.
    pub busy: f64,
}

/// Cores of the rack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackCores {
    /// Cores that were active in an epoch of 100 µs, averaged over all epochs (NetBlaze, section 4).
    pub average: f64,
    /// Maximum in an epoch.
    pub most: u32,
    /// Cores that were active in each epoch. Not written.
    #[serde(skip)]
    pub per_epoch: Vec<u16>,
}

/// Actions of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// Decisions of core mappers about a queue.
    pub decisions: u64,
    /// Decisions that moved a flow.
    pub moves: u64,
    /// Flows moved out of a core's own queue.
    pub flows_moved: u64,
    /// Packets offloaded to auxiliary cores.
    pub packets_handed: u64,
    /// Times an overloaded auxiliary core began to be relieved.
    pub relieved: u64,
    /// Packets parked until the auxiliary core with their flow had completed the earlier ones.
    #[serde(rename = "packets_held")]
    pub packets_parked: u64,
    /// Activations of auxiliary cores.
    #[serde(rename = "recruited")]
    pub activated: u64,
    /// Releases of auxiliary cores.
    pub released: u64,
    /// Times boost mode began.
    pub boosts: u64,
    /// Flows whose chain was split, and divisions of their parts.
    pub splits: u64,
    /// Joins of parts of split flows.
    #[serde(default)]
    pub joins: u64,
    /// Times a mapper reported a whale for which no split suffices.
    pub whales_beyond_split: u64,
    /// Times a mapper reported insufficient cores.
    pub out_of_cores: u64,
    /// Times auxiliary cores were found to be of no benefit to their dispatcher, and not used for a while.
    #[serde(default)]
    pub no_benefit: u64,
    /// Runs of server mappers or controllers.
    pub remaps: u64,
    /// RSS buckets, or rows of the switch's table, that moved between cores.
    pub buckets_moved: u64,
    /// Flows that migrated between cores.
    pub flows_migrated: u64,
    /// Packets buffered while their bucket or flow migrated.
    pub kept_back: u64,
    /// Longest migration of a bucket or flow, in nanoseconds.
    pub longest_move_ns: u64,
    /// Rows of the switch's table written for destination prefixes.
    pub rules: u64,
    /// Packets that waited for a row.
    pub waited_for_rule: u64,
    /// Rows that moved flows between servers.
    #[serde(default)]
    pub rows_moved: u64,
    /// Packets that waited at their new server for the old one to complete earlier ones.
    #[serde(default)]
    pub held_for_move: u64,
    /// Longest time from such a row until its flows were at the new server, in nanoseconds.
    #[serde(default)]
    pub longest_row_move_ns: u64,
    /// Longest time from a server's failure until the rows were in force that send its flows to others, in nanoseconds;
    /// 0 without such a reaction.
    #[serde(default)]
    pub loss_reaction_ns: u64,
    /// Flows with packets after such rows. Their state was lost: they opened anew.
    #[serde(default)]
    pub flows_reopened: u64,
    /// Servers that were emptied, since the others sufficed.
    #[serde(default)]
    pub servers_emptied: u64,
}

/// One window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    /// Start, in seconds.
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
    /// Median latency of the packets sent, in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum latency.
    pub max_us: f64,
    /// Active cores of the rack, averaged over the window's epochs of 100 µs.
    pub cores: f64,
    /// Cores of this chain with a queue at the window's end.
    pub dedicated: u32,
}

/// Burst as the mappers handle it: the millisecond in which most packets of the chain arrive, and the time around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Start of that millisecond, in seconds.
    pub start_s: f64,
    /// Steps of 100 µs, from 2 ms before it to 6 ms after its start, within the limits of the run.
    pub steps: Vec<BurstStep>,
}

/// Step of a burst. Batches in progress at its end count as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BurstStep {
    /// Start, in seconds.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets late or lost.
    pub late: u64,
    /// Packets that have arrived by its end, and neither left nor been lost.
    pub waiting: u64,
    /// Maximum number of packets that one core with a queue has in its ring and buffers. Offloaded packets count until
    /// the core has their receipt.
    pub longest_queue: u64,
    /// Cores with a queue at its end.
    pub dedicated: u32,
    /// Auxiliary cores at its end.
    #[serde(rename = "helpers")]
    pub auxiliaries: u32,
    /// Decisions of core mappers.
    pub decisions: u64,
    /// Flows moved out of a core's own queue.
    pub flows_moved: u64,
    /// Packets offloaded to auxiliary cores.
    pub packets_handed: u64,
}

/// Percentile of the packets that must meet a chain's objective.
pub const PERCENTILE: f64 = 99.0;

/// Returns whether a chain with these numbers of late and offered packets meets its objective, or `None` if there are
/// too few packets for a verdict.
pub(crate) fn verdict(late: u64, offered: u64) -> Option<bool> {
    tailwater_measure::verdict::verdict(offered, offered, late, PERCENTILE).ok()
}

/// Returns `true` if so many late packets miss the objective of a chain with at most `offered` packets.
pub(crate) fn is_missed(late: u64, offered: u64) -> bool {
    verdict(late, offered) == Some(false)
}
