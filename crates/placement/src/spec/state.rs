//! The state of a placement: what was admitted, and where it runs. Written as JSON, which is YAML, too.

use super::percentile;
use crate::cluster::{MAX_NODES, MAX_SERVERS, MAX_WAYS};
use crate::curve::MAX_RATE;
use crate::plan::Plan;
use crate::reconcile::Earlier;
use crate::schedule::MAX_INSTANCES;
use crate::slo::Target;
use serde::Serialize;
use std::path::Path;
use tailwater_net::Nanos;
use tailwater_nf::spec::SpecError;
use tailwater_nf::spec::document::{Document, Located, label};

/// The `kind` of states.
const KIND: &str = "Placement";
/// The version of the format.
const API_VERSION: &str = "tailwater.dev/v1alpha1";

/// A state as it is written.
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
    slos: Vec<Kept>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
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
    instances: Vec<KeptInstance>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct KeptInstance {
    server: String,
    node: u16,
    ways: u16,
}

impl From<Earlier> for Kept {
    fn from(slo: Earlier) -> Self {
        let instances = slo.instances.into_iter();
        Kept {
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
                .map(|(server, node, ways)| KeptInstance { server, node, ways })
                .collect(),
        }
    }
}

impl StateSpec {
    /// The state of a plan. `name` is the cluster's.
    pub fn new(plan: &Plan, name: &str) -> Self {
        let slos = Earlier::all(plan).into_iter().map(Kept::from);
        StateSpec {
            api_version: API_VERSION,
            kind: KIND,
            metadata: Metadata {
                name: name.to_owned(),
            },
            spec: Spec {
                slos: slos.collect(),
            },
        }
    }

    /// Reads what was kept; and the cluster's name.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn read(path: &Path) -> Result<(String, Vec<Earlier>), SpecError> {
        state(&Document::read(path, "the state of a placement")?)
    }

    /// Parses what was kept. `name` is the file's name in errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn parse(text: &str, name: &str) -> Result<(String, Vec<Earlier>), SpecError> {
        state(&Document::parse(text, name, "the state of a placement")?)
    }
}

fn state(document: &Document) -> Result<(String, Vec<Earlier>), SpecError> {
    let (metadata, spec) = document.object(KIND, "a map with slos")?;
    let fields = spec.fields(&["slos"])?;
    let mut slos: Vec<Earlier> = Vec::new();
    let mut names = std::collections::HashSet::new();
    if let Some(nodes) = fields.optional("slos") {
        for node in nodes.list("SLOs", MAX_SERVERS)? {
            let slo = kept(&node)?;
            if !names.insert(slo.name.clone()) {
                let message = format!("expected each SLO once, found \"{}\" again", slo.name);
                return Err(node.error(message));
            }
            slos.push(slo);
        }
    }
    Ok((metadata.name, slos))
}

fn kept(node: &Located<'_>) -> Result<Earlier, SpecError> {
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
        let fields = node.fields(&["server", "node", "ways"])?;
        instances.push((
            label(&fields.required("server", "the name of a server")?)?,
            fields
                .required("node", "a NUMA node")?
                .whole(0..=u64::from(MAX_NODES) - 1)? as u16,
            fields
                .required("ways", "ways of cache")?
                .whole(1..=MAX_WAYS.into())? as u16,
        ));
    }
    Ok(Earlier {
        name: label(&fields.required("name", "the SLO's name")?)?,
        chain: label(&fields.required("chain", "its chain's name")?)?,
        traffic: fields
            .optional("traffic")
            .map(|node| label(&node))
            .transpose()?,
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
        apart: fields
            .optional("apart")
            .map(|node| label(&node))
            .transpose()?,
        latency: Nanos(latency.whole(1..=10_000_000_000)?),
        instances,
    })
}
