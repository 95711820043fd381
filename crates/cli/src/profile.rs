//! `tailwater profile`.

mod args;

pub use args::{CAPACITY_EXAMPLES, CapacityArgs};

use crate::error::CliError;
use crate::files::{check_output, write_result};
use crate::input::{self, LoadArgs, Traffic};
use crate::output::{ReportOutput, complain, json, print};
use crate::progress::Measuring;
use crate::signals::stop_on_signals;
use crate::table;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::epoch;
use tailwater_dataplane::cores::{AvoidCores, default_core};
use tailwater_files::is_stdin;
use tailwater_functions::spec::{ChainSpec, Match};
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_profile::{Depth, TrainOptions, train_capacity};
use tailwater_traffic::Trace;

/// Length of a preset's traffic for measurements.
pub const GENERATED: Nanos = Nanos::from_millis(500);

/// Memory limit for the traffic's packets, bytes.
const MEMORY_LIMIT: u64 = 4 << 30;

/// Measures the capacity of one core for a chain, prints it and writes it to a file.
///
/// # Errors
/// The input is invalid, training fails or is stopped, or the result cannot be written.
pub fn capacity(args: &CapacityArgs) -> Result<ExitCode, CliError> {
    // Quick checks come before slow ones.
    let mut spec = ChainSpec::read(&args.chain)?;
    set_objective(&mut spec, args.slo)?;
    epoch(spec.slo.budget()).map_err(|error| CliError::Input(error.to_string()))?;
    let traffic = Traffic::named(&args.traffic)?;
    let file = output_of(args.file.as_deref(), &args.chain, beside)?;
    check_output("--file", &file, &args.chain, Some(&traffic))?;
    let load = LoadArgs {
        skip_bad_packets: args.skip_bad_packets,
        ..as_it_is(args.seed)
    };
    // A capture's timestamps do not matter, as in saturated runs.
    let untimed = matches!(traffic, Traffic::File(_));
    let loaded = input::load(traffic, &load, Some(GENERATED), untimed, &spec.match_)?;
    let told = loaded.notices.iter();
    told.for_each(|notice| complain("notice", notice));
    let stop = stop_on_signals()?;
    let options = TrainOptions {
        core: args.core.unwrap_or_else(default_core),
        depth: Depth::Full,
        seed: args.seed,
    };
    let profile = train(&spec, &loaded.trace, &options, &stop)?;
    write_result(&file, &profile.to_string())?;
    print(&match args.output {
        ReportOutput::Table => table::capacity(&profile, &file),
        ReportOutput::Json => json(&CapacityDocument::new(&profile, &file))?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the file that a measurement writes: the named one, or the one beside the chain.
///
/// # Errors
/// None is named, and the chain is in no file.
pub fn output_of(named: Option<&Path>, chain: &Path, beside: fn(&Path) -> PathBuf) -> Result<PathBuf, CliError> {
    match named {
        Some(file) => Ok(file.to_owned()),
        None if is_stdin(chain) => {
            let message = "--file: expected with a chain on standard input, beside which there is no place for it";
            Err(CliError::Input(message.to_owned()))
        }
        None => Ok(beside(chain)),
    }
}

/// Replaces the chain's objective, if `slo` is given.
///
/// # Errors
/// The objective does not exceed the network's share.
pub fn set_objective(spec: &mut ChainSpec, slo: Option<Nanos>) -> Result<(), CliError> {
    let Some(slo) = slo else {
        return Ok(());
    };
    if slo <= spec.slo.network {
        return Err(CliError::Input(format!(
            "--slo: expected more than the network allowance of {} (spec.slo.network), found {slo}",
            spec.slo.network
        )));
    }
    spec.slo.latency = slo;
    Ok(())
}

/// Returns the options for traffic at its own rate.
pub fn as_it_is(seed: u64) -> LoadArgs {
    LoadArgs {
        rate_scale: None,
        rate: None,
        seed,
        skip_bad_packets: false,
        memory_limit: MEMORY_LIMIT,
    }
}

/// Returns the traffic for measuring a chain whose real traffic is unknown.
///
/// # Errors
/// The traffic cannot be generated.
pub fn usual_traffic(seed: u64) -> Result<Trace, CliError> {
    let traffic = Traffic::named("backbone".as_ref())?;
    let (load, wanted) = (as_it_is(seed), Match::default());
    Ok(input::load(traffic, &load, Some(GENERATED), false, &wanted)?.trace)
}

/// Measures a chain, with progress on the terminal.
///
/// # Errors
/// Training fails or is stopped.
pub fn train(
    spec: &ChainSpec,
    traffic: &Trace,
    options: &TrainOptions,
    stop: &AtomicBool,
) -> Result<CapacityProfile, CliError> {
    let mut measuring = Measuring::new();
    // Traffic is generated on other cores than the chain's, if there are any.
    let _elsewhere = AvoidCores::new(&[options.core]);
    train_capacity(spec, traffic, options, stop, |step| measuring.show(step)).map_err(CliError::Train)
}

/// Returns the default path of a chain's profile: `edge.profile.yaml` for `edge.yaml`.
pub fn beside(chain: &Path) -> PathBuf {
    chain.with_extension("profile.yaml")
}

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
struct CapacityDocument {
    chain: String,
    configuration: String,
    machine: String,
    slo_us: f64,
    epoch_us: f64,
    frontier: Vec<Epoch>,
    rates: Vec<Rate>,
    splits: Vec<Split>,
    costs: Option<Costs>,
    file: String,
}

#[derive(Debug, Serialize)]
struct Epoch {
    flows: u32,
    packets: u32,
}

#[derive(Debug, Serialize)]
struct Rate {
    flows: u32,
    pps: f64,
}

#[derive(Debug, Serialize)]
struct Split {
    last_functions: usize,
    first_packets: u32,
    last_packets: u32,
}

#[derive(Debug, Serialize)]
struct Costs {
    batch_ns: f64,
    packet_ns: f64,
    byte_ns: f64,
    new_flow_ns: f64,
}

impl CapacityDocument {
    fn new(profile: &CapacityProfile, file: &Path) -> Self {
        let frontier = profile.frontier.corners().iter().map(|corner| Epoch {
            flows: corner.flows,
            packets: corner.packets,
        });
        let rates = profile.rates.corners().iter();
        let splits = profile.splits.points().iter().map(|point| Split {
            last_functions: point.last_functions,
            first_packets: point.first,
            last_packets: point.last,
        });
        CapacityDocument {
            chain: profile.chain.clone(),
            configuration: profile.configuration.clone(),
            machine: profile.machine.clone(),
            slo_us: profile.slo.as_micros_f64(),
            epoch_us: profile.epoch.as_micros_f64(),
            frontier: frontier.collect(),
            rates: rates.map(|&(flows, pps)| Rate { flows, pps }).collect(),
            splits: splits.collect(),
            costs: profile.costs.map(|costs| Costs {
                batch_ns: costs.batch,
                packet_ns: costs.packet,
                byte_ns: costs.byte,
                new_flow_ns: costs.new_flow,
            }),
            file: file.display().to_string(),
        }
    }
}
