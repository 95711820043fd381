//! Arguments of `tailwater serve`.

use crate::headings;
use crate::output::ReportOutput;
use crate::values::{self, Cores};
use clap::Args;
use std::path::PathBuf;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// Help text of `tailwater serve`.
pub const SERVE_EXAMPLES: &str = "\
A server has cores and ports, and runs any number of chains on them. A chain gets the packets of its
spec.match; the most specific match wins.

Examples:
  tailwater serve server.yaml
      `tailwater init --server` writes one.
  tailwater serve server.yaml --duration 10s --output json
  tailwater serve server.yaml --take-over
While it runs, from another terminal:
  tailwater apply -f chain.yaml
  tailwater get chains --watch
  tailwater drain chain edge

Ctrl-C ends the server with a report of all chains.

Exit codes: 0 ended on request, 1 failed, 2 wrong input.";

/// Arguments of `tailwater serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The server spec
    #[arg(value_name = "SERVER.yaml")]
    pub server: PathBuf,
    /// Dedicated cores, in place of those of the spec
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    #[arg(help_heading = headings::CORES)]
    pub cores: Option<Cores>,
    /// Auxiliary cores that all chains share, in place of those of the spec
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    #[arg(help_heading = headings::CORES)]
    pub auxiliary: Option<Cores>,
    /// Waiting mode of auxiliary cores; a time: spin that long, then sleep
    #[arg(long, value_name = "sleep|spin|TIME", default_value = "sleep", value_parser = values::wait)]
    #[arg(help_heading = headings::CORES, hide_short_help = true)]
    pub wait: Mode,
    /// End after this time [default: on Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Idle time after which a core sleeps, and the time it sleeps [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::nap)]
    #[arg(help_heading = headings::CORES, hide_short_help = true)]
    pub nap: Option<Nanos>,
    /// Collector for events and packet traces, in place of that of the spec
    #[arg(long, value_name = "URL")]
    #[arg(help_heading = headings::REPORT, hide_short_help = true)]
    pub otlp: Option<String>,
    /// Take over from the running server: its chains, flows, ports' positions and counters
    #[arg(long)]
    pub take_over: bool,
    /// With --take-over: let functions begin anew whose state cannot pass over
    #[arg(long, requires = "take_over")]
    pub lose_state: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    #[arg(help_heading = headings::REPORT)]
    pub output: ReportOutput,
}
