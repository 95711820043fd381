//! The experiment on the simulator: packets cost what a capacity profile says, not what this machine takes.

use super::built_in::PROFILE;
use super::document::{Busiest, Document, PolicyResult};
use super::experiment::{Experiment, POLICIES};
use super::live::stopped;
use super::machine::Machine;
use crate::error::CliError;
use crate::input::Traffic;
use crate::profile::{train, usual_traffic};
use crate::run::args::RING;
use crate::simulate::runner::{Job, Runner};
use crate::simulate::{Run, SimulateArgs, SimulateOutput, compare};
use std::path::PathBuf;
use tailwater_dataplane::cores::default_core;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::server::IngressConfig;
use tailwater_profile::{Depth, TrainOptions};
use tailwater_sim::spec::{RackChain, RackSpec, SimulationModel, TrafficSource, TrafficSpec};
use tailwater_sim::{ChainModel, Rack};

/// Seed of a preset's packets.
const SEED: u64 = 1;

/// Stretch of a preset whose packets give the mean packet length.
const SAMPLED: Nanos = Nanos::from_millis(100);

/// Simulates the three policies. `because` is the reason that they do not run live.
pub fn run(experiment: &mut Experiment, machine: Option<Machine>, because: String) -> Result<Document, CliError> {
    let mut profile = profile(experiment)?;
    let (mean_bytes, own) = sample(experiment)?;
    let model = ChainModel::from_profile(&profile).map_err(|error| CliError::Input(error.to_string()))?;
    let measured = profile.details.as_ref().map(|details| details.traffic_packet);
    let packet = measured.filter(|nanos| *nanos > 0.0);
    let one_core = 1e9 / packet.unwrap_or_else(|| model.packet_nanos(mean_bytes)).max(1.0);
    let rates = experiment.rates(one_core, || Ok(own))?;
    experiment.set_relative_objective(one_core);
    profile.chain.clone_from(&experiment.spec.name);
    let traffic = TrafficSpec {
        source: match experiment.traffic()? {
            Traffic::Preset(_) => TrafficSource::Preset(experiment.traffic.to_string_lossy().into_owned()),
            Traffic::File(path) => TrafficSource::File(path),
        },
        flows_scale: rates.flows_scale,
        rate_scale: rates.rate_scale,
        seed: Some(SEED),
    };
    let mut rack = Rack::of_one(2);
    rack.servers[0].ring = RING;
    // One core has a queue: there is nothing to steer.
    let ingress = IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        threshold: 1,
        table: rack.switch.table,
        flow_hash: true,
        rebalance: false,
        scale_in: false,
    };
    let chain = RackChain::from_profile(profile, experiment.spec.slo.budget(), ingress, traffic);
    let spec = RackSpec {
        name: "demo".to_owned(),
        model: SimulationModel::Packets,
        rack,
        chains: vec![chain.map_err(|error| CliError::Input(error.to_string()))?],
        duration: Some(experiment.seconds),
        warm_up: Nanos::ZERO,
        window: experiment.window,
        seed: SEED,
        policies: Vec::new(),
    };
    let args = SimulateArgs {
        rack: PathBuf::new(),
        model: None,
        traffic: None,
        policy: Vec::new(),
        seed: Vec::new(),
        slo: Vec::new(),
        duration: None,
        find: None,
        // Reports include the busiest millisecond only if there is a page.
        report: Some(PathBuf::new()),
        resume: None,
        output: SimulateOutput::Table,
    };
    let runner = Runner::new(&spec, &args, &experiment.stop)?;
    let jobs = POLICIES.map(|(policy, _)| Job {
        one_dedicated_core: true,
        ..Job::new(policy, None, SEED)
    });
    jobs.iter().try_for_each(|job| runner.check(job))?;
    let (runs, _) = compare(&runner, &jobs, &experiment.stop)?;
    if runs.len() < jobs.len() {
        return Err(stopped());
    }
    let percentile = experiment.spec.slo.percentile;
    let results = POLICIES.into_iter().zip(&runs).map(|(policy, run)| {
        let report = &run.report;
        PolicyResult::simulated(policy, &report.chains[0], report.duration_s, percentile)
    });
    let traffic = runs[0].report.chains[0].traffic.clone();
    let busiest = (rates, busiest(&runs));
    Ok(Document::new(
        experiment,
        (machine, Some(because)),
        busiest,
        traffic,
        results.collect(),
    ))
}

/// Capacity profile: the embedded one of the built-in chain, or one measured now of another chain.
fn profile(experiment: &Experiment) -> Result<CapacityProfile, CliError> {
    if experiment.is_built_in {
        let profile = CapacityProfile::parse(PROFILE.as_bytes(), "the built-in profile");
        return profile.map_err(|error| CliError::Input(error.to_string()));
    }
    let options = TrainOptions {
        core: default_core(),
        depth: Depth::Quick,
        seed: SEED,
    };
    train(&experiment.spec, &usual_traffic(SEED)?, &options, &experiment.stop)
}

/// Mean packet length in bytes, and a capture's original rate in packets a second.
fn sample(experiment: &Experiment) -> Result<(f64, f64), CliError> {
    let mut arrivals = experiment.traffic()?.arrivals((SEED, SAMPLED), false)?;
    let (mut packets, mut bytes) = (0_u64, 0_u64);
    let mut times: Option<(Nanos, Nanos)> = None;
    while let Some(arrival) = arrivals.next_arrival()? {
        packets += 1;
        bytes += u64::from(arrival.bytes);
        let (first, _) = times.unwrap_or((arrival.time, arrival.time));
        times = Some((first, arrival.time));
    }
    let (first, last) = times.unwrap_or_default();
    let span = last.saturating_sub(first).as_secs_f64().max(1e-9);
    Ok((bytes as f64 / packets.max(1) as f64, packets as f64 / span))
}

/// Busiest millisecond, from the first report that has a burst.
fn busiest(runs: &[Run]) -> Busiest {
    let mut bursts = runs.iter().filter_map(|run| run.report.chains[0].burst.as_ref());
    let packets = bursts.next().map_or(0, |burst| {
        let within = burst.start_s..burst.start_s + 1e-3 - 1e-9;
        let steps = burst.steps.iter().filter(|step| within.contains(&step.start_s));
        steps.map(|step| step.offered).sum::<u64>()
    });
    Busiest {
        ms: 1.0,
        pps: packets as f64 * 1e3,
    }
}
