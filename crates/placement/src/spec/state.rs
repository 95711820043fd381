//! State of a placement: admitted SLOs and their instances. Written as JSON, which is also valid YAML.

use super::slos::traffic_name;
use crate::cluster::{MAX_NODES, MAX_SERVERS, MAX_WAYS};
use crate::curve::MAX_RATE;
use crate::plan::Plan;
use crate::progress::{Action, NamedStep, Pending};
use crate::reconcile::Earlier;
use crate::schedule::MAX_INSTANCES;
use crate::slo::Target;
use serde::Serialize;
use std::path::Path;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Fields, Located, label, line, percentile};
use tailwater_net::Nanos;

/// `kind` of states.
const KIND: &str = "Placement";
/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 256;
/// Maximum number of steps of a migration.
const MAX_STEPS: usize = 1 << 22;
/// Maximum number of a step. No number is used twice.
const MAX_NUMBER: u64 = 1 << 52;
/// Version of the format.
const API_VERSION: &str = "tailwater.dev/v1alpha1";

/// Written form of a state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateSpec {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Metadata {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Spec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slos: Vec<StoredSlo>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chains: Vec<KnownChain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    migration: Option<Migrating>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Migrating {
    done: usize,
    told: u64,
    first: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<NamedStep>,
}

/// Fingerprint of a chain, to detect changes since its SLOs were placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnownChain {
    /// Name.
    pub name: String,
    /// Fingerprint of its curves: any text of at most 256 bytes.
    pub curves: String,
    /// Fingerprint of the measured configuration, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
}

/// Stored state of a placement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Name of the cluster.
    pub cluster: String,
    /// Admitted SLOs with unique names.
    pub slos: Vec<Earlier>,
    /// Their chains, as far as the state contains them.
    pub chains: Vec<KnownChain>,
    /// Unfinished migration, or the step numbers used so far.
    pub migration: Pending,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoredSlo {
    name: String,
    chain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_instances: Option<u16>,
    latency_nanoseconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap_packets_per_second: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spread: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<String>,
    instances: Vec<StoredInstance>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct StoredInstance {
    server: String,
    node: u16,
    ways: u16,
}

impl From<Earlier> for StoredSlo {
    fn from(slo: Earlier) -> Self {
        let instances = slo.instances.into_iter();
        StoredSlo {
            name: slo.name,
            chain: slo.chain,
            traffic: slo.traffic,
            percentile: slo.percentile,
            packets_per_second: match slo.target {
                Target::Reserved { throughput } => Some(throughput),
                Target::OnDemand { .. } => None,
            },
            most_instances: match slo.target {
                Target::Reserved { .. } => None,
                Target::OnDemand { most } => Some(most),
            },
            latency_nanoseconds: slo.latency.0,
            cap_packets_per_second: slo.cap,
            spread: slo.spread,
            apart: slo.apart,
            instances: instances
                .map(|(server, node, ways)| StoredInstance { server, node, ways })
                .collect(),
        }
    }
}

impl StateSpec {
    /// Creates the state of a plan with these chains and migration. `name` is the cluster's.
    pub fn new(plan: &Plan, name: &str, chains: Vec<KnownChain>, migration: &Pending) -> Self {
        let slos = Earlier::all(plan).into_iter().map(StoredSlo::from);
        StateSpec {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata { name: name.to_owned() },
            spec: Spec {
                slos: slos.collect(),
                chains,
                migration: (*migration != Pending::default()).then(|| Migrating {
                    done: migration.done,
                    told: migration.told,
                    first: migration.first,
                    steps: migration.steps.clone(),
                }),
            },
        }
    }

    /// Reads a stored state.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn read(path: &Path) -> Result<State, SpecError> {
        state(&Document::read(path, "the state of a placement")?)
    }

    /// Parses a stored state. `name` is the file's name in errors.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<State, SpecError> {
        state(&Document::parse(text, name, "the state of a placement")?)
    }
}

fn state(document: &Document) -> Result<State, SpecError> {
    let (metadata, spec) = document.object(KIND, "a map with slos")?;
    let fields = spec.fields(&["slos", "chains", "migration"])?;
    let mut slos: Vec<Earlier> = Vec::new();
    let mut names = std::collections::HashSet::new();
    if let Some(nodes) = fields.optional("slos") {
        for node in nodes.list("SLOs", MAX_SERVERS)? {
            let slo = stored_slo(&node)?;
            if !names.insert(slo.name.clone()) {
                let message = format!("expected each SLO once, found \"{}\" again", slo.name);
                return Err(node.error(message));
            }
            slos.push(slo);
        }
    }
    let mut chains = Vec::new();
    if let Some(nodes) = fields.optional("chains") {
        for node in nodes.list("chains", MAX_SERVERS)? {
            let fields = node.fields(&["name", "curves", "configuration"])?;
            let configuration = fields.optional("configuration");
            chains.push(KnownChain {
                name: label(&fields.required("name", "the chain's name")?)?,
                curves: line(&fields.required("curves", "a text")?, MAX_TEXT)?.to_owned(),
                configuration: configuration
                    .map(|node| Ok(line(&node, MAX_TEXT)?.to_owned()))
                    .transpose()?,
            });
        }
    }
    let migration = fields.optional("migration");
    Ok(State {
        cluster: metadata.name,
        slos,
        chains,
        migration: migration.map_or(Ok(Pending::default()), |node| migrating(&node))?,
    })
}

