//! Ports of a server: devices, or traffic from a capture or preset.

use super::table::{DURATION, LONGEST, MAX_PORTS, RENUMBER_BITS};
use crate::error::SpecError;
use crate::located::{Fields, Located};
use crate::port_name::PortName;
use crate::ports::{PortSetup, PortsSpec, ports_of};
use crate::values::{Throughput, duration, label, line, throughput};
use std::path::{Path, PathBuf};
use tailwater_net::Nanos;

/// Fields that only traffic has.
const OF_TRAFFIC: [&str; 4] = ["rate", "repeat", "renumberBits", "duration"];

/// Default of `renumberBits`: prefixes up to /24 match in each repetition.
const DEFAULT_RENUMBER_BITS: u8 = 8;

/// Port that chains of a server share.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPort {
    /// Name, an RFC 1123 label, unique in the server.
    pub name: String,
    /// Source of its packets.
    pub source: PortSource,
}

/// Source of a port's packets.
#[derive(Clone, Debug, PartialEq)]
pub enum PortSource {
    /// Devices.
    Devices(PortsSpec),
    /// Traffic from a capture file or a preset.
    Traffic(TrafficSpec),
}

/// Traffic of a port without devices.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficSpec {
    /// Name of a preset, or of a capture file, as written.
    pub name: String,
    /// The same as a file, relative to the spec's folder.
    pub file: PathBuf,
    /// Mean rate, if it is not the traffic's own.
    pub rate: Option<Throughput>,
    /// `true` if the traffic starts again at its end.
    pub repeat: bool,
    /// Low bits of all addresses that are others each time it starts again, at most 16.
    pub renumber_bits: u8,
    /// Time after which it ends, if it is given.
    pub duration: Option<Nanos>,
}

impl ServerPort {
    /// Returns `true` if packets leave the port by another device than they arrive on.
    pub fn has_exit(&self) -> bool {
        match &self.source {
            PortSource::Devices(ports) => ports.exit.is_some(),
            // Packets that leave are counted, wherever they would go.
            PortSource::Traffic(_) => true,
        }
    }
}

/// Reads a list of ports.
pub fn ports(node: &Located<'_>, base_dir: &Path) -> Result<Vec<ServerPort>, SpecError> {
    let mut ports: Vec<ServerPort> = Vec::new();
    for item in node.list("ports", MAX_PORTS)? {
        let port = port(&item, base_dir, &ports)?;
        ports.push(port);
    }
    Ok(ports)
}

/// Reads a port that differs from `others`.
fn port(node: &Located<'_>, base_dir: &Path, others: &[ServerPort]) -> Result<ServerPort, SpecError> {
    let fields = node.fields_of(&super::table::PORT)?;
    let name_node = fields.required("name", "the port's name")?;
    let name = label(&name_node)?;
    if others.iter().any(|other| other.name == name) {
        return Err(name_node.error(format!("expected a name that no other port has, found \"{name}\"")));
    }
    let source = match (fields.optional("port"), fields.optional("traffic")) {
        (Some(devices), None) => {
            if let Some(extra) = OF_TRAFFIC.iter().find_map(|field| fields.optional(field)) {
                return Err(extra.error("expected only with traffic, found it with port"));
            }
            PortSource::Devices(devices_of(&devices, others)?)
        }
        (None, Some(node)) => PortSource::Traffic(traffic(&node, &fields, base_dir)?),
        (found, _) => {
            let found = if found.is_some() { "both" } else { "neither" };
            let message = format!("expected either port, with devices, or traffic, a capture or preset, found {found}");
            return Err(node.error(message));
        }
    };
    Ok(ServerPort { name, source })
}

/// Reads devices: a name, or the fields of a chain's `ports`.
fn devices_of(node: &Located<'_>, others: &[ServerPort]) -> Result<PortsSpec, SpecError> {
    let problem = |name: &PortName| {
        let user = others.iter().find(|other| uses(other, name))?;
        Some(format!(
            "expected a separate device and interface for each port, found \"{name}\", which port \"{}\" uses",
            user.name
        ))
    };
    if node.is_map() {
        return ports_of(node, problem);
    }
    let name = PortName::parse(node)?.of_chain();
    let entry = name.map_err(|error| node.error(error.to_string()))?;
    match problem(&entry) {
        Some(message) => Err(node.error(message)),
        None => Ok(PortsSpec {
            entry,
            exit: None,
            set_up: PortSetup::default(),
        }),
    }
}

/// Returns `true` if a port uses this device, or the interface behind it.
fn uses(port: &ServerPort, name: &PortName) -> bool {
    match &port.source {
        PortSource::Traffic(_) => false,
        PortSource::Devices(ports) => std::iter::once(&ports.entry)
            .chain(&ports.exit)
            .any(|other| other.conflicts(name)),
    }
}

fn traffic(node: &Located<'_>, fields: &Fields<'_>, base_dir: &Path) -> Result<TrafficSpec, SpecError> {
    let what = "a capture file or preset; its fields such as rate are beside it";
    if node.is_map() || node.is_list() {
        return Err(node.expected(what));
    }
    let name = line(node, LONGEST)?;
    if name.is_empty() {
        return Err(node.expected("a capture file or preset"));
    }
    let repeat = match fields.optional("repeat") {
        None => false,
        Some(node) => node.word(&[("true", true), ("false", false)])?,
    };
    Ok(TrafficSpec {
        name: name.to_owned(),
        file: base_dir.join(name),
        rate: fields.optional("rate").map(|node| throughput(&node)).transpose()?,
        repeat,
        renumber_bits: match fields.optional("renumberBits") {
            None => DEFAULT_RENUMBER_BITS,
            Some(node) => node.whole(RENUMBER_BITS)? as u8,
        },
        duration: match fields.optional("duration") {
            None => None,
            Some(node) => Some(duration(&node, DURATION)?),
        },
    })
}
