//! Arguments of the commands that talk to a server.
#![cfg_attr(not(feature = "control"), allow(dead_code, reason = "the commands are refused"))]

use crate::values;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tailwater_net::Nanos;

/// Help text of `tailwater apply`.
pub const APPLY_EXAMPLES: &str = "\
Applies chains to a running server: all of them, or, if one is refused, none. Chains that are not
mentioned stay as they are.

Examples:
  tailwater apply -f chain.yaml
  tailwater apply -f chains/ --dry-run=server
      Checks all chains of a folder, also whether they fit, and changes nothing.
  tailwater apply -f chain.yaml --force
      Runs a chain that does not fit, without a promise.

Exit codes: 0 applied, 1 refused or failed, 2 wrong input.";

/// Help text of `tailwater get`.
pub const GET_EXAMPLES: &str = "\
Examples:
  tailwater get chains
  tailwater get chains edge -o yaml
  tailwater get chains -o wide --watch
      A line for each change, until Ctrl-C.
  tailwater get ports
      Packets that arrive, and those lost before their chain is known.

Exit codes: 0 done, 1 no such chain or port or no server, 2 wrong input.";

/// Help text of `tailwater describe`.
pub const DESCRIBE_EXAMPLES: &str = "\
Examples:
  tailwater describe chain edge
      Status, conditions, latest events and specification.

Exit codes: 0 done, 1 no such chain or no server, 2 wrong input.";

/// Help text of `tailwater delete`.
pub const DELETE_EXAMPLES: &str = "\
Deletes chains from a server: all of them, or none. They process the packets that they have, and end.

Examples:
  tailwater delete chain edge core
  tailwater delete -f chain.yaml

Exit codes: 0 deleted, 1 no such chain or failed, 2 wrong input.";

/// Help text of `tailwater drain`.
pub const DRAIN_EXAMPLES: &str = "\
Stops a chain after the packets that it has. It stays on the server, and starts again when it is applied.

Examples:
  tailwater drain chain edge

Exit codes: 0 draining, 1 no such chain or failed, 2 wrong input.";

/// Help text of `tailwater events`.
pub const EVENTS_EXAMPLES: &str = "\
Examples:
  tailwater events
  tailwater events --chain edge --watch
      Also new ones, until Ctrl-C.

Exit codes: 0 done, 1 no server, or events lost since this was too slow, 2 wrong input.";

/// Server to talk to.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Control socket [default: the only one in $XDG_RUNTIME_DIR/tailwater or /run/tailwater]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Arguments of `tailwater apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Files of chains, folders of them, or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Check on the server, and change nothing
    #[arg(
        long,
        value_name = "none|server",
        default_value = "none",
        hide_possible_values = true
    )]
    pub dry_run: DryRun,
    /// Run chains that do not fit, without a promise
    #[arg(long)]
    pub force: bool,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Arguments of `tailwater get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Kind of objects
    #[arg(value_name = "chains|ports", hide_possible_values = true)]
    pub kind: GetKind,
    /// Name of a chain or port
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Format
    #[arg(short = 'o', long, value_name = "table|wide|json|yaml", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: Format,
    /// Then print changes until Ctrl-C
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// With --watch, print all chains with their last window at this interval instead; of ports [default: 1s]
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = values::window)]
    pub interval: Option<Nanos>,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Arguments of `tailwater describe`.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Kind of the object
    #[arg(value_name = "chain", hide_possible_values = true)]
    pub kind: Kind,
    /// Name of the chain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Arguments of `tailwater delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Kind of the objects
    #[arg(value_name = "chain", hide_possible_values = true, requires = "names")]
    pub kind: Option<Kind>,
    /// Names of chains
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Chains of these files or folders, or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    #[arg(conflicts_with = "kind", required_unless_present = "kind")]
    pub files: Vec<PathBuf>,
    /// Check on the server, and change nothing
    #[arg(
        long,
        value_name = "none|server",
        default_value = "none",
        hide_possible_values = true
    )]
    pub dry_run: DryRun,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Arguments of `tailwater drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Kind of the object
    #[arg(value_name = "chain", hide_possible_values = true)]
    pub kind: Kind,
    /// Name of the chain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Arguments of `tailwater events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only events of this chain
    #[arg(long, value_name = "NAME")]
    pub chain: Option<String>,
    /// Then print new events until Ctrl-C
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Format
    #[arg(short = 'o', long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: EventFormat,
    /// The server.
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Kind of objects on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Chains.
    #[value(name = "chains", alias = "chain")]
    Chains,
}

/// Kind of objects that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GetKind {
    /// Chains.
    #[value(name = "chains", alias = "chain")]
    Chains,
    /// Ports.
    #[value(name = "ports", alias = "port")]
    Ports,
}

/// Where a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// Carried out.
    None,
    /// Checked by the server.
    Server,
}

impl DryRun {
    /// Returns `true` if nothing changes.
    pub fn is_dry(self) -> bool {
        self == DryRun::Server
    }

    /// Text behind a result.
    pub fn suffix(self) -> &'static str {
        if self.is_dry() { " (server dry run)" } else { "" }
    }
}

/// Format of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns that fit a terminal.
    Table,
    /// All columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EventFormat {
    /// Columns.
    Table,
    /// A JSON document on each line.
    Json,
}
