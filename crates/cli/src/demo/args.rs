//! Arguments of `tailwater demo`.

use crate::output::ReportOutput;
use crate::values;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater demo`.
pub const DEMO_EXAMPLES: &str = "\
The same bursty traffic is run three times: on one core without help (static), and with an auxiliary core
by NetBlaze's policy and by Tailwater's. First it is measured what one core takes of the chain on this
machine; the traffic is scaled to that, so that its average is well below one core and its bursts are not.

On a machine with one core, or one that is too busy to judge, it says so and simulates the same experiment.

Examples:
  tailwater demo
  tailwater demo --simulate
      In virtual time, on any machine, each time with the same result.
  tailwater demo chain.yaml --traffic as --slo 500us --report demo.html
      Another chain; a page with charts.

Exit codes: 0 the comparison is printed, whoever keeps the objective, 1 it failed, 2 wrong input.";

/// Arguments of `tailwater demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The chain spec [default: an access list, a URL filter and encryption, built in]
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: Option<PathBuf>,
    /// A capture file, or a preset; its rate is scaled
    #[arg(long, value_name = "FILE|PRESET", default_value = "bursty")]
    pub traffic: OsString,
    /// The latency objective [default: the chain's; of the built-in chain, 200 packets' time of one core]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// Length of each of the three runs, in seconds
    #[arg(long, value_name = "N", default_value = "2", value_parser = values::demo_seconds)]
    pub seconds: Nanos,
    /// Simulate; nothing is measured here but the costs of a chain of your own
    #[arg(long)]
    pub simulate: bool,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// A table for people, or JSON for programs
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}
