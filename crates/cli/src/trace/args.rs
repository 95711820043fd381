//! Arguments of `tailwater trace info`, `convert` and `synth`.

use crate::input::LoadArgs;
use crate::packets::args::{PACKETS_EXAMPLES, PacketsArgs};
use crate::values;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_net::Nanos;
use tailwater_traffic::convert::MOST_COPIES;

/// Operations on traffic.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Count packets, flows, rates and bursts of a capture or preset
    #[command(after_help = "\
Examples:
  tailwater trace info capture.pcapng
  tailwater trace info bursty --duration 5s --output json
  tailwater trace info backbone --duration 1m --service-us 5,10,20 --svg bursts.svg
      The effect of bursts on latency for service times of 5, 10 and 20 us per packet.")]
    Info(InfoArgs),
    /// Cut, merge, superpose or speed up captures
    #[command(after_help = "\
Merges captures by time, cuts them, superposes copies, then speeds up the result. Copies have renumbered
flows: the result has more flows, each with its original bursts.

Examples:
  tailwater trace convert capture.pcapng.zst -o second.pcap --from 3s --to 4s
  tailwater trace convert left.pcap right.pcap -o both.pcap
  tailwater trace convert capture.pcap -o busy.pcap --copies 8 --shift 125ms")]
    Convert(ConvertArgs),
    /// Write a preset's packets to a capture file
    #[command(after_help = "\
Example:
  tailwater trace synth backbone -o backbone.pcap --duration 10s --seed 7

Presets: bursty, backbone, as, smooth.")]
    Synth(SynthArgs),
    /// Follow packets of a running chain through its functions
    #[command(after_help = PACKETS_EXAMPLES)]
    Packets(PacketsArgs),
}

/// Arguments of `tailwater trace info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Capture file or preset
    #[arg(value_name = "FILE|PRESET")]
    pub traffic: OsString,
    /// Loading and timing of traffic.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Length of a preset's traffic [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Factor of the number of a preset's flows; their burstiness is preserved
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub flows_scale: f64,
    /// Report the effect of bursts on latency for these service times per packet, such as 5,10,20
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::service)]
    #[arg(conflicts_with = "rate")]
    pub service_us: Vec<Nanos>,
    /// Draw packets, whales (heavy flows) and minnows (light flows) over time
    #[arg(long, value_name = "FILE.svg", conflicts_with = "rate")]
    pub svg: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "text|json", default_value = "text")]
    #[arg(hide_possible_values = true)]
    pub output: InfoOutput,
}

/// Output format of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InfoOutput {
    Text,
    Json,
}

/// Arguments of `tailwater trace convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Captures to read
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Capture file to write; - for standard output
    #[arg(short, long, value_name = "FILE.pcap")]
    pub output: PathBuf,
    /// Skip packets earlier than this after the first
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub from: Option<Nanos>,
    /// Skip packets this late after the first, or later
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub to: Option<Nanos>,
    /// Maximum number of packets to keep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: Option<u64>,
    /// Number of superposed copies, with renumbered flows
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_COPIES)))]
    pub copies: u32,
    /// Delay of each copy after the one before [default: 0]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "copies")]
    pub shift: Option<Nanos>,
    /// Factor of the packet rate
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub speed: f64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(long)]
    pub skip_bad_packets: bool,
}

/// Arguments of `tailwater trace synth`.
#[derive(Debug, Args)]
pub struct SynthArgs {
    /// Preset of the traffic
    #[arg(value_name = "PRESET")]
    pub preset: String,
    /// Capture file to write; - for standard output
    #[arg(short, long, value_name = "FILE.pcap")]
    pub output: PathBuf,
    /// Duration of the capture
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = values::duration)]
    pub duration: Nanos,
    /// Factor of the packet rate
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub rate_scale: f64,
    /// Factor of the number of flows; their burstiness is preserved
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub flows_scale: f64,
    /// Seed of the packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
}
