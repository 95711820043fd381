//! Arguments of `tailwater run`.

use crate::headings;
use crate::input::LoadArgs;
use crate::output::ReportOutput;
use crate::values::{self, Cores};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use tailwater_api::{IsolationMode, PortName};
use tailwater_baselines::catalog::Policy;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;

/// Default descriptors of a queue of the trace NIC.
pub const RING: u32 = 1024;

/// Help text of `tailwater run`.
pub const RUN_EXAMPLES: &str = "\
Traffic is a capture (pcap or pcapng, also gzip or zstd) or a preset. A capture is replayed once, or
repeatedly for a longer --duration, with flows renumbered in each repetition.

Examples:
  tailwater run chain.yaml
      On bursty synthetic traffic for three seconds. `tailwater init` writes a chain.
  tailwater run chain.yaml --traffic capture.pcap.zst --duration 30s --cores 1,2
  tailwater run chain.yaml --report report.html
      A page with charts: latency, bursts, drops, and why packets were late.
  tailwater run chain.yaml --saturate
      Measures the chain's maximum throughput instead of its latency.
  tailwater run chain.yaml --output json --check-slo > report.json
      For scripts: exit code 3 if the objective is missed.

Auxiliary cores absorb bursts:
  tailwater run chain.yaml --traffic backbone --cores 1 --auxiliary 0
      Core 0 takes over load that core 1 cannot process in time, and otherwise sleeps.
With several cores, all policies except static also move RSS buckets between them:
  tailwater run chain.yaml --cores 0,1 --policy rss++
Policies: static, tailwater, netblaze, netblaze-core-static-safe, netblaze-core-static-unsafe,
netblaze-no-core-mapper, netblaze-no-boost, netblaze-server-static-safe,
netblaze-server-static-unsafe, netblaze-on-demand-rss, rss++, metron, quadrant, quadrant-metron,
dyssect.

On ports (docs/how-to/use-ports.md); all but kernel interfaces need --features dpdk:
  tailwater run chain.yaml --port interface=veth0 --port interface=veth1
  tailwater run chain.yaml --port 0000:3b:00.0 --port 0000:3b:00.1 --both-ways

Files of docs/ are in the sources of Tailwater and in /usr/share/doc/tailwater of its Debian package.
Durations take ns, us, ms, s or m. Ctrl-C ends a run with its report; a second one kills the program.

Exit codes: 0 run finished, 1 run failed, 2 wrong input, 3 objective missed (--check-slo).";

