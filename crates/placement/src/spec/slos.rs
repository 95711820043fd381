//! Specs of SLOs and of their chains.

use super::fields::{CHAIN, CURVES, LATENCY, MAX_CHAINS, MAX_SLOS, MAX_TRAFFIC, ON_DEMAND, SLO, SLO_SET_SPEC};
use super::profiles::{NoProfiles, Profiles};
use crate::curve::{CacheCurve, CurveError, LoadCurve, MAX_POINTS, MAX_RATE};
use crate::schedule::MAX_INSTANCES;
use crate::slo::{ChainProfile, Curves, Slo, Target};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tailwater_api::document::{Document, Fields, Located, duration, label, line, nearest, percentile, throughput};
use tailwater_api::{SpecError, Throughput};
use tailwater_net::Nanos;

/// `kind` of SLO specs.
const KIND: &str = "SloSet";
/// Maximum cache size, in KiB.
const MAX_CACHE: f64 = (1u64 << 30) as f64;

/// SLOs, in the order of their admission.
#[derive(Clone, Debug, PartialEq)]
pub struct SloSet {
    /// Name of the set, an RFC 1123 label.
    pub name: String,
    /// Chains, sorted by name.
    pub chains: Vec<Arc<ChainProfile>>,
    /// SLOs with unique names.
    pub slos: Vec<Slo>,
}

impl SloSet {
    /// Reads a spec.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn read(path: &Path, profiles: &mut dyn Profiles) -> Result<Self, SpecError> {
        set(&Document::read(path, "a set of SLOs")?, profiles)
    }

    /// Parses the text of a spec whose curves `profiles` may provide. `name` is the file's name in errors.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse_with(text: &str, name: &str, profiles: &mut dyn Profiles) -> Result<Self, SpecError> {
        set(&Document::parse(text, name, "a set of SLOs")?, profiles)
    }

    /// Parses the text of a spec that contains its curves. `name` is the file's name in errors.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse(text: &str, name: &str) -> Result<Self, SpecError> {
        set(&Document::parse(text, name, "a set of SLOs")?, &mut NoProfiles)
    }
}

fn set(document: &Document, profiles: &mut dyn Profiles) -> Result<SloSet, SpecError> {
    let (metadata, spec) = document.object(KIND, "a map with chains and slos")?;
    let fields = spec.fields_of(&SLO_SET_SPEC)?;
    if let Some(node) = fields.optional("profiles") {
        profiles.files(&node)?;
    }
    let mut chains: HashMap<String, Arc<ChainProfile>> = HashMap::new();
    let nodes = fields.required("chains", "a list of chains with their curves")?;
    for node in nodes.list("chains", MAX_CHAINS)? {
        let chain = chain(&node, profiles)?;
        if chains.contains_key(&chain.name) {
            return Err(twice(&node, "chain", &chain.name));
        }
        chains.insert(chain.name.clone(), Arc::new(chain));
    }
    let mut names = std::collections::HashSet::new();
    let mut slos = Vec::new();
    // Without any SLOs, all admitted ones are removed.
    if let Some(nodes) = fields.optional("slos") {
        for node in nodes.list("SLOs", MAX_SLOS)? {
            let slo = slo(&node, &chains)?;
            if !names.insert(slo.name.clone()) {
                return Err(twice(&node, "SLO", &slo.name));
            }
            slos.push(slo);
        }
    }
    let mut chains: Vec<Arc<ChainProfile>> = chains.into_values().collect();
    chains.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(SloSet {
        name: metadata.name,
        chains,
        slos,
    })
}

fn twice(node: &Located<'_>, what: &str, name: &str) -> SpecError {
    node.error(format!(
        "expected a different name for each {what}, found \"{name}\" again"
    ))
}

