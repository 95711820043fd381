//! Report of a run, as printed by `tailwater run --output json`. Field names are stable.

pub(crate) mod collector;
pub(crate) mod reasons;
pub(crate) mod reloads;

use crate::scaling::counters::{ScalingCounters, ServerReport};
pub use reloads::{ReloadCounters, ReloadEvent, ReloadOutcome, ReloadReport};
pub use tailwater_measure::report::{DistributionPoint, LatencyReport};
pub use tailwater_measure::verdict::{NoVerdict, is_within, packets_required, verdict};

use serde::Serialize;
use std::collections::BTreeMap;
use tailwater_chain::chain::{Outcome, Reason};
use tailwater_isolation::server::IsolationReport;

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Name of the chain.
    pub chain: String,
    /// Name of the traffic: a file or a preset.
    pub traffic: String,
    /// Latency objective.
    pub slo: SloReport,
    /// The objective was met: at least `slo.percentile` percent of the packets that the chain did not drop were
    /// delivered within `slo.latency_us`. Lost packets count as late. `None` without a verdict.
    pub slo_met: Option<bool>,
    /// Reason for which there is no verdict; `None` if there is one.
    pub no_verdict: Option<NoVerdict>,
    /// Latencies of all delivered packets, in microseconds.
    pub latency_us: LatencyReport,
    /// Their cumulative distribution. Its last point holds all packets and the longest latency.
    pub latency_distribution: Vec<DistributionPoint>,
    /// Packet counts, exact: `offered = delivered + dropped_by_nf + lost`.
    pub packets: PacketReport,
    /// Lost packets as a share of the offered ones.
    pub loss_rate: f64,
    /// Delivered packets per second, in millions.
    pub throughput_mpps: f64,
    /// Delivered bits per second, in billions (Ethernet frames without check sequence).
    pub throughput_gbps: f64,
    /// Time from the first arrival to the last departure, in seconds.
    pub duration_s: f64,
    /// Cores used.
    pub cores: CoreReport,
    /// Late and lost packets by cause.
    pub late_by_cause: BTreeMap<&'static str, u64>,
    /// Counters of offloading to auxiliary cores, if there are any.
    pub scaling: Option<ScalingCounters>,
    /// Wake-up times of auxiliary cores, if there are any, in microseconds.
    pub wake_us: Option<LatencyReport>,
    /// Activity of the server mapper, if there is one.
    pub server: Option<ServerReport>,
    /// Flow table, if the chain has one.
    pub flows: Option<FlowReport>,
    /// External flow state, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateReport>,
    /// Isolated functions, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationReport>,
    /// Reloads of the chain's files.
    pub reloads: ReloadReport,
    /// Windows of the run, to distinguish disturbances by the machine from the chain's latencies.
    pub windows: WindowsReport,
    /// Whole run over time, in at most 400 steps.
    pub timeline: TimelineReport,
    /// Arrivals over time at a finer resolution, in at most 1024 steps.
    pub arrivals: ArrivalReport,
    /// The run was ended early by a signal.
    pub interrupted: bool,
    /// Wall-clock time of the first packet's arrival at the earliest, in microseconds since 1970.
    pub began_us: u64,
    /// Device counters, if packets came from devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortReport>,
    /// Packets of external functions, if there are any, in the chain's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub externals: Vec<ExternalReport>,
}

/// Packet counts of an external function: `sent = returned + not_returned`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExternalReport {
    /// Name of the function.
    pub function: String,
    /// Packets sent to it.
    pub sent: u64,
    /// Sent packets that came back in time.
    pub returned: u64,
    /// Sent packets that did not.
    pub not_returned: u64,
    /// Packets that came back after the timeout. They are discarded.
    pub late: u64,
    /// Packets from the function that had not been sent to it.
    pub own: u64,
    /// Packets that could not be sent: too many outside, too long, or refused by the port.
    pub refused: u64,
    /// Packets returned towards the entry port, where the chain is unidirectional.
    pub no_way_back: u64,
    /// Maximum number of packets outside at a time.
    pub most_outside: u64,
    /// Time returned packets were outside, in microseconds.
    pub delay_us: LatencyReport,
}

/// Device counters, including packets that never reached the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// Name of the port.
    pub port: String,
    /// Name of the driver.
    pub driver: String,
    /// Number of receive queues.
    pub queues: u64,
    /// Number of transmit queues.
    pub send_queues: u64,
    /// Descriptors per receive queue.
    pub descriptors: u64,
    /// NUMA node of the device, if known.
    pub numa_node: Option<u64>,
    /// The device verifies checksums of received packets.
    pub checks_checksums: bool,
    /// Source of the packets' arrival times.
    pub arrival_times: ArrivalTimes,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because the queue was not polled in time. They are also offered and lost in `packets`.
    pub missed: u64,
    /// Packets received with errors, or unusable for any chain.
    pub receive_errors: u64,
    /// Packets lost because no buffer was free.
    pub no_buffer: u64,
    /// Packets the device accepted but did not send.
    pub send_errors: u64,
    /// The device was removed during the run.
    pub gone: bool,
    /// Link state at the end.
    pub link: LinkReport,
    /// Counters by queue, as far as the device has them.
    pub by_queue: Vec<QueueReport>,
    /// The device's RETA, or nothing if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reta: Option<Vec<u16>>,
}

