//! Study of bursts: its values, by name.

use serde::Serialize;
use tailwater_net::Nanos;

use super::latencies::Latencies;
use super::series::Series;
use crate::Notice;
use crate::stats::as_nanos;

/// Effects of bursts on latency. Field names are those of the JSON output and stable.
#[derive(Clone, Debug, Serialize)]
pub struct BurstStudy {
    /// Name of the source.
    pub name: String,
    /// Number of packets.
    pub packets: u64,
    /// Bytes of all frames, without the frame check sequence.
    pub bytes: u64,
    /// Time from the first packet to the last (in JSON `duration_ns`).
    #[serde(rename = "duration_ns", serialize_with = "as_nanos")]
    pub duration: Nanos,
    /// Number of flows. Each direction counts as one.
    pub flows: u64,
    /// New flows per second.
    pub new_flows_per_second: NewFlows,
    /// Packet sizes, bytes.
    pub packet_bytes: PacketBytes,
    /// Flow sizes, bytes.
    pub flow_bytes: FlowBytes,
    /// Maximum time from a flow's first packet to its last (in JSON `longest_flow_ns`).
    #[serde(rename = "longest_flow_ns", serialize_with = "as_nanos")]
    pub longest_flow: Nanos,
    /// Maxima over milliseconds, counted in whole milliseconds from the first packet.
    pub worst_millisecond: WorstMillisecond,
    /// NetBlaze's Table 1, with a row for each service time.
    pub whales: Vec<WhaleRow>,
    /// NetBlaze's Table 2.
    pub minnows: Vec<MinnowRow>,
    /// Packets with an earlier time than their predecessor. They count as arriving with it.
    pub packets_out_of_order: u64,
    /// Notices of the source.
    pub notices: Vec<Notice>,
    #[serde(skip)]
    pub(super) series: Series,
}

/// New flows per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NewFlows {
    /// Mean over the duration; absent if that is zero.
    pub mean: Option<f64>,
    /// Maximum in one second, counted in whole seconds from the first packet.
    pub max: u64,
}

/// Packet sizes, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PacketBytes {
    /// Mean size.
    pub mean: f64,
    /// Minimum size.
    pub min: u32,
    /// Maximum size.
    pub max: u32,
}

/// Flow sizes within the traffic, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowBytes {
    /// Size of the smallest flow.
    pub min: u64,
    /// Size of the largest flow.
    pub max: u64,
}

/// Maxima over milliseconds. Each can be of a different millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorstMillisecond {
    /// Maximum number of packets.
    pub packets: u32,
    /// Maximum number of packets of one flow: a whale.
    pub flow_packets: u32,
    /// Maximum number of new flows: minnows.
    pub new_flows: u32,
}

/// Row of Table 1: every flow has a core of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WhaleRow {
    /// Service time of a packet.
    #[serde(rename = "service_ns", serialize_with = "as_nanos")]
    pub service: Nanos,
    /// Latency of packets, from arrival to the end of service.
    #[serde(flatten)]
    pub latency: LatencyRow,
}

/// Row of Table 2: shaped flows, hashed to cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MinnowRow {
    /// Service time of a packet.
    #[serde(rename = "service_ns", serialize_with = "as_nanos")]
    pub service: Nanos,
    /// Minimum number of cores with a median below ten service times. Absent, like the latency, if 4096 cores do not
    /// suffice.
    pub cores: Option<u32>,
    /// Share of the cores' time spent on service.
    pub load: Option<f64>,
    /// Latency of packets, from leaving the shaper to the end of service.
    #[serde(flatten)]
    pub latency: Option<LatencyRow>,
}

/// Percentiles of latency, with a resolution of 1 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyRow {
    /// Median (in JSON `p50_ns`).
    #[serde(rename = "p50_ns", serialize_with = "as_nanos")]
    pub p50: Nanos,
    /// 99th percentile (in JSON `p99_ns`).
    #[serde(rename = "p99_ns", serialize_with = "as_nanos")]
    pub p99: Nanos,
    /// Maximum (in JSON `max_ns`).
    #[serde(rename = "max_ns", serialize_with = "as_nanos")]
    pub max: Nanos,
}

impl LatencyRow {
    pub(super) fn of(latencies: &Latencies) -> Self {
        LatencyRow {
            p50: latencies.percentile(0.5),
            p99: latencies.percentile(0.99),
            max: latencies.max(),
        }
    }
}
