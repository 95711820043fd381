//! Flow table and packet input of a chain.

use crate::error::SpecError;
use crate::located::Located;
use crate::schema::{Field, Map, Type};
use crate::values::{PacketAction, duration};
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

const IDLE_TIMEOUT: RangeInclusive<Nanos> = Nanos::from_millis(1)..=Nanos::from_secs(86_400);
const CAPACITY: RangeInclusive<u64> = 512..=16_777_216;
const BATCH: RangeInclusive<u64> = 1..=256;

/// Fields of `flows`.
pub static FLOWS: Map = Map {
    fields: &[
        Field::new(
            "capacity",
            Type::whole(&CAPACITY),
            "Flows for which there is room, spread evenly; below 16384 there is room for 16384.",
        )
        .or("65536"),
        Field::new(
            "idleTimeout",
            Type::OneOf(&IDLE_TIMEOUTS),
            "Idle time after which a flow expires: one duration for all, or one for each protocol.",
        )
        .or("{tcp: 300s, udp: 60s, other: 30s}"),
        Field::new(
            "whenFull",
            Type::Words(&["evict", "refuse"]),
            "A new flow in a full table evicts an old one, or its packets are refused (lost, `flow-table-full`).",
        )
        .or("evict"),
        Field::new(
            "lookUp",
            Type::Words(&["as-needed", "always"]),
            "Looks flows up even if no function requires it, to measure the cost.",
        )
        .or("as-needed"),
    ],
    ..Map::PLAIN
};
static IDLE_TIMEOUTS: [Type; 2] = [Type::duration(&IDLE_TIMEOUT), Type::Map(&IDLE_TIMEOUT_MAP)];
static IDLE_TIMEOUT_MAP: Map = Map {
    fields: &[
        Field::new("tcp", Type::duration(&IDLE_TIMEOUT), "Timeout of TCP flows.").or("300s"),
        Field::new("udp", Type::duration(&IDLE_TIMEOUT), "Timeout of UDP flows.").or("60s"),
        Field::new("other", Type::duration(&IDLE_TIMEOUT), "Timeout of all other flows.").or("30s"),
    ],
    ..Map::PLAIN
};

/// Fields of `packets`.
pub static PACKETS: Map = Map {
    fields: &[
        Field::new(
            "malformed",
            PacketAction::TYPE,
            "Packets whose headers cannot be trusted; on ports also those whose checksum the NIC finds wrong.",
        )
        .or("drop"),
        Field::new("nonIp", PacketAction::TYPE, "Packets that are not IP, such as ARP.").or("pass"),
        Field::new("batch", Type::whole(&BATCH), "Maximum batch size.").or("32"),
    ],
    ..Map::PLAIN
};

/// Policy for a new flow that finds no free slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Evicts the flow near the new one's home that has been idle longest.
    #[default]
    Evict,
    /// Refuses the new flow and drops its packet.
    Refuse,
}

/// Idle timeouts of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimeouts {
    /// Timeout of TCP flows.
    pub tcp: Nanos,
    /// Timeout of UDP flows.
    pub udp: Nanos,
    /// Timeout of all other flows.
    pub other: Nanos,
}

impl IdleTimeouts {
    /// Returns the timeout of flows of an IP protocol number.
    pub fn of(&self, protocol: u8) -> Nanos {
        match protocol {
            6 => self.tcp,
            17 => self.udp,
            _ => self.other,
        }
    }

    /// Returns the longest of the three.
    pub fn longest(&self) -> Nanos {
        self.tcp.max(self.udp).max(self.other)
    }
}

/// Flow table of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowsSpec {
    /// Flows for which there is room if they are spread evenly over the RSS buckets: 512 to 16,777,216. Below 16,384
    /// there is room for 16,384.
    pub capacity: u32,
    /// Idle timeouts of flows.
    pub idle_timeout: IdleTimeouts,
    /// Policy for a new flow that finds no room.
    pub when_full: WhenFull,
    /// `true` if flows are looked up even if no function of the chain needs them.
    pub always: bool,
}

impl Default for FlowsSpec {
    fn default() -> Self {
        FlowsSpec {
            capacity: 65_536,
            idle_timeout: IdleTimeouts {
                tcp: Nanos::from_secs(300),
                udp: Nanos::from_secs(60),
                other: Nanos::from_secs(30),
            },
            when_full: WhenFull::Evict,
            always: false,
        }
    }
}

/// Reads `flows`.
///
/// # Errors
/// A field is unknown, or its value is out of range.
pub fn flows(node: &Located<'_>) -> Result<FlowsSpec, SpecError> {
    let default = FlowsSpec::default();
    let fields = node.fields_of(&FLOWS)?;
    Ok(FlowsSpec {
        capacity: match fields.optional("capacity") {
            None => default.capacity,
            Some(node) => node.whole(CAPACITY)? as u32,
        },
        idle_timeout: match fields.optional("idleTimeout") {
            None => default.idle_timeout,
            Some(node) => idle_timeout(&node, default.idle_timeout)?,
        },
        when_full: match fields.optional("whenFull") {
            None => default.when_full,
            Some(node) => node.word(&[("evict", WhenFull::Evict), ("refuse", WhenFull::Refuse)])?,
        },
        always: match fields.optional("lookUp") {
            None => default.always,
            Some(node) => node.word(&[("as-needed", false), ("always", true)])?,
        },
    })
}

/// Parses one duration for all flows, or one for each protocol.
fn idle_timeout(node: &Located<'_>, default: IdleTimeouts) -> Result<IdleTimeouts, SpecError> {
    if node.is_list() {
        return Err(node.expected("a duration such as 60s, or a map of tcp, udp, other"));
    }
    if !node.is_map() {
        let all = duration(node, IDLE_TIMEOUT)?;
        return Ok(IdleTimeouts {
            tcp: all,
            udp: all,
            other: all,
        });
    }
    let fields = node.fields_of(&IDLE_TIMEOUT_MAP)?;
    let timeout = |name, default| {
        let node = fields.optional(name);
        node.map_or(Ok(default), |node| duration(&node, IDLE_TIMEOUT))
    };
    Ok(IdleTimeouts {
        tcp: timeout("tcp", default.tcp)?,
        udp: timeout("udp", default.udp)?,
        other: timeout("other", default.other)?,
    })
}

/// Input policy for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketsSpec {
    /// Treatment of packets with invalid headers.
    pub malformed: PacketAction,
    /// Treatment of packets that are not IP.
    pub non_ip: PacketAction,
    /// Maximum batch size: 1 to 256.
    pub batch: u16,
}

impl Default for PacketsSpec {
    fn default() -> Self {
        PacketsSpec {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Pass,
            batch: 32,
        }
    }
}

/// Reads `packets`.
///
/// # Errors
/// A field is unknown, or its value is out of range.
pub fn packets(node: &Located<'_>) -> Result<PacketsSpec, SpecError> {
    let default = PacketsSpec::default();
    let fields = node.fields_of(&PACKETS)?;
    let fate = |name, default| {
        let node = fields.optional(name);
        node.map_or(Ok(default), |node| PacketAction::parse(&node))
    };
    Ok(PacketsSpec {
        malformed: fate("malformed", default.malformed)?,
        non_ip: fate("nonIp", default.non_ip)?,
        batch: match fields.optional("batch") {
            None => default.batch,
            Some(node) => node.whole(BATCH)? as u16,
        },
    })
}
