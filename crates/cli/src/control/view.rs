//! Chains and events as documents for programs.

use crate::dates::timestamp;
use serde::Serialize;
use tailwater_server::control::generated as message;

/// All chains.
#[derive(Debug, Serialize)]
pub struct ListView {
    /// Sorted by name.
    pub chains: Vec<ChainView>,
    /// Ports that they share, sorted by name.
    pub ports: Vec<PortView>,
}

/// Port.
#[derive(Debug, Serialize)]
pub struct PortView {
    name: String,
    packets: PortPacketsView,
    interval: PortIntervalView,
}

/// Packets since the server's start.
#[derive(Debug, Serialize)]
struct PortPacketsView {
    received: u64,
    unmatched: u64,
    lost: u64,
    damaged: u64,
}

/// Packets in the last second.
#[derive(Debug, Serialize)]
struct PortIntervalView {
    nanoseconds: u64,
    received: u64,
    lost: u64,
    losing_cores: Vec<u32>,
}

impl From<&message::Port> for PortView {
    fn from(port: &message::Port) -> PortView {
        PortView {
            name: port.name.clone(),
            packets: PortPacketsView {
                received: port.received,
                unmatched: port.unmatched,
                lost: port.lost,
                damaged: port.damaged,
            },
            interval: PortIntervalView {
                nanoseconds: port.interval_nanos,
                received: port.interval_received,
                lost: port.interval_lost,
                losing_cores: port.losing_cores.clone(),
            },
        }
    }
}

/// Chain.
#[derive(Debug, Serialize)]
pub struct ChainView {
    name: String,
    phase: &'static str,
    reason: String,
    port: String,
    source: String,
    functions: Vec<String>,
    generation: u64,
    since: String,
    forced: bool,
    conditions: Vec<ConditionView>,
    packets: PacketsView,
    latency: LatencyView,
    total_latency: LatencyView,
    rates: Option<RatesView>,
    cores: CoresView,
    placement: PlacementView,
    cache: Option<CacheView>,
    bound_state: Option<String>,
}

/// Part of the last-level cache.
#[derive(Debug, Serialize)]
struct CacheView {
    class: &'static str,
    ways: u32,
    cores: u32,
    reason: String,
}

#[derive(Debug, Serialize)]
struct PlacementView {
    cores: Vec<u32>,
    promise: &'static str,
    reason: String,
    share: Option<f64>,
    latency_nanoseconds: Option<u64>,
    cost_nanoseconds: Option<f64>,
    packets_per_second: Option<f64>,
    cap_packets_per_second: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ConditionView {
    r#type: String,
    status: &'static str,
    reason: String,
    message: String,
    since: String,
}

#[derive(Debug, Serialize)]
struct PacketsView {
    offered: u64,
    delivered: u64,
    dropped: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct LatencyView {
    p50_nanoseconds: Option<u64>,
    p99_nanoseconds: Option<u64>,
    objective_nanoseconds: u64,
    percentile: f64,
    met: Option<bool>,
    port_lost: u64,
}

/// Packets per second in the last window.
#[derive(Debug, Serialize)]
struct RatesView {
    offered: f64,
    delivered: f64,
    dropped: f64,
    lost: f64,
}

#[derive(Debug, Serialize)]
struct CoresView {
    dedicated: Vec<u32>,
    auxiliary: f64,
}

/// Event.
#[derive(Debug, Serialize)]
pub struct EventView {
    sequence: u64,
    time: String,
    severity: &'static str,
    chain: Option<String>,
    reason: String,
    message: String,
}

/// Phase of a chain that a server does not have any more.
pub const GONE: &str = "Gone";

impl ChainView {
    /// Chain that a server does not have any more, as it was last.
    pub fn gone(chain: &message::Chain) -> ChainView {
        ChainView {
            phase: GONE,
            ..ChainView::from(chain)
        }
    }
}

impl From<&message::Chain> for ChainView {
    fn from(chain: &message::Chain) -> ChainView {
        let packets = chain.packets.unwrap_or_default();
        let cores = chain.cores.clone().unwrap_or_default();
        let chain = chain.clone();
        ChainView {
            phase: phase(chain.phase()),
            conditions: chain.conditions.iter().map(condition).collect(),
            name: chain.name,
            reason: chain.reason,
            port: chain.port,
            source: chain.source,
            functions: chain.functions,
            generation: chain.generation,
            since: timestamp(chain.since_unix_nanos),
            forced: chain.forced,
            bound_state: Some(chain.bound_state).filter(|reason| !reason.is_empty()),
            packets: PacketsView {
                offered: packets.offered,
                delivered: packets.delivered,
                dropped: packets.dropped,
                lost: packets.lost,
            },
            latency: latency(&chain.latency.unwrap_or_default()),
            total_latency: latency(&chain.total_latency.unwrap_or_default()),
            rates: chain.rates.map(|rates| RatesView {
                offered: rates.offered,
                delivered: rates.delivered,
                dropped: rates.dropped,
                lost: rates.lost,
            }),
            cores: CoresView {
                dedicated: cores.dedicated,
                auxiliary: cores.auxiliary,
            },
            placement: placement(chain.placement.unwrap_or_default()),
            cache: chain.cache.map(|cache| CacheView {
                class: cache_class(cache.class()),
                ways: cache.ways,
                cores: cache.cores,
                reason: cache.reason,
            }),
        }
    }
}

/// Name of a class of the cache.
pub fn cache_class(class: message::CacheClass) -> &'static str {
    match class {
        message::CacheClass::Reserved => "reserved",
        message::CacheClass::Isolated => "isolated",
        message::CacheClass::Shared => "shared",
        message::CacheClass::None | message::CacheClass::Unspecified => "none",
    }
}

fn placement(placement: message::Placement) -> PlacementView {
    PlacementView {
        promise: promise(placement.promise()),
        cores: placement.cores,
        share: placement.share,
        latency_nanoseconds: placement.latency_nanos,
        cost_nanoseconds: placement.cost_nanos,
        packets_per_second: placement.packets_per_second,
        cap_packets_per_second: placement.cap_packets_per_second,
        reason: placement.reason,
    }
}

/// Name of a promise.
pub fn promise(promise: message::Promise) -> &'static str {
    match promise {
        message::Promise::Promised => "promised",
        message::Promise::None => "none",
        message::Promise::Unchecked | message::Promise::Unspecified => "unchecked",
    }
}