fn chain(node: &Located<'_>, profiles: &mut dyn Profiles) -> Result<ChainProfile, SpecError> {
    let fields = node.fields_of(&CHAIN)?;
    let name = label(&fields.required("name", "the chain's name")?)?;
    if let Some(node) = fields.optional("profile") {
        if fields.optional("curves").is_some() {
            return Err(node.error("expected either curves or profile, found both"));
        }
        return profiles.chain(&name, &node);
    }
    let nodes = fields.required("curves", "a list of curves by machine, or a profile")?;
    let mut all: Vec<Curves> = Vec::new();
    let mut measured: Option<Measured> = None;
    for node in nodes.list("curves", crate::cluster::MAX_KINDS)? {
        let (curves, here) = curves(&node)?;
        // The guarantee must be the same on every machine.
        let first = measured.get_or_insert_with(|| here.clone());
        if *first != here {
            let message = format!("expected curves {first}, as of the chain's first machine, found curves {here}");
            return Err(node.error(message));
        }
        if all.iter().any(|other| other.machine == curves.machine) {
            return Err(twice(&node, "machine", &curves.machine));
        }
        all.push(curves);
    }
    let measured = measured.unwrap_or_default();
    Ok(ChainProfile {
        name,
        configuration: None,
        traffic: measured.traffic,
        percentile: measured.percentile,
        curves: all,
    })
}

/// Traffic and percentile of curves.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    traffic: Option<String>,
    percentile: Option<f64>,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.traffic {
            Some(traffic) => write!(f, "of traffic \"{traffic}\"")?,
            None => write!(f, "without named traffic")?,
        }
        match self.percentile {
            Some(percentile) => write!(f, ", percentile {percentile}"),
            None => write!(f, ", no percentile named"),
        }
    }
}

impl Measured {
    fn read(fields: &Fields<'_>) -> Result<Self, SpecError> {
        let traffic = fields.optional("traffic");
        let of = fields.optional("percentile");
        Ok(Measured {
            traffic: traffic.map(|node| traffic_name(&node)).transpose()?,
            percentile: of.map(|node| percentile(&node)).transpose()?,
        })
    }
}

/// Parses the name of traffic, as used by the profiler.
pub(super) fn traffic_name(node: &Located<'_>) -> Result<String, SpecError> {
    Ok(line(node, MAX_TRAFFIC)?.to_owned())
}

fn curves(node: &Located<'_>) -> Result<(Curves, Measured), SpecError> {
    let fields = node.fields_of(&CURVES)?;
    let machine = label(&fields.required("machine", "the machine that was measured on")?)?;
    let cores = match fields.optional("cores") {
        None => 1,
        Some(node) => node.whole(1..=crate::cluster::MAX_CORES.into())? as u16,
    };
    let what = "a list of [KiB of cache, packets per second]";
    let (node, points) = points(&fields, "throughput", what, [MAX_CACHE, MAX_RATE])?;
    let cache = points
        .into_iter()
        .map(|[kibibytes, rate]| ((kibibytes * 1024.0) as u64, rate));
    let cache = CacheCurve::new(cache.collect()).map_err(|error| of_curve(&node, error))?;
    let what = "a list of [load from 0 to 1, latency in microseconds]";
    let (node, points) = self::points(&fields, "latency", what, [1.0, 1e7])?;
    let load = points
        .into_iter()
        .map(|[load, micros]| (load, Nanos((micros * 1e3).round() as u64)));
    let load = LoadCurve::new(load.collect()).map_err(|error| of_curve(&node, error))?;
    let curves = Curves {
        machine,
        cores,
        cache,
        load,
    };
    Ok((curves, Measured::read(&fields)?))
}

fn of_curve(node: &Located<'_>, error: CurveError) -> SpecError {
    node.error(error.to_string())
}

