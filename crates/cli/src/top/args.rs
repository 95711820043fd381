//! Arguments of `tailwater top`.
#![cfg_attr(not(feature = "top"), allow(dead_code, reason = "the command is refused"))]

use crate::control::args::SocketArgs;
use crate::values;
use clap::Args;
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater top`.
pub const TOP_EXAMPLES: &str = "\
Examples:
  tailwater top
      The chains of the server on this machine. h shows the keys, q ends it.
  tailwater top run.json
      A run that has ended, over its time: a report of `tailwater run --output json`.
  tailwater top --once
      One screen as text, for scripts and logs.
  tailwater top --once --chain edge
      The functions of a chain, and why its packets are late.

Exit codes: 0 ended, 1 no server, 2 wrong input.";

/// Arguments of `tailwater top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Report of a run in JSON, instead of a server
    #[arg(value_name = "REPORT.json", conflicts_with = "socket")]
    pub report: Option<PathBuf>,
    /// Open this chain first
    #[arg(long, value_name = "NAME")]
    pub chain: Option<String>,
    /// Time between two looks at the server
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::window)]
    pub interval: Nanos,
    /// Print one screen as text, and end
    #[arg(long)]
    pub once: bool,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}
