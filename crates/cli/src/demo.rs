//! `tailwater demo`: the same bursty load under three policies, side by side.
//!
//! 1. Two cores of this machine are watched for half a second for CPU interference.
//! 2. One core runs the chain saturated. The traffic's rate is scaled to that rate.
//! 3. The three policies run in turn on the same packets: live, or on the simulator if step 1 found too much interference.
//!
//! The data plane's runs, core mappers, capacity profiles and the simulator's runner are those of `tailwater run` and
//! `tailwater simulate`.

mod built_in;
mod document;
mod live;
mod machine;
mod simulated;

pub use document::{Document, PolicyResult};

use crate::args::{DemoArgs, ReportOutput};
use crate::error::CliError;
use crate::input::Traffic;
use crate::profile::set_objective;
use crate::run::{check_output, json, spec_text, stop_on_signals};
use crate::{complain, html, print, table};
use built_in::BuiltIn;
use machine::Machine;
use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use tailwater_baselines::catalog::epoch;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

/// Policies in the order in which they run, with their titles in the table.
const POLICIES: [(&str, &str); 3] = [
    ("static", "one static core"),
    ("netblaze", "NetBlaze + 1 auxiliary"),
    ("tailwater", "Tailwater + 1 auxiliary"),
];

/// Mean load of the dedicated core, as a share of its saturated rate.
const LOAD: f64 = 0.6;

/// Saturated rate of one core that fixes a preset's number of flows: their mean rate is [`LOAD`] of it. On a core with another
/// rate the same flows are replayed faster or slower, so a burst lasts as many packet service times everywhere.
const REFERENCE_PPS: f64 = 1.55e6;

/// Latency objective of the built-in chain, in packet service times of one core: a slower machine gets the same experiment.
const OBJECTIVE_PACKETS: f64 = 200.0;

/// Lower bound of that objective: waking an auxiliary core takes tens of microseconds in a virtual machine.
const LEAST_OBJECTIVE: Nanos = Nanos::from_micros(150);

/// Upper bound of a run's windows: more would be unreadable in a chart.
const MOST_WINDOWS: u64 = 400;

/// Length of a window in a run of up to 8 s.
const WINDOW: Nanos = Nanos::from_millis(20);

/// Chain, traffic and duration, the same for all policies.
struct Experiment {
    spec: ChainSpec,
    /// The objective is [`OBJECTIVE_PACKETS`] packet service times.
    relative_objective: bool,
    /// The chain is the one within this program, with its profile.
    is_built_in: bool,
    traffic: OsString,
    seconds: Nanos,
    window: Nanos,
    stop: Arc<AtomicBool>,
}

/// Rate of the traffic.
#[derive(Clone, Copy, Debug)]
struct Rates {
    /// Saturated rate of one core, in packets a second.
    one_core: f64,
    /// Factor on the number of a preset's flows.
    flows_scale: f64,
    /// Factor on the speed of replay.
    rate_scale: f64,
}

impl Experiment {
    fn traffic(&self) -> Result<Traffic, CliError> {
        Traffic::named(&self.traffic)
    }

    /// Factor that gives a preset a mean rate of [`LOAD`] of [`REFERENCE_PPS`].
    fn flows_scale(&self) -> Result<f64, CliError> {
        Ok(match self.traffic()? {
            Traffic::Preset(preset) => LOAD * REFERENCE_PPS / preset.mean_rate_pps(),
            Traffic::File(_) => 1.0,
        })
    }

    /// Scales the traffic to a core's saturated rate. `own` returns a capture's original rate.
    fn rates(&self, one_core: f64, own: impl FnOnce() -> Result<f64, CliError>) -> Result<Rates, CliError> {
        let rate_scale = match self.traffic()? {
            Traffic::Preset(_) => one_core / REFERENCE_PPS,
            Traffic::File(_) => LOAD * one_core / own()?,
        };
        Ok(Rates {
            one_core,
            flows_scale: self.flows_scale()?,
            rate_scale,
        })
    }

    /// Sets the objective from a core's saturated rate, unless the user or the chain sets it.
    fn set_relative_objective(&mut self, one_core: f64) {
        if self.relative_objective {
            let tens = (OBJECTIVE_PACKETS / one_core * 1e5).round().max(1.0);
            self.spec.slo.latency = Nanos::from_micros(10 * tens as u64).max(LEAST_OBJECTIVE);
        }
    }
}

/// Runs the demonstration and prints its table.
pub fn demo(args: &DemoArgs) -> Result<ExitCode, CliError> {
    let built_in = match args.chain {
        Some(_) => None,
        None => Some(BuiltIn::unpack()?),
    };
    let chain = match (&args.chain, &built_in) {
        (Some(chain), _) => chain.clone(),
        (None, Some(built_in)) => built_in.chain(),
        (None, None) => unreachable!("one of them is there"),
    };
    let mut spec = ChainSpec::read(&chain)?;
    set_objective(&mut spec, args.slo)?;
    epoch(spec.slo.budget()).map_err(|error| CliError::Input(error.to_string()))?;
    if spec.state.is_some() {
        let message = "spec.state: expected none, since the demo offloads flows to an auxiliary core, which keeps no state in Redis";
        return Err(CliError::Input(message.to_owned()));
    }
    if let Some(path) = &args.report {
        check_output("--report", path, &chain, Some(&Traffic::named(&args.traffic)?))?;
    }
    let mut experiment = Experiment {
        relative_objective: args.chain.is_none() && args.slo.is_none(),
        is_built_in: args.chain.is_none(),
        // Three runs would write the same files.
        spec: tailwater_profile::without_files(&spec),
        traffic: args.traffic.clone(),
        seconds: args.seconds,
        window: WINDOW.max(Nanos(args.seconds.0.div_ceil(MOST_WINDOWS))),
        stop: stop_on_signals()?,
    };
    experiment.traffic()?;
    let machine = match args.simulate {
        true => None,
        false => Some(Machine::watch(&experiment)?),
    };
    let live = match &machine {
        None => Err("--simulate".to_owned()),
        Some(machine) => match machine.why_not() {
            Some(because) => Err(because),
            None => live::run(&mut experiment, machine)?,
        },
    };
    let document = match live {
        Ok(document) => document,
        Err(because) => {
            if machine.is_some() && args.output == ReportOutput::Table {
                // Before anything else is printed, so the table is not taken for a measurement.
                print(&format!("simulated: {because}\n\n"))?;
            }
            simulated::run(&mut experiment, machine, because)?
        }
    };
    print(&match args.output {
        ReportOutput::Table => table::demo(&document),
        ReportOutput::Json => json(&document)?,
    })?;
    if let Some(path) = &args.report {
        let page = html::demo(&document, &spec_text(&chain), SystemTime::now())?;
        fs::write(path, page).map_err(|source| CliError::Report {
            file: path.display().to_string(),
            source,
        })?;
        if args.output == ReportOutput::Table {
            complain("notice", &format!("charts: {}", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
