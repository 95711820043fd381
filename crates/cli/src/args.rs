//! Command-line arguments.

use crate::curves::{CURVES_EXAMPLES, CurvesArgs, DIFF_EXAMPLES, DiffArgs, MEASURE_EXAMPLES, MeasureArgs};
use crate::values::{self, Cores};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use tailwater_api::PortName;
use tailwater_baselines::catalog::Policy;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;
use tailwater_traffic::convert::MOST_COPIES;

/// Runs chains of network functions and reports whether they meet their latency objectives.
#[derive(Debug, Parser)]
#[command(name = "tailwater", version)]
#[command(after_help = "\
Examples:
  tailwater demo
      What auxiliary cores are for, in fifteen seconds.
  tailwater run examples/acl-nat.yaml
      A chain on bursty synthetic traffic for three seconds.
  tailwater run chain.yaml --traffic capture.pcap --rate-scale 10
      The same chain on a capture, ten times as fast as it was captured.
  tailwater trace info capture.pcap
      Statistics of a capture: flows, rates, bursts.

Details: `tailwater help COMMAND`.")]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what auxiliary cores are for: one bursty load, three policies, side by side
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Run a chain on traffic and report latency, loss and cores
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Measure a chain's capacity on this machine
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Simulate chains on a rack of servers, under several policies
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Check whether SLOs fit on a cluster, and place their instances
    #[command(after_help = PLACE_EXAMPLES)]
    Place(PlaceArgs),
    /// Explain the policy's decisions in a recorded run
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Analyse, convert or generate traffic
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Check whether this machine is suitable for packet processing, and suggest fixes
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Run one function of a chain as a process; started by `tailwater run --isolation process`
    #[command(hide = true)]
    FunctionProcess(FunctionProcessArgs),
    /// Load a shared library and parse its configuration from standard input; started by this program to detect crashes
    #[command(hide = true, name = TRY_LIBRARY)]
    TryLibrary(TryLibraryArgs),
    /// Generate a working function in C or Rust as a starting point
    #[command(after_help = NEW_FUNCTION_EXAMPLES)]
    NewFunction(NewFunctionArgs),
}

/// Arguments of `tailwater function-process`.
#[derive(Debug, Args)]
pub struct FunctionProcessArgs {
    /// The chain spec
    pub chain: PathBuf,
    /// Index of a built-in function in the chain
    #[arg(required_unless_present = "library")]
    pub place: Option<usize>,
    /// Shared library that contains the function instead
    #[arg(long, value_name = "FILE", conflicts_with = "place")]
    pub library: Option<PathBuf>,
}

/// Name of the command with which this program tries out libraries.
pub const TRY_LIBRARY: &str = "try-library";

/// Arguments of `tailwater try-library`.
#[derive(Debug, Args)]
pub struct TryLibraryArgs {
    /// The library's file
    pub library: PathBuf,
}

const NEW_FUNCTION_EXAMPLES: &str = "\
Example:
  tailwater new-function rate-limit --lang c
      Creates the folder rate-limit with a working function, its tests, and a chain that runs it.
      An existing folder is left unchanged.";

/// Arguments of `tailwater new-function`.
#[derive(Debug, Args)]
pub struct NewFunctionArgs {
    /// Name of the function and its directory: lower-case letters, digits and dashes
    pub name: String,
    /// Programming language
    #[arg(long, value_enum)]
    pub lang: Language,
}

/// Programming language of a function.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Language {
    /// C11
    C,
    /// Rust
    Rust,
}

const DEMO_EXAMPLES: &str = "\
The same bursty traffic is run three times: on one core without help (static), and with an auxiliary core
by NetBlaze's policy and by Tailwater's. First it is measured what one core takes of the chain on this
machine; the traffic is scaled to that, so that its average is well below one core and its bursts are not.

On a machine with one core, or one that is too busy to judge, it says so and simulates the same experiment.

Examples:
  tailwater demo
  tailwater demo --simulate
      In virtual time, on any machine, each time with the same result.
  tailwater demo chain.yaml --traffic as --slo 500us --report demo.html
      Another chain; a page with charts.

Exit codes: 0 the comparison is printed, whoever keeps the objective, 1 it failed, 2 wrong input.";

