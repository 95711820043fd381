//! Chain spec: the traffic that a chain matches, and its functions.

use super::sequence::{FunctionSpec, functions, taken, user_of};
use super::source::{Source, Text};
use crate::external::ExternalConfig;
use crate::kind::Context;
use crate::library::{CodeExaminer, ExecutionMode};
use ipnet::IpNet;
use std::path::Path;
use std::time::SystemTime;
use tailwater_api::document::{Document, Metadata};
use tailwater_api::error::SpecError;
use tailwater_api::files::read_text;
use tailwater_api::flows::{FlowsSpec, PacketsSpec, flows, packets};
use tailwater_api::located::Located;
use tailwater_api::port_name::PortName;
use tailwater_api::ports::{PortsSpec, ports_of};
use tailwater_api::slo::{Slo, slo};
use tailwater_api::state::{StateSpec, state};
use tailwater_api::values::{prefix, protocol};
use tailwater_chain::branches::Branch;
use tailwater_net::toeplitz::RssHasher;

/// `kind` of chain specs.
pub(super) const KIND: &str = "Chain";
/// Description of a chain spec in errors.
pub(super) const WHAT: &str = "a chain spec";
/// Description of its `spec` in errors.
pub(super) const PARTS: &str = "a map with functions and slo";
/// Fields of its `spec`.
pub(super) const FIELDS: &[&str] = &["match", "functions", "slo", "flows", "packets", "ports", "state"];
/// Description of its `functions` in errors.
pub(super) const FUNCTIONS: &str = "a list of functions";
/// Maximum number of entries in a list of `match`.
const MAX_MATCHES: usize = 1024;

/// Chain of network functions with its objectives.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainSpec {
    /// Name of the chain, an RFC 1123 label; equal to `metadata.name`.
    pub name: String,
    /// Metadata of the object.
    pub metadata: Metadata,
    /// Traffic that the chain processes.
    pub match_: Match,
    /// Functions in the order in which packets pass them: 1 to 16, with unique names. A classifier is followed by the
    /// functions of its branches, and then by the functions after it.
    pub functions: Vec<FunctionSpec>,
    /// Branches of all classifiers; empty in a linear chain.
    pub branches: Vec<Branch>,
    /// Service level objectives.
    pub slo: Slo,
    /// Flow table.
    pub flows: FlowsSpec,
    /// Input policy for packets.
    pub packets: PacketsSpec,
    /// Ports of the chain, if the spec names them.
    pub ports: Option<PortsSpec>,
    /// External store of flow state that outlives this server, if any.
    pub state: Option<StateSpec>,
    /// Source of the spec, for reloads.
    pub source: Source,
}

/// Traffic that a chain processes: a packet must match every list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Source prefixes; empty matches all.
    pub sources: Vec<IpNet>,
    /// Destination prefixes; empty matches all.
    pub destinations: Vec<IpNet>,
    /// IP protocol numbers; empty matches all.
    pub protocols: Vec<u8>,
    /// VLAN identifiers, 1 to 4094; empty matches all, and packets without a VLAN tag.
    pub vlans: Vec<u16>,
}

impl ChainSpec {
    /// Iterates over the external functions and their names, in order.
    pub fn externals(&self) -> impl Iterator<Item = (&str, &ExternalConfig)> {
        self.functions.iter().filter_map(|function| {
            let external = function.config.get()?;
            Some((function.name.as_str(), external))
        })
    }

    /// Splits the chain at its external functions: one chain for the functions in front of the first, and one for those
    /// after each. A part may have no function.
    pub fn parts(&self) -> Vec<ChainSpec> {
        let is_external = |function: &FunctionSpec| function.config.is::<ExternalConfig>();
        let parts = self.functions.split(is_external);
        let part = |functions: &[FunctionSpec]| ChainSpec {
            functions: functions.to_vec(),
            branches: self.branches.clone(),
            name: self.name.clone(),
            metadata: self.metadata.clone(),
            match_: self.match_.clone(),
            ports: self.ports.clone(),
            state: self.state.clone(),
            source: self.source.clone(),
            ..*self
        };
        parts.map(part).collect()
    }

    /// External function that uses this port, or the device or interface behind it.
    pub fn external_at(&self, port: &PortName) -> Option<&str> {
        user_of(&self.functions, port)
    }

