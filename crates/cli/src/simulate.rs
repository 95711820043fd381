//! `tailwater simulate`: comparison of policies on a rack in virtual time.

pub(crate) mod args;
mod csv;
pub(crate) mod document;
pub mod find;
mod flows;
mod parallel;
mod resume;
pub mod runner;
mod traffic;

pub use args::{SIMULATE_EXAMPLES, SimulateArgs, SimulateOutput};
pub use document::{Bound, Document, Run};

use crate::error::CliError;
use crate::files::{ReportFile, check_writable, same_place, spec_text};
use crate::output::{complain, json, print};
use crate::progress::Simulating;
use crate::signals::stop_on_signals;
use crate::{html, table};
use runner::{Job, JobResult, Runner};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::epoch;
use tailwater_sim::policies::comparable;
use tailwater_sim::spec::{RackSpec, SimulationModel, TrafficSource};

/// Simulates all policies and prints their results.
///
/// # Errors
/// The input is invalid, a simulation fails, or the result cannot be written.
pub fn simulate(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    let spec = RackSpec::read_for(&args.rack, args.model)?;
    for &slo in &args.slo {
        epoch(slo).map_err(|error| CliError::Input(format!("--slo: {error}")))?;
    }
    refuse_twice("--slo", &args.slo)?;
    refuse_twice("--seed", &args.seed)?;
    refuse_twice("--policy", &args.policy)?;
    if spec.model == SimulationModel::Flows {
        return flows::simulate(&spec, args, jobs(&spec, args));
    }
    check_outputs(&spec, args)?;
    let report = args.report.as_ref().map(|path| ReportFile::open("--report", path));
    let report = report.transpose()?;
    let rack = spec_text(&args.rack);
    let stop = stop_on_signals()?;
    let runner = Runner::new(&spec, args, &stop)?;
    if let Some(goal) = args.find {
        let answers = find::find(goal, &spec, args, &runner, &stop)?;
        if answers.interrupted {
            complain("notice", "interrupted: the results are partial");
        }
        print(&match args.output {
            SimulateOutput::Table => table::found(&answers),
            SimulateOutput::Json => json(&answers)?,
            SimulateOutput::Csv => find::as_csv(&answers)?,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = jobs(&spec, args);
    // All jobs are checked before the first one runs.
    jobs.iter().try_for_each(|job| runner.check(job))?;
    if let Some((path, done)) = args.resume.as_ref().zip(runner.finished(&jobs)?) {
        let runs = jobs.iter().filter(|job| !job.is_bound());
        let (file, of) = (path.display(), runs.count());
        complain("notice", &format!("{file} has {done} of {of} runs"));
    }
    let (runs, bounds) = compare(&runner, &jobs, &stop)?;
    let (done, of) = (runs.len() + bounds.len(), jobs.len());
    let interrupted = done < of;
    if interrupted {
        complain("notice", &format!("interrupted: {done} of {of} runs are done"));
    }
    let document = Document {
        rack: spec.name.clone(),
        model: spec.model.name(),
        servers: spec.rack.servers.len(),
        cores: spec.rack.cores(),
        chain_state_bytes: None,
        interrupted,
        runs,
        bounds,
    };
    print(&match args.output {
        SimulateOutput::Table => table::comparison(&document),
        SimulateOutput::Json => json(&document)?,
        SimulateOutput::Csv => csv::comparison(&document)?,
    })?;
    if let Some(report) = report {
        report.write(&html::comparison(&document, &rack)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the outputs can be written and overwrite no input.
fn check_outputs(spec: &RackSpec, args: &SimulateArgs) -> Result<(), CliError> {
    let Some(path) = &args.report else {
        return Ok(());
    };
    let captures = spec.chains.iter();
    let captures = captures.filter_map(|chain| match &chain.traffic.source {
        TrafficSource::File(file) => Some(file.as_path()),
        TrafficSource::Preset(_) => None,
    });
    let instead = args.traffic.iter().map(Path::new);
    let inputs = captures.chain(instead).chain([args.rack.as_path()]);
    check_writable("--report", path, inputs)?;
    if args.resume.as_ref().is_some_and(|file| same_place(file, path)) {
        return Err(CliError::Input(format!(
            "--report and --resume are both {}",
            path.display()
        )));
    }
    Ok(())
}

/// Checks that a list has no duplicates.
fn refuse_twice<T: PartialEq + std::fmt::Display>(flag: &str, list: &[T]) -> Result<(), CliError> {
    let twice = |(at, item): (usize, &T)| list[..at].contains(item).then(|| item.to_string());
    match list.iter().enumerate().find_map(twice) {
        None => Ok(()),
        Some(item) => Err(CliError::Input(format!(
            "{flag}: expected different values, found {item} twice"
        ))),
    }
}

/// Returns all runs in the order of the output.
fn jobs(spec: &RackSpec, args: &SimulateArgs) -> Vec<Job> {
    let policies = match (&args.policy[..], &spec.policies[..]) {
        ([], []) => comparable().collect(),
        ([], named) | (named, _) => named.to_vec(),
    };
    let slos = match &args.slo[..] {
        [] => vec![None],
        slos => slos.iter().copied().map(Some).collect(),
    };
    let seeds = args.seeds(spec.seed);
    let mut jobs = Vec::new();
    for &policy in &policies {
        for &slo in &slos {
            jobs.extend(seeds.iter().map(|&seed| Job::new(policy, slo, seed)));
        }
    }
    jobs
}

/// Runs all jobs on all cores: policies, and bounds. Jobs not done when `stop` was set are missing from the result.
pub fn compare(runner: &Runner, jobs: &[Job], stop: &AtomicBool) -> Result<(Vec<Run>, Vec<Bound>), CliError> {
    // Jobs with the same packets run together, so that the packets are held briefly.
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    let first = |job: &Job| jobs.iter().position(|other| other.seed == job.seed);
    order.sort_by_key(|&number| first(&jobs[number]));
    let mut progress = Simulating::new();
    let outcomes = parallel::all(
        jobs,
        &order,
        parallel::cores(),
        stop,
        |job| runner.run(job),
        |done| progress.show(done, jobs.len(), runner.runs() / jobs.len() as f64),
    )?;
    let (mut runs, mut bounds) = (Vec::new(), Vec::new());
    for (&Job { policy, seed, .. }, outcome) in jobs.iter().zip(outcomes) {
        match outcome {
            Some(JobResult::Run(report)) => runs.push(Run { policy, report }),
            Some(JobResult::Bound(report)) => bounds.push(Bound { seed, report }),
            None => {}
        }
    }
    Ok((runs, bounds))
}
