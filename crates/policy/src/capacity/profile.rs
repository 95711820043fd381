//! Capacity profile of one chain on one machine.

use super::{DetailedCosts, EpochFrontier, RateFrontier, SplitProfile};
use std::fmt;
use tailwater_net::Nanos;

/// Maximum length of a name in a profile, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Current value of a profile file's `apiVersion`.
pub(super) const API_VERSION: &str = "tailwater.dev/v1alpha2";
/// `apiVersion` of files written before [`DetailedCosts`] existed. It is accepted as well.
pub(super) const OLD_API_VERSION: &str = "tailwater.dev/v1alpha1";
/// Value of a profile file's `kind`.
pub(super) const KIND: &str = "CapacityProfile";

/// Processing costs as a sum of parts, in nanoseconds. None is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceCosts {
    /// Each batch, independent of its number of packets.
    pub batch: f64,
    /// Each packet.
    pub packet: f64,
    /// Each byte of a packet.
    pub byte: f64,
    /// Each packet that opens a flow, in addition to the cost of any packet.
    pub new_flow: f64,
}

/// Measurements of one chain, for one latency objective, on one machine.
///
/// [`Display`](fmt::Display) writes it as YAML that [`parse`](CapacityProfile::parse) reads back equal:
///
/// ```yaml
/// apiVersion: tailwater.dev/v1alpha2
/// kind: CapacityProfile
/// chain: "acl-nat"
/// configuration: "9f86d081884c7d65"
/// machine: "edge-3"
/// sloNanoseconds: 200000
/// epochNanoseconds: 80000
/// # [flows, packets an epoch]
/// frontier: [[10, 352], [103, 128]]
/// # [flows, packets a second]
/// rates: [[500, 2140000], [5500, 1820000]]
/// # [last functions moved, packets an epoch of the first functions, of the last]
/// splits: [[1, 512, 700]]
/// costs: {batchNanoseconds: 110, packetNanoseconds: 42.5, byteNanoseconds: 0.02, newFlowNanoseconds: 210}
/// details: {trafficPacketNanoseconds: 180, coldAfterPackets: 1024, coldBatchNanoseconds: 90,
///   coldPacketNanoseconds: 30, newBatchNanoseconds: 200, receivePacketNanoseconds: 20,
///   ringPacketNanoseconds: 15, queuePacketNanoseconds: 25, handOverPacketNanoseconds: 40,
///   takeOverPacketNanoseconds: 35, pollNanoseconds: 40}
/// # [nanoseconds asleep, nanoseconds to wake up: median, 90th, 99th percentile]
/// wakes: [[350000, 4000, 7000, 12000]]
/// # [pauses a second, nanoseconds each]
/// pauses: [[1000, 3400], [900, 5600]]
/// ```
///
/// `rates`, `splits`, `costs`, `details`, `wakes` and `pauses` are optional. In `frontier` and `rates`, `any` instead
/// of a flow count stands for any number of flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapacityProfile {
    /// The chain's name.
    pub chain: String,
    /// Fingerprint of the chain's configuration. Another configuration can have other costs.
    pub configuration: String,
    /// Machine that the profile was measured on.
    pub machine: String,
    /// Latency objective (99th percentile) that the rates meet.
    pub slo: Nanos,
    /// Epoch that the frontier and the splits apply to.
    pub epoch: Nanos,
    /// Flows and packets that a core processes in an epoch.
    pub frontier: EpochFrontier,
    /// Rates that meet the objective.
    pub rates: RateFrontier,
    /// Split points for whales.
    pub splits: SplitProfile,
    /// Service costs, if measured.
    pub costs: Option<ServiceCosts>,
    /// Detailed costs for simulations, if measured.
    pub details: Option<DetailedCosts>,
}

