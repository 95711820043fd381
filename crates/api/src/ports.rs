//! Ports of a chain, as its spec names them.

use crate::error::SpecError;
use crate::located::Located;
use crate::port_name::PortName;
use crate::schema::{DEVICE, Field, Map, Type};
use crate::values::size;
use std::ops::RangeInclusive;

const MTU: RangeInclusive<u64> = 576..=9600;
const WAYS: RangeInclusive<u64> = 1..=64;
const CACHE: RangeInclusive<u64> = 1 << 20..=4 << 30;
const CACHE_SIZE: &str = "a size from 1MiB to 4GiB, such as 22MiB";

/// Fields of `ports`.
pub static PORTS: Map = Map {
    fields: &[
        Field::new(
            "entry",
            Type::Text(&DEVICE),
            "Port that receives: a PCI address or a DPDK virtual device.",
        )
        .required()
        .example("0000:3b:00.0"),
        Field::new(
            "exit",
            Type::Text(&DEVICE),
            "Port that sends; another device than the entry.",
        )
        .otherwise("the entry")
        .example("0000:3b:00.1"),
        Field::new(
            "bothWays",
            Type::Bool,
            "Packets from the exit port pass the chain, too, and leave on the entry port.",
        )
        .or("false"),
        Field::new("mtu", Type::whole(&MTU), "MTU of both ports.").otherwise("unchanged"),
        Field::new(
            "promiscuous",
            Type::Bool,
            "Receives frames for other MAC addresses, too, as a chain in the middle of a link requires.",
        )
        .or("true"),
        Field::new(
            "ddio",
            Type::Map(&DDIO),
            "Part of the last-level cache that devices write to.",
        )
        .otherwise("the machine's"),
    ],
    ..Map::PLAIN
};
static DDIO: Map = Map {
    fields: &[
        Field::new(
            "ways",
            Type::whole(&WAYS),
            "Ways of the last-level cache that devices write to.",
        )
        .otherwise("2"),
        Field::new("cacheWays", Type::whole(&WAYS), "Ways of the last-level cache.").otherwise("the machine's"),
        Field::new(
            "cacheSize",
            Type::size(&CACHE),
            "Size of the last-level cache, for a virtual machine that does not report it.",
        )
        .otherwise("the machine's")
        .example("22MiB"),
    ],
    ..Map::PLAIN
};

/// Ports of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortsSpec {
    /// Port on which packets arrive.
    pub entry: PortName,
    /// Port on which packets leave, if it is not the entry port.
    pub exit: Option<PortName>,
    /// Setup of the ports.
    pub set_up: PortSetup,
}

/// Setup of a chain's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSetup {
    /// `true` if packets from the exit port pass the chain, too, and leave by the entry port.
    pub both_ways: bool,
    /// Maximum payload of a frame in bytes, if ports must be set to it.
    pub mtu: Option<u16>,
    /// `true` to receive frames for other MAC addresses, too.
    pub promiscuous: bool,
    /// Cache that devices write to.
    pub ddio: DdioSpec,
}

impl Default for PortSetup {
    fn default() -> Self {
        PortSetup {
            both_ways: false,
            mtu: None,
            promiscuous: true,
            ddio: DdioSpec::default(),
        }
    }
}

/// Part of the last-level cache that devices write to, where the machine does not report it or reports it wrongly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DdioSpec {
    /// Cache ways that devices write to.
    pub ways: Option<u32>,
    /// Ways of the whole cache.
    pub cache_ways: Option<u32>,
    /// Size of the whole cache in bytes.
    pub cache_bytes: Option<u64>,
}

/// Reads `ports`. `problem` returns the error message for a port that a function of the chain already uses.
///
/// # Errors
/// A field is wrong, entry and exit are one port, or a port is taken.
pub fn ports_of(node: &Located<'_>, problem: impl Fn(&PortName) -> Option<String>) -> Result<PortsSpec, SpecError> {
    let fields = node.fields_of(&PORTS)?;
    let name = |node: &Located<'_>| {
        let name = PortName::parse(node)?.of_chain();
        let name = name.map_err(|error| node.error(error.to_string()))?;
        match problem(&name) {
            None => Ok(name),
            Some(message) => Err(node.error(message)),
        }
    };
    let entry = name(&fields.required("entry", "a port")?)?;
    let exit = match fields.optional("exit") {
        None => None,
        Some(node) => {
            let exit = name(&node)?;
            if exit.conflicts(&entry) {
                return Err(node.error(format!(
                    "expected a port other than the entry, found \"{exit}\"; without an exit, packets leave by their \
                     entry port"
                )));
            }
            if exit.is_kernel() != entry.is_kernel() {
                return Err(node.error(two_kinds(&entry, &exit)));
            }
            Some(exit)
        }
    };
    let default = PortSetup::default();
    let either = |name, default| match fields.optional(name) {
        None => Ok(default),
        Some(node) => node.word(&[("true", true), ("false", false)]),
    };
    Ok(PortsSpec {
        entry,
        exit,
        set_up: PortSetup {
            both_ways: either("bothWays", default.both_ways)?,
            mtu: match fields.optional("mtu") {
                None => None,
                Some(node) => Some(node.whole(MTU)? as u16),
            },
            promiscuous: either("promiscuous", default.promiscuous)?,
            ddio: match fields.optional("ddio") {
                None => default.ddio,
                Some(node) => ddio(&node)?,
            },
        },
    })
}

/// Returns the message for an entry and an exit of which only one is a kernel interface without DPDK.
pub fn two_kinds(entry: &PortName, exit: &PortName) -> String {
    format!(
        "expected two ports of one kind, found \"{entry}\" and \"{exit}\": either both interface=NAME, or both of DPDK"
    )
}

/// Returns the message for a port that the function `user` uses.
pub fn port_taken(port: &PortName, user: &str) -> String {
    format!(
        "expected a separate device and interface for each port, found \"{port}\", which function {user} uses; \
         number devices of one driver differently"
    )
}

fn ddio(node: &Located<'_>) -> Result<DdioSpec, SpecError> {
    let fields = node.fields_of(&DDIO)?;
    let ways = |name| match fields.optional(name) {
        None => Ok(None),
        Some(node) => node.whole(WAYS).map(|ways| Some(ways as u32)),
    };
    let ddio = DdioSpec {
        ways: ways("ways")?,
        cache_ways: ways("cacheWays")?,
        cache_bytes: match fields.optional("cacheSize") {
            None => None,
            Some(node) => Some(size(&node, CACHE, CACHE_SIZE)?),
        },
    };
    if let (Some(all), Some(node)) = (ddio.cache_ways, fields.optional("ways"))
        && ddio.ways.is_some_and(|ways| ways > all)
    {
        return Err(node.expected(&format!("at most the {all} ways of cacheWays")));
    }
    Ok(ddio)
}
