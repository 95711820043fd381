//! Kind `Server`: one machine that runs many chains.

mod admission;
mod cache;
mod cores;
mod paths;
mod ports;
mod table;
mod telemetry;

pub use admission::{AdmissionSpec, MeasureSpec, Unprofiled};
pub use cache::CacheSpec;
pub use ports::{PortSource, ServerPort, TrafficSpec};
pub use table::{MAX_PORTS, SCHEMA};
pub use telemetry::TelemetrySpec;

use crate::document::{Document, Metadata};
use crate::error::SpecError;
use crate::located::{Fields, Located};
use crate::values::{line, size};
use paths::{LONGEST_PATH, path};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use table::{BUFFERS, KIND, LONGEST_NAME, MAX_CHAINS};

/// Description of a server spec in errors.
pub const DESCRIPTION: &str = "a server spec";
/// Longest path of a Unix socket in bytes: `sun_path` without its final zero.
const LONGEST_SOCKET: usize = 107;
const BUFFERS_SIZE: &str = "a size from 1MiB to 64GiB, such as 64MiB";

/// Server: its resources, and the chains that it starts with.
///
/// ```
/// use std::path::Path;
/// use tailwater_api::server::{DESCRIPTION, ServerSpec};
/// use tailwater_api::document::Document;
///
/// let text = "
/// apiVersion: tailwater.dev/v1alpha1
/// kind: Server
/// metadata: {name: edge-1}
/// spec:
///   cores: 1,2-3
///   ports:
///   - name: north
///     traffic: bursty
///   chains: [chains/]
/// ";
/// let document = Document::parse(text, "server.yaml", DESCRIPTION).unwrap();
/// let server = ServerSpec::new(&document, Path::new("/etc/tailwater")).unwrap();
/// assert_eq!(server.cores, [1, 2, 3]);
/// assert_eq!(server.chains, [Path::new("/etc/tailwater/chains/")]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    /// Metadata of the object; its name is the server's.
    pub metadata: Metadata,
    /// Cores that chains may have as dedicated ones, at least one, in the order given.
    pub cores: Vec<u32>,
    /// Cores that all chains share as auxiliary ones; none is in `cores`.
    pub auxiliary: Vec<u32>,
    /// Ports, at least one, with different names.
    pub ports: Vec<ServerPort>,
    /// Memory for packets of each port in bytes, if it is not decided by the server.
    pub packet_buffers: Option<u64>,
    /// Treatment of packets that no chain matches.
    pub unmatched: Unmatched,
    /// Files and folders of chains that the server starts with; relative paths are joined to the spec's folder.
    pub chains: Vec<PathBuf>,
    /// `true` to apply changes of files in the folders of `chains`.
    pub watch: bool,
    /// Control socket, if the spec names one.
    pub control: ControlSpec,
    /// Address of the metrics, if they are served.
    pub metrics: Option<SocketAddr>,
    /// Export of events and packet traces.
    pub telemetry: TelemetrySpec,
    /// Name of the policy that moves work between cores, not checked.
    pub policy: Option<String>,
    /// Folder of the applied configuration, if the spec names one.
    pub state_directory: Option<PathBuf>,
    /// Folder to keep late, lost and dropped packets in, if they are kept.
    pub keep_packets: Option<PathBuf>,
    /// Admission of chains by their profiles, if they are checked.
    pub admission: Option<AdmissionSpec>,
    /// Division of the last-level cache, if it is divided.
    pub cache: Option<CacheSpec>,
}

/// Treatment of packets that no chain matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// Drops and counts them.
    #[default]
    Drop,
    /// Sends them unchanged to the port's exit.
    Forward,
}

/// Control socket of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlSpec {
    /// Path of the socket, if the spec names it.
    pub socket: Option<PathBuf>,
    /// Group whose members may read: its name or number.
    pub readers: Option<String>,
}

