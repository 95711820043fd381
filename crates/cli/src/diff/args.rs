//! Arguments of `tailwater diff`.

use crate::output::ReportOutput;
use crate::values;
use clap::Args;
use std::path::PathBuf;

/// Help text of `tailwater diff`.
pub const DIFF_EXAMPLES: &str = "\
Compares the JSON of `tailwater run` or `tailwater serve`: latency, late and lost packets, throughput, cores, causes,
and drops of each function, each with an interval. A change is a difference if its interval excludes zero and it
exceeds the tolerance. One run a side shows differences between these two runs only; three or more a side also
account for what varies from run to run. Curves: `tailwater profile diff`.

Examples:
  tailwater run chain.yaml --output json > before.json
  tailwater run chain.yaml --output json --cores 0,1 > after.json
  tailwater diff before.json after.json
  tailwater diff --before old-1.json old-2.json old-3.json --after new-1.json new-2.json new-3.json

Exit codes: 0 no difference that these runs can show, 1 a difference, 2 wrong input: other chains, other documents,
or nothing to judge by.";

/// Arguments of `tailwater diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Run before
    #[arg(value_name = "BEFORE.json", required_unless_present_any = ["before_runs", "after_runs"])]
    pub before: Option<PathBuf>,
    /// Run after
    #[arg(value_name = "AFTER.json", required_unless_present_any = ["before_runs", "after_runs"])]
    pub after: Option<PathBuf>,
    /// Several runs before
    #[arg(long = "before", id = "before_runs", value_name = "FILE", num_args = 1.., requires = "after_runs")]
    #[arg(conflicts_with_all = ["before", "after"])]
    pub before_runs: Vec<PathBuf>,
    /// Several runs after
    #[arg(long = "after", id = "after_runs", value_name = "FILE", num_args = 1.., requires = "before_runs")]
    #[arg(conflicts_with_all = ["before", "after"])]
    pub after_runs: Vec<PathBuf>,
    /// Probability with which all intervals of a chain contain the true changes
    #[arg(long, value_name = "PERCENT", default_value = "95%", value_parser = values::confidence)]
    pub confidence: f64,
    /// Changes of up to this percentage of a figure do not count
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = values::percent)]
    pub tolerance: f64,
    /// Output format
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}
