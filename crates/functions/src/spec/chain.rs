//! The chain spec itself: what a chain matches, and what it is made of.

use super::functions::{Context, ExternalConfig, FunctionConfig};
use super::sequence::{FunctionSpec, functions, taken, user_of};
use super::source::{Source, Text};
use crate::library::{Apart, Runs};
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

/// The `kind` of chain specs.
pub(super) const KIND: &str = "Chain";
/// What a chain spec is, in errors.
pub(super) const WHAT: &str = "a chain spec";
/// What its `spec` is, in errors.
pub(super) const PARTS: &str = "a map with functions and slo";
/// The fields of its `spec`.
pub(super) const FIELDS: &[&str] = &["match", "functions", "slo", "flows", "packets", "ports", "state"];
/// What its `functions` are, in errors.
pub(super) const FUNCTIONS: &str = "a list of functions";
/// Most entries in a list of `match`.
const MAX_MATCHES: usize = 1024;

/// A chain of network functions with its objectives.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainSpec {
    /// The chain's name, an RFC 1123 label; equal to `metadata.name`.
    pub name: String,
    /// The object's metadata.
    pub metadata: Metadata,
    /// Which traffic the chain is for.
    pub match_: Match,
    /// The functions in the order in which packets pass them: 1 to 16, names all different. Those of a classifier's
    /// branches follow it, and what is behind it follows them.
    pub functions: Vec<FunctionSpec>,
    /// The branches of all classifiers; none in a chain that is a line.
    pub branches: Vec<Branch>,
    /// The objectives.
    pub slo: Slo,
    /// The flow table.
    pub flows: FlowsSpec,
    /// How packets are taken in.
    pub packets: PacketsSpec,
    /// Where packets come from and go to, if the spec says.
    pub ports: Option<PortsSpec>,
    /// Where flow state is kept that is to outlive this server, if it is.
    pub state: Option<StateSpec>,
    /// Where it was read.
    pub source: Source,
}

/// Which traffic a chain is for: a packet must match every list that is not empty.
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
    /// The external functions, in order, by name.
    pub fn externals(&self) -> impl Iterator<Item = (&str, &ExternalConfig)> {
        self.functions.iter().filter_map(|function| {
            let FunctionConfig::External(external) = &function.config else {
                return None;
            };
            Some((function.name.as_str(), external))
        })
    }

    /// The chain cut at its external functions: a chain for what is in front of the first one, and for what is
    /// behind each. A part may have no function.
    pub fn parts(&self) -> Vec<ChainSpec> {
        let is_external = |function: &FunctionSpec| matches!(function.config, FunctionConfig::External(_));
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

    /// The external function that uses this port, or the device or interface behind it.
    pub fn external_at(&self, port: &PortName) -> Option<&str> {
        user_of(&self.functions, port)
    }

    /// Reads a spec and the files it names, which are relative to its folder.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let name = path.display().to_string();
        let text = read_text(path, &name)?;
        // A pipe is read once.
        match path.is_file() {
            true => {
                let document = Document::parse(&text, &name, WHAT)?;
                chain(&document, Some(Text::File(path)), base_dir, Runs::Here)
            }
            false => ChainSpec::parse(&text, &name, base_dir),
        }
    }

    /// As [`read`](ChainSpec::read), for a chain whose functions run in processes of their own: no code of others is
    /// loaded here, and `apart` finds out about it.
    ///
    /// # Errors
    /// As there.
    pub fn read_apart(path: &Path, apart: &dyn Apart) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        let document = Document::read(path, WHAT)?;
        chain(&document, None, base_dir, Runs::Apart(apart))
    }

    /// Parses the text of a spec. `name` is the file's name in errors; files that the spec
    /// names are relative to `base_dir`.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &str, name: &str, base_dir: &Path) -> Result<Self, SpecError> {
        let document = Document::parse(text, name, WHAT)?;
        chain(&document, Some(Text::Given(text, name)), base_dir, Runs::Here)
    }

    /// What is dangerous about it, though it is right.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        let warnings = self.functions.iter().map(|function| match &function.config {
            FunctionConfig::Ipsec(ipsec) => &ipsec.warnings[..],
            _ => &[],
        });
        warnings.flatten().map(String::as_str)
    }
}

impl ChainSpec {
    /// The RSS hash that ports of the chain are to have: where a function tracks connections, one that is the
    /// same for both directions.
    pub fn rss(&self) -> RssHasher {
        let mut functions = self.functions.iter();
        match functions.any(|function| function.config.tracks_connections()) {
            true => RssHasher::symmetric(),
            false => RssHasher::default(),
        }
    }
}

/// Reads a spec; with `text`, one that can be [read again](Source::read_again).
fn chain(document: &Document, text: Option<Text<'_>>, base_dir: &Path, runs: Runs<'_>) -> Result<ChainSpec, SpecError> {
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
            let message = "expected no function that tracks connections: their state stays on this server";
            return Err(node.error(message));
        }
        Some(node) if !branches.is_empty() => {
            let message = "expected no classifier: a flow's state is kept outside for all functions of a chain, \
                           and not for those that its packets pass";
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
