//! Commands of the program. Each command's arguments are in its own module.

#[cfg(feature = "cluster")]
use crate::cluster::{
    AGENT_EXAMPLES, AgentArgs, CONTROLLER_EXAMPLES, ControllerArgs, DEFINITIONS_EXAMPLES, INGRESS_EXAMPLES,
    IngressArgs, PUBLISH_EXAMPLES, PublishArgs,
};
use crate::conformance::{TEST_FUNCTION_EXAMPLES, TestFunctionArgs};
use crate::contention::{CONTENTION_EXAMPLES, ContentionArgs};
use crate::control::args::{
    APPLY_EXAMPLES, ApplyArgs, DELETE_EXAMPLES, DESCRIBE_EXAMPLES, DRAIN_EXAMPLES, DeleteArgs, DescribeArgs, DrainArgs,
    EVENTS_EXAMPLES, EventsArgs, GET_EXAMPLES, GetArgs,
};
use crate::curves::{
    CURVES_EXAMPLES, CurvesArgs, MEASURE_EXAMPLES, MeasureArgs, PROFILE_DIFF_EXAMPLES, ProfileDiffArgs,
};
use crate::demo::{DEMO_EXAMPLES, DemoArgs};
use crate::diff::{DIFF_EXAMPLES, DiffArgs};
use crate::doctor::{DOCTOR_EXAMPLES, DoctorArgs};
use crate::explain::{EXPLAIN_EXAMPLES, ExplainArgs};
use crate::function_process::FunctionProcessArgs;
use crate::init::{INIT_EXAMPLES, InitArgs};
use crate::new_function::{NEW_FUNCTION_EXAMPLES, NewFunctionArgs};
use crate::place::{PLACE_EXAMPLES, PlaceArgs};
use crate::predict::{PREDICT_EXAMPLES, PredictArgs};
use crate::profile::{CAPACITY_EXAMPLES, CapacityArgs};
use crate::run::{RUN_EXAMPLES, RunArgs};
use crate::serve::{SERVE_EXAMPLES, ServeArgs};
use crate::shell::{COMPLETIONS_EXAMPLES, CompletionsArgs, MAN_PAGES_EXAMPLES, ManPagesArgs};
use crate::simulate::{SIMULATE_EXAMPLES, SimulateArgs};
use crate::specs::{
    EXPLAIN_SPEC_EXAMPLES, ExplainSpecArgs, SCHEMA_EXAMPLES, SchemaArgs, VALIDATE_EXAMPLES, ValidateArgs,
};
use crate::top::args::{TOP_EXAMPLES, TopArgs};
use crate::trace::TraceCommand;
use crate::version;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Runs chains of network functions and reports whether they meet their latency objectives.
#[derive(Debug, Parser)]
#[command(name = "tailwater", version, long_version = version::long())]
#[command(after_help = "\
Examples:
  tailwater demo
      What auxiliary cores are for, in fifteen seconds.
  tailwater init
      Writes a first chain, chain.yaml.
  tailwater run chain.yaml
      The chain on bursty synthetic traffic for three seconds.
  tailwater run chain.yaml --traffic capture.pcap --rate-scale 10
      The same chain on a capture, ten times as fast as it was captured.
  tailwater trace info capture.pcap
      Statistics of a capture: flows, rates, bursts.

