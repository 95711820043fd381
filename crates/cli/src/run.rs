//! `tailwater run`: a plan is made from the arguments and the spec, and the data plane executes it.

pub(crate) mod args;
pub(crate) mod mappers;
mod plan;
mod ports;
pub(crate) mod profiles;
mod record;
mod report;

pub use args::{RUN_EXAMPLES, RunArgs};

use crate::error::CliError;
use crate::input;
use crate::metrics::{Chain, Endpoint, RunPage};
use crate::output::complain;
use crate::progress::Live;
use crate::signals::{reload_on_signal, stop_on_signals};
use mappers::Mappers;
use plan::{Plan, PortPlan, Source, plan};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::AvoidCores;
use tailwater_dataplane::external::Functions;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::trace_nic::TraceNic;
use tailwater_dataplane::{Packets, RunControl, RunError, RunPlan, run as run_chain};
use tailwater_traffic::Trace;

/// Runs a chain on traffic or ports and prints the report.
///
/// # Errors
/// The input is invalid, the run or the recording fails, or the report cannot be written.
pub fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    execute(plan(args)?)
}

/// Executes a plan: loads or opens the source of packets, makes the mappers, runs the chain, and reports on it.
fn execute(plan: Plan) -> Result<ExitCode, CliError> {
    let endpoint = plan.outputs.metrics;
    let endpoint = endpoint
        .map(|address| Endpoint::bind("--metrics", address))
        .transpose()?;
    let (run, loaded) = load(plan.run, plan.source)?;
    for function in &run.spec().functions {
        let notices = function.config.notices();
        notices.iter().for_each(|notice| complain("notice", notice));
    }
    reload_on_signal()?;
    let stop = stop_on_signals()?;
    let clock = Clock::start();
    // First of the slow steps, since a port may be missing.
    let opened = Opened::new(loaded, &run, &clock)?;
    let profile = mappers::profile(&plan.mapping, &plan.chain, &run, opened.trace(), &stop)?;
    let mappers = Mappers::new(&plan.mapping, &run, &profile, plan.outputs.record.as_deref())?;
    let run = run.with_mappers(mappers.scaling, mappers.server)?;
    let ran = run_and_show(&run, opened, clock, endpoint, &stop)?;
    let recorded = mappers.recorder.map_or(Ok(()), |recorder| record::finish(&recorder));
    report::finish(ran, recorded, plan.outputs)
}

/// Source of packets, with its traffic in memory.
enum Loaded {
    Trace(Trace),
    Ports(PortPlan),
}

/// Loads traffic, and adds its figures to the plan.
fn load(run: RunPlan, source: Source) -> Result<(RunPlan, Loaded), CliError> {
    let plan = match source {
        Source::Ports(ports) => return Ok((run, Loaded::Ports(ports))),
        Source::Traffic(plan) => plan,
    };
    let wanted = &run.spec().match_;
    let loaded = input::load(plan.traffic, &plan.load, plan.duration, plan.saturate, wanted)?;
    loaded.notices.iter().for_each(|notice| complain("notice", notice));
    let run = run.with_traffic(loaded.duration, loaded.not_matched);
    Ok((run, Loaded::Trace(loaded.trace)))
}

/// Source of packets, with its ports open.
enum Opened {
    Trace {
        trace: Trace,
        /// Ports of external functions.
        functions: Option<Box<dyn Functions<TraceNic>>>,
    },
    Port(Box<dyn Port>),
}

impl Opened {
    fn new(loaded: Loaded, run: &RunPlan, clock: &Clock) -> Result<Opened, CliError> {
        Ok(match loaded {
            Loaded::Ports(plan) => Opened::Port(ports::open(&plan, run, clock)?),
            Loaded::Trace(trace) => Opened::Trace {
                trace,
                functions: ports::open_externals(run)?,
            },
        })
    }

    fn trace(&self) -> Option<&Trace> {
        match self {
            Opened::Trace { trace, .. } => Some(trace),
            Opened::Port(_) => None,
        }
    }

    fn name(&self) -> &str {
        match self {
            Opened::Trace { trace, .. } => trace.name(),
            Opened::Port(port) => port.traffic(),
        }
    }
}

/// Runs the chain with a progress line, and with metrics if there is an `endpoint`. `clock` is the clock of opened
/// ports.
///
/// # Errors
/// The metrics cannot be served. Errors of the run are in the inner result.
fn run_and_show(
    run: &RunPlan,
    opened: Opened,
    clock: Clock,
    endpoint: Option<Endpoint>,
    stop: &AtomicBool,
) -> Result<Result<RunReport, RunError>, CliError> {
    let chain = Chain {
        name: run.spec().name.clone(),
        traffic: opened.name().to_owned(),
        slo: run.spec().slo,
    };
    // Keeps the endpoint's thread off the workers' cores, if there are others.
    let elsewhere = AvoidCores::new(&run.config().cores);
    let endpoint = endpoint
        .map(|endpoint| endpoint.serve(RunPage::new(chain)))
        .transpose()?;
    drop(elsewhere);
    let mut live = Live::new();
    let control = RunControl::new(stop).with_progress(|progress: &Progress| {
        for line in &progress.news {
            live.clear();
            complain("notice", line);
        }
        live.show(progress);
        if let Some(endpoint) = &endpoint {
            endpoint.page().update(progress);
        }
    });
    Ok(match opened {
        Opened::Port(mut port) => run_chain(
            run,
            Packets::Port {
                port: &mut *port,
                clock,
            },
            control,
        ),
        Opened::Trace {
            trace,
            functions: Some(functions),
        } => run_chain(run, Packets::TraceWithExternals { trace, functions }, control),
        Opened::Trace { trace, functions: None } => run_chain(run, trace, control),
    })
}
