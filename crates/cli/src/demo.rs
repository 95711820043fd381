//! `tailwater demo`: the same bursty load under three policies, side by side.
//!
//! 1. Two cores of this machine are watched for half a second for CPU interference.
//! 2. One core runs the chain saturated. The traffic's rate is scaled to that rate.
//! 3. The three policies run in turn on the same packets: live, or on the simulator if step 1 found too much
//!    interference.
//!
//! The data plane's runs, core mappers, capacity profiles and the simulator's runner are those of `tailwater run` and
//! `tailwater simulate`.

mod args;
mod built_in;
pub(crate) mod document;
mod experiment;
mod live;
mod machine;
mod simulated;

pub use args::{DEMO_EXAMPLES, DemoArgs};

use crate::error::CliError;
use crate::files::{ReportFile, check_output, spec_text};
use crate::input::Traffic;
use crate::output::{ReportOutput, complain, json, print};
use crate::profile::set_objective;
use crate::signals::stop_on_signals;
use crate::{html, table};
use built_in::BuiltIn;
use experiment::{Experiment, MOST_WINDOWS, WINDOW};
use machine::Machine;
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_baselines::catalog::epoch;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;

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
        let message = "spec.state: expected none, since the demo also runs policies that offload flows, whose state \
                       stays in memory";
        return Err(CliError::Input(message.to_owned()));
    }
    let report = args.report.as_ref().map(|path| {
        check_output("--report", path, &chain, Some(&Traffic::named(&args.traffic)?))?;
        ReportFile::open("--report", path)
    });
    let report = report.transpose()?;
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
    if let Some(report) = report {
        let path = report.path().to_owned();
        let page = html::demo(&document, &spec_text(&chain), SystemTime::now())?;
        report.write(&page)?;
        if args.output == ReportOutput::Table {
            complain("notice", &format!("charts: {}", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
