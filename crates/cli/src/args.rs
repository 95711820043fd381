//! The command line.

use crate::curves::{CURVES_EXAMPLES, CurvesArgs, DIFF_EXAMPLES, DiffArgs, MEASURE_EXAMPLES, MeasureArgs};
use crate::values::{self, Cores};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use tailwater_api::PortName;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;
use tailwater_policy::catalog::Policy;
use tailwater_traffic::convert::MOST_COPIES;

/// Runs chains of network functions and tells whether they keep their latency objectives.
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
      What is in a capture: flows, rates, bursts.

`tailwater help COMMAND` tells more.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what auxiliary cores are for: one bursty load, three policies, side by side
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Run a chain on traffic and report latency, loss and cores
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Measure what a chain can do on this machine
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Simulate chains on a rack of servers, under several policies
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Tell whether SLOs fit on a cluster, and where their instances go
    #[command(after_help = PLACE_EXAMPLES)]
    Place(PlaceArgs),
    /// Tell what the policy of a recorded run saw and did
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Look at traffic, or make some
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Tell whether this machine is fit for packets, and what to do about it
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// One function of a chain, as a process: started by `tailwater run --isolation process`
    #[command(hide = true)]
    FunctionProcess(FunctionProcessArgs),
    /// Load a shared library and have it read its configuration, from standard input: started by this program, to see
    /// whether
    /// it survives
    #[command(hide = true, name = TRY_LIBRARY)]
    TryLibrary(TryLibraryArgs),
    /// Write a working function to begin with, in C or Rust
    #[command(after_help = NEW_FUNCTION_EXAMPLES)]
    NewFunction(NewFunctionArgs),
}

/// What `tailwater function-process` is told.
#[derive(Debug, Args)]
pub struct FunctionProcessArgs {
    /// The chain spec
    pub chain: PathBuf,
    /// The place in it of a function that is built in
    #[arg(required_unless_present = "library")]
    pub place: Option<usize>,
    /// The shared library that the function is in, rather
    #[arg(long, value_name = "FILE", conflicts_with = "place")]
    pub library: Option<PathBuf>,
}

/// The command by which this program tries out libraries.
pub const TRY_LIBRARY: &str = "try-library";

/// What `tailwater try-library` is told.
#[derive(Debug, Args)]
pub struct TryLibraryArgs {
    /// The library's file
    pub library: PathBuf,
}

const NEW_FUNCTION_EXAMPLES: &str = "\
Example:
  tailwater new-function rate-limit --lang c
      Makes the folder rate-limit: a function that builds, its tests, and a chain that runs it.
      What is there already is left alone.";

/// What `tailwater new-function` is told.
#[derive(Debug, Args)]
pub struct NewFunctionArgs {
    /// Its name, which is the folder's, too: lower-case letters, digits and dashes
    pub name: String,
    /// The language
    #[arg(long, value_enum)]
    pub lang: Language,
}

/// A language that functions are written in.
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
    /// How long each of the three runs is, in seconds
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
Traffic is a capture (pcap or pcapng, also gzip or zstd) or a preset. A capture is run once;
with a --duration beyond its end it starts over, each time with its flows renumbered.

Examples:
  tailwater run examples/acl-nat.yaml
  tailwater run chain.yaml --traffic capture.pcap.zst --duration 30s --cores 1,2
  tailwater run chain.yaml --report report.html
      A page with charts: latency, bursts, drops, and why packets were late.
  tailwater run chain.yaml --saturate
      As fast as the chain can: its throughput, not its latency.
  tailwater run chain.yaml --output json --check-slo > report.json
      For scripts: exit code 3 if the objective was missed.

Bursts are absorbed with more cores, if there are any to spare:
  tailwater run chain.yaml --traffic backbone --cores 1 --auxiliary 0
      Core 0 helps when core 1 has more than it can do in time, and otherwise sleeps.
With several cores, policies but static also move RSS buckets between them:
  tailwater run chain.yaml --cores 0,1 --policy rss++
Policies: static, tailwater, netblaze, netblaze-core-static-safe, netblaze-core-static-unsafe,
netblaze-no-core-mapper, netblaze-no-boost, netblaze-server-static-safe,
netblaze-server-static-unsafe, netblaze-on-demand-rss, rss++.