/// Arguments of `tailwater demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The chain spec [default: an access list, a URL filter and encryption, built in]
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: Option<PathBuf>,
    /// A capture file, or a preset; its rate is scaled
    #[arg(long, value_name = "FILE|PRESET", default_value = "bursty")]
    pub traffic: OsString,
    /// The latency objective [default: the chain's; of the built-in chain, 200 packets' time of one core]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// Length of each of the three runs, in seconds
    #[arg(long, value_name = "N", default_value = "2", value_parser = values::demo_seconds)]
    pub seconds: Nanos,
    /// Simulate; nothing is measured here but the costs of a chain of your own
    #[arg(long)]
    pub simulate: bool,
    /// Also write a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// A table for people, or JSON for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

const RUN_EXAMPLES: &str = "\
Traffic is a capture (pcap or pcapng, also gzip or zstd) or a preset. A capture is replayed once, or
repeatedly for a longer --duration, with flows renumbered in each repetition.

Examples:
  tailwater run examples/acl-nat.yaml
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
netblaze-server-static-unsafe, netblaze-on-demand-rss, rss++.

On ports, in a program built with --features dpdk (docs/how-to/use-ports.md):
  tailwater run chain.yaml --port 0000:3b:00.0 --port 0000:3b:00.1 --both-ways
  tailwater run chain.yaml --port net_af_packet0,iface=veth0 --port net_af_packet1,iface=veth1

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
    pub traffic: Option<OsString>,
    /// Receive from a port instead of traffic; twice: receive from the first, send to the second
    #[arg(long = "port", value_name = "PORT", value_parser = values::port)]
    #[arg(conflicts_with_all = ["traffic", "saturate"])]
    pub ports: Vec<PortName>,
    /// Also process packets of the second port, and send them to the first
    #[arg(long, requires = "ports")]
    pub both_ways: bool,
    /// Receive only frames for the port's own MAC address, multicast and broadcast
    #[arg(long)]
    pub no_promiscuous: bool,
    /// On ports, idle time after which a core sleeps, and the time it sleeps [default: never]
    #[arg(long, value_name = "TIME", value_parser = values::nap)]
    pub nap: Option<Nanos>,
    /// Duration of the traffic [default: a capture once, or 3s; from ports until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Loading and timing of traffic.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Saturate the chain: offer packets as fast as it takes them [duration: 3s]
    #[arg(long, conflicts_with = "rate_scale")]
    pub saturate: bool,
    /// Dedicated cores, such as 1 or 0,2-3 [default: the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// Auxiliary cores, which take over load that the dedicated cores cannot process in time
    #[arg(long, value_name = "LIST", value_parser = values::cores, conflicts_with = "saturate")]
    pub auxiliary: Option<Cores>,
    /// Policy that moves flows and RSS buckets to other cores [default: tailwater with --auxiliary, or static]
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    pub policy: Option<Policy>,
    /// Capacity profile of the chain on this machine [default: CHAIN.profile.yaml, or measured now]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Waiting mode of auxiliary cores; a time: spin that long, then sleep
    #[arg(
        long,
        value_name = "sleep|spin|TIME",
        default_value = "sleep",
        requires = "auxiliary"
    )]
    #[arg(value_parser = values::wait)]
    pub wait: Mode,
    /// Descriptors of each NIC queue [default: 1024, or fewer on ports so that they fit the cache]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub ring: Option<u32>,
    /// Length of a measurement window
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = values::window)]
    pub window: Nanos,
    /// Format of the report
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
    /// Also write the report as an HTML page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Record the policy's input and decisions, for `tailwater explain`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Capture the packets that the chain sends
    #[arg(long, value_name = "FILE.pcap")]
    pub capture_out: Option<PathBuf>,
    /// Run each function in its own confined process or container (docs/how-to/isolate-functions.md)
    #[arg(long, value_name = "none|process|container", default_value = "none")]
    #[arg(hide_possible_values = true, conflicts_with = "auxiliary")]
    pub isolation: Isolated,
    /// Disable defences around isolated functions: filter, groups, limits, namespaces, root, user; or all
    #[arg(long, value_name = "DEFENCE,...", value_delimiter = ',')]
    #[arg(hide_possible_values = true)]
    pub isolation_without: Vec<Defence>,
    /// Functions that stay in this process, trusted, since they share or write something that prevents isolation
    #[arg(long, value_name = "FUNCTION,...", value_delimiter = ',')]
    pub isolation_except: Vec<String>,
    /// Maximum increase of the time per packet by isolation: lower values need larger batches [default: 3]
    #[arg(long, value_name = "PERCENT", value_parser = values::percent)]
    pub isolation_overhead: Option<f64>,
    /// Serve Prometheus metrics during the run; a port alone means 127.0.0.1
    #[arg(long, value_name = "PORT|ADDR:PORT", value_parser = values::metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// Exit with code 3 if the objective is missed
    #[arg(long)]
    pub check_slo: bool,
}