/// Arguments of `tailwater run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The chain spec
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: PathBuf,
    /// Capture file or preset [default: bursty]
    #[arg(long, value_name = "FILE|PRESET")]
    #[arg(help_heading = headings::TRAFFIC)]
    pub traffic: Option<OsString>,
    /// Receive from a port instead of traffic; twice: receive from the first, send to the second
    #[arg(long = "port", value_name = "PORT", value_parser = values::port)]
    #[arg(conflicts_with_all = ["traffic", "saturate"])]
    #[arg(help_heading = headings::TRAFFIC)]
    pub ports: Vec<PortName>,
    /// Also process packets of the second port, and send them to the first
    #[arg(long, requires = "ports")]
    #[arg(help_heading = headings::TRAFFIC)]
    pub both_ways: bool,
    /// Receive only frames for the port's own MAC address, multicast and broadcast
    #[arg(long)]
    #[arg(help_heading = headings::TRAFFIC, hide_short_help = true)]
    pub no_promiscuous: bool,
    /// On ports, idle time after which a core sleeps, and the time it sleeps [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::nap)]
    #[arg(help_heading = headings::CORES, hide_short_help = true)]
    pub nap: Option<Nanos>,
    /// Duration of the traffic [default: a capture once, or 3s; from ports until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    #[arg(help_heading = headings::TRAFFIC)]
    pub duration: Option<Nanos>,
    /// Loading and timing of traffic.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Saturate the chain: offer packets as fast as it takes them [duration: 3s]
    #[arg(long, conflicts_with = "rate_scale")]
    #[arg(help_heading = headings::TRAFFIC)]
    pub saturate: bool,
    /// Dedicated cores, such as 1 or 0,2-3 [default: the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    #[arg(help_heading = headings::CORES)]
    pub cores: Option<Cores>,
    /// Auxiliary cores, which take over load that the dedicated cores cannot process in time
    #[arg(long, value_name = "LIST", value_parser = values::cores, conflicts_with = "saturate")]
    #[arg(help_heading = headings::CORES)]
    pub auxiliary: Option<Cores>,
    /// Policy that moves flows and RSS buckets to other cores [default: tailwater with --auxiliary, or static]
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    #[arg(help_heading = headings::CORES)]
    pub policy: Option<Policy>,
    /// Capacity profile of the chain on this machine [default: CHAIN.profile.yaml, or measured now]
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = headings::CORES)]
    pub profile: Option<PathBuf>,
    /// Waiting mode of auxiliary cores; a time: spin that long, then sleep
    #[arg(
        long,
        value_name = "sleep|spin|TIME",
        default_value = "sleep",
        requires = "auxiliary"
    )]
    #[arg(value_parser = values::wait)]
    #[arg(help_heading = headings::CORES, hide_short_help = true)]
    pub wait: Mode,
    /// Descriptors of each NIC queue [default: 1024, or fewer on ports so that they fit the cache]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    #[arg(help_heading = headings::TRAFFIC, hide_short_help = true)]
    pub ring: Option<u32>,
    /// Length of a measurement window
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = values::window)]
    #[arg(help_heading = headings::REPORT, hide_short_help = true)]
    pub window: Nanos,
    /// Format of the report
    #[arg(short, long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    #[arg(help_heading = headings::REPORT)]
    pub output: ReportOutput,
    /// Also write the report as an HTML page with charts
    #[arg(long, value_name = "FILE.html")]
    #[arg(help_heading = headings::REPORT)]
    pub report: Option<PathBuf>,
    /// Record the policy's input and decisions, for `tailwater explain`
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = headings::REPORT, hide_short_help = true)]
    pub record: Option<PathBuf>,
    /// Capture the packets that the chain sends
    #[arg(long, value_name = "FILE.pcap")]
    #[arg(help_heading = headings::REPORT)]
    pub capture_out: Option<PathBuf>,
    /// Keep late, lost and dropped packets, and those before them, in pcapng files of this directory
    #[arg(long, value_name = "DIRECTORY")]
    #[arg(help_heading = headings::REPORT)]
    pub keep_packets: Option<PathBuf>,
    /// Run each function in its own confined process or container (docs/how-to/isolate-functions.md)
    /// [default: spec.isolation, or none]
    #[arg(long, value_name = "none|process|container", hide_possible_values = true)]
    #[arg(help_heading = headings::ISOLATION)]
    pub isolation: Option<Isolated>,
    /// Disable defences of isolation: filter, groups, limits, namespaces, root, server, user; or all
    #[arg(long, value_name = "DEFENCE,...", value_delimiter = ',')]
    #[arg(hide_possible_values = true)]
    #[arg(help_heading = headings::ISOLATION, hide_short_help = true)]
    pub isolation_without: Vec<Defence>,
    /// Functions that stay in this process, trusted, since they share or write something that prevents isolation
    #[arg(long, value_name = "FUNCTION,...", value_delimiter = ',')]
    #[arg(help_heading = headings::ISOLATION, hide_short_help = true)]
    pub isolation_except: Vec<String>,
    /// Maximum increase of the time per packet by isolation: lower values need larger batches [default: 3]
    #[arg(long, value_name = "PERCENT", value_parser = values::percent)]
    #[arg(help_heading = headings::ISOLATION, hide_short_help = true)]
    pub isolation_overhead: Option<f64>,
    /// Serve Prometheus metrics during the run; a port alone means 127.0.0.1
    #[arg(long, value_name = "PORT|ADDR:PORT", value_parser = values::metrics_address)]
    #[arg(help_heading = headings::REPORT)]
    pub metrics: Option<SocketAddr>,
    /// Collector for events and packet traces of the run
    #[arg(long, value_name = "URL")]
    #[arg(help_heading = headings::REPORT, hide_short_help = true)]
    pub otlp: Option<String>,
    /// Exit with code 3 if the objective is missed
    #[arg(long)]
    #[arg(help_heading = headings::REPORT)]
    pub check_slo: bool,
}

/// Isolation of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolated {
    None,
    Process,
    Container,
}

/// Defences around an isolated function. Each can be disabled on a machine that lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Defence {
    All,
    Filter,
    Groups,
    Limits,
    Namespaces,
    Root,
    Server,
    User,
}

impl From<Isolated> for IsolationMode {
    fn from(isolated: Isolated) -> IsolationMode {
        match isolated {
            Isolated::None => IsolationMode::None,
            Isolated::Process => IsolationMode::Process,
            Isolated::Container => IsolationMode::Container,
        }
    }
}

impl From<Defence> for tailwater_api::Defence {
    fn from(defence: Defence) -> tailwater_api::Defence {
        use tailwater_api::Defence as Of;
        match defence {
            Defence::All => Of::All,
            Defence::Filter => Of::Filter,
            Defence::Groups => Of::Groups,
            Defence::Limits => Of::Limits,
            Defence::Namespaces => Of::Namespaces,
            Defence::Root => Of::Root,
            Defence::Server => Of::Server,
            Defence::User => Of::User,
        }
    }
}
