//! Configuration of `external`: a program behind ports, which cuts the chain in two.

use crate::error::SpecError;
use crate::located::Located;
use crate::port_name::PortName;
use crate::schema::{DEVICE, Field, Map, Type};
use crate::values::{PacketAction, duration};
use std::ops::RangeInclusive;
use tailwater_net::Nanos;

/// Name of the kind of function.
pub const EXTERNAL: &str = "external";
const TIMEOUT: RangeInclusive<Nanos> = Nanos::from_millis(1)..=Nanos::from_secs(10);
const OUTSIDE: RangeInclusive<u64> = 1..=1_048_576;
const CHANGE: Type = Type::Words(&["ipId", "tcpSequence", "payload"]);

/// Fields of the configuration.
pub static FIELDS: Map = Map {
    fields: &[
        Field::new("port", Type::Text(&DEVICE), "Port to the function.")
            .required()
            .example("interface=fw-in"),
        Field::new(
            "returnPort",
            Type::Text(&DEVICE),
            "Port from the function; another device or interface, of the same kind.",
        )
        .otherwise("`port`")
        .example("interface=fw-out"),
        Field::new(
            "timeout",
            Type::duration(&TIMEOUT),
            "A packet that has not returned after this time is given up.",
        )
        .or("100ms"),
        Field::new(
            "outside",
            Type::whole(&OUTSIDE),
            "Most packets at the function at a time, for each core; further ones are lost.",
        )
        .or("16384"),
        Field::new(
            "missing",
            Type::Words(&["lost", "dropped"]),
            "Accounting of packets that do not return: a firewall drops some, a router should not. Lost packets \
             miss the objective.",
        )
        .or("lost"),
        Field::new("own", PacketAction::TYPE, "Packets that the function originates.").or("pass"),
        Field::new(
            "changes",
            Type::List(&CHANGE, 1, 3),
            "Fields that the function changes in addition to those that are ignored.",
        )
        .otherwise("none"),
    ],
    nullable: true,
    ..Map::PLAIN
};

/// External program that is unaware of Tailwater: it receives packets through a port, and those it returns continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalConfig {
    /// Port through which packets go to the program.
    pub port: PortName,
    /// Port through which packets return, if it is another one.
    pub return_port: Option<PortName>,
    /// Time after which a packet that has not returned counts as lost: 1 ms to 10 s.
    pub timeout: Nanos,
    /// Maximum number of packets that the program holds at a time: 1 to 1,048,576.
    pub outside: u32,
    /// Accounting of packets that do not return in time.
    pub missing: Missing,
    /// Treatment of packets that come from the program and were never sent to it.
    pub own: PacketAction,
    /// Fields that the program changes, other than addresses, ports, TTLs, and checksums.
    pub changes: Changes,
}

/// Accounting of packets that do not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Lost: the program is expected to pass all packets.
    Lost,
    /// Dropped by the program, which is expected to do so.
    Dropped,
}

/// Fields that a program changes, so that they cannot identify returning packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// IPv4 identification.
    pub ip_id: bool,
    /// TCP sequence and acknowledgement numbers.
    pub tcp_sequence: bool,
    /// Payload behind the transport header, and its length.
    pub payload: bool,
}

impl ExternalConfig {
    /// Ports of the program: one or two.
    pub fn ports(&self) -> impl Iterator<Item = &PortName> {
        [Some(&self.port), self.return_port.as_ref()].into_iter().flatten()
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// A field is missing, unknown or out of range, or both ports are one device or interface, or of different kinds.
    pub fn parse(node: &Located<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&FIELDS)?;
        let port = PortName::parse(&fields.required("port", "a port")?)?;
        let return_port = match fields.optional("returnPort") {
            None => None,
            Some(node) => {
                let other = PortName::parse(&node)?;
                if other.conflicts(&port) {
                    return Err(node.error(format!(
                        "expected a port other than `port`, found \"{other}\"; without a returnPort, packets return \
                         by the same port"
                    )));
                }
                if other.is_kernel() != port.is_kernel() || other.is_numbered() != port.is_numbered() {
                    return Err(node.error(format!(
                        "expected a port of the same kind as `port`, found \"{other}\" and \"{port}\": DPDK devices, \
                         interface=NAME, or interface=NAME%d with the worker's number"
                    )));
                }
                Some(other)
            }
        };
        let missing = [("lost", Missing::Lost), ("dropped", Missing::Dropped)];
        Ok(ExternalConfig {
            port,
            return_port,
            timeout: match fields.optional("timeout") {
                None => Nanos::from_millis(100),
                Some(node) => duration(&node, TIMEOUT)?,
            },
            outside: match fields.optional("outside") {
                None => 16_384,
                Some(node) => node.whole(OUTSIDE)? as u32,
            },
            missing: match fields.optional("missing") {
                None => Missing::Lost,
                Some(node) => node.word(&missing)?,
            },
            own: match fields.optional("own") {
                None => PacketAction::Pass,
                Some(node) => PacketAction::parse(&node)?,
            },
            changes: match fields.optional("changes") {
                None => Changes::default(),
                Some(node) => changes(&node)?,
            },
        })
    }
}

fn changes(node: &Located<'_>) -> Result<Changes, SpecError> {
    type Changed = fn(&mut Changes) -> &mut bool;
    const CHANGED: [(&str, Changed); 3] = [
        ("ipId", |changes| &mut changes.ip_id),
        ("tcpSequence", |changes| &mut changes.tcp_sequence),
        ("payload", |changes| &mut changes.payload),
    ];
    let mut changes = Changes::default();
    for item in node.list("changes", CHANGED.len())? {
        let field = item.word(&CHANGED)?;
        *field(&mut changes) = true;
    }
    Ok(changes)
}