Details: `tailwater help COMMAND`.
Files of docs/ and examples/ are in the sources of Tailwater and in /usr/share/doc/tailwater of its Debian package.")]
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
    /// Write a first chain, with comments, and print the next commands
    #[command(after_help = INIT_EXAMPLES)]
    Init(InitArgs),
    /// Run a chain on traffic and report latency, loss and cores
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Run many chains on one server, and change them while they run
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Control a rack on Kubernetes: place chains on servers, and scale them
    #[cfg(feature = "cluster")]
    #[command(after_help = CONTROLLER_EXAMPLES)]
    Controller(ControllerArgs),
    /// Run this machine as a server of a rack on Kubernetes
    #[cfg(feature = "cluster")]
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(Box<AgentArgs>),
    /// Steer the packets of a rack's chains to their instances, by an OpenFlow switch
    #[cfg(feature = "cluster")]
    #[command(after_help = INGRESS_EXAMPLES)]
    Ingress(IngressArgs),
    /// Print the definitions of the custom resources, for kubectl apply
    #[cfg(feature = "cluster")]
    #[command(after_help = DEFINITIONS_EXAMPLES)]
    Definitions,
    /// Measure a chain on this machine: capacity, latency, cache, contention
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Simulate chains on a rack of servers, under several policies
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Check whether SLOs fit on a cluster, and place their instances
    #[command(after_help = PLACE_EXAMPLES)]
    Place(PlaceArgs),
    /// Predict how much chains that share a server slow each other down
    #[command(after_help = PREDICT_EXAMPLES)]
    Predict(PredictArgs),
    /// Explain the policy's decisions in a recorded run
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Compare measured runs, and print differences that chance does not explain
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Apply chains to a running server: all of them, or none
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// List a server's chains, or show one, with their measurements
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArgs),
    /// Show a chain of a server: status, conditions, events, specification
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Describe(DescribeArgs),
    /// Delete chains from a server, after the packets that they have
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(DeleteArgs),
    /// Stop a chain of a server, after the packets that it has
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Print the events of a server
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArgs),
    /// Watch a server's chains and cores, or a run that has ended
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Analyse, convert or generate traffic
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Check specs without running anything
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate(ValidateArgs),
    /// Print the documentation of a field of a spec
    #[command(after_help = EXPLAIN_SPEC_EXAMPLES)]
    ExplainSpec(ExplainSpecArgs),
    /// Print the JSON Schema of a kind of spec, for editors and Kubernetes
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema(SchemaArgs),
    /// Check whether this machine is suitable for packet processing, and suggest fixes
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print the completions of a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Write a man page for each command
    #[command(after_help = MAN_PAGES_EXAMPLES)]
    ManPages(ManPagesArgs),
    /// Run one function of a chain as a process; started by `tailwater run --isolation process`
    #[command(hide = true)]
    FunctionProcess(FunctionProcessArgs),
    /// Load a shared library and parse its configuration from standard input; started by this program to detect crashes
    #[command(hide = true, name = TRY_LIBRARY)]
    TryLibrary(TryLibraryArgs),
    /// Generate a working function in C or Rust as a starting point
    #[command(after_help = NEW_FUNCTION_EXAMPLES)]
    NewFunction(NewFunctionArgs),
    /// Check functions of your own: order, batches, moves between cores, hostile frames, many flows
    #[command(after_help = TEST_FUNCTION_EXAMPLES)]
    TestFunction(TestFunctionArgs),
}

impl Command {
    /// Time in which the command ends by itself after a signal, before the program ends it. `None` if it always does,
    /// with what it has.
    pub fn time_to_stop(&self) -> Option<Duration> {
        /// Reading of a pipe ends sooner.
        const SOON: Duration = Duration::from_millis(300);
        /// A command that follows a server notices a signal within 100 ms, unless the server does not answer.
        const FOLLOWING: Duration = Duration::from_secs(2);
        match self {
            Command::Demo(_)
            | Command::Run(_)
            | Command::Serve(_)
            | Command::Simulate(_)
            | Command::Doctor(_)
            | Command::Trace(TraceCommand::Convert(_) | TraceCommand::Synth(_)) => None,
            #[cfg(feature = "cluster")]
            Command::Controller(_) | Command::Agent(_) | Command::Ingress(_) => None,
            Command::Profile(
                ProfileCommand::Capacity(_)
                | ProfileCommand::Latency(_)
                | ProfileCommand::Cache(_)
                | ProfileCommand::All(_)
                | ProfileCommand::Contention(_),
            ) => None,
            #[cfg(feature = "cluster")]
            Command::Profile(ProfileCommand::Publish(_)) => None,
            // The parent process ends them.
            Command::FunctionProcess(_) | Command::TryLibrary(_) => None,
            Command::Get(_) | Command::Events(_) | Command::Top(_) | Command::Trace(TraceCommand::Packets(_)) => {
                Some(FOLLOWING)
            }
            _ => Some(SOON),
        }
    }
}

/// Name of the command with which this program tries out libraries.
pub const TRY_LIBRARY: &str = "try-library";

/// Arguments of `tailwater try-library`.
#[derive(Debug, Args)]
pub struct TryLibraryArgs {
    /// The library's file
    pub library: PathBuf,
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
    /// Measure both, and write them as a Profile of the rack
    #[cfg(feature = "cluster")]
    #[command(after_help = PUBLISH_EXAMPLES)]
    Publish(PublishArgs),
    /// Measure how much programs beside the chain slow it down, and how much it slows others, for `tailwater predict`
    #[command(after_help = CONTENTION_EXAMPLES)]
    Contention(ContentionArgs),
    /// Compare two files of curves, and print differences beyond their noise
    #[command(after_help = PROFILE_DIFF_EXAMPLES)]
    Diff(ProfileDiffArgs),
    /// Print curves in the input format of `tailwater place`
    #[command(after_help = CURVES_EXAMPLES)]
    Curves(CurvesArgs),
}

#[cfg(test)]
mod tests;