impl ServerSpec {
    /// Reads the server of a document. Files that it names are relative to `base_dir`; none is read.
    ///
    /// # Errors
    /// If a field is invalid: the first problem, with its position.
    pub fn new(document: &Document, base_dir: &Path) -> Result<Self, SpecError> {
        let (metadata, spec) = document.object(KIND, "a map with cores and ports")?;
        let spec = spec.fields_of(&table::FIELDS)?;
        let cores = cores::list(&spec.required("cores", cores::EXPECTED)?, &[])?;
        let auxiliary = spec.optional("auxiliary");
        let auxiliary = auxiliary.map(|node| cores::list(&node, &cores)).transpose()?;
        let ports = ports::ports(&spec.required("ports", "a list of ports")?, base_dir)?;
        let unmatched = unmatched(&spec, &ports)?;
        Ok(ServerSpec {
            metadata,
            auxiliary: auxiliary.unwrap_or_default(),
            cores,
            ports,
            packet_buffers: match spec.optional("packetBuffers") {
                None => None,
                Some(node) => Some(size(&node, BUFFERS, BUFFERS_SIZE)?),
            },
            unmatched,
            chains: chains(&spec, base_dir)?,
            watch: match spec.optional("watch") {
                None => false,
                Some(node) => node.word(&[("true", true), ("false", false)])?,
            },
            control: match spec.optional("control") {
                None => ControlSpec::default(),
                Some(node) => control(&node, base_dir)?,
            },
            metrics: spec.optional("metrics").map(|node| address(&node)).transpose()?,
            telemetry: match spec.optional("telemetry") {
                None => TelemetrySpec::default(),
                Some(node) => telemetry::telemetry(&node)?,
            },
            policy: match spec.optional("policy") {
                None => None,
                Some(node) => Some(line(&node, LONGEST_NAME)?.to_owned()),
            },
            state_directory: spec
                .optional("stateDirectory")
                .map(|node| path(&node, base_dir, LONGEST_PATH))
                .transpose()?,
            keep_packets: spec
                .optional("keepPackets")
                .map(|node| path(&node, base_dir, LONGEST_PATH))
                .transpose()?,
            admission: spec
                .optional("admission")
                .map(|node| admission::admission(&node, base_dir))
                .transpose()?,
            cache: spec.optional("cache").map(|node| cache::cache(&node)).transpose()?,
        })
    }

    /// Returns the port that a chain with this `spec.port` uses.
    ///
    /// # Errors
    /// One line that says which ports there are, if there is none of this name, or several and the chain names none.
    pub fn port_of(&self, name: Option<&str>) -> Result<&ServerPort, String> {
        let names = || {
            let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
            names.join(", ")
        };
        match (name, &self.ports[..]) {
            (None, [port]) => Ok(port),
            (None, _) => Err(format!(
                "spec.port: missing, expected one of the server's ports {}",
                names()
            )),
            (Some(name), ports) => ports.iter().find(|port| port.name == name).ok_or_else(|| {
                format!(
                    "spec.port: expected one of the server's ports {}, found \"{name}\"",
                    names()
                )
            }),
        }
    }
}

fn unmatched(spec: &Fields<'_>, ports: &[ServerPort]) -> Result<Unmatched, SpecError> {
    let Some(node) = spec.optional("unmatched") else {
        return Ok(Unmatched::default());
    };
    let unmatched = node.word(&[("drop", Unmatched::Drop), ("forward", Unmatched::Forward)])?;
    let without_exit = ports.iter().find(|port| !port.has_exit());
    match without_exit.filter(|_| unmatched == Unmatched::Forward) {
        None => Ok(unmatched),
        Some(port) => Err(node.error(format!(
            "expected drop, since port \"{}\" has no exit, found \"forward\"",
            port.name
        ))),
    }
}

fn chains(spec: &Fields<'_>, base_dir: &Path) -> Result<Vec<PathBuf>, SpecError> {
    // A server without chains waits for `tailwater apply`.
    let Some(node) = spec.optional("chains").filter(|node| !node.is_empty_list()) else {
        return Ok(Vec::new());
    };
    let mut chains: Vec<PathBuf> = Vec::new();
    for item in node.list("files and folders of chains", MAX_CHAINS)? {
        let chain = path(&item, base_dir, LONGEST_PATH)?;
        if chains.contains(&chain) {
            return Err(item.expected("each file and folder once"));
        }
        chains.push(chain);
    }
    Ok(chains)
}

fn control(node: &Located<'_>, base_dir: &Path) -> Result<ControlSpec, SpecError> {
    if !node.is_map() {
        return Ok(ControlSpec {
            socket: Some(path(node, base_dir, LONGEST_SOCKET)?),
            readers: None,
        });
    }
    let fields = node.fields_of(&table::CONTROL)?;
    let socket = fields.optional("socket");
    Ok(ControlSpec {
        socket: socket.map(|node| path(&node, base_dir, LONGEST_SOCKET)).transpose()?,
        readers: match fields.optional("readers") {
            None => None,
            Some(node) => {
                let name = node.text("the name or number of a group")?;
                let fits = (1..=LONGEST_NAME).contains(&name.len()) && !name.contains([':', ',', '\n', '\0']);
                Some(
                    fits.then(|| name.to_owned())
                        .ok_or_else(|| node.expected("the name or number of a group"))?,
                )
            }
        },
    })
}

fn address(node: &Located<'_>) -> Result<SocketAddr, SpecError> {
    const WHAT: &str = "a port such as 9100, or an address such as 127.0.0.1:9100";
    let text = node.text(WHAT)?;
    let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let address = text.parse().ok().or_else(|| text.parse::<u16>().ok().map(local));
    address.ok_or_else(|| node.expected(WHAT))
}

#[cfg(test)]
mod tests;
