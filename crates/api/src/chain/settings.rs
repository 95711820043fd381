//! Settings of a chain: everything in its spec but the functions.

use crate::document::{Document, Metadata};
use crate::error::SpecError;
use crate::flows::{FLOWS, FlowsSpec, PACKETS, PacketsSpec, flows, packets};
use crate::isolation::{ISOLATION, IsolationSpec};
use crate::located::{Fields, Located};
use crate::port_name::PortName;
use crate::ports::{PORTS, PortsSpec, port_taken, ports_of};
use crate::schema::{Field, Kind, LABEL, MAC, Map, PREFIX, PROTOCOL, Rule, Type};
use crate::slo::{SLO, Slo, WHEN_OVERLOADED, WhenOverloaded, slo};
use crate::state::{STATE, StateSpec, state};
use crate::values::{label, mac, prefix, protocol};
use ipnet::IpNet;
use std::path::Path;

/// Description of a chain spec in errors.
pub const DESCRIPTION: &str = "a chain spec";
/// `kind` of chain specs.
const KIND: &str = "Chain";
/// Maximum number of dedicated cores.
const MAX_CORES: u64 = 64;
/// Maximum number of entries in a list of `match`.
const MAX_MATCHES: usize = 1024;

/// Schema of the kind.
pub static SCHEMA: Kind = Kind {
    name: KIND,
    doc: "A chain of network functions: its traffic, its functions in order, and its objectives.",
    spec: &FIELDS,
};
/// Fields of `spec`.
static FIELDS: Map = Map {
    fields: &[
        Field::new(
            "match",
            Type::Map(&MATCH),
            "Traffic of the chain: a packet must match every given list. Without `match` the chain processes \
             all traffic.",
        )
        .otherwise("all traffic"),
        Field::new(
            "functions",
            Type::Functions,
            "Functions in processing order, at most 16 with those of branches. Each item has exactly one \
             function's key.",
        )
        .required()
        .example("[{forward: {}}]"),
        Field::new("slo", Type::Map(&SLO), "Service level objectives.")
            .required()
            .example("{latency: 200us, percentile: 99}"),
        Field::new(
            "whenOverloaded",
            WHEN_OVERLOADED,
            "Treatment of packets that cannot meet `slo.latency` any more while others wait behind them: `in-order` \
             processes them, `serve-fresh` discards them.",
        )
        .or("in-order"),
        Field::new("flows", Type::Map(&FLOWS), "Flow table."),
        Field::new("packets", Type::Map(&PACKETS), "Input policy for packets."),
        Field::new(
            "cores",
            Type::Whole(1, MAX_CORES),
            "Number of dedicated cores. Each gets the packets of its RSS buckets.",
        )
        .otherwise("1"),
        Field::new(
            "port",
            Type::Text(&LABEL),
            "Name of the server's port on which the chain's packets arrive; needed if the server has several. Used by \
             `tailwater serve` only.",
        )
        .otherwise("the server's only port"),
        Field::new(
            "ports",
            Type::Map(&PORTS),
            "Ports of `tailwater run`, if the command line names none.",
        ),
        Field::new(
            "state",
            Type::Map(&STATE),
            "Stores flow state in Redis, so that it outlives this server.",
        )
        .otherwise("in memory only"),
        Field::new(
            "isolation",
            Type::OneOf(&ISOLATION),
            "Runs each function in a process of its own: a mode, or a map.",
        )
        .or("none"),
        Field::new(
            "scale",
            Type::Map(&SCALE),
            "Number of instances on a rack of servers. Not used on a single machine.",
        ),
        Field::new(
            "pool",
            Type::Text(&LABEL),
            "Name of the ServerPool whose servers the chain is limited to on a rack. Not used on a single machine.",
        )
        .otherwise("servers that are in no pool"),
    ],
    rules: &[Rule::AtMostOne(&["port", "ports"])],
    ..Map::PLAIN
};
/// Most instances on a rack.
const MOST_INSTANCES: u64 = 1024;
const INSTANCES: Type = Type::Whole(1, MOST_INSTANCES);
static SCALE: Map = Map {
    fields: &[
        Field::new("min", INSTANCES, "Least number of instances.").or("1"),
        Field::new("max", INSTANCES, "Most.").or("1024"),
        Field::new(
            "servers",
            INSTANCES,
            "Least number of servers that they are on, as far as there are servers.",
        )
        .or("1"),
    ],
    ..Map::PLAIN
};
const PREFIXES: Type = Type::List(&Type::Text(&PREFIX), 1, MAX_MATCHES);
const VLAN: Type = Type::Whole(1, 4094);
static MATCH: Map = Map {
    fields: &[
        Field::new(
            "macs",
            Type::List(&Type::Text(&MAC), 1, MAX_MATCHES),
            "The frame's destination MAC address is one of these: a switch writes it to choose an instance of a chain.",
        )
        .otherwise("all")
        .example("[\"02:00:00:00:00:01\"]"),
        Field::new(
            "sources",
            PREFIXES,
            "The packet's source address is in one of these prefixes.",
        )
        .otherwise("all")
        .example("[10.0.0.0/8]"),
        Field::new(
            "destinations",
            PREFIXES,
            "The packet's destination address is in one of these prefixes.",
        )
        .otherwise("all"),
        Field::new(
            "protocols",
            Type::List(&Type::Text(&PROTOCOL), 1, MAX_MATCHES),
            "The packet's IP protocol is one of these.",
        )
        .otherwise("all")
        .example("[tcp, 47]"),
        Field::new(
            "vlans",
            Type::List(&VLAN, 1, MAX_MATCHES),
            "The packet's VLAN identifier is one of these; untagged packets do not match.",
        )
        .otherwise("all"),
    ],
    ..Map::PLAIN
};

