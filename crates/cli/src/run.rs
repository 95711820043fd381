//! `tailwater run`: a plan is made from the arguments and the spec, and the data plane executes it.

pub(crate) mod args;
mod export;
pub(crate) mod mappers;
mod plan;
mod ports;
pub(crate) mod profiles;
mod record;
mod report;

pub use args::{RUN_EXAMPLES, RunArgs};

use crate::error::CliError;
use crate::input;
use crate::memory;
use crate::metrics::{Chain, Endpoint, RunPage};
use crate::output::complain;
use crate::progress::Live;
use crate::signals::{reload_on_signal, stop_on_signals, unless_stopped};
use export::{Export, Exporting};
use mappers::Mappers;
use plan::{Mapping, Outputs, Plan, PortPlan, Source, plan};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::AvoidCores;
use tailwater_dataplane::external::Functions;
use tailwater_dataplane::port::Port;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::scaling::record::Recorder;
use tailwater_dataplane::trace_nic::TraceNic;
use tailwater_dataplane::{Packets, RunControl, RunError, RunPlan, run as run_chain};
use tailwater_profile::TrainError;
use tailwater_traffic::Trace;

/// Runs a chain on traffic or ports and prints the report.
///
/// # Errors
/// The input is invalid, the run or the recording fails, or the report cannot be written.
pub fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    // First, so that a signal at any time ends the command with a line.
    let stop = stop_on_signals()?;
    execute(plan(args)?, &stop)
}

/// Executes a plan: prepares the run, runs the chain, and reports on it.
fn execute(plan: Plan, stop: &AtomicBool) -> Result<ExitCode, CliError> {
    let Plan {
        chain,
        run,
        source,
        mapping,
        mut outputs,
    } = plan;
    let prepared = Prepared::new((&chain, run), source, &mapping, &outputs, stop);
    let Prepared {
        run,
        opened,
        clock,
        endpoint,
        recorder,
    } = unless_ended_early(prepared, stop)?;
    let shown = (endpoint, outputs.export.take());
    let (ran, exporting) = run_and_show(&run, opened, clock, shown, stop)?;
    let recorded = recorder.map_or(Ok(()), |recorder| record::finish(&recorder));
    let finished = report::finish(ran, recorded, outputs);
    // Waits for its last requests.
    if let Some(exporting) = exporting {
        exporting.stop();
    }
    finished
}

/// Replaces the result of preparing a run that a signal ended: nothing was offered to the chain, so there is nothing to
/// report. Other errors stay.
fn unless_ended_early<T>(prepared: Result<T, CliError>, stop: &AtomicBool) -> Result<T, CliError> {
    let is_stopped = stop.load(Ordering::Relaxed) && !memory::is_short();
    match prepared {
        Ok(_) | Err(CliError::Stopped(_) | CliError::Traffic(_) | CliError::Train(TrainError::Stopped))
            if is_stopped =>
        {
            let text = "stopped before the first packet: nothing was offered to the chain, and there is no report";
            Err(CliError::Stopped(text.to_owned()))
        }
        other => other,
    }
}

/// A run that is ready.
struct Prepared {
    run: RunPlan,
    opened: Opened,
    /// Clock of opened ports.
    clock: Clock,
    /// Where metrics are served.
    endpoint: Option<Endpoint>,
    /// Records all decisions.
    recorder: Option<Recorder>,
}

impl Prepared {
    /// Loads or opens the source of packets, and makes the mappers.
    fn new(
        (chain, run): (&Path, RunPlan),
        source: Source,
        mapping: &Mapping,
        outputs: &Outputs,
        stop: &AtomicBool,
    ) -> Result<Prepared, CliError> {
        let endpoint = outputs.metrics;
        let endpoint = endpoint
            .map(|address| Endpoint::bind("--metrics", address))
            .transpose()?;
        let (run, loaded) = load(run, source, stop)?;
        for function in &run.spec().functions {
            let notices = function.config.notices();
            notices.iter().for_each(|notice| complain("notice", notice));
        }
        reload_on_signal()?;
        let clock = Clock::start();
        // First of the slow steps, since a port may be missing.
        let opened = Opened::new(loaded, &run, &clock)?;
        let profile = mappers::profile(mapping, chain, &run, opened.trace(), stop)?;
        let mappers = Mappers::new(mapping, &run, &profile, outputs.record.as_deref())?;
        Ok(Prepared {
            run: run.with_mappers(mappers.scaling, mappers.server)?,
            opened,
            clock,
            endpoint,
            recorder: mappers.recorder,
        })
    }
}

/// Source of packets, with its traffic in memory.
enum Loaded {
    Trace(Trace),
    Ports(PortPlan),
}

/// Loads traffic, and adds its figures to the plan.
///
/// # Errors
/// The traffic cannot be loaded, or `stop` was set meanwhile.
fn load(run: RunPlan, source: Source, stop: &AtomicBool) -> Result<(RunPlan, Loaded), CliError> {
    let plan = match source {
        Source::Ports(ports) => return Ok((run, Loaded::Ports(ports))),
        Source::Traffic(plan) => plan,
    };
    let wanted = run.spec().match_.clone();
    // A preset may take seconds until its first packet.
    let loading = move || input::load(plan.traffic, &plan.load, plan.duration, plan.saturate, &wanted);
    let stopped = || CliError::Stopped("stopped while traffic was loaded".to_owned());
    let loaded = unless_stopped(stop, loading).ok_or_else(stopped)??;
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

/// Runs the chain with a progress line, with metrics if there is an `endpoint`, and with an export if there is one,
/// which still has to be stopped. `clock` is the clock of opened ports.
///
/// # Errors
/// The metrics cannot be served, or the export cannot be started. Errors of the run are in the inner result.
fn run_and_show(
    run: &RunPlan,
    opened: Opened,
    clock: Clock,
    (endpoint, export): (Option<Endpoint>, Option<Export>),
    stop: &AtomicBool,
) -> Result<(Result<RunReport, RunError>, Option<Exporting>), CliError> {
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
    let clock = match &opened {
        Opened::Trace { .. } => Clock::start(),
        Opened::Port(_) => clock,
    };
    let mut exporting = export
        .map(|export| export.start(run.spec(), opened.name(), &clock))
        .transpose()?;
    drop(elsewhere);
    let mut live = Live::new();
    let traces = exporting.as_ref().map(Exporting::traces).unwrap_or_default();
    let control = RunControl::new(stop).with_clock(clock.clone()).with_traces(traces);
    let control = control.with_progress(|progress: &Progress| {
        for line in &progress.news {
            live.clear();
            complain("notice", line);
        }
        live.show(progress);
        if let Some(endpoint) = &endpoint {
            endpoint.page().update(progress);
        }
        if let Some(exporting) = &mut exporting {
            exporting.update(progress);
        }
    });
    let ran = match opened {
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
    };
    if let Some(exporting) = &mut exporting {
        exporting.end(&ran);
    }
    Ok((ran, exporting))
}
