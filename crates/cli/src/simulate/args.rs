//! Arguments of `tailwater simulate`.

use crate::values;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;
use tailwater_sim::spec::SimulationModel;

/// Help text of `tailwater simulate`.
pub const SIMULATE_EXAMPLES: &str = "\
Runs each policy on the same rack, chains and packets, in virtual time: once per objective and seed.
Runs are parallel on all cores; the results do not depend on that.

Examples:
  tailwater simulate rack.yaml
      `tailwater init --rack` writes one.
  tailwater simulate rack.yaml --policy netblaze,tailwater --slo 500us
  tailwater simulate rack.yaml --slo 100us,200us,500us --seed 1,2,3 --output csv > sweep.csv
  tailwater simulate rack.yaml --traffic capture.pcap --output json > comparison.json
  tailwater simulate rack.yaml --report report.html --resume runs.jsonl
      A page with charts; a restart after Ctrl-C skips finished runs.
  tailwater simulate rack.yaml --find servers --seed 1,2,3,4,5
      The fewest servers that meet all objectives, and the number of seeds for which they do.
  tailwater simulate examples/data-centre.yaml --duration 10s
      1,000 servers and 500 chains, with rates and backlogs instead of packets.
Files of examples/ are in the sources of Tailwater and in /usr/share/doc/tailwater of its Debian package.
Policies: static, rss++, metron, quadrant, quadrant-metron, dyssect, netblaze,
netblaze-core-static-safe, netblaze-core-static-unsafe, netblaze-server-static-safe,
netblaze-server-static-unsafe, netblaze-no-core-mapper, netblaze-no-boost,
netblaze-on-demand-rss, tailwater; and oracle: a lower bound on the cores of any policy.

Ctrl-C ends it within a second, with the results so far.";

/// Arguments of `tailwater simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Rack with its chains and their traffic
    #[arg(value_name = "RACK.yaml")]
    pub rack: PathBuf,
    /// Every packet, or rates and backlogs of large racks [default: the rack's, or packets]
    #[arg(long, value_name = "packets|flows", value_parser = values::simulation_model)]
    pub model: Option<SimulationModel>,
    /// Capture file or preset for all chains [default: the rack's]
    #[arg(long, value_name = "FILE|PRESET")]
    pub traffic: Option<OsString>,
    /// Policies, such as netblaze,tailwater [default: the rack's, or all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::rack_policy)]
    pub policy: Vec<&'static str>,
    /// Seeds of presets and of all other randomness, such as 1,2,3 [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::seed)]
    pub seed: Vec<u64>,
    /// Latency objectives of all chains, such as 100us,200us [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::slo)]
    pub slo: Vec<Nanos>,
    /// Duration of the traffic [default: the rack's]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Search for the fewest servers, the highest rate or the tightest SLO that meets all objectives [policy:
    /// tailwater]
    #[arg(long, value_name = "servers|rate|slo", conflicts_with = "report")]
    #[arg(hide_possible_values = true)]
    pub find: Option<Find>,
    /// Also write an HTML page with charts of all policies
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Save each run's result in this file; on a restart, skip the saved runs
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "table|json|csv", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: SimulateOutput,
}

impl SimulateArgs {
    /// Returns the seeds of all runs: the given ones, or the rack's.
    pub fn seeds(&self, of_rack: u64) -> Vec<u64> {
        match &self.seed[..] {
            [] => vec![of_rack],
            seeds => seeds.to_vec(),
        }
    }
}

/// Goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Find {
    Servers,
    Rate,
    Slo,
}

/// Output format of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimulateOutput {
    Table,
    Json,
    Csv,
}