On ports, in a program built with --features dpdk (docs/nics.md):
  tailwater run chain.yaml --port 0000:3b:00.0 --port 0000:3b:00.1 --both-ways
  tailwater run chain.yaml --port net_af_packet0,iface=veth0 --port net_af_packet1,iface=veth1

Durations take ns, us, ms, s or m. Ctrl-C ends a run with its report; a second one kills.

Exit codes: 0 run finished, 1 run failed, 2 wrong input, 3 objective missed (--check-slo).";

/// What `tailwater run` is told.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The chain spec
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: PathBuf,
    /// A capture file, or a preset [default: bursty]
    #[arg(long, value_name = "FILE|PRESET")]
    pub traffic: Option<OsString>,
    /// Receive from a port, not from traffic; twice: from the first, and send to the second
    #[arg(long = "port", value_name = "PORT", value_parser = values::port)]
    #[arg(conflicts_with_all = ["traffic", "saturate"])]
    pub ports: Vec<PortName>,
    /// Packets of the second port pass the chain, too, and leave by the first
    #[arg(long, requires = "ports")]
    pub both_ways: bool,
    /// Ports receive only frames that are for their own MAC address, or for many
    #[arg(long)]
    pub no_promiscuous: bool,
    /// On ports, cores without packets for so long sleep for so long at a time [default: they never do]
    #[arg(long, value_name = "TIME", value_parser = values::nap)]
    pub nap: Option<Nanos>,
    /// How long packets arrive [default: a capture once, or 3s; from ports until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// How traffic is read and timed.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Offer packets as fast as the chain takes them [duration: 3s]
    #[arg(long, conflicts_with = "rate_scale")]
    pub saturate: bool,
    /// Cores to run on, such as 1 or 0,2-3 [default: the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// Cores that help when there is more to do than --cores can in time
    #[arg(long, value_name = "LIST", value_parser = values::cores, conflicts_with = "saturate")]
    pub auxiliary: Option<Cores>,
    /// What moves to other cores, and when [default: tailwater with --auxiliary, or static]
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    pub policy: Option<Policy>,
    /// What the chain can do on this machine [default: CHAIN.profile.yaml, or measured now]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// How auxiliary cores wait for work; a time means to spin so long, then sleep
    #[arg(
        long,
        value_name = "sleep|spin|TIME",
        default_value = "sleep",
        requires = "auxiliary"
    )]
    #[arg(value_parser = values::wait)]
    pub wait: Mode,
    /// Packets that each queue of the NIC holds [default: 1024, or fewer on ports so that they fit the cache]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub ring: Option<u32>,
    /// The length of a measurement window
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = values::window)]
    pub window: Nanos,
    /// A report for people or for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
    /// Also write the report as a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Record what the policy sees and decides, for `tailwater explain`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Record the packets that the chain sends
    #[arg(long, value_name = "FILE.pcap")]
    pub capture_out: Option<PathBuf>,
    /// Run each function in a confined process or container of its own (docs/isolation.md)
    #[arg(long, value_name = "none|process|container", default_value = "none")]
    #[arg(hide_possible_values = true, conflicts_with = "auxiliary")]
    pub isolation: Isolated,
    /// Leave out defences around isolated functions: filter, groups, limits, namespaces, root, user; or all of them
    #[arg(long, value_name = "DEFENCE,...", value_delimiter = ',')]
    #[arg(hide_possible_values = true)]
    pub isolation_without: Vec<Defence>,
    /// Functions that stay in this process, trusted, since what they share or write keeps them from being isolated
    #[arg(long, value_name = "FUNCTION,...", value_delimiter = ',')]
    pub isolation_except: Vec<String>,
    /// How much longer turns of isolated functions may make a packet's time: less is larger batches [default: 3]
    #[arg(long, value_name = "PERCENT", value_parser = values::percent)]
    pub isolation_overhead: Option<f64>,
    /// Serve Prometheus metrics while running; a port means 127.0.0.1
    #[arg(long, value_name = "PORT|ADDR:PORT", value_parser = values::metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// Exit with code 3 if the objective was missed
    #[arg(long)]
    pub check_slo: bool,
}

