//! Arguments of `tailwater profile capacity`.

use crate::output::ReportOutput;
use crate::values;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater profile capacity`.
pub const CAPACITY_EXAMPLES: &str = "\
Runs the chain on one core, on traffic and on synthetic packets, for less than a minute. Prints its
capacity, and writes it beside the chain, where `tailwater run` finds it.

Examples:
  tailwater profile capacity chain.yaml
  tailwater profile capacity chain.yaml --traffic capture.pcap --slo 500us -o slow.profile.yaml

Ctrl-C ends it within a second, and nothing is written.";

/// Arguments of `tailwater profile capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// The chain spec
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: PathBuf,
    /// Latency objective to measure for [default: the chain's]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// Capture file or preset that resembles the chain's traffic
    #[arg(long, value_name = "FILE|PRESET", default_value = "backbone")]
    pub traffic: OsString,
    /// Profile to write [default: CHAIN.profile.yaml, beside the chain]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Core to measure on [default: the last]
    #[arg(long, value_name = "N", value_parser = values::core)]
    pub core: Option<usize>,
    /// Seed of a preset's packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// Output format
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}
