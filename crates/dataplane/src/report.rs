//! The report of a run: what `tailwater run --output json` prints. Field names are stable.

mod collector;

pub(crate) use collector::{Collector, DAMAGED, IN_PIECES, NOT_DRAINED, NOT_SENT, RING_FULL, WORKER_DIED};
pub use tailwater_measure::report::{DistributionPoint, LatencyReport};

use crate::scaling::ScalingCounters;
use crate::scaling::buckets::ServerReport;
use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_isolation::server::IsolationReport;

/// A run's results.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The chain's name.
    pub chain: String,
    /// The traffic's name: a file or a preset.
    pub traffic: String,
    /// The objective.
    pub slo: SloReport,
    /// Whether it was kept: at least `slo.percentile` percent of the packets that the chain did not
    /// drop by itself were delivered within `slo.latency_us`. Lost packets count as late.
    pub slo_met: bool,
    /// Latencies of all delivered packets, in microseconds. Nothing is left out.
    pub latency_us: LatencyReport,
    /// Their distribution: its last point holds all packets and the longest latency.
    pub latency_distribution: Vec<DistributionPoint>,
    /// Packets, exactly: `offered = delivered + dropped_by_nf + lost`.
    pub packets: PacketReport,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Delivered packets a second, in millions.
    pub throughput_mpps: f64,
    /// Delivered bits a second, in billions (Ethernet frames without check sequence).
    pub throughput_gbps: f64,
    /// From the first arrival to the last departure, in seconds.
    pub duration_s: f64,
    /// Cores used.
    pub cores: CoreReport,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// What was handed to auxiliary cores, if there are any.
    pub scaling: Option<ScalingCounters>,
    /// How long helpers took to wake up after they were called, if there are any, in microseconds.
    pub wake_us: Option<LatencyReport>,
    /// What the server mapper did, if there is one.
    pub server: Option<ServerReport>,
    /// The flow table, if the chain has one.
    pub flows: Option<FlowReport>,
    /// Flow state outside, if it is kept there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateReport>,
    /// What functions in processes of their own did, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationReport>,
    /// The run cut into windows, to tell the machine's hiccups from the chain's.
    pub windows: WindowsReport,
    /// The whole run over time, in at most 400 steps.
    pub timeline: TimelineReport,
    /// Arrivals over time, finer, in at most 1024 steps.
    pub arrivals: ArrivalReport,
    /// Whether the run ended early, by a signal.
    pub interrupted: bool,
    /// What the devices counted, where packets came from devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortReport>,
    /// What became of packets at external functions, where there are any, in the chain's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub externals: Vec<ExternalReport>,
}

/// What became of packets at an external function: `sent = returned + not_returned`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExternalReport {
    /// Its name.
    pub function: String,
    /// Packets sent to it.
    pub sent: u64,
    /// Of those, came back in time.
    pub returned: u64,
    /// Of those, did not.
    pub not_returned: u64,
    /// Packets that came back when they had been given up. They go no further.
    pub late: u64,
    /// Packets that came from it and had not been sent to it.
    pub own: u64,
    /// Packets that were to be sent and were not: too many outside, too long, not taken.
    pub refused: u64,
    /// Packets that came back towards the entry port, where the chain goes one way only.
    pub no_way_back: u64,
    /// The most packets outside at a time.
    pub most_outside: u64,
    /// How long packets that came back had been outside, in microseconds.
    pub delay_us: LatencyReport,
}

/// What a device counted, the packets among them that never reached the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// Its name.
    pub port: String,
    /// Its driver.
    pub driver: String,
    /// Receive queues.
    pub queues: u64,
    /// Transmit queues.
    pub send_queues: u64,
    /// Descriptors of a receive queue.
    pub descriptors: u64,
    /// The NUMA node it is on, if that is known.
    pub numa_node: Option<u64>,
    /// Whether it looks at the checksums of what comes.
    pub checks_checksums: bool,
    /// Where the times come from at which its packets arrived.
    pub arrival_times: ArrivalTimes,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because nobody received them in time; they are offered and lost in `packets`, too.
    pub missed: u64,
    /// Packets that came damaged, or that no chain can work on.
    pub receive_errors: u64,
    /// Packets lost because no buffer was free.
    pub no_buffer: u64,
    /// Packets that the device took and did not send.
    pub send_errors: u64,
    /// Whether the device went while it was in use.
    pub gone: bool,
    /// Its link at the end.
    pub link: LinkReport,
    /// By queue, as far as the device says.
    pub by_queue: Vec<QueueReport>,
    /// The table that maps hashes to queues (RETA), as the device has it; nothing if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reta: Option<Vec<u16>>,
}

/// Where the times come from at which packets arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalTimes {
    /// The device stamps packets, and its clock is known.
    Device,
    /// When the port's queue was last seen empty.
    #[default]
    Software,
}

/// A port's link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkReport {
    /// Whether there is one, if the device says.
    pub up: Option<bool>,
    /// Its speed in Mbit/s, if the device says.
    pub mbps: Option<u64>,
    /// How often it came or went during the run.
    pub changes: u64,
}

/// What a device counted at one of its queues, where it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueReport {
    /// The queue.
    pub queue: u64,
    /// Packets received.
    pub received: Option<u64>,
    /// Packets that came damaged or were missed.
    pub receive_errors: Option<u64>,
    /// Packets sent.
    pub sent: Option<u64>,
}

impl QueueReport {
    /// Whether the device says anything of the queue.
    #[cfg(feature = "dpdk")]
    pub(crate) fn says(&self) -> bool {
        [self.received, self.receive_errors, self.sent] != [None; 3]
    }
}

