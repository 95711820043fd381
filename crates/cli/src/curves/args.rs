//! Arguments of `tailwater profile latency`, `cache`, `all`, `diff` and `curves`.

use crate::headings;
use crate::output::ReportOutput;
use crate::values;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of the commands that measure.
pub const MEASURE_EXAMPLES: &str = "\
Runs the chain on one core repeatedly for less than a minute. Prints curves, and writes them to a file
beside the chain; a later run replaces the curves that it measures. For throughput over cache the core is
assigned ways of the last-level cache (CAT), or another core that shares the cache occupies the rest of it
(docs/reference/commands/profile-curves.md).

Examples:
  tailwater profile all chain.yaml
  tailwater profile cache chain.yaml --flows 1000000 --frame 60
      Uniform traffic with a million flows instead of a preset or a capture.
  tailwater profile cache chain.yaml --cache-by pirate
      Without resctrl, even if available.
  tailwater profile latency chain.yaml --traffic capture.pcap --report curves.html

Files of docs/ are in the sources of Tailwater and in /usr/share/doc/tailwater of its Debian package.
Ctrl-C ends it within a second, and nothing is written.

Exit codes: 0 measured and written; 4 measured and written, but other programs or guests disturbed it, or noise
leaves doubts (the table marks them); 1 failed or stopped; 2 wrong input.";

/// Arguments of the commands that measure.
#[derive(Debug, Args)]
pub struct MeasureArgs {
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
    /// Latency objective for which to find the highest rate [default: the chain's]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// File of profiles to add to [default: CHAIN.curves.yaml, beside the chain]
    #[arg(help_heading = headings::REPORT)]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Core to measure on [default: the last]
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "N", value_parser = values::core)]
    pub core: Option<usize>,
    /// Method of dividing the cache [default: resctrl if it can assign ways (CAT), or else pirate]
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "resctrl|pirate", hide_possible_values = true)]
    pub cache_by: Option<CacheBy>,
    /// Core of the pirate, which occupies the cache [default: the first other one that shares it]
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "N", value_parser = values::core)]
    pub pirate_core: Option<usize>,
    /// Length of each run
    #[arg(help_heading = headings::MACHINE)]
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = values::run_time)]
    pub run_time: Nanos,
    /// Seed of the traffic's packets and of the flow table's hash
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// Measure with all packets of the traffic, also those that do not match spec.match
    #[arg(help_heading = headings::TRAFFIC)]
    #[arg(long)]
    pub all_packets: bool,
    /// End when the program that started this one ends
    #[arg(long)]
    pub with_parent: bool,
    /// Also write an HTML page with all curves of the file
    #[arg(help_heading = headings::REPORT)]
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Output format
    #[arg(help_heading = headings::REPORT)]
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Method of dividing the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheBy {
    /// The core gets ways of the cache
    Resctrl,
    /// Another core occupies the rest of the cache
    Pirate,
}

/// Help text of `tailwater profile diff`.
pub const PROFILE_DIFF_EXAMPLES: &str = "\
Compares profiles of the same chain and traffic on the same machine point by point, with linear interpolation
where one has no point. Differences within the noise of both values, or within 1 %, are ignored.

Example:
  tailwater profile diff before.curves.yaml after.curves.yaml

Exit codes: 0 no difference, 1 a difference, 2 wrong input.";

/// Arguments of `tailwater profile diff`.
#[derive(Debug, Args)]
pub struct ProfileDiffArgs {
    /// Profiles before
    #[arg(value_name = "A.yaml")]
    pub first: PathBuf,
    /// Profiles after
    #[arg(value_name = "B.yaml")]
    pub second: PathBuf,
}

/// Help text of `tailwater profile curves`.
pub const CURVES_EXAMPLES: &str = "\
Prints the chains of a set of SLOs, for `tailwater place`; add the SLOs by hand.

Examples:
  tailwater profile curves chain.curves.yaml
  tailwater profile curves rack.curves.yaml --machine xeon-45mb --traffic 'backbone, seed 1'
      Profiles of another machine, by its name in the cluster.";

/// Arguments of `tailwater profile curves`.
#[derive(Debug, Args)]
pub struct CurvesArgs {
    /// File of profiles
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Name of the machine on which they were measured [default: this one, by processor and cache]
    #[arg(long, value_name = "NAME", value_parser = values::label)]
    pub machine: Option<String>,
    /// Print only profiles with this traffic
    #[arg(long, value_name = "TEXT")]
    pub traffic: Option<String>,
}
