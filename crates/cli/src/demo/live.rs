//! The experiment on this machine: saturated rate of one core, capacity profile, and a run of each policy.

use super::document::{Busiest, Document, PolicyResult};
use super::experiment::{Experiment, POLICIES};
use super::machine::Machine;
use crate::error::CliError;
use crate::input::{self, LoadArgs, Traffic};
use crate::output::complain;
use crate::profile::{as_it_is, train};
use crate::progress::Live;
use crate::run::args::RING;
use crate::run::mappers::offloading_config;
use std::io;
use std::sync::atomic::Ordering;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, run as run_chain};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_profile::{Depth, TrainError, TrainOptions};
use tailwater_traffic::Trace;

/// Generated length of a preset. It is repeated with its flows renumbered: 2 s of packets would take gigabytes.
const GENERATED: Nanos = Nanos::from_millis(500);

/// Generated length of the preset that the core is measured with.
const TRAINED: Nanos = Nanos::from_millis(200);

/// Duration of the saturated run.
const SATURATED: Nanos = Nanos::from_millis(500);

/// Seeds of a preset's packets: of the compared runs, and of those that the core is measured with.
const SEED: u64 = 1;
const TRAINING_SEED: u64 = 1001;

/// Measures the core and runs the policies in turn. Returns the reason instead if the core cannot be measured.
pub fn run(experiment: &mut Experiment, machine: &Machine) -> Result<Result<Document, String>, CliError> {
    let Some(auxiliary) = machine.auxiliary_core else {
        return Ok(Err("there is no auxiliary core".to_owned()));
    };
    let dedicated = machine.dedicated_core;
    let training = load(experiment, TRAINING_SEED, 1.0, TRAINED)?;
    let saturated = (Pacing::Saturate, SATURATED);
    let report = run_policy(experiment, training.clone(), dedicated, saturated, None)?;
    let one_core = rate(&report);
    let own = 1.0 / training.mean_gap().as_secs_f64();
    let rates = experiment.rates(one_core, || Ok(own))?;
    experiment.set_relative_objective(one_core);
    let options = TrainOptions {
        core: dedicated,
        depth: Depth::Quick,
        seed: SEED,
    };
    let profile = match train(&experiment.spec, &training, &options, &experiment.stop) {
        Ok(profile) => profile,
        Err(CliError::Train(error @ TrainError::CorePreempted { .. })) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    let trace = match experiment.traffic()? {
        Traffic::Preset(_) => {
            drop(training);
            load(experiment, SEED, rates.rate_scale, GENERATED)?
        }
        // A capture has no other seed.
        Traffic::File(_) => {
            let mut trace = training;
            trace.scale_rate(rates.rate_scale)?;
            trace
        }
    };
    let notices = trace.notices().iter();
    notices.for_each(|notice| complain("notice", &notice.to_string()));
    let mut policies = Vec::new();
    let mut busiest = Busiest::default();
    for policy in POLICIES {
        let named = Policy::named(policy.0).map_err(|error| CliError::Input(error.to_string()))?;
        let scaling = offloading_config(named, (&experiment.spec, &profile), vec![auxiliary], Mode::Sleep)?;
        let paced = (Pacing::Arrivals, experiment.seconds);
        let report = run_policy(experiment, trace.clone(), dedicated, paced, scaling)?;
        let arrivals = &report.arrivals;
        let most = arrivals.busiest_bin.iter().copied().max();
        busiest = Busiest {
            ms: arrivals.bin_ms,
            pps: most.unwrap_or(0) as f64 * 1e3 / arrivals.bin_ms.max(1e-9),
        };
        policies.push(PolicyResult::live(policy, &report));
    }
    let traffic = trace.name().to_owned();
    let machine = (Some(machine.clone()), None);
    Ok(Ok(Document::new(
        experiment,
        machine,
        (rates, busiest),
        traffic,
        policies,
    )))
}

/// Loads the traffic, replayed at `rate_scale` times its speed.
fn load(experiment: &Experiment, seed: u64, rate_scale: f64, length: Nanos) -> Result<Trace, CliError> {
    let traffic = match experiment.traffic()? {
        Traffic::Preset(preset) => Traffic::Preset(Box::new(preset.scaled(experiment.flows_scale()?))),
        file => file,
    };
    let load = LoadArgs {
        rate_scale: Some(rate_scale),
        ..as_it_is(seed)
    };
    Ok(input::load(traffic, &load, Some(length), false, &experiment.spec.match_)?.trace)
}

/// Runs the chain once, with the defaults of `tailwater run`.
fn run_policy(
    experiment: &Experiment,
    trace: Trace,
    core: usize,
    (pacing, length): (Pacing, Nanos),
    scaling: Option<ScalingConfig>,
) -> Result<RunReport, CliError> {
    let config = RunConfig {
        nic: TraceNicConfig {
            pacing,
            ring: RING as usize,
            duration: Some(length),
            ..TraceNicConfig::default()
        },
        window: experiment.window,
        seed: SEED,
        scaling,
        ..RunConfig::new(vec![core])
    };
    let plan = RunPlan::new(experiment.spec.clone(), config)?;
    let mut live = Live::new();
    let control = RunControl::new(&experiment.stop).with_progress(|progress| live.show(progress));
    let report = run_chain(&plan, trace, control)?;
    match experiment.stop.load(Ordering::Relaxed) {
        true => Err(stopped()),
        false => Ok(report),
    }
}

/// Error of a demonstration that a signal stopped.
pub fn stopped() -> CliError {
    CliError::System {
        what: "there is nothing to compare",
        source: io::Error::new(io::ErrorKind::Interrupted, "stopped by a signal"),
    }
}

/// Rate of a saturated run in packets a second: of its median window without CPU interference, or its mean if there is
/// none.
fn rate(report: &RunReport) -> f64 {
    let windows = &report.windows;
    // The first window has cold caches, and the last is shorter.
    let whole = windows.list.get(1..windows.list.len().max(2) - 1).unwrap_or_default();
    let mut quiet: Vec<u64> = whole.iter().filter(|w| !w.flagged).map(|w| w.offered).collect();
    quiet.sort_unstable();
    match quiet.get(quiet.len() / 2) {
        Some(&packets) if packets > 0 => packets as f64 * 1e3 / windows.length_ms,
        _ => (report.packets.offered as f64 / report.duration_s.max(1e-9)).max(1.0),
    }
}
