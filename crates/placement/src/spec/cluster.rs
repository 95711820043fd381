//! Cluster specs.

use super::fields::{CLUSTER_SPEC, MAX_WAY, SERVERS};
use super::profiles::{NoProfiles, Profiles};
use crate::cluster::{Cluster, MAX_CORES, MAX_KINDS, MAX_NODES, MAX_SERVERS, MAX_WAYS, Server, ServerKind};
use std::path::Path;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Located, is_label, label};

/// `kind` of cluster specs.
const KIND: &str = "Cluster";
/// Default number of classes: that of common processors, minus one for everything else.
const CLASSES: u16 = 15;

/// Cluster and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// Name, an RFC 1123 label.
    pub name: String,
    /// Its servers.
    pub cluster: Cluster,
}

impl ClusterSpec {
    /// Reads a spec.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn read(path: &Path, profiles: &mut dyn Profiles) -> Result<Self, SpecError> {
        cluster(&Document::read(path, "a cluster spec")?, profiles)
    }

    /// Parses the text of a spec whose hardware `profiles` registers. `name` is the file's name in errors.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse_with(text: &str, name: &str, profiles: &mut dyn Profiles) -> Result<Self, SpecError> {
        cluster(&Document::parse(text, name, "a cluster spec")?, profiles)
    }

    /// Parses the text of a spec that contains its curves. `name` is the file's name in errors.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<Self, SpecError> {
        cluster(&Document::parse(text, name, "a cluster spec")?, &mut NoProfiles)
    }
}

fn cluster(document: &Document, profiles: &mut dyn Profiles) -> Result<ClusterSpec, SpecError> {
    let (metadata, spec) = document.object(KIND, "a map with servers")?;
    let fields = spec.fields_of(&CLUSTER_SPEC)?;
    let nodes = fields.required("servers", "a list of servers")?;
    let (mut kinds, mut servers) = (Vec::new(), Vec::new());
    for node in nodes.list("groups of servers", MAX_SERVERS)? {
        let (kind, names) = group(&node, profiles)?;
        let number = kinds.iter().position(|other| *other == kind);
        let kind = number.unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        if kinds.len() > MAX_KINDS || servers.len() + names.len() > MAX_SERVERS {
            let what = format!("at most {MAX_SERVERS} servers of {MAX_KINDS} kinds in all");
            return Err(node.error(format!("expected {what}, found more")));
        }
        servers.extend(names.into_iter().map(|name| Server { name, kind }));
    }
    let cluster = Cluster::new(kinds, servers).map_err(|error| nodes.error(error.to_string()))?;
    Ok(ClusterSpec {
        name: metadata.name,
        cluster,
    })
}

/// Parses a group of servers: their kind, and their names.
fn group(node: &Located<'_>, profiles: &mut dyn Profiles) -> Result<(ServerKind, Vec<String>), SpecError> {
    let fields = node.fields_of(&SERVERS)?;
    let named = fields.required("name", "a name for the server, or its group")?;
    let name = label(&named)?;
    let whole = |name, most: u16| {
        let node = fields.required(name, "a whole number")?;
        Ok::<_, SpecError>(node.whole(1..=most.into())? as u16)
    };
    let or = |name, most: u16, default| match fields.optional(name) {
        None => Ok(default),
        Some(node) => Ok::<_, SpecError>(node.whole(1..=most.into())? as u16),
    };
    let way = fields.required("wayKibibytes", "the size of a way of the cache")?;
    let kind = ServerKind {
        machine: label(&fields.required("machine", "the machine that chains were measured on")?)?,
        nodes: or("numaNodes", MAX_NODES, 1)?,
        cores: whole("cores", MAX_CORES)?,
        ways: whole("ways", MAX_WAYS)?,
        way_bytes: way.whole(1..=MAX_WAY)? * 1024,
        classes: or("classes", MAX_CORES, CLASSES)?,
    };
    profiles.servers(&kind, fields.optional("hardware").as_ref())?;
    let names = match fields.optional("count") {
        None => vec![name],
        Some(count) => {
            let count = count.whole(1..=MAX_SERVERS as u64)?;
            let last = format!("{name}-{}", count - 1);
            if !is_label(&last) {
                let what = format!("a name for which \"{last}\" has at most 63 characters");
                return Err(named.expected(&what));
            }
            (0..count).map(|i| format!("{name}-{i}")).collect()
        }
    };
    Ok((kind, names))
}