/// Source of arrival times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalTimes {
    /// Timestamps of the device, whose clock rate is known.
    Device,
    /// Time at which the port's queue was last seen empty.
    #[default]
    Software,
}

/// Link state of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkReport {
    /// The link is up, if the device reports it.
    pub up: Option<bool>,
    /// Speed in Mbit/s, if the device reports it.
    pub mbps: Option<u64>,
    /// Number of link state changes during the run.
    pub changes: u64,
}

/// Counters of one queue, as far as the device has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueReport {
    /// Number of the queue.
    pub queue: u64,
    /// Packets received.
    pub received: Option<u64>,
    /// Packets received with errors or missed.
    pub receive_errors: Option<u64>,
    /// Packets sent.
    pub sent: Option<u64>,
}

impl QueueReport {
    /// Returns `true` if the device has any counter of the queue.
    #[cfg(feature = "dpdk")]
    pub(crate) fn says(&self) -> bool {
        [self.received, self.receive_errors, self.sent] != [None; 3]
    }
}

/// Latency objective.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SloReport {
    /// Latency on this server, in microseconds: the chain's objective minus the network's share.
    pub latency_us: f64,
    /// Network's share of the chain's objective, in microseconds.
    pub network_us: f64,
    /// Percentage of packets that must meet the latency.
    pub percentile: f64,
}

/// External flow state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StateReport {
    /// Address of the store.
    pub store: String,
    /// Redis users, one per function with external state.
    pub functions: Vec<String>,
    /// Flows requested: those new to this instance.
    pub reads: u64,
    /// Requested flows for which the store had state.
    pub hits: u64,
    /// Ports that a function did not bind because the store has them in use.
    pub ports_taken: u64,
    /// Changes of flow state written.
    pub updates: u64,
    /// Flows written again because the store had missed or lost them.
    pub rewritten: u64,
    /// Changes without room in a request. They were written later.
    pub missed: u64,
    /// Changes refused since another instance has the flow or its port.
    pub refused: u64,
    /// Flows deleted in the store because they were idle for too long.
    pub forgotten: u64,
    /// Packets that waited for their flow's state or for an acknowledgement.
    pub held: u64,
    /// Maximum number of packets of one worker that waited at a time.
    pub held_most: u64,
    /// Waiting times, in microseconds.
    pub wait_us: LatencyReport,
    /// Packets that continued without the store's answer.
    pub passed: u64,
    /// Packets lost for lack of the store's answer.
    pub dropped: u64,
    /// Number of failures of the store to answer.
    pub failures: u64,
    /// Message of the last failure.
    pub last_failure: Option<String>,
    /// Time for which the store was unavailable, in seconds.
    pub unavailable_s: f64,
    /// A later run of this instance has taken over, and nothing was written from then on.
    pub fenced: bool,
}

/// Packet counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Packets that arrived for the chain.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets dropped because a function or the spec says so.
    pub dropped_by_nf: u64,
    /// Packets lost for lack of resources or time.
    pub lost: u64,
    /// Packets of the traffic excluded by `spec.match`; not offered.
    pub not_matched: u64,
    /// Packets dropped or lost, by function and reason. Only those that occurred.
    pub drops: Vec<DropReport>,
    /// Events of packets that passed, by function and reason. Only those that occurred.
    pub packet_events: Vec<PacketEventReport>,
    /// Deprecated copy of `drops` and `packet_events` by `function/reason`, to be removed in the next version.
    pub reasons: BTreeMap<String, u64>,
}

impl PacketReport {
    /// Adds a count to the reason's entry.
    pub fn add(&mut self, reason: &Reason, count: u64) {
        if count == 0 {
            return;
        }
        *self.reasons.entry(reason.name.clone()).or_default() += count;
        let function = reason.function.clone();
        let name = reason.short_name();
        let outcome = match reason.outcome {
            Outcome::Dropped => DropOutcome::Dropped,
            Outcome::Lost => DropOutcome::Lost,
            Outcome::Passed => {
                let known = |event: &&mut PacketEventReport| event.function == function && event.reason == name;
                match self.packet_events.iter_mut().find(known) {
                    Some(event) => event.count += count,
                    None => self.packet_events.push(PacketEventReport {
                        function,
                        reason: name.to_owned(),
                        count,
                    }),
                }
                return;
            }
        };
        let known =
            |drop: &&mut DropReport| drop.function == function && drop.reason == name && drop.outcome == outcome;
        match self.drops.iter_mut().find(known) {
            Some(drop) => drop.packets += count,
            None => self.drops.push(DropReport {
                function,
                reason: name.to_owned(),
                outcome,
                packets: count,
            }),
        }
    }

    /// Sorts both lists by function and reason.
    pub(crate) fn sort(&mut self) {
        self.drops.sort();
        self.packet_events.sort();
    }
}

