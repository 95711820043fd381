//! Chains of a server's configuration.

use crate::admission::placement::Placement;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tailwater_api::SpecError;
use tailwater_api::chain::{ChainDocument, ChainSettings, DESCRIPTION};
use tailwater_api::document::Document;
use tailwater_api::server::{PortSource, ServerSpec};

/// Text of a chain, as it was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name in messages: that of its file, or of standard input.
    pub source: String,
    /// Absolute path of its file, if it comes from one.
    pub path: Option<PathBuf>,
    /// Text: one YAML document.
    pub yaml: String,
}

impl Manifest {
    /// Folder that the chain's files are relative to.
    pub fn base_dir(&self) -> &Path {
        let folder = self.path.as_deref().and_then(Path::parent);
        folder.unwrap_or(Path::new("/"))
    }
}

/// Source of a chain of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// File or folder that the server's specification lists.
    Listed,
    /// Control API.
    Applied,
}

/// Chain of a generation: its text, and the parts of it that no function's code is needed for.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedChain {
    /// Name, unique on the server.
    pub name: String,
    /// Text of the chain.
    pub manifest: Manifest,
    /// Settings of the chain.
    pub settings: ChainSettings,
    /// Names (where given) and kinds of its functions, in order.
    pub functions: Vec<(Option<String>, String)>,
    /// Name of the server's port that it uses.
    pub port: String,
    /// Runs without a promise if it does not fit.
    pub forced: bool,
    /// Drained on request: part of the configuration, and not running.
    pub drained: bool,
    /// Source of the chain.
    pub origin: Origin,
    /// Core and promise, decided by [admission](crate::admission).
    pub placement: Placement,
}

impl AppliedChain {
    /// Reads a chain's text and finds its port.
    ///
    /// # Errors
    /// The text is no valid chain, or there is no such port: one line for each error, with its position.
    pub fn parse(manifest: &Manifest, server: &ServerSpec, origin: Origin) -> Result<AppliedChain, SpecError> {
        let document = Document::parse(&manifest.yaml, &manifest.source, DESCRIPTION)?;
        let chain = ChainDocument::new(&document, manifest.base_dir())?;
        let wrong = |message: String| SpecError::whole_file(&manifest.source, message);
        if chain.settings.ports.is_some() {
            return Err(wrong(
                "spec.ports: expected spec.port, since ports belong to the server".to_owned(),
            ));
        }
        let port = server.port_of(chain.settings.port.as_deref()).map_err(wrong)?;
        let functions = chain.functions.iter();
        Ok(AppliedChain {
            name: chain.settings.name.clone(),
            functions: functions
                .map(|function| (function.name.clone(), function.kind.to_owned()))
                .collect(),
            settings: chain.settings,
            manifest: manifest.clone(),
            port: port.name.clone(),
            forced: false,
            drained: false,
            origin,
            placement: Placement::default(),
        })
    }

    /// Returns `true` if both have the same text, with the same files.
    pub fn is_same_text(&self, other: &AppliedChain) -> bool {
        self.manifest.yaml == other.manifest.yaml
            && self.manifest.base_dir() == other.manifest.base_dir()
            && self.port == other.port
    }

    /// Returns `true` if this chain can become the other while its functions keep their state.
    pub fn is_changeable_to(&self, other: &AppliedChain) -> bool {
        let is_as_wide = self.settings.cores.unwrap_or(1) == other.settings.cores.unwrap_or(1);
        self.name == other.name && self.functions == other.functions && is_as_wide && self.takes_same_packets(other)
    }

    /// Returns `true` if both process the same packets.
    pub fn takes_same_packets(&self, other: &AppliedChain) -> bool {
        self.port == other.port && self.settings.match_ == other.settings.match_
    }

    /// Warning if its port repeats traffic with other addresses, of which its match takes only some.
    pub fn renumbering_warning(&self, server: &ServerSpec) -> Option<String> {
        let port = server.ports.iter().find(|port| port.name == self.port)?;
        let PortSource::Traffic(traffic) = &port.source else {
            return None;
        };
        let bits = traffic.renumber_bits;
        let repeats = traffic.repeat || traffic.duration.is_some();
        let match_ = &self.settings.match_;
        let mut prefixes = match_.sources.iter().chain(&match_.destinations);
        let long = prefixes.find(|prefix| repeats && prefix.prefix_len() > prefix.max_prefix_len() - bits)?;
        Some(format!(
            "port \"{}\" repeats its traffic with other addresses in the last {bits} bits, of which {long} of \
             spec.match takes only some: renumberBits: {} of the port keeps them",
            port.name,
            long.max_prefix_len() - long.prefix_len()
        ))
    }

    /// Names of the kinds of its functions, in order.
    pub fn kinds(&self) -> Vec<String> {
        self.functions.iter().map(|(_, kind)| kind.clone()).collect()
    }
}
