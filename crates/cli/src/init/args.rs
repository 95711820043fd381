//! Arguments of `tailwater init`.

use crate::values;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tailwater_api::PortName;
use tailwater_dataplane::cores::{default_core, format_list, isolated};
use tailwater_net::Nanos;

/// Help text of `tailwater init`.
pub const INIT_EXAMPLES: &str = "\
Writes a commented chain that runs at once on synthetic traffic. On a terminal it asks for the settings that no option
gives; Enter takes the default.

Examples:
  tailwater init
  tailwater init edge.yaml --functions acl,nat --slo 200us --yes
  tailwater init --server --cores 1 --yes
      Also writes server.yaml, which serves the chain.
  tailwater init --rack --yes
      Also writes rack.yaml, which simulates the chain on two servers.

Exit codes: 0 written; 2 wrong input, a folder that is missing or may not be written, or a file that exists (--force
overwrites it); 1 a full or broken disk.";

/// Arguments of `tailwater init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The chain to write
    #[arg(value_name = "CHAIN.yaml", default_value = "chain.yaml")]
    pub file: PathBuf,
    /// Name of the chain [default: that of the file]
    #[arg(long, value_name = "NAME", value_parser = values::label)]
    pub name: Option<String>,
    /// Functions in order [default: acl,nat]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub functions: Option<Vec<FirstFunction>>,
    /// Latency objective of the 99th percentile [default: 200us]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// Capture or preset in the printed commands, and of a server without --port [default: bursty]
    #[arg(long, value_name = "FILE|PRESET")]
    pub traffic: Option<OsString>,
    /// Also write server.yaml beside the chain
    #[arg(long)]
    pub server: bool,
    /// Cores of the server [default: the isolated ones, or the last]
    #[arg(long, value_name = "LIST", requires = "server", value_parser = values::cores)]
    pub cores: Option<values::Cores>,
    /// Port of the server, such as 0000:3b:00.0 or interface=eth1 [default: synthetic traffic]
    #[arg(long, value_name = "PORT", requires = "server", value_parser = values::port)]
    pub port: Option<PortName>,
    /// Also write rack.yaml beside the chain, for `tailwater simulate`
    #[arg(long)]
    pub rack: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
    /// Ask nothing; settings without an option have their defaults
    #[arg(short, long)]
    pub yes: bool,
}

/// Functions that a first chain can have without further files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FirstFunction {
    /// Forwards every packet
    Forward,
    /// Access list
    Acl,
    /// Address translation
    Nat,
    /// Load balancer
    LoadBalancer,
    /// Rate limits
    Policer,
    /// Counts packets and bytes by flow
    Accounting,
}

/// Returns the default cores of a server: the isolated ones, or the last.
pub(super) fn default_cores() -> String {
    match isolated() {
        none if none.is_empty() => default_core().to_string(),
        isolated => format_list(&isolated),
    }
}