fn latency(latency: &message::Latency) -> LatencyView {
    LatencyView {
        p50_nanoseconds: latency.p50_nanos,
        p99_nanoseconds: latency.p99_nanos,
        objective_nanoseconds: latency.objective_nanos,
        percentile: latency.percentile,
        met: latency.met,
        port_lost: latency.port_lost,
    }
}

fn condition(condition: &message::Condition) -> ConditionView {
    ConditionView {
        r#type: condition.r#type.clone(),
        status: condition_status(condition.status()),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: timestamp(condition.since_unix_nanos),
    }
}

impl From<&message::Event> for EventView {
    fn from(event: &message::Event) -> EventView {
        EventView {
            sequence: event.sequence,
            time: timestamp(event.unix_nanos),
            severity: severity(event.severity()),
            chain: (!event.chain.is_empty()).then(|| event.chain.clone()),
            reason: event.reason.clone(),
            message: event.message.clone(),
        }
    }
}

/// Verdict on an objective in a word: `port` if it is unknown since the port lost packets that may be the chain's.
pub fn met(latency: &message::Latency) -> &'static str {
    match latency.met {
        Some(true) => "yes",
        Some(false) => "no",
        None if latency.port_lost > 0 => "port",
        None => "-",
    }
}

/// Name of a phase.
pub fn phase(phase: message::Phase) -> &'static str {
    match phase {
        message::Phase::Unspecified => "Unknown",
        message::Phase::Pending => "Pending",
        message::Phase::Starting => "Starting",
        message::Phase::Running => "Running",
        message::Phase::Draining => "Draining",
        message::Phase::Drained => "Drained",
        message::Phase::Failed => "Failed",
    }
}

/// Name of a condition's status.
pub fn condition_status(status: message::ConditionStatus) -> &'static str {
    match status {
        message::ConditionStatus::True => "True",
        message::ConditionStatus::False => "False",
        message::ConditionStatus::Unknown | message::ConditionStatus::Unspecified => "Unknown",
    }
}

/// Name of an event's severity.
pub fn severity(severity: message::Severity) -> &'static str {
    match severity {
        message::Severity::Warning => "Warning",
        message::Severity::Normal | message::Severity::Unspecified => "Normal",
    }
}