/// The objective.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SloReport {
    /// Latency on this server, in microseconds: the chain's objective without what the network takes.
    pub latency_us: f64,
    /// What the network takes of the chain's objective, in microseconds.
    pub network_us: f64,
    /// The percentile of packets that must keep the latency.
    pub percentile: f64,
}

/// What was done with flow state that is kept outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StateReport {
    /// Where the store is.
    pub store: String,
    /// The users there, one for each function whose state is kept.
    pub functions: Vec<String>,
    /// Flows that were asked for: those new here.
    pub reads: u64,
    /// Of those, flows of which something was found.
    pub hits: u64,
    /// Ports that a function would have bound, had the store not said that they are somebody's.
    pub ports_taken: u64,
    /// Changes of flows' state that were written.
    pub updates: u64,
    /// Flows written again, after the store had missed or forgotten them.
    pub rewritten: u64,
    /// Changes for which there was no room in the requests; they were written later.
    pub missed: u64,
    /// Flows that the store was told to forget, since they were idle for too long.
    pub forgotten: u64,
    /// Packets that waited, for their flow's state or for an acknowledgement.
    pub held: u64,
    /// The most packets of a worker that waited at a time.
    pub held_most: u64,
    /// How long they did, in microseconds.
    pub wait_us: LatencyReport,
    /// Packets that passed without what they waited for.
    pub passed: u64,
    /// Packets that were lost for want of it.
    pub dropped: u64,
    /// How often the store did not answer.
    pub failures: u64,
    /// Why it last did not.
    pub last_failure: Option<String>,
    /// For how long it did not.
    pub unavailable_s: f64,
    /// Whether a later run of this instance has taken over, so that nothing was written any more.
    pub fenced: bool,
}

/// What became of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Packets that arrived for the chain.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped because a function or the spec says so.
    pub dropped_by_nf: u64,
    /// Packets lost for want of room or time.
    pub lost: u64,
    /// Packets of the traffic that `spec.match` leaves to others; not offered.
    pub not_matched: u64,
    /// Why packets were dropped or lost, and malformed or non-IP ones passed; only what occurred.
    pub reasons: BTreeMap<String, u64>,
}

/// Cores used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreReport {
    /// Cores with a queue of the port.
    pub dedicated: u64,
    /// Those of them in use, averaged over time: one without an RSS bucket is left to others.
    pub dedicated_avg: f64,
    /// Cores recruited when needed, averaged over time.
    pub auxiliary_avg: f64,
    /// Both averages together.
    pub avg: f64,
}

/// What the flow table did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FlowReport {
    /// Flows in the table at the end.
    pub active: u64,
    /// Flows entered.
    pub opened: u64,
    /// Flows forgotten because they were idle.
    pub expired: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// New flows that found no place.
    pub refused: u64,
    /// Bytes of memory for entries and state.
    pub memory_bytes: u64,
}

/// The run cut into windows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WindowsReport {
    /// A window's length, in milliseconds.
    pub length_ms: f64,
    /// Windows in which packets arrived, or left.
    pub count: u64,
    /// Of those, windows in which some worker was off its core for longer than 20 µs at a time and,
    /// in all, for more than 0.1 % of the window.
    pub flagged: u64,
    /// The share of the windows that are not flagged in which the objective was kept; 1 if all
    /// are flagged.
    pub unflagged_slo_met: f64,
    /// The median of each figure over the windows in `list`, flagged ones too.
    pub median_latency_us: LatencyReport,
    /// Windows left out of `list`, and of the median, because the list was full; never of the
    /// counts.
    pub omitted: u64,
    /// The windows in order.
    pub list: Vec<WindowReport>,
}

/// One window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WindowReport {
    /// When it starts, in seconds from the run's start.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets later than the objective's latency.
    pub late: u64,
    /// Latencies, in microseconds.
    pub latency_us: LatencyReport,
    /// Times a worker was off its core.
    pub gaps: u64,
    /// How long in all, in microseconds.
    pub gap_us: f64,
    /// The longest, in microseconds.
    pub longest_gap_us: f64,
    /// Whether that spoils the window.
    pub flagged: bool,
    /// Whether the objective was kept.
    pub slo_met: bool,
}

/// The run over time. A step is one window, or in a long run 2, 4, 8 ... of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TimelineReport {
    /// A step's length, in milliseconds.
    pub step_ms: f64,
    /// The steps in order, from the run's start, those without packets too.
    pub list: Vec<StepReport>,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// When it starts, in seconds from the run's start.
    pub start_s: f64,
    /// Windows with packets in it.
    pub windows: u64,
    /// Of those, flagged ones.
    pub flagged: u64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped because a function or the spec says so.
    pub dropped_by_nf: u64,
    /// Packets lost.
    pub lost: u64,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// Dropped packets by reason; only what occurred.
    pub dropped_by_reason: BTreeMap<String, u64>,
    /// Lost packets by reason; only what occurred.
    pub lost_by_reason: BTreeMap<String, u64>,
    /// Latencies of the packets sent, in microseconds.
    pub latency_us: LatencyReport,
    /// The share of the workers' time that packets took, 0 to 1.
    pub busy: f64,
}

/// Arrivals over time. They are counted in bins, of which one or more make a step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArrivalReport {
    /// A bin's width, in milliseconds.
    pub bin_ms: f64,
    /// A step's length, in milliseconds.
    pub step_ms: f64,
    /// Packets that arrived, step by step from the run's start.
    pub packets: Vec<u64>,
    /// Packets in the busiest bin of each step.
    pub busiest_bin: Vec<u64>,
}