fn migrating(node: &Located<'_>) -> Result<Pending, SpecError> {
    let fields = node.fields(&["done", "told", "first", "steps"])?;
    let done = fields.required("done", "the number of steps that are done")?;
    let done = done.whole(0..=MAX_STEPS as u64)? as usize;
    let first = fields.required("first", "the number of the first step that is left")?;
    let first = first.whole(1..=MAX_NUMBER)?;
    let told = fields.required("told", "the number of the last step marked as done")?;
    let told = told.whole(0..=first - 1)?;
    let nodes = match fields.optional("steps") {
        None => Vec::new(),
        Some(nodes) => nodes.list("steps", MAX_STEPS)?,
    };
    let mut steps = Vec::new();
    for node in nodes {
        let fields = node.fields(&["step", "slo", "server", "node", "ways", "to"])?;
        let step = fields.required("step", "start, resize or drain")?;
        let action = step.word(&Action::ALL)?;
        let to = fields.optional("to");
        if to.is_some() != (action == Action::Resize) {
            return Err(node.error("expected `to` of a resize, and of nothing else"));
        }
        let (server, on, ways) = place(&fields)?;
        steps.push(NamedStep {
            step: action,
            slo: label(&fields.required("slo", "an SLO's name")?)?,
            server,
            node: on,
            ways,
            to: to
                .map(|node| Ok::<_, SpecError>(node.whole(1..=MAX_WAYS.into())? as u16))
                .transpose()?,
        });
    }
    Ok(Pending {
        done,
        told,
        first,
        steps,
    })
}

/// Parses the server, node and ways of an instance.
fn place(fields: &Fields<'_>) -> Result<(String, u16, u16), SpecError> {
    Ok((
        label(&fields.required("server", "the name of a server")?)?,
        fields
            .required("node", "a NUMA node")?
            .whole(0..=u64::from(MAX_NODES) - 1)? as u16,
        fields.required("ways", "ways of cache")?.whole(1..=MAX_WAYS.into())? as u16,
    ))
}

fn stored_slo(node: &Located<'_>) -> Result<Earlier, SpecError> {
    let fields = node.fields(&[
        "name",
        "chain",
        "traffic",
        "percentile",
        "packetsPerSecond",
        "mostInstances",
        "latencyNanoseconds",
        "capPacketsPerSecond",
        "spread",
        "apart",
        "instances",
    ])?;
    let rate = fields.optional("packetsPerSecond");
    let target = match (rate, fields.optional("mostInstances")) {
        (Some(node), None) => {
            let what = "packets per second";
            let throughput = node.number(what)?;
            if !(throughput > 0.0 && throughput <= MAX_RATE) {
                return Err(node.expected(what));
            }
            Target::Reserved { throughput }
        }
        (None, Some(node)) => Target::OnDemand {
            most: node.whole(1..=MAX_INSTANCES as u64)? as u16,
        },
        _ => {
            let what = "expected either packetsPerSecond or mostInstances";
            return Err(fields.error(what));
        }
    };
    let latency = fields.required("latencyNanoseconds", "nanoseconds")?;
    let nodes = fields.required("instances", "a list of instances")?;
    let mut instances = Vec::new();
    for node in nodes.list("instances", MAX_INSTANCES)? {
        instances.push(place(&node.fields(&["server", "node", "ways"])?)?);
    }
    Ok(Earlier {
        name: label(&fields.required("name", "the SLO's name")?)?,
        chain: label(&fields.required("chain", "its chain's name")?)?,
        traffic: fields.optional("traffic").map(|node| traffic_name(&node)).transpose()?,
        percentile: fields
            .optional("percentile")
            .map(|node| percentile(&node))
            .transpose()?,
        target,
        cap: fields
            .optional("capPacketsPerSecond")
            .map(|node| node.whole(1..=MAX_RATE as u64))
            .transpose()?,
        spread: match fields.optional("spread") {
            None => false,
            Some(node) => node.word(&[("true", true), ("false", false)])?,
        },
        apart: fields.optional("apart").map(|node| label(&node)).transpose()?,
        latency: Nanos(latency.whole(1..=10_000_000_000)?),
        instances,
    })
}
