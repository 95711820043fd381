//! A study of bursts: its figures, by name.

use serde::Serialize;
use tailwater_net::Nanos;

use super::latencies::Latencies;
use super::series::Series;
use crate::Notice;
use crate::stats::as_nanos;

/// What bursts do to latency. Field names are those of the JSON output and stable.
#[derive(Clone, Debug, Serialize)]
pub struct BurstStudy {
    /// The source's name.
    pub name: String,
    /// Packets.
    pub packets: u64,
    /// Bytes of all frames, without the frame check sequence.
    pub bytes: u64,
    /// From the first packet to the last (in JSON `duration_ns`).
    #[serde(rename = "duration_ns", serialize_with = "as_nanos")]
    pub duration: Nanos,
    /// Flows, each direction its own.
    pub flows: u64,
    /// New flows a second.
    pub new_flows_per_second: NewFlows,
    /// Bytes of packets.
    pub packet_bytes: PacketBytes,
    /// Bytes of flows.
    pub flow_bytes: FlowBytes,
    /// From the first packet to the last of the flow for which that is longest (in JSON
    /// `longest_flow_ns`).
    #[serde(rename = "longest_flow_ns", serialize_with = "as_nanos")]
    pub longest_flow: Nanos,
    /// The largest figures of any millisecond (from whole milliseconds after the first packet).
    pub worst_millisecond: WorstMillisecond,
    /// NetBlaze's Table 1, a row for each service time.
    pub whales: Vec<WhaleRow>,
    /// NetBlaze's Table 2.
    pub minnows: Vec<MinnowRow>,
    /// Packets that came earlier than the one ahead of them; they count as coming with it.
    pub packets_out_of_order: u64,
    /// What the source has to say.
    pub notices: Vec<Notice>,
    #[serde(skip)]
    pub(super) series: Series,
}

/// New flows a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NewFlows {
    /// Over the duration; absent if that is zero.
    pub mean: Option<f64>,
    /// Most in one second, counted in whole seconds after the first packet.
    pub max: u64,
}

/// Bytes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PacketBytes {
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: u32,
    /// Longest.
    pub max: u32,
}

/// Bytes of flows, within the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowBytes {
    /// The smallest flow's.
    pub min: u64,
    /// The largest flow's.
    pub max: u64,
}

/// The largest figures of any millisecond, each of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorstMillisecond {
    /// Most packets.
    pub packets: u32,
    /// Most packets of one flow: a whale.
    pub flow_packets: u32,
    /// Most new flows: minnows.
    pub new_flows: u32,
}

/// Every flow on a core of its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WhaleRow {
    /// The service time of a packet.
    #[serde(rename = "service_ns", serialize_with = "as_nanos")]
    pub service: Nanos,
    /// Latency of packets, from arrival to the end of service.
    #[serde(flatten)]
    pub latency: LatencyRow,
}

/// Shaped flows, hashed to cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MinnowRow {
    /// The service time of a packet.
    #[serde(rename = "service_ns", serialize_with = "as_nanos")]
    pub service: Nanos,
    /// The fewest cores that keep the median below ten service times; absent (and so is the
    /// latency) if 4096 do not.
    pub cores: Option<u32>,
    /// The part of the cores' time that service takes.
    pub load: Option<f64>,
    /// Latency of packets, from leaving the shaper to the end of service.
    #[serde(flatten)]
    pub latency: Option<LatencyRow>,
}

/// Percentiles of latency, known to 1 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyRow {
    /// Median (in JSON `p50_ns`).
    #[serde(rename = "p50_ns", serialize_with = "as_nanos")]
    pub p50: Nanos,
    /// 99th percentile (in JSON `p99_ns`).
    #[serde(rename = "p99_ns", serialize_with = "as_nanos")]
    pub p99: Nanos,
    /// The largest (in JSON `max_ns`).
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