/// Settings of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainSettings {
    /// Name of the chain, an RFC 1123 label; equal to `metadata.name`.
    pub name: String,
    /// Metadata of the object.
    pub metadata: Metadata,
    /// Traffic that the chain processes.
    pub match_: Match,
    /// Service level objectives.
    pub slo: Slo,
    /// Treatment of packets that are too late under overload.
    pub when_overloaded: WhenOverloaded,
    /// Flow table.
    pub flows: FlowsSpec,
    /// Input policy for packets.
    pub packets: PacketsSpec,
    /// Number of dedicated cores, if the spec names it.
    pub cores: Option<u16>,
    /// Name of the server's port that the chain's packets arrive on, if the spec names one. Used by `tailwater serve`
    /// only.
    pub port: Option<String>,
    /// Ports of the chain, if the spec names them.
    pub ports: Option<PortsSpec>,
    /// External store of flow state that outlives this server, if any.
    pub state: Option<StateSpec>,
    /// Isolation of the functions in processes of their own.
    pub isolation: IsolationSpec,
    /// Instances on a rack. Not used on a single machine.
    pub scale: ScaleSpec,
    /// Name of the pool of servers that it is limited to on a rack, if any. Not used on a single machine.
    pub pool: Option<String>,
}

/// Instances of a chain on a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleSpec {
    /// Least number.
    pub min: u16,
    /// Most.
    pub max: u16,
    /// Least number of servers that they are on.
    pub servers: u16,
}

impl Default for ScaleSpec {
    fn default() -> ScaleSpec {
        ScaleSpec {
            min: 1,
            max: MOST_INSTANCES as u16,
            servers: 1,
        }
    }
}

/// Traffic that a chain processes: a packet must match every list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Destination MAC addresses; empty matches all.
    pub macs: Vec<[u8; 6]>,
    /// Source prefixes; empty matches all.
    pub sources: Vec<IpNet>,
    /// Destination prefixes; empty matches all.
    pub destinations: Vec<IpNet>,
    /// IP protocol numbers; empty matches all.
    pub protocols: Vec<u8>,
    /// VLAN identifiers, 1 to 4094; empty matches all, and packets without a VLAN tag.
    pub vlans: Vec<u16>,
}

/// Facts about a chain's functions that its settings are checked against.
pub trait FunctionFacts {
    /// Returns the name of the function that uses this port, or the device or interface behind it, if one does.
    fn port_user(&self, port: &PortName) -> Option<&str>;

    /// Returns `false` if no function has this name.
    fn has_function(&self, name: &str) -> bool;

    /// Returns `true` if a function tracks connections.
    fn tracks_connections(&self) -> bool;

    /// Returns `true` if there is a classifier.
    fn has_branches(&self) -> bool;
}

/// Chain of which the metadata and the names of the fields have been read, and nothing else.
pub struct ChainNode<'d> {
    metadata: Metadata,
    spec: Fields<'d>,
}

impl<'d> ChainNode<'d> {
    /// Reads the metadata of a chain.
    ///
    /// # Errors
    /// If the document is no chain, or has an unknown field.
    pub fn new(document: &'d Document) -> Result<Self, SpecError> {
        let (metadata, spec) = document.object(KIND, "a map with functions and slo")?;
        let spec = spec.fields_of(&FIELDS)?;
        Ok(ChainNode { metadata, spec })
    }