/// How traffic is read, made and timed.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Replay this many times as fast
    #[arg(long, value_name = "X", value_parser = values::scale, allow_negative_numbers = true)]
    pub rate_scale: Option<f64>,
    /// Ignore timestamps: packets come evenly, so many a second
    #[arg(long, value_name = "PPS", value_parser = values::rate, allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Selects a preset's packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Leave out empty and too long packets, do not refuse them
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// The most memory for packets
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = values::bytes)]
    pub memory_limit: u64,
}

/// Where functions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolated {
    None,
    Process,
    Container,
}

/// What is around an isolated function, each to be left out by itself where a machine lacks it.
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

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportOutput {
    Table,
    Json,
}

/// What can be measured of a chain.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Measure how much one core can do in time, for policies that hand work to others
    #[command(after_help = CAPACITY_EXAMPLES)]
    Capacity(CapacityArgs),
    /// Measure latency over load, and the highest rates without loss and with the objective kept
    #[command(after_help = MEASURE_EXAMPLES)]
    Latency(MeasureArgs),
    /// Measure throughput over the last-level cache that the chain has
    #[command(after_help = MEASURE_EXAMPLES)]
    Cache(MeasureArgs),
    /// Measure both: latency over load, throughput over cache
    #[command(after_help = MEASURE_EXAMPLES)]
    All(MeasureArgs),
    /// Tell what differs between two files of curves, beyond their noise
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Print curves as `tailwater place` reads them
    #[command(after_help = CURVES_EXAMPLES)]
    Curves(CurvesArgs),
}

const CAPACITY_EXAMPLES: &str = "\
The chain is run on one core, on traffic and on synthetic packets, for less than a minute. What it
can do is printed and written beside the chain, where `tailwater run` finds it.

Examples:
  tailwater profile capacity examples/acl-nat.yaml
  tailwater profile capacity chain.yaml --traffic capture.pcap --slo 500us -o slow.profile.yaml

Ctrl-C ends it within a second, and nothing is written.";

/// What `tailwater profile capacity` is told.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// The chain spec
    #[arg(value_name = "CHAIN.yaml")]
    pub chain: PathBuf,
    /// The latency objective to measure for [default: the chain's]
    #[arg(long, value_name = "TIME", value_parser = values::slo)]
    pub slo: Option<Nanos>,
    /// A capture file, or a preset, such as the chain will see
    #[arg(long, value_name = "FILE|PRESET", default_value = "backbone")]
    pub traffic: OsString,
    /// The profile to write [default: CHAIN.profile.yaml, beside the chain]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The core to measure on [default: the last]
    #[arg(long, value_name = "N", value_parser = values::core)]
    pub core: Option<usize>,
    /// Selects a preset's packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Leave out empty and too long packets, do not refuse them
    #[arg(long)]
    pub skip_bad_packets: bool,
    /// A table for people, or JSON for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

const SIMULATE_EXAMPLES: &str = "\
Each policy is run on the same rack, chains and packets, in virtual time: with each objective and each
seed, if there are several. Runs go on at the same time on all cores; the result does not depend on it.

Examples:
  tailwater simulate examples/rack.yaml
  tailwater simulate rack.yaml --policy netblaze,tailwater --slo 500us
  tailwater simulate rack.yaml --slo 100us,200us,500us --seed 1,2,3 --output csv > sweep.csv
  tailwater simulate rack.yaml --traffic capture.pcap --output json > comparison.json
  tailwater simulate rack.yaml --report report.html --resume runs.jsonl
      A page with charts; after Ctrl-C, started again, what is done is not done again.
  tailwater simulate rack.yaml --find servers --seed 1,2,3,4,5
      The fewest servers that hold all objectives, and with how many of the seeds.
Policies: static, rss++, metron, quadrant, quadrant-metron, dyssect, netblaze,
netblaze-core-static-safe, netblaze-core-static-unsafe, netblaze-server-static-safe,
netblaze-server-static-unsafe, netblaze-no-core-mapper, netblaze-no-boost,
netblaze-on-demand-rss, tailwater; and oracle, which is none: a bound on the cores of all.

Ctrl-C ends it within a second, with what is done.";

