//! Rack specs: YAML descriptions of simulations, checked and converted to types.
//!
//! [`RackSpec::read`] is the only entry point. Every error is a [`SpecError`] with file, line, column, field, and the
//! expected and found values. `docs/reference/rack-spec.md` describes every field.

mod chain;
mod costs;
mod fields;
mod model;
mod rack;

pub use chain::{RackChain, TrafficSource, TrafficSpec};
pub use fields::SCHEMA;
pub use model::SimulationModel;

use crate::policies::comparable;
use crate::rack::Rack;
use crate::simulation::{RunOptions, longest};
use fields::{DURATION, FIELDS, KIND, MOST_SEED, WINDOW};
use std::collections::HashMap;
use std::path::Path;
use tailwater_api::SpecError;
use tailwater_api::document::{Document, Located, duration};
use tailwater_net::Nanos;

/// Name of a rack spec in errors.
const WHAT: &str = "a rack spec";

/// A rack, its chains and their traffic.
#[derive(Clone, Debug)]
pub struct RackSpec {
    /// Name of the rack, an RFC 1123 label.
    pub name: String,
    /// Model of the simulation.
    pub model: SimulationModel,
    /// Parts of the rack.
    pub rack: Rack,
    /// Chains that run on it, with unique names.
    pub chains: Vec<RackChain>,
    /// Time for which packets arrive. With `None`, captures run to their ends and presets for a second.
    pub duration: Option<Nanos>,
    /// Initial time that is not reported.
    pub warm_up: Nanos,
    /// Length of a window of the report.
    pub window: Nanos,
    /// Seed of random values.
    pub seed: u64,
    /// Policies to compare, which can include the oracle's bound. Empty stands for all.
    pub policies: Vec<&'static str>,
}

impl RackSpec {
    /// Reads a spec and the profiles that it names, which are relative to its folder.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        RackSpec::read_for(path, None)
    }

    /// Like [`read`](RackSpec::read), for this model instead of the spec's.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn read_for(path: &Path, model: Option<SimulationModel>) -> Result<Self, SpecError> {
        let base_dir = path.parent().unwrap_or(Path::new(""));
        rack_spec(&Document::read(path, WHAT)?, base_dir, model)
    }

    /// Parses the text of a spec. `name` is the file's name in errors. Files that the spec names are relative to
    /// `base_dir`.
    ///
    /// # Errors
    /// Returns the first error, with its position.
    pub fn parse(text: &str, name: &str, base_dir: &Path) -> Result<Self, SpecError> {
        rack_spec(&Document::parse(text, name, WHAT)?, base_dir, None)
    }
}

fn rack_spec(document: &Document, base_dir: &Path, model: Option<SimulationModel>) -> Result<RackSpec, SpecError> {
    let (metadata, spec) = document.object(KIND, "a map with servers and chains")?;
    let fields = spec.fields_of(&FIELDS)?;
    let model = match (model, fields.optional("model")) {
        (Some(model), _) => model,
        (None, None) => SimulationModel::default(),
        (None, Some(node)) => node.word(&SimulationModel::ALL)?,
    };
    let mut rack = rack::rack(&fields, model)?;
    let node = fields.required("chains", "a list of chains")?;
    let most = model.most_chains();
    let nodes = node.list("chains", most)?;
    let copies = nodes.iter().map(|node| chain::copies(node, model));
    let copies = copies.collect::<Result<Vec<_>, _>>()?;
    let count: u64 = copies.iter().map(|copies| copies.count).sum();
    if count > most as u64 {
        return Err(node.error(format!("expected at most {most} chains in all, found {count}")));
    }
    // Chains that have some of the servers each take turns on them.
    let all = rack.servers.len();
    let used = |copies: &chain::Copies| copies.count as usize * copies.servers.unwrap_or(all).min(all);
    let on_a_server = copies.iter().map(used).sum::<usize>().div_ceil(all).max(1);
    let ingress = rack::ingress(&fields, &rack, on_a_server, model)?;
    let mut chains: Vec<RackChain> = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for (number, (node, copies)) in nodes.into_iter().zip(copies).enumerate() {
        let chain = chain::chain(&node, ingress, copies.servers, base_dir)?;
        let all = match copies.count {
            1 => vec![chain],
            count => (1..=count).map(|copy| chain.copy(copy)).collect(),
        };
        for chain in &all {
            if let Some(other) = names.insert(chain.name.clone(), number) {
                let message = format!(
                    "expected a different name for each chain, found \"{}\" as in chains[{other}]",
                    chain.name
                );
                return Err(node.error(message));
            }
        }
        if let Some(home) = chain::home(&node, &rack)? {
            // Chains in front of the first one with a server are on each in turn.
            let in_turn = rack.homes.len()..chains.len();
            rack.homes
                .extend(in_turn.map(|chain| (chain % rack.servers.len()) as u16));
            rack.homes.extend(all.iter().map(|_| home));
        }
        chains.extend(all);
    }
    let length = match fields.optional("duration") {
        None => None,
        Some(node) => Some(duration(&node, DURATION)?),
    };
    let warm_up = match fields.optional("warmUp") {
        None => Nanos::ZERO,
        Some(node) => {
            let warm_up = duration(&node, Nanos::ZERO..=*DURATION.end())?;
            if let Some(length) = length.filter(|length| *length <= warm_up) {
                return Err(node.expected(&format!("less than the duration of {length}")));
            }
            warm_up
        }
    };
    let window = match fields.optional("window") {
        None => RunOptions::default().window,
        Some(node) => {
            let window = duration(&node, WINDOW)?;
            if let Some(length) = length.filter(|length| *length > longest(window)) {
                let what = format!("longer windows for a duration of {length}");
                return Err(node.expected(&what));
            }
            window
        }
    };
    Ok(RackSpec {
        name: metadata.name,
        model,
        rack,
        chains,
        duration: length,
        warm_up,
        window,
        seed: match fields.optional("seed") {
            None => 1,
            Some(node) => node.whole(0..=MOST_SEED)?,
        },
        policies: match fields.optional("policies") {
            None => Vec::new(),
            Some(node) => policies(&node)?,
        },
    })
}

fn policies(node: &Located<'_>) -> Result<Vec<&'static str>, SpecError> {
    let names: Vec<_> = comparable().map(|name| (name, name)).collect();
    let nodes = node.list("policies", names.len())?;
    nodes.iter().map(|node| node.word(&names)).collect()
}

#[cfg(test)]
mod tests;
