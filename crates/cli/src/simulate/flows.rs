//! Simulation at flow level: rates and backlogs instead of packets.

use super::args::{SimulateArgs, SimulateOutput};
use super::document::{Document, Run};
use super::runner::Job;
use super::{csv, parallel};
use crate::error::CliError;
use crate::input::Traffic;
use crate::output::{complain, json, print};
use crate::progress::Lasting;
use crate::signals::{stop_on_signals, unless_stopped};
use crate::table;
use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use tailwater_net::Nanos;
use tailwater_sim::flow_level::{FlowLevelChain, FlowLevelError, FlowLevelReport, POLICIES, simulate_flows};
use tailwater_sim::spec::{RackChain, RackSpec, TrafficSource};
use tailwater_sim::{Objective, RackPolicy, RunOptions};
use tailwater_traffic::generate::TrafficStatistics;

/// Default duration.
const DEFAULT_DURATION: Nanos = Nanos::from_secs(1);

/// Simulates all jobs and prints their results. Without a list of policies, those that the model lacks are left out.
pub fn simulate(spec: &RackSpec, args: &SimulateArgs, mut jobs: Vec<Job>) -> Result<ExitCode, CliError> {
    for (flag, given) in [
        ("--find", args.find.is_some()),
        ("--report", args.report.is_some()),
        ("--resume", args.resume.is_some()),
    ] {
        if given {
            return Err(CliError::Input(format!("{flag}: expected --model packets with it")));
        }
    }
    if args.policy.is_empty() && spec.policies.is_empty() {
        jobs.retain(|job| POLICIES.contains(&job.policy));
    }
    let stop = stop_on_signals()?;
    let traffic = traffic(spec, args, &stop)?;
    let duration = args.duration.or(spec.duration).unwrap_or(DEFAULT_DURATION);
    let mut runs = Vec::new();
    let mut largest = 0;
    for (number, job) in jobs.iter().enumerate() {
        // Statistics that a signal ended are those of no chain.
        let Some(traffic) = &traffic else {
            complain("notice", &format!("interrupted: 0 of {} runs are done", jobs.len()));
            break;
        };
        let mut chains = Vec::new();
        for (index, (chain, (name, statistics))) in spec.chains.iter().zip(traffic).enumerate() {
            let slo = job.slo.unwrap_or(chain.slo);
            let traffic = (name.clone(), statistics.clone());
            chains.push(made(chain, (job.policy, slo), traffic, index as u64)?);
        }
        let options = RunOptions {
            seed: job.seed,
            window: spec.window,
            warm_up: spec.warm_up,
            ..RunOptions::default()
        };
        let text = format!("{} ({} of {})", job.policy, number + 1, jobs.len());
        let found = run(spec, chains, duration, &options, (&text, &stop))?;
        let Some(found) = found else {
            let (done, of) = (runs.len(), jobs.len());
            complain("notice", &format!("interrupted: {done} of {of} runs are done"));
            break;
        };
        largest = largest.max(found.state_bytes);
        runs.push(Run {
            policy: job.policy,
            report: found.report,
        });
    }
    let document = Document {
        rack: spec.name.clone(),
        model: spec.model.name(),
        servers: spec.rack.servers.len(),
        cores: spec.rack.cores(),
        chain_state_bytes: Some(largest),
        interrupted: runs.len() < jobs.len(),
        runs,
        bounds: Vec::new(),
    };
    print(&match args.output {
        SimulateOutput::Table => table::flow_level(&document),
        SimulateOutput::Json => json(&document)?,
        SimulateOutput::Csv => csv::comparison(&document)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one policy, with progress.
fn run(
    spec: &RackSpec,
    chains: Vec<FlowLevelChain>,
    duration: Nanos,
    options: &RunOptions,
    (text, stop): (&str, &AtomicBool),
) -> Result<Option<FlowLevelReport>, CliError> {
    let all = duration.as_secs_f64() * chains.len() as f64;
    let progress = Mutex::new(Lasting::new());
    let times = (duration, parallel::cores());
    let found = simulate_flows(&spec.rack, chains, times, options, |done| {
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.show(text, done.as_secs_f64() / all);
        !stop.load(Ordering::Relaxed)
    });
    found.map_err(|error| CliError::Input(error.to_string()))
}

/// Name and statistics of a chain's traffic.
type NamedStatistics = (String, TrafficStatistics);

/// Returns the name and the statistics of each chain's traffic; `None` once `stop` is set.
fn traffic(spec: &RackSpec, args: &SimulateArgs, stop: &AtomicBool) -> Result<Option<Vec<NamedStatistics>>, CliError> {
    let mut known: Vec<(String, f64, f64, TrafficStatistics)> = Vec::new();
    let mut all = Vec::new();
    for chain in &spec.chains {
        let name = match (&args.traffic, &chain.traffic.source) {
            (Some(name), _) => name.as_os_str(),
            (None, TrafficSource::Preset(name)) => OsStr::new(name),
            (None, TrafficSource::File(file)) => file.as_os_str(),
        };
        let text = name.to_string_lossy().into_owned();
        let (flows, rate) = (chain.traffic.flows_scale, chain.traffic.rate_scale);
        let same = |(n, f, r, _): &&(String, f64, f64, TrafficStatistics)| (n, *f, *r) == (&text, flows, rate);
        if let Some((.., statistics)) = known.iter().find(same) {
            all.push((text, statistics.clone()));
            continue;
        }
        let Traffic::Preset(preset) = Traffic::named(name)? else {
            let message = format!(
                "chain \"{}\": expected a preset at flow level, found the capture {text}",
                chain.name
            );
            return Err(CliError::Input(message));
        };
        // Takes a second.
        let statistics = move || TrafficStatistics::of(&preset.scaled(flows)).faster(rate);
        let Some(statistics) = unless_stopped(stop, statistics) else {
            return Ok(None);
        };
        known.push((text.clone(), flows, rate, statistics.clone()));
        all.push((text, statistics));
    }
    Ok(Some(all))
}

/// Makes a chain ready for a policy and an objective.
fn made(
    chain: &RackChain,
    (policy, slo): (&'static str, Nanos),
    traffic: (String, TrafficStatistics),
    number: u64,
) -> Result<FlowLevelChain, CliError> {
    if !POLICIES.contains(&policy) {
        let policy = policy.to_owned();
        return Err(CliError::Input(FlowLevelError::Policy { policy }.to_string()));
    }
    let bytes = traffic.1.bytes;
    let profile = chain.profile(slo, bytes);
    let objective = Objective {
        slo,
        profile: &profile,
        packet: Nanos(chain.model().packet_nanos(bytes).round() as u64),
        ingress: chain.ingress,
    };
    let made = RackPolicy::named(policy, &objective);
    let made = made.map_err(|error| CliError::Input(format!("chain \"{}\": {error}", chain.name)))?;
    Ok(FlowLevelChain {
        name: chain.name.clone(),
        model: chain.model().clone(),
        slo,
        policy: made,
        profile,
        traffic,
        // Chains with the same preset get different traffic.
        seed: chain.traffic.seed.unwrap_or(number),
        servers: chain.servers,
    })
}