impl fmt::Display for CapacityProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "apiVersion: {API_VERSION}\nkind: {KIND}")?;
        writeln!(f, "chain: {}", Quoted(&self.chain))?;
        writeln!(f, "configuration: {}", Quoted(&self.configuration))?;
        writeln!(f, "machine: {}", Quoted(&self.machine))?;
        writeln!(f, "sloNanoseconds: {}", self.slo.0)?;
        writeln!(f, "epochNanoseconds: {}", self.epoch.0)?;

        let corners = self.frontier.corners().iter();
        let mut points: Vec<String> = corners
            .map(|corner| format!("[{}, {}]", corner.flows, corner.packets))
            .collect();
        if self.frontier.any() > 0 {
            points.push(format!("[any, {}]", self.frontier.any()));
        }
        list(f, "frontier", "[flows, packets an epoch]", &points)?;

        let corners = self.rates.corners().iter();
        let mut points: Vec<String> = corners.map(|(flows, rate)| format!("[{flows}, {rate}]")).collect();
        if self.rates.any() > 0.0 {
            points.push(format!("[any, {}]", self.rates.any()));
        }
        list(f, "rates", "[flows, packets a second]", &points)?;

        let points: Vec<String> = (self.splits.points().iter())
            .map(|point| format!("[{}, {}, {}]", point.last_functions, point.first, point.last))
            .collect();
        let meaning = "[last functions moved, packets an epoch of the first functions, of the last]";
        list(f, "splits", meaning, &points)?;

        if let Some(costs) = self.costs {
            writeln!(
                f,
                "costs: {{batchNanoseconds: {}, packetNanoseconds: {}, byteNanoseconds: {}, \
                 newFlowNanoseconds: {}}}",
                costs.batch, costs.packet, costs.byte, costs.new_flow
            )?;
        }
        let Some(details) = &self.details else {
            return Ok(());
        };
        writeln!(
            f,
            "details: {{trafficPacketNanoseconds: {}, coldAfterPackets: {}, coldBatchNanoseconds: {},\n  \
             coldPacketNanoseconds: {}, newBatchNanoseconds: {}, receivePacketNanoseconds: {},\n  \
             ringPacketNanoseconds: {}, queuePacketNanoseconds: {}, handOverPacketNanoseconds: {},\n  \
             takeOverPacketNanoseconds: {}, pollNanoseconds: {}}}",
            details.traffic_packet,
            details.cold_after,
            details.cold_batch,
            details.cold_packet,
            details.new_batch,
            details.receive_packet,
            details.ring_packet,
            details.queue_packet,
            details.hand_over_packet,
            details.take_over_packet,
            details.poll,
        )?;
        let rows: Vec<String> = (details.wakes.iter())
            .map(|wake| format!("[{}, {}, {}, {}]", wake.asleep, wake.p50, wake.p90, wake.p99))
            .collect();
        let meaning = "[nanoseconds asleep, nanoseconds to wake up: median, 90th, 99th percentile]";
        list(f, "wakes", meaning, &rows)?;
        let rows: Vec<String> = (details.pauses.iter())
            .map(|pause| format!("[{}, {}]", pause.per_second, pause.nanos))
            .collect();
        list(f, "pauses", "[pauses a second, nanoseconds each]", &rows)
    }
}

/// Writes a list of points, on as few lines as are readable.
fn list(f: &mut fmt::Formatter<'_>, name: &str, meaning: &str, points: &[String]) -> fmt::Result {
    const IN_A_LINE: usize = 8;
    write!(f, "# {meaning}\n{name}: [")?;
    for (i, point) in points.iter().enumerate() {
        let line_break = i > 0 && i % IN_A_LINE == 0;
        let separator = match (i, line_break) {
            (0, _) => "",
            (_, true) => ",\n  ",
            (_, false) => ", ",
        };
        write!(f, "{separator}{point}")?;
    }
    writeln!(f, "]")
}

/// A name as a double-quoted YAML scalar.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                ' '..='~' => write!(f, "{c}")?,
                // Escaped, so that no editor or terminal can change or interpret it.
                _ => write!(f, "\\U{:08x}", u32::from(c))?,
            }
        }
        write!(f, "\"")
    }
}