/// Parses the points of a curve, whose numbers are at most `most`.
fn points<'a>(
    fields: &Fields<'a>,
    name: &'static str,
    what: &str,
    most: [f64; 2],
) -> Result<(Located<'a>, Vec<[f64; 2]>), SpecError> {
    let node = fields.required(name, what)?;
    let mut points = Vec::new();
    for point in node.list("points", MAX_POINTS)? {
        let numbers = point.list("numbers", 2)?;
        let [x, y] = &numbers[..] else {
            return Err(point.expected("two numbers"));
        };
        let mut both = [0.0; 2];
        for ((number, node), most) in both.iter_mut().zip([x, y]).zip(most) {
            let what = format!("a number from 0 to {most}");
            *number = node.number(&what)?;
            if *number > most {
                return Err(node.expected(&what));
            }
        }
        points.push(both);
    }
    Ok((node, points))
}

fn slo(node: &Located<'_>, chains: &HashMap<String, Arc<ChainProfile>>) -> Result<Slo, SpecError> {
    let fields = node.fields_of(&SLO)?;
    let name = label(&fields.required("name", "the SLO's name")?)?;
    let node = fields.required("chain", "the name of a chain")?;
    let text = node.string("the name of a chain")?;
    let Some(chain) = chains.get(text) else {
        let error = node.expected("the name of a chain of this file");
        return Err(error.suggest(nearest(text, chains.keys().map(String::as_str))));
    };
    promised_as_measured(&fields, chain)?;
    let target = match (fields.optional("throughput"), fields.optional("onDemand")) {
        (Some(node), None) => Target::Reserved {
            throughput: packets(&node)? as f64,
        },
        (None, Some(node)) => {
            let fields = node.fields_of(&ON_DEMAND)?;
            let most = fields.required("mostInstances", "a whole number")?;
            Target::OnDemand {
                most: most.whole(1..=MAX_INSTANCES as u64)? as u16,
            }
        }
        (Some(_), Some(node)) => {
            return Err(node.error("expected either throughput or onDemand, found both"));
        }
        (None, None) => {
            return Err(fields.error("expected throughput or onDemand, found neither"));
        }
    };
    let cap = fields.optional("cap");
    let cap = match (cap, target) {
        (None, _) => None,
        (Some(node), target) => {
            let cap = packets(&node)?;
            if let Target::Reserved { throughput } = target
                && (cap as f64) < throughput
            {
                return Err(node.error(format!(
                    "expected a cap of at least the throughput, {throughput}pps, found {cap}pps"
                )));
            }
            Some(cap)
        }
    };
    Ok(Slo {
        cap,
        name,
        chain: chain.clone(),
        target,
        latency: duration(&fields.required("latency", "a duration such as 200us")?, LATENCY)?,
        spread: match fields.optional("spread") {
            None => false,
            Some(node) => node.word(&[("true", true), ("false", false)])?,
        },
        apart: fields.optional("apart").map(|node| label(&node)).transpose()?,
    })
}

/// Parses a rate in packets per second.
fn packets(node: &Located<'_>) -> Result<u64, SpecError> {
    match throughput(node)? {
        Throughput::PacketsPerSecond(rate) if rate > 0 => Ok(rate),
        _ => Err(node.expected("packets per second, such as 2Mpps")),
    }
}

/// Checks that the traffic and percentile named by an SLO are those of its chain's measurements.
fn promised_as_measured(fields: &Fields<'_>, chain: &ChainProfile) -> Result<(), SpecError> {
    let Measured { traffic, percentile } = Measured::read(fields)?;
    let percentile = percentile.map(|p| p.to_string());
    let measured = chain.percentile.map(|p| p.to_string());
    for (field, promised, measured) in [
        ("traffic", traffic, chain.traffic.clone()),
        ("percentile", percentile, measured),
    ] {
        let (Some(node), Some(promised)) = (fields.optional(field), promised) else {
            continue;
        };
        if measured.as_ref() != Some(&promised) {
            let measured = measured.map_or("none".to_owned(), |m| format!("\"{m}\""));
            return Err(node.error(format!(
                "expected the {field} of chain \"{}\"'s curves, {measured}, found \"{promised}\"",
                chain.name
            )));
        }
    }
    Ok(())
}