/// Loading, generation and timing of traffic.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Factor of the replay rate
    #[arg(long, value_name = "X", value_parser = values::scale, allow_negative_numbers = true)]
    pub rate_scale: Option<f64>,
    /// Ignore timestamps, and send packets evenly at this rate
    #[arg(long, value_name = "PPS", value_parser = values::rate, allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Seed of a preset's packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Skip empty and oversized packets instead of refusing the capture
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// Memory limit for packets
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = values::bytes)]
    pub memory_limit: u64,
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
    User,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportOutput {
    Table,
    Json,
}

/// Measurements of a chain.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Measure the capacity of one core within the objective, for policies that offload work
    #[command(after_help = CAPACITY_EXAMPLES)]
    Capacity(CapacityArgs),
    /// Measure latency over load, and the highest rates without loss and within the objective
    #[command(after_help = MEASURE_EXAMPLES)]
    Latency(MeasureArgs),
    /// Measure throughput over the chain's share of the last-level cache
    #[command(after_help = MEASURE_EXAMPLES)]
    Cache(MeasureArgs),
    /// Measure both: latency over load, throughput over cache
    #[command(after_help = MEASURE_EXAMPLES)]
    All(MeasureArgs),
    /// Compare two files of curves, and print differences beyond their noise
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Print curves in the input format of `tailwater place`
    #[command(after_help = CURVES_EXAMPLES)]
    Curves(CurvesArgs),
}

const CAPACITY_EXAMPLES: &str = "\
Runs the chain on one core, on traffic and on synthetic packets, for less than a minute. Prints its
capacity, and writes it beside the chain, where `tailwater run` finds it.

Examples:
  tailwater profile capacity examples/acl-nat.yaml
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

const SIMULATE_EXAMPLES: &str = "\
Runs each policy on the same rack, chains and packets, in virtual time: once per objective and seed.
Runs are parallel on all cores; the results do not depend on that.

Examples:
  tailwater simulate examples/rack.yaml
  tailwater simulate rack.yaml --policy netblaze,tailwater --slo 500us
  tailwater simulate rack.yaml --slo 100us,200us,500us --seed 1,2,3 --output csv > sweep.csv
  tailwater simulate rack.yaml --traffic capture.pcap --output json > comparison.json
  tailwater simulate rack.yaml --report report.html --resume runs.jsonl
      A page with charts; a restart after Ctrl-C skips finished runs.
  tailwater simulate rack.yaml --find servers --seed 1,2,3,4,5
      The fewest servers that meet all objectives, and the number of seeds for which they do.
Policies: static, rss++, metron, quadrant, quadrant-metron, dyssect, netblaze,
netblaze-core-static-safe, netblaze-core-static-unsafe, netblaze-server-static-safe,
netblaze-server-static-unsafe, netblaze-no-core-mapper, netblaze-no-boost,
netblaze-on-demand-rss, tailwater; and oracle: a lower bound on the cores of any policy.

Ctrl-C ends it within a second, with the results so far.";

/// Arguments of `tailwater simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Rack with its chains and their traffic
    #[arg(value_name = "RACK.yaml")]
    pub rack: PathBuf,
    /// Capture file or preset for all chains [default: the rack's]
    #[arg(long, value_name = "FILE|PRESET")]
    pub traffic: Option<OsString>,
    /// Policies, such as netblaze,tailwater [default: the rack's, or all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::rack_policy)]
    pub policy: Vec<&'static str>,
    /// Seeds of presets and of all other randomness, such as 1,2,3 [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::seed)]
    pub seed: Vec<u64>,
    /// Latency objectives of all chains, such as 100us,200us [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::slo)]
    pub slo: Vec<Nanos>,
    /// Duration of the traffic [default: the rack's]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Search for the fewest servers, the highest rate or the tightest SLO that meets all objectives [policy:
    /// tailwater]
    #[arg(long, value_name = "servers|rate|slo", conflicts_with = "report")]
    #[arg(hide_possible_values = true)]
    pub find: Option<Find>,
    /// Also write an HTML page with charts of all policies
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Save each run's result in this file; on a restart, skip the saved runs
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Output format
    #[arg(long, value_name = "table|json|csv", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: SimulateOutput,
}

/// Goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Find {
    Servers,
    Rate,
    Slo,
}

/// Output format of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimulateOutput {
    Table,
    Json,
    Csv,
}

const PLACE_EXAMPLES: &str = "\
Admits SLOs in the order of their file. Each gets instances with dedicated cores and ways of cache, or the
reason for the denial and the nearest SLO that would fit. With a state, running instances stay where they
are, except for changed SLOs and removed servers.

Examples:
  tailwater place examples/place/slos.yaml --cluster examples/place/cluster.yaml
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json
      Places only new and changed SLOs; removes SLOs that are no longer in the file.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --optimal --saving 5%
      Also the plan with the fewest servers, and the migration to it, if it saves enough; --apply writes
      it to the state. Only in builds with the feature `milp`.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --done 3
      Marks the steps of --migrate up to number 3 as done, and prints the remaining ones.
Exit codes: 0 all SLOs admitted, 2 wrong input, 3 an SLO was denied.";

/// Arguments of `tailwater place`.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// SLOs, and their chains' curves
    #[arg(value_name = "SLOS.yaml")]
    pub slos: PathBuf,
    /// Servers of the cluster
    #[arg(long, value_name = "CLUSTER.yaml")]
    pub cluster: PathBuf,
    /// File with the previous placement, which is updated; created if missing
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Scheduler
    #[arg(long, value_name = "tailwater|resq-greedy", default_value = "tailwater")]
    #[arg(hide_possible_values = true)]
    pub scheduler: PlaceScheduler,
    /// Also search for the plan with the fewest servers, and for the migration to it (feature `milp`)
    #[arg(long)]
    pub optimal: bool,
    /// Time limit of the search
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::search)]
    #[arg(requires = "optimal")]
    pub time: Nanos,
    /// Minimum saving for a proposal: servers, or a percentage of those in use
    #[arg(long, value_name = "N|P%", default_value = "1", value_parser = values::saving)]
    #[arg(requires = "optimal")]
    pub saving: Saving,
    /// Apply the proposed plan to the state
    #[arg(long, requires = "optimal", requires = "state")]
    pub apply: bool,
    /// Add the migration to the proposed plan to the state, to be done step by step
    #[arg(long, requires = "optimal", requires = "state", conflicts_with = "apply")]
    pub migrate: bool,
    /// Mark the steps of the state's migration up to number N as done
    #[arg(long, value_name = "N", requires = "state")]
    pub done: Option<u64>,
    /// Abandon the rest of the state's migration, except for drains of instances that already have a successor
    #[arg(long, requires = "state")]
    pub abandon: bool,
    /// Output format
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Scheduler that places instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlaceScheduler {
    Tailwater,
    ResqGreedy,
}

const EXPLAIN_EXAMPLES: &str = "\
Explains the worst episodes: times in which a dedicated core had more packets than it can process in an
epoch. For each: the waiting packets, and the policy's decisions with their times.

Examples:
  tailwater run chain.yaml --cores 1 --auxiliary 0 --record run.decisions
  tailwater explain run.decisions
  tailwater explain run.decisions --late 3 --policy netblaze
      Also the decisions of another policy for the same queues.";

/// Arguments of `tailwater explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// File written by `tailwater run --record`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Number of the worst episodes to explain
    #[arg(long, value_name = "N", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=1000))]
    pub late: u16,
    /// Replay the recorded observations to another policy, and print its differing decisions
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    pub policy: Option<Policy>,
    /// Output format
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

const DOCTOR_EXAMPLES: &str = "\
Prints problems first, each with the command that fixes it. Some checks require root.

Examples:
  tailwater doctor
  tailwater doctor --slo 100us --cores 2-3
  sudo tailwater doctor --output json > machine.json

Exit codes: 0 the objective is realistic here, 1 nothing could be measured, 2 wrong input,
3 the objective is not realistic.";

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
    /// Output format
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

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
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = crate::trace::service)]
    #[arg(conflicts_with = "rate")]
    pub service_us: Vec<Nanos>,
    /// Draw packets, whales (heavy flows) and minnows (light flows) over time
    #[arg(long, value_name = "FILE.svg", conflicts_with = "rate")]
    pub svg: Option<PathBuf>,
    /// Output format
    #[arg(long, value_name = "text|json", default_value = "text")]
    #[arg(hide_possible_values = true)]
    pub output: InfoOutput,
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

/// Output format of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InfoOutput {
    Text,
    Json,
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
