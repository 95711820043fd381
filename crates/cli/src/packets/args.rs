//! Arguments of `tailwater trace packets`.
#![cfg_attr(not(feature = "control"), allow(dead_code, reason = "the command is refused"))]

use crate::control::args::SocketArgs;
use crate::values;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater trace packets`.
pub const PACKETS_EXAMPLES: &str = "\
Examples:
  tailwater trace packets --chain edge
      The next ten packets of a running chain, function by function.
  tailwater trace packets --chain edge --match 'tcp port 443 and host 192.0.2.1' --count 20
  tailwater trace packets --chain edge --count 100 --write trace.pcapng
      For Wireshark: each packet in front of the chain and behind each function, with a comment.

Exit codes: 0 done, 1 no such chain, no server, or fewer packets in time, 2 wrong input.";

/// Arguments of `tailwater trace packets`.
#[derive(Debug, Args)]
pub struct PacketsArgs {
    /// Chain of a running server
    #[arg(long, value_name = "NAME")]
    pub chain: String,
    /// Packets to follow, as tcpdump has it: tcp, port, host, net, src, dst, and, or, not [default: all]
    #[arg(long = "match", value_name = "FILTER", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Number of packets
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub count: u32,
    /// Longest time to wait for them
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = values::duration)]
    pub longest: Nanos,
    /// Format
    #[arg(
        short = 'o',
        long,
        value_name = "text|json",
        default_value = "text",
        hide_possible_values = true
    )]
    pub output: PacketsOutput,
    /// Also write the packets to this pcapng file
    #[arg(short = 'w', long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Format of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PacketsOutput {
    /// A paragraph for each packet.
    Text,
    /// A JSON document on a line for each step.
    Json,
}