/// What `tailwater simulate` is told.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The rack, its chains and their traffic
    #[arg(value_name = "RACK.yaml")]
    pub rack: PathBuf,
    /// A capture file, or a preset, for all chains [default: the rack's]
    #[arg(long, value_name = "FILE|PRESET")]
    pub traffic: Option<OsString>,
    /// The policies, such as netblaze,tailwater [default: the rack's, or all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::rack_policy)]
    pub policy: Vec<&'static str>,
    /// Select presets' packets, and what else is random, such as 1,2,3 [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::seed)]
    pub seed: Vec<u64>,
    /// Latency objectives of all chains, such as 100us,200us [default: the rack's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::slo)]
    pub slo: Vec<Nanos>,
    /// For how long packets arrive [default: the rack's]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Look for the fewest servers, the highest rate or the tightest SLO that hold [policy: tailwater]
    #[arg(long, value_name = "servers|rate|slo", conflicts_with = "report")]
    #[arg(hide_possible_values = true)]
    pub find: Option<Find>,
    /// Also write a page with charts of all policies
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Keep each run's result in this file; started again, leave out what is there
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// A table for people, JSON for programs, or CSV for spreadsheets
    #[arg(long, value_name = "table|json|csv", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: SimulateOutput,
}

/// What can be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Find {
    Servers,
    Rate,
    Slo,
}

/// How a comparison is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimulateOutput {
    Table,
    Json,
    Csv,
}

const PLACE_EXAMPLES: &str = "\
SLOs are admitted in the order of their file; each gets instances, cores and ways of cache of its own, or
the reason why not and the nearest SLO that would fit. With a state, what runs stays where it is, but for
what changed, and servers that are gone.

Examples:
  tailwater place examples/place/slos.yaml --cluster examples/place/cluster.yaml
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json
      Only what is new or changed is placed; SLOs that are no longer in the file leave.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --optimal --saving 5%
      Also the plan with the fewest servers, and the moves to it, if it saves enough; --apply puts it in
      the state. Only in builds with the feature `milp`.
  tailwater place slos.yaml --cluster cluster.yaml --state placement.json --done 3
      Of the moves that --migrate put into the state those up to number 3 are done: told is what is left.
Exits with 3 if an SLO was denied.";

/// What `tailwater place` is told.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The SLOs, and their chains' curves
    #[arg(value_name = "SLOS.yaml")]
    pub slos: PathBuf,
    /// The servers
    #[arg(long, value_name = "CLUSTER.yaml")]
    pub cluster: PathBuf,
    /// What was placed before, and after; made where there is none
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Who decides
    #[arg(long, value_name = "tailwater|resq-greedy", default_value = "tailwater")]
    #[arg(hide_possible_values = true)]
    pub scheduler: PlaceScheduler,
    /// Look for the plan with the fewest servers, too, and for the moves to it (feature `milp`)
    #[arg(long)]
    pub optimal: bool,
    /// How long to look for it
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::search)]
    #[arg(requires = "optimal")]
    pub time: Nanos,
    /// What it must save to be proposed: servers, or a part of those in use
    #[arg(long, value_name = "N|P%", default_value = "1", value_parser = values::saving)]
    #[arg(requires = "optimal")]
    pub saving: Saving,
    /// Put the proposed plan into the state
    #[arg(long, requires = "optimal", requires = "state")]
    pub apply: bool,
    /// Put the moves to the proposed plan into the state, to be done one after the other
    #[arg(long, requires = "optimal", requires = "state", conflicts_with = "apply")]
    pub migrate: bool,
    /// The steps that are left of the state's migration are done, up to number N
    #[arg(long, value_name = "N", requires = "state")]
    pub done: Option<u64>,
    /// Give up the rest of the state's migration, but for drains of what has its successor
    #[arg(long, requires = "state")]
    pub abandon: bool,
    /// A table for people, or JSON for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Who decides where instances go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlaceScheduler {
    Tailwater,
    ResqGreedy,
}

const EXPLAIN_EXAMPLES: &str = "\
Told are the worst episodes: times with more to do than one core can do in an epoch. What waited,
and what was done about it, and when.

Examples:
  tailwater run chain.yaml --cores 1 --auxiliary 0 --record run.decisions
  tailwater explain run.decisions
  tailwater explain run.decisions --late 3 --policy netblaze
      Also what another policy would have said to the same queues.";