    /// Name of the chain.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Reads the isolation of the functions, which decides how these are read.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn isolation(&self) -> Result<IsolationSpec, SpecError> {
        optional(&self.spec, "isolation", IsolationSpec::parse)
    }

    /// Returns the list of functions, to be [visited](super::visit).
    ///
    /// # Errors
    /// If there is none.
    pub fn functions(&self) -> Result<Located<'d>, SpecError> {
        self.spec.required("functions", "a list of functions")
    }

    /// Reads the settings of a chain with these functions. Files that it names are relative to `base_dir`; they are not
    /// read.
    ///
    /// # Errors
    /// If a setting is invalid, or its functions do not allow it: the first problem, with its position.
    pub fn settings(self, base_dir: &Path, functions: &impl FunctionFacts) -> Result<ChainSettings, SpecError> {
        let ChainNode { metadata, spec } = self;
        let port_user = |port: &PortName| functions.port_user(port).map(|user| port_taken(port, user));
        let port = spec.optional("port");
        if let (Some(node), Some(_)) = (&port, spec.optional("ports")) {
            return Err(node
                .error("expected either port, the name of a server's port, or ports of the chain's own, found both"));
        }
        let ports = spec.optional("ports");
        let ports = ports.map(|node| ports_of(&node, port_user)).transpose()?;
        let state = spec.optional("state");
        let state = state.map(|node| state_with(&node, base_dir, functions)).transpose()?;
        Ok(ChainSettings {
            name: metadata.name.clone(),
            metadata,
            match_: optional(&spec, "match", match_)?,
            slo: slo(&spec.required("slo", "a map with latency")?)?,
            when_overloaded: optional(&spec, "whenOverloaded", WhenOverloaded::parse)?,
            flows: optional(&spec, "flows", flows)?,
            packets: optional(&spec, "packets", packets)?,
            cores: match spec.optional("cores") {
                Some(node) => Some(node.whole(1..=MAX_CORES)? as u16),
                None => None,
            },
            port: port.map(|node| label(&node)).transpose()?,
            ports,
            state,
            isolation: optional(&spec, "isolation", |node| {
                IsolationSpec::of_chain(node, |name| functions.has_function(name))
            })?,
            scale: optional(&spec, "scale", scale)?,
            pool: spec.optional("pool").map(|node| label(&node)).transpose()?,
        })
    }
}

/// Reads a field with a default.
fn optional<T: Default>(
    spec: &Fields<'_>,
    name: &str,
    read: impl Fn(&Located<'_>) -> Result<T, SpecError>,
) -> Result<T, SpecError> {
    spec.optional(name).map_or(Ok(T::default()), |node| read(&node))
}

/// Reads `state` of a chain with these functions.
fn state_with(node: &Located<'_>, base_dir: &Path, functions: &impl FunctionFacts) -> Result<StateSpec, SpecError> {
    if functions.tracks_connections() {
        let message = "expected no function that tracks connections in a chain with external state: connections are \
            local to the server";
        return Err(node.error(message));
    }
    if functions.has_branches() {
        let message = "expected no classifier in a chain with external state: it is stored for all functions of the \
            chain, not per branch";
        return Err(node.error(message));
    }
    state(node, base_dir)
}

fn scale(node: &Located<'_>) -> Result<ScaleSpec, SpecError> {
    let fields = node.fields_of(&SCALE)?;
    let number = |name, otherwise| match fields.optional(name) {
        Some(node) => Ok(node.whole(1..=MOST_INSTANCES)? as u16),
        None => Ok(otherwise),
    };
    let ScaleSpec { min, max, servers } = ScaleSpec::default();
    let scale = ScaleSpec {
        min: number("min", min)?,
        max: number("max", max)?,
        servers: number("servers", servers)?,
    };
    match scale.min <= scale.max {
        true => Ok(scale),
        false => Err(node.error(format!(
            "expected min to be at most max, found {} and {}",
            scale.min, scale.max
        ))),
    }
}

fn match_(node: &Located<'_>) -> Result<Match, SpecError> {
    let fields = node.fields_of(&MATCH)?;
    let prefixes = |name| match fields.optional(name) {
        Some(node) => each(&node, "IP prefixes", prefix),
        None => Ok(Vec::new()),
    };
    Ok(Match {
        macs: match fields.optional("macs") {
            Some(node) => each(&node, "MAC addresses", mac)?,
            None => Vec::new(),
        },
        sources: prefixes("sources")?,
        destinations: prefixes("destinations")?,
        protocols: match fields.optional("protocols") {
            Some(node) => each(&node, "protocols", protocol)?,
            None => Vec::new(),
        },
        vlans: match fields.optional("vlans") {
            Some(node) => each(&node, "VLAN identifiers", |item| {
                item.whole(1..=4094).map(|vlan| vlan as u16)
            })?,
            None => Vec::new(),
        },
    })
}

fn each<'a, T>(
    node: &Located<'a>,
    what: &str,
    parse: impl Fn(&Located<'a>) -> Result<T, SpecError>,
) -> Result<Vec<T>, SpecError> {
    node.list(what, MAX_MATCHES)?.iter().map(parse).collect()
}