/// Packets dropped or lost for one reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DropReport {
    /// Name of the function, or `None` if the chain, the port or the run dropped them.
    pub function: Option<String>,
    /// Drop reason.
    pub reason: String,
    /// Dropped by a decision, or lost.
    pub outcome: DropOutcome,
    /// Number of packets.
    pub packets: u64,
}

impl DropReport {
    /// Name of the function and the reason, or the reason alone without a function.
    pub fn name(&self) -> String {
        qualified(self.function.as_deref(), &self.reason)
    }
}

/// Outcome for packets that were not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DropOutcome {
    /// Dropped by a decision of a function or the spec.
    Dropped,
    /// Lost for lack of resources or time, or by a failure. Counts against the objective.
    Lost,
}

/// Event of packets that passed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PacketEventReport {
    /// Name of the function, or `None` if the chain counted them.
    pub function: Option<String>,
    /// Name of the counter.
    pub reason: String,
    /// Number of packets, or of the unit in the counter's name.
    pub count: u64,
}

impl PacketEventReport {
    /// Name of the function and the counter, or the counter's alone without a function.
    pub fn name(&self) -> String {
        qualified(self.function.as_deref(), &self.reason)
    }
}

fn qualified(function: Option<&str>, reason: &str) -> String {
    match function {
        Some(function) => format!("{function}/{reason}"),
        None => reason.to_owned(),
    }
}

/// Cores used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreReport {
    /// Cores with a queue of the port.
    pub dedicated: u64,
    /// Time average of dedicated cores in use. A core without an RSS bucket is free for other programs.
    pub dedicated_avg: f64,
    /// Time average of activated auxiliary cores.
    pub auxiliary_avg: f64,
    /// Sum of both averages.
    pub avg: f64,
}

/// Flow table counters.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FlowReport {
    /// Flows in the table at the end.
    pub active: u64,
    /// Flows inserted.
    pub opened: u64,
    /// Flows removed because they were idle.
    pub expired: u64,
    /// Flows evicted for new ones.
    pub evicted: u64,
    /// New flows refused because the table was full.
    pub refused: u64,
    /// Memory of the table in bytes, for all flows that fit.
    pub memory_bytes: u64,
    /// Number of flows that fit.
    pub capacity: u64,
    /// Memory per flow that fits, in bytes.
    pub bytes_per_flow: f64,
    /// Bytes of a flow that must be kept: state of functions, key, age, timer and companion.
    pub content_bytes: u64,
    /// State of a flow's functions in bytes.
    pub state_bytes: u64,
}

/// Measurement windows of the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WindowsReport {
    /// Length of a window, in milliseconds.
    pub length_ms: f64,
    /// Windows in which packets arrived or left.
    pub count: u64,
    /// Windows in which some worker was preempted for longer than 20 µs at a time and, in total, for more than 0.1 % of
    /// the window.
    pub flagged: u64,
    /// Unflagged windows in which packets were delivered or lost. The others say nothing about the objective.
    pub unflagged_judged: u64,
    /// Share of these windows in which the objective was met. `None` if there are none.
    pub unflagged_slo_met: Option<f64>,
    /// Median of each figure over the windows in `list`, flagged ones included.
    pub median_latency_us: LatencyReport,
    /// Windows missing from `list` and from the median because the list was full. The counts include them.
    pub omitted: u64,
    /// Windows in order.
    pub list: Vec<WindowReport>,
}

/// One window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WindowReport {
    /// Start, in seconds from the run's start.
    pub start_s: f64,
    /// Packets that arrived.
    pub offered: u64,
    /// Packets sent.
    pub delivered: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets that exceeded the objective's latency.
    pub late: u64,
    /// Latencies, in microseconds.
    pub latency_us: LatencyReport,
    /// Number of preemptions of a worker.
    pub gaps: u64,
    /// Their total duration, in microseconds.
    pub gap_us: f64,
    /// Longest one, in microseconds.
    pub longest_gap_us: f64,
    /// The gaps invalidate the window.
    pub flagged: bool,
    /// The objective was met. `None` if no packet was delivered or lost.
    pub slo_met: Option<bool>,
}

/// Run over time. A step is one window, or in a long run 2, 4, 8 ... of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TimelineReport {
    /// Length of a step, in milliseconds.
    pub step_ms: f64,
    /// Steps in order from the run's start, including those without packets.
    pub list: Vec<StepReport>,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Start, in seconds from the run's start.
    pub start_s: f64,
    /// Windows with packets in the step.
    pub windows: u64,
    /// Flagged windows in the step.
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
    /// Share of the workers' time spent on packets, 0 to 1.
    pub busy: f64,
}

/// Arrivals over time, counted in bins. A step is one or more bins.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArrivalReport {
    /// Width of a bin, in milliseconds.
    pub bin_ms: f64,
    /// Length of a step, in milliseconds.
    pub step_ms: f64,
    /// Packets that arrived in each step, from the run's start.
    pub packets: Vec<u64>,
    /// Packets in the busiest bin of each step.
    pub busiest_bin: Vec<u64>,
}