/// What `tailwater explain` is told.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A file that `tailwater run --record` wrote
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Tell of so many episodes, the worst
    #[arg(long, value_name = "N", default_value = "10")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=1000))]
    pub late: u16,
    /// Show what was seen to another policy, and tell where it differs
    #[arg(long, value_name = "NAME", value_parser = values::policy)]
    pub policy: Option<Policy>,
    /// A table for people, or JSON for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

const DOCTOR_EXAMPLES: &str = "\
What is in the way comes first, each with the command that removes it. Without root less is told.

Examples:
  tailwater doctor
  tailwater doctor --slo 100us --cores 2-3
  sudo tailwater doctor --output json > machine.json

Exit codes: 0 the objective is realistic here, 1 nothing could be measured, 2 wrong input,
3 the objective is not realistic.";

/// What `tailwater doctor` is told.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The objective: 99 of 100 packets within so long
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = values::duration)]
    pub slo: Nanos,
    /// The cores that are to process packets [default: those isolated, or the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// How long cores are watched
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::watch)]
    pub duration: Nanos,
    /// Only read what the system tells, and measure nothing
    #[arg(long, conflicts_with = "duration")]
    pub no_measuring: bool,
    /// A report for people or for programs
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// What can be done with traffic.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Count packets, flows, rates and bursts of a capture or preset
    #[command(after_help = "\
Examples:
  tailwater trace info capture.pcapng
  tailwater trace info bursty --duration 5s --output json
  tailwater trace info backbone --duration 1m --service-us 5,10,20 --svg bursts.svg
      What bursts do to latency if packets take 5, 10 or 20 us.")]
    Info(InfoArgs),
    /// Cut, merge, speed up captures, or lay copies over each other
    #[command(after_help = "\
Captures are merged by time, cut, laid over themselves, then sped up. Copies have their flows
renumbered, so that there are more flows, each with its bursts as they were.

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

/// What `tailwater trace info` is told.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A capture file, or a preset
    #[arg(value_name = "FILE|PRESET")]
    pub traffic: OsString,
    /// How traffic is read and timed.
    #[command(flatten)]
    pub load: LoadArgs,
    /// How much of a preset to make [default: 3s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Nanos>,
    /// Make so many times a preset's flows, each as bursty as it is
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub flows_scale: f64,
    /// Tell what bursts do to latency if packets take so long, such as 5,10,20
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = crate::trace::service)]
    #[arg(conflicts_with = "rate")]
    pub service_us: Vec<Nanos>,
    /// Draw packets, whales and minnows over time
    #[arg(long, value_name = "FILE.svg", conflicts_with = "rate")]
    pub svg: Option<PathBuf>,
    /// A report for people or for programs
    #[arg(long, value_name = "text|json", default_value = "text")]
    #[arg(hide_possible_values = true)]
    pub output: InfoOutput,
}

/// What `tailwater trace convert` is told.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The captures
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The capture file to write; - for standard output
    #[arg(short, long, value_name = "FILE.pcap")]
    pub output: PathBuf,
    /// Leave out what comes earlier after the first packet
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub from: Option<Nanos>,
    /// Leave out what comes so late after the first packet, or later
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub to: Option<Nanos>,
    /// Keep so many packets of that
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: Option<u64>,
    /// Lay so many copies over each other, their flows renumbered
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_COPIES)))]
    pub copies: u32,
    /// How much later each copy starts than the one before [default: 0]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "copies")]
    pub shift: Option<Nanos>,
    /// Make packets come this many times as fast
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub speed: f64,
    /// Leave out empty and too long packets, do not refuse them
    #[arg(long)]
    pub skip_bad_packets: bool,
}

/// How statistics are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InfoOutput {
    Text,
    Json,
}

/// What `tailwater trace synth` is told.
#[derive(Debug, Args)]
pub struct SynthArgs {
    /// The preset
    #[arg(value_name = "PRESET")]
    pub preset: String,
    /// The capture file to write; - for standard output
    #[arg(short, long, value_name = "FILE.pcap")]
    pub output: PathBuf,
    /// How long the capture lasts
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = values::duration)]
    pub duration: Nanos,
    /// Make packets come this many times as fast
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub rate_scale: f64,
    /// Make so many times the flows, each as bursty as it is
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::scale)]
    #[arg(allow_negative_numbers = true)]
    pub flows_scale: f64,
    /// Selects the packets
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
}
