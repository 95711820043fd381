//! `tailwater place --predictor`: admission by predicted contention.

use super::args::{PlaceArgs, PlaceCache};
use super::models::{self, Unmodelled};
use super::profiles::ProfileFiles;
use crate::error::CliError;
use crate::text::{one_line, percent, short};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use tailwater_placement::cluster::Cluster;
use tailwater_placement::co_run::conflict::{Cause, Conflict, conflicts};
use tailwater_placement::co_run::predictor::{Band, CoRunPredictor};
use tailwater_placement::co_run::rates::Occupancy;
use tailwater_placement::co_run::shared::shared;
use tailwater_placement::co_run::slomo::Slomo;
use tailwater_placement::plan::Plan;
use tailwater_placement::slo::{ChainProfile, Slo};

/// Maximum number of conflicts of an SLO in the document.
const MOST_CONFLICTS: usize = 3;
/// Maximum number of SLOs of a plan whose conflicts are listed.
const MOST_SLOS: usize = 1000;
/// Maximum number of conflicts in the table.
const MOST_LINES: usize = 20;

/// Predictor, and the inputs that it places.
pub struct Predicted {
    pub slomo: Slomo,
    pub cluster: Cluster,
    pub slos: Vec<Slo>,
    pub chains: Vec<Arc<ChainProfile>>,
    unmodelled: Vec<Unmodelled>,
    cache: PlaceCache,
}

/// Predictor in the document. Field names are stable.
#[derive(Debug, Serialize)]
pub struct Document {
    name: &'static str,
    /// `partitioned` or `shared`.
    cache: &'static str,
    /// Probability with which its intervals hold.
    confidence: f64,
    /// Number of models in use.
    models: usize,
    /// Chains without a model, whose instances share no node.
    unmodelled: Vec<UnmodelledRow>,
}

#[derive(Debug, Serialize)]
struct UnmodelledRow {
    chain: String,
    machine: String,
}

/// Predicted rate in packets per second.
#[derive(Debug, Serialize)]
pub struct Rate {
    value: f64,
    low: f64,
    high: f64,
}

impl From<Band> for Rate {
    fn from(Band { low, value, high }: Band) -> Self {
        Rate { value, low, high }
    }
}

/// Reason why an SLO may not share a node.
#[derive(Debug, Serialize)]
pub struct ConflictRow {
    server: String,
    node: u16,
    /// SLO that would not be met.
    unmet: String,
    /// SLOs that it would be beside.
    beside: Vec<String>,
    /// Its objective; `None` for an on-demand SLO.
    objective_packets_per_second: Option<f64>,
    latency_nanoseconds: Option<u64>,
    /// Its predicted rate within that latency; `None` if there is no prediction.
    predicted_packets_per_second: Option<Rate>,
    resource: Option<String>,
    metric: Option<String>,
    /// All of this in a sentence.
    text: String,
}

impl Predicted {
    /// Reads the models that `args` name.
    ///
    /// # Errors
    /// A file is invalid, or models do not fit together.
    pub fn read(
        args: &PlaceArgs,
        cluster: &Cluster,
        slos: &[Slo],
        chains: &[Arc<ChainProfile>],
        profiles: &ProfileFiles,
    ) -> Result<Predicted, CliError> {
        let refused = |error: &dyn std::fmt::Display| CliError::Input(format!("--models: {error}"));
        let files = models::read(&args.models)?;
        let (selected, mut unmodelled) = models::select(&files, cluster, chains, |machine| profiles.names(machine))?;
        let used: BTreeSet<&str> = slos.iter().map(|slo| &*slo.chain.name).collect();
        unmodelled.retain(|of| used.contains(&*of.chain));
        let slomo = Slomo::new(selected, args.confidence).map_err(|error| refused(&error))?;
        let (cluster, slos, chains) = match args.cache {
            PlaceCache::Partitioned => (cluster.clone(), slos.to_vec(), chains.to_vec()),
            PlaceCache::Shared => {
                let alone = |chain: &str, machine: &str| slomo.alone(slomo.member(chain, machine)?);
                let found = shared(cluster, slos, chains, alone).map_err(|error| refused(&error))?;
                (found.cluster, found.slos, found.chains)
            }
        };
        Ok(Predicted {
            cache: args.cache,
            slomo,
            cluster,
            slos,
            chains,
            unmodelled,
        })
    }

    /// Returns `true` if instances have no cache of their own.
    pub fn is_shared(&self) -> bool {
        self.cache == PlaceCache::Shared
    }

