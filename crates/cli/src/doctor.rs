//! `tailwater doctor`.

use crate::error::{CliError, SLO_MISSED};
use crate::output::{ReportOutput, json, print};
use crate::signals::stop_on_signals;
use crate::text::one_line;
use crate::values::{self, Cores};
use clap::Args;
use std::fmt::Write as _;
use std::process::ExitCode;
use tailwater_dataplane::cores::{default_core, isolated};
use tailwater_doctor::{Diagnosis, Finding, LiveSystem, Purpose, Severity, examine, measure};
use tailwater_net::Nanos;

/// Help text of `tailwater doctor`.
pub const DOCTOR_EXAMPLES: &str = "\
Prints problems first, each with the command that fixes it. Some checks require root.

Examples:
  tailwater doctor
  tailwater doctor --slo 100us --cores 2-3
  sudo tailwater doctor --output json > machine.json

Exit codes: 0 the objective is realistic here, 1 nothing could be measured, 2 wrong input,
3 the objective is not realistic.";

/// Arguments of `tailwater doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Latency objective of the 99th percentile
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = values::duration)]
    pub slo: Nanos,
    /// Cores that will process packets [default: the isolated ones, or the last]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    pub cores: Option<Cores>,
    /// Measuring time on the cores
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::watch)]
    pub duration: Nanos,
    /// Read the system's settings only, without measurements
    #[arg(long, conflicts_with = "duration")]
    pub no_measuring: bool,
    /// Output format
    #[arg(long, value_name = "table|json", default_value = "table")]
    #[arg(hide_possible_values = true)]
    pub output: ReportOutput,
}

/// Examines this machine, and prints whether an objective is realistic on it.
///
/// # Errors
/// The measurement fails, or the result cannot be printed.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let cores = args.cores.as_ref().map(|cores| cores.0.clone());
    let purpose = Purpose {
        slo: args.slo,
        cores: cores.unwrap_or_else(|| match isolated() {
            none if none.is_empty() => vec![default_core()],
            isolated => isolated,
        }),
    };
    let stop = stop_on_signals()?;
    let findings = examine(&LiveSystem, &purpose);
    let measured = match args.no_measuring {
        true => None,
        false => {
            let measured = measure(&purpose, args.duration, &stop);
            Some(measured.map_err(|source| CliError::System {
                what: "cannot measure",
                source,
            })?)
        }
    };
    let diagnosis = Diagnosis::new(&LiveSystem, &purpose, findings, measured);
    match args.output {
        ReportOutput::Table => print(&table(&diagnosis))?,
        ReportOutput::Json => print(&json(&diagnosis)?)?,
    }
    Ok(match diagnosis.verdict.realistic {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(SLO_MISSED),
    })
}

/// Formats the diagnosis for people: problems with their fixes, then the other findings in a line each, then the
/// verdict.
fn table(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}; cores {}\n", one_line(&diagnosis.machine), diagnosis.cores);
    let (rest, bad): (Vec<&Finding>, Vec<&Finding>) = diagnosis
        .findings
        .iter()
        .partition(|finding| finding.severity >= Severity::Unknown);
    for finding in bad {
        let (severity, found) = (finding.severity.name(), one_line(&finding.found));
        // Writing into a string cannot fail.
        let _ = writeln!(text, "\n{severity:<9} {}: {found}", finding.check);
        let _ = writeln!(text, "          {}", finding.why);
        for command in &finding.fix {
            let _ = writeln!(text, "          $ {}", one_line(command));
        }
    }
    if !rest.is_empty() {
        text.push('\n');
    }
    for finding in rest {
        let (severity, found) = (finding.severity.name(), one_line(&finding.found));
        let _ = writeln!(text, "{severity:<9} {}: {found}", finding.check);
        for command in &finding.fix {
            let _ = writeln!(text, "          $ {}", one_line(command));
        }
    }
    let verdict = &diagnosis.verdict;
    let _ = writeln!(
        text,
        "\np99 within {} us on cores {} {}: {}",
        verdict.slo_us,
        diagnosis.cores,
        if verdict.realistic {
            "is realistic"
        } else {
            "is not realistic"
        },
        one_line(&verdict.because)
    );
    text
}
