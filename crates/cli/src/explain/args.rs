//! Arguments of `tailwater explain`.

use crate::output::ReportOutput;
use crate::values;
use clap::Args;
use std::path::PathBuf;
use tailwater_baselines::catalog::Policy;

/// Help text of `tailwater explain`.
pub const EXPLAIN_EXAMPLES: &str = "\
Explains the worst episodes: times in which a dedicated core had more packets than it can process in an
epoch. For each: the waiting packets, and the policy's decisions with their times.

Examples:
  tailwater run chain.yaml --cores 1 --auxiliary 0 --record run.decisions
  tailwater explain run.decisions
  tailwater explain run.decisions --late 3 --policy netblaze
      Also the decisions of another policy for the same queues.";

/// Arguments of `tailwater explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// File written by `tailwater run --record`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Number of the worst episodes to explain
    #[arg(long, value_name = "N", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=1000))]
    pub late: u16,
    /// Replay the recorded observations to another policy, and print its differing decisions
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    pub policy: Option<Policy>,
    /// Output format
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}
