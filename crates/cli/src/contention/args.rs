//! Arguments of `tailwater profile contention`.

use crate::headings;
use crate::output::ReportOutput;
use crate::values::{self, Cores};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater profile contention`.
pub const CONTENTION_EXAMPLES: &str = "\
Runs the chain on one core beside synthetic competitors on other cores that share its cache. Records how
much each load slows it down, and how much pressure the chain itself exerts. `tailwater predict` trains
models on the file. Progress, with the time left, is on standard error.

Examples:
  tailwater profile contention chain.yaml
  tailwater profile contention chain.yaml --flows 100000 --points 100 -o edge.contention.yaml
  tailwater predict --target chain.contention.yaml --with nat.contention.yaml

The campaign ends when a model of it errs by less than --error, or when more points do not lower its error.
The file is valid after each point. Ctrl-C ends the campaign within seconds; the same command continues it.

Exit codes: 0 complete; 4 complete, but points stayed disturbed and are flagged; 1 failed or stopped; 2 wrong
input.";

/// Arguments of `tailwater profile contention`.
#[derive(Debug, Args)]
pub struct ContentionArgs {
    /// The chain spec
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: PathBuf,
    /// Capture file or preset that resembles the chain's traffic [default: backbone]
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long, value_name = "FILE|PRESET", conflicts_with = "flows")]
    pub traffic: Option<OsString>,
    /// Measure with uniform traffic of this number of flows instead
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub flows: Option<u32>,
    /// Frame length of uniform traffic in bytes, without check sequence [default: 60]
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long, value_name = "BYTES", requires = "flows")]
    #[arg(value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub frame: Option<u16>,
    /// Campaign to write, or to continue [default: CHAIN.contention.yaml, beside the chain]
    #[arg(help_heading = headings::REPORT)]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Core of the chain [default: the last]
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "N", value_parser = values::core)]
    pub core: Option<usize>,
    /// Cores of competitors and probes [default: all others that share the last-level cache, at most 10]
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub beside: Option<Cores>,
    /// Maximum number of co-runs
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(8..=5000))]
    pub points: u32,
    /// The campaign ends when a model of its throughput errs less, in percent
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "PERCENT", default_value = "1.5", value_parser = values::model_error)]
    pub error: f64,
    /// Measure points again that stayed disturbed
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long)]
    pub retry: bool,
    /// Source of the metrics
    #[arg(help_heading = headings::MACHINE)]
    #[arg(
        long,
        value_name = "probes|counters",
        default_value = "probes",
        hide_possible_values = true
    )]
    pub metrics: MetricsBy,
    /// Length of each run
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "TIME", default_value = "120ms", value_parser = values::run_time)]
    pub run_time: Nanos,
    /// Seed of the competitors' loads, of the traffic's packets and of the flow table's hash
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// File for a page with the sensitivity to each metric, and predicted beside measured throughput
    #[arg(help_heading = headings::REPORT)]
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Output format
    #[arg(help_heading = headings::REPORT)]
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Source of contention metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsBy {
    /// Loops whose slowdown is measured
    Probes,
    /// Counters of the processor
    Counters,
}