    /// Returns notices for the operator.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.unmodelled
            .iter()
            .map(|of| format!("{}; each of its instances there has a node for itself", of.why))
    }

    pub fn document(&self) -> Document {
        let rows = self.unmodelled.iter().map(|of| UnmodelledRow {
            chain: of.chain.clone(),
            machine: of.machine.clone(),
        });
        Document {
            name: self.slomo.name(),
            cache: if self.is_shared() { "shared" } else { "partitioned" },
            confidence: self.slomo.confidence(),
            models: self.slomo.models().len(),
            unmodelled: rows.collect(),
        }
    }

    /// Returns the predicted rate of each SLO, and the first reasons why it is not on other nodes.
    pub fn rows(&self, plan: &Plan) -> Vec<(Option<Rate>, Vec<ConflictRow>)> {
        let occupancy = Occupancy::new(plan, &self.slomo);
        let rows = self.slos.iter().enumerate().map(|(number, slo)| {
            let rate = occupancy.by_name(&slo.name).and_then(|of| occupancy.total(of).ok());
            let conflicts = match number < MOST_SLOS {
                true => conflicts(plan, slo, &self.slomo, MOST_CONFLICTS),
                false => Vec::new(),
            };
            let conflicts = conflicts.iter().map(|conflict| self.conflict(conflict, plan));
            (rate.map(Rate::from), conflicts.collect())
        });
        rows.collect()
    }

    fn conflict(&self, of: &Conflict, plan: &Plan) -> ConflictRow {
        let server = plan.cluster().servers()[of.server].name.clone();
        let beside = of.beside.join(", ");
        let mut text = format!("{} not on {server}/{}: ", of.slo, of.node);
        // Writing into a string cannot fail.
        let _ = write!(text, "{} beside {beside} ", of.unmet);
        let mut row = ConflictRow {
            server,
            node: of.node,
            unmet: of.unmet.clone(),
            beside: of.beside.clone(),
            objective_packets_per_second: None,
            latency_nanoseconds: None,
            predicted_packets_per_second: None,
            resource: None,
            metric: None,
            text: String::new(),
        };
        match &of.cause {
            Cause::Unpredicted(why) => {
                let _ = write!(text, "is not predicted: {why}");
            }
            Cause::Rate {
                objective,
                predicted,
                latency,
                binding,
            } => {
                let Band { low, value, high } = *predicted;
                let _ = write!(
                    text,
                    "would get {}pps ({} to {} with {}) within {latency}, objective {}",
                    short(value),
                    short(low),
                    short(high),
                    percent(self.slomo.confidence()),
                    match *objective > 0.0 {
                        true => format!("{}pps", short(*objective)),
                        false => "any rate".to_owned(),
                    }
                );
                if let Some(binding) = binding {
                    let _ = write!(text, "; binds {} ({})", binding.resource, binding.metric);
                }
                row.objective_packets_per_second = (*objective > 0.0).then_some(*objective);
                row.latency_nanoseconds = Some(latency.0);
                row.predicted_packets_per_second = Some((*predicted).into());
                row.resource = binding.as_ref().map(|binding| binding.resource.clone());
                row.metric = binding.as_ref().map(|binding| binding.metric.clone());
            }
        }
        row.text = one_line(&text);
        row
    }
}

/// Formats predicted rates and conflicts for people.
pub fn table<'r>(
    document: &Document,
    rows: impl Iterator<Item = (&'r str, Option<&'r Rate>, &'r [ConflictRow])> + Clone,
) -> String {
    let confidence = percent(document.confidence);
    let mut text = format!("\npredicted with {confidence}, {} cache:\n", document.cache);
    let width = rows.clone().map(|(name, ..)| name.len()).max().unwrap_or(0) + 2;
    // Writing into a string cannot fail.
    for (name, rate, _) in rows.clone() {
        if let Some(Rate { value, low, high }) = rate {
            let (value, low, high) = (short(*value), short(*low), short(*high));
            let _ = writeln!(text, "{name:<width$}{value}pps ({low} to {high})");
        }
    }
    // The first of each SLO: it tells why the SLO is not on the first server that has room for it.
    let lines = || rows.clone().filter_map(|(_, _, conflicts)| conflicts.first());
    if lines().next().is_some() {
        text.push_str("not together:\n");
    }
    for conflict in lines().take(MOST_LINES) {
        let _ = writeln!(text, "{}", conflict.text);
    }
    let more = lines().count().saturating_sub(MOST_LINES);
    if more > 0 {
        let _ = writeln!(text, "... and {more} more, in --output json");
    }
    text
}
