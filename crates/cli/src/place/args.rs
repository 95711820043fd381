//! Arguments of `tailwater place`.

use crate::headings;
use crate::output::ReportOutput;
use crate::values;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;

/// Help text of `tailwater place`.
pub const PLACE_EXAMPLES: &str = "\
Admits SLOs in the order of their file. Each gets instances with dedicated cores and ways of cache, or the
reason for the denial and the nearest SLO that would fit. With a state, running instances stay where they
are, except for changed SLOs and removed servers.

Examples:
  tailwater place examples/place/slos.yaml --cluster examples/place/cluster.yaml
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json
      Places only new and changed SLOs; removes SLOs that are no longer in the file.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --optimal --saving 5%
      Also the plan with the fewest servers, and the migration to it, if it saves enough; --apply writes
      it to the state. Released programs have the solver.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --done 3
      Marks the steps of --migrate up to number 3 as done, and prints the remaining ones.
  tailwater place slos.yaml --cluster cluster.yaml --predictor slomo --models models/
      Instances share a node only if each SLO is met beside the others, by predicted contention; with
      --cache shared without cache partitions.
Files of examples/ are in the sources of Tailwater and in /usr/share/doc/tailwater of its Debian package.
Exit codes: 0 all SLOs admitted, 2 wrong input, 3 an SLO was denied.";

/// Arguments of `tailwater place`.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// SLOs, and their chains' curves
    #[arg(value_name = "SLOS.yaml")]
    pub slos: PathBuf,
    /// Servers of the cluster
    #[arg(long, value_name = "CLUSTER.yaml")]
    pub cluster: PathBuf,
    /// File with the previous placement, which is updated; created if missing
    #[arg(help_heading = headings::STATE)]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Scheduler
    #[arg(long, value_name = "tailwater|resq-greedy", default_value = "tailwater")]
    #[arg(hide_possible_values = true)]
    pub scheduler: PlaceScheduler,
    /// Admit by predicted contention
    #[arg(help_heading = headings::PREDICTION)]
    #[arg(long, value_name = "slomo", requires = "models", conflicts_with_all = ["optimal", "scheduler"])]
    #[arg(hide_possible_values = true)]
    pub predictor: Option<PlacePredictor>,
    /// Models of the chains: files, and folders with files *.model.yaml
    #[arg(help_heading = headings::PREDICTION)]
    #[arg(long, value_name = "PATH,...", value_delimiter = ',', requires = "predictor")]
    pub models: Vec<PathBuf>,
    /// Cache of an instance: its own partition, or shared by all of its node
    #[arg(help_heading = headings::PREDICTION)]
    #[arg(
        long,
        value_name = "partitioned|shared",
        default_value = "partitioned",
        requires = "predictor"
    )]
    #[arg(hide_possible_values = true)]
    pub cache: PlaceCache,
    /// Probability with which predicted intervals hold
    #[arg(help_heading = headings::PREDICTION)]
    #[arg(long, value_name = "P%", default_value = "90%", value_parser = values::confidence)]
    #[arg(requires = "predictor")]
    pub confidence: f64,
    /// Also search for the plan with the fewest servers, and for the migration to it (feature `milp`)
    #[arg(help_heading = headings::OPTIMAL)]
    #[arg(long)]
    pub optimal: bool,
    /// Time limit of the search
    #[arg(help_heading = headings::OPTIMAL)]
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::search)]
    #[arg(requires = "optimal")]
    pub time: Nanos,
    /// Minimum saving for a proposal: servers, or a percentage of those in use
    #[arg(help_heading = headings::OPTIMAL)]
    #[arg(long, value_name = "N|P%", default_value = "1", value_parser = values::saving)]
    #[arg(requires = "optimal")]
    pub saving: Saving,
    /// Apply the proposed plan to the state
    #[arg(help_heading = headings::OPTIMAL)]
    #[arg(long, requires = "optimal", requires = "state")]
    pub apply: bool,
    /// Add the migration to the proposed plan to the state, to be done step by step
    #[arg(help_heading = headings::OPTIMAL)]
    #[arg(long, requires = "optimal", requires = "state", conflicts_with = "apply")]
    pub migrate: bool,
    /// Mark the steps of the state's migration up to number N as done
    #[arg(help_heading = headings::STATE)]
    #[arg(long, value_name = "N", requires = "state")]
    pub done: Option<u64>,
    /// Abandon the rest of the state's migration, except for drains of instances that already have a successor
    #[arg(help_heading = headings::STATE)]
    #[arg(long, requires = "state")]
    pub abandon: bool,
    /// Output format
    #[arg(help_heading = headings::REPORT)]
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Scheduler that places instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlaceScheduler {
    Tailwater,
    ResqGreedy,
}

/// Predictor of contention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacePredictor {
    Slomo,
}

/// Use of the last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlaceCache {
    Partitioned,
    Shared,
}
