//! Arguments of `tailwater doctor`.

use crate::output::ReportOutput;
use crate::values::{self, Cores};
use clap::Args;
use tailwater_net::Nanos;

/// Help text of `tailwater doctor`.
pub const DOCTOR_EXAMPLES: &str = "\
Prints problems first, each with the latency it costs, where there is a figure for this machine, and with the
command that fixes it. Some checks require root. In a container or a virtual machine it says where to change what
cannot be changed inside.

Examples:
  tailwater doctor
  tailwater doctor --slo 100us --cores 2-3
  sudo tailwater doctor --output json > machine.json
  sudo tailwater doctor --fix
      Asks before each change. All of them last until the next boot, and the commands that undo them are printed.
  sudo tailwater doctor --fix --yes --only huge-pages

Exit codes: 0 the objective is realistic here, 1 nothing could be measured or it was interrupted, 2 wrong input,
3 the objective is not realistic. With --fix: 1 also if a change failed.";

/// Arguments of `tailwater doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Latency objective of the 99th percentile
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = values::duration)]
    pub slo: Nanos,
    /// Cores that will process packets [default: the isolated ones, or the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// Measuring time on the cores
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::watch)]
    pub duration: Nanos,
    /// Read the system's settings only, without measurements
    #[arg(long, conflicts_with = "duration")]
    pub no_measuring: bool,
    /// Change what can be changed until the next boot, after a question for each change; without a terminal, list it
    #[arg(long)]
    pub fix: bool,
    /// Make all changes without questions
    #[arg(long, requires = "fix")]
    pub yes: bool,
    /// Change only what these checks found
    #[arg(long, value_name = "CHECK", requires = "fix", num_args = 1.., value_delimiter = ',')]
    pub only: Vec<String>,
    /// Output format
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}