    /// Reads a spec and the files it names, which are relative to its folder.
    ///
    /// # Errors
    /// If the spec is invalid: the first problem, with its position.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let name = path.display().to_string();
        let text = read_text(path, &name)?;
        // A pipe can be read only once.
        match path.is_file() {
            true => {
                let document = Document::parse(&text, &name, WHAT)?;
                chain(&document, Some(Text::File(path)), base_dir, ExecutionMode::InProcess)
            }
            false => ChainSpec::parse(&text, &name, base_dir),
        }
    }

    /// Same as [`read`](ChainSpec::read), for a chain whose functions run in processes of their own. No third-party
    /// code is loaded here; `apart` examines it.
    ///
    /// # Errors
    /// Same as [`read`](ChainSpec::read).
    pub fn read_apart(path: &Path, apart: &dyn CodeExaminer) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let document = Document::read(path, WHAT)?;
        chain(&document, None, base_dir, ExecutionMode::Isolated(apart))
    }

    /// Parses the text of a spec. Errors call the file `name`; files that the spec names are relative to `base_dir`.
    ///
    /// # Errors
    /// If the spec is invalid: the first problem, with its position.
    pub fn parse(text: &str, name: &str, base_dir: &Path) -> Result<Self, SpecError> {
        let document = Document::parse(text, name, WHAT)?;
        chain(
            &document,
            Some(Text::Given(text, name)),
            base_dir,
            ExecutionMode::InProcess,
        )
    }

    /// Warnings about dangerous settings of a valid spec.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self.functions.iter().flat_map(|function| function.config.warnings());
        warnings.map(String::as_str)
    }
}

impl ChainSpec {
    /// RSS hash that the chain's ports must use. It is symmetric if a function tracks connections.
    pub fn rss(&self) -> RssHasher {
        let mut functions = self.functions.iter();
        match functions.any(|function| function.config.tracks_connections()) {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        }
    }
}

/// Reads a spec; with `text`, the result can be [reloaded](Source::read_again).
fn chain(
    document: &Document,
    text: Option<Text<'_>>,
    base_dir: &Path,
    runs: ExecutionMode<'_>,
) -> Result<ChainSpec, SpecError> {
    let began = SystemTime::now();
    let (metadata, spec) = document.object(KIND, PARTS)?;
    let spec = spec.fields(FIELDS)?;
    let context = Context::new(base_dir, runs);
    let (functions, branches) = functions(&spec.required("functions", FUNCTIONS)?, &context)?;
    let ports = spec.optional("ports");
    let ports = ports
        .map(|node| ports_of(&node, |name| user_of(&functions, name).map(|user| taken(name, user))))
        .transpose()?;
    let kept = match spec.optional("state") {
        None => None,
        Some(node) if functions.iter().any(|f| f.config.tracks_connections()) => {
            let message = "expected no function that tracks connections in a chain with external state: connections \
                are local to the server";
            return Err(node.error(message));
        }
        Some(node) if !branches.is_empty() => {
            let message = "expected no classifier in a chain with external state: it is stored for all functions of \
                the chain, not per branch";
            return Err(node.error(message));
        }
        Some(node) => Some(state(&node, base_dir)?),
    };
    let mut chain = ChainSpec {
        name: metadata.name.clone(),
        metadata,
        match_: spec
            .optional("match")
            .map_or(Ok(Match::default()), |node| match_(&node))?,
        functions,
        branches,
        slo: slo(&spec.required("slo", "a map with latency")?)?,
        flows: spec
            .optional("flows")
            .map_or(Ok(FlowsSpec::default()), |node| flows(&node))?,
        packets: spec
            .optional("packets")
            .map_or(Ok(PacketsSpec::default()), |node| packets(&node))?,
        ports,
        state: kept,
        source: Source::default(),
    };
    if let Some(text) = text {
        chain.source = Source::new(&chain, text, base_dir, began);
    }
    Ok(chain)
}

fn match_(node: &Located<'_>) -> Result<Match, SpecError> {
    let fields = node.fields(&["sources", "destinations", "protocols", "vlans"])?;
    let prefixes = |name| match fields.optional(name) {
        Some(node) => each(&node, "IP prefixes", prefix),
        None => Ok(Vec::new()),
    };
    Ok(Match {
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
