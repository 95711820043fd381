//! `tailwater doctor`.

mod args;
mod fix;

pub use args::{DOCTOR_EXAMPLES, DoctorArgs};

use crate::error::{CliError, SLO_MISSED};
use crate::memory;
use crate::output::{ReportOutput, json, print};
use crate::signals::stop_on_signals;
use crate::text::one_line;
use fix::{Fix, FixStatus};
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tailwater_dataplane::cores::{default_core, isolated};
use tailwater_doctor::{
    Diagnosis, Finding, LiveSystem, MEASURED_CHECKS, Mending, Purpose, Severity, Step, examine, measure, plan,
};

/// Document of `--output json`. Field names are stable.
#[derive(Debug, Serialize)]
struct Document<'d> {
    #[serde(flatten)]
    diagnosis: &'d Diagnosis,
    /// Changes, with `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fixes: Option<Vec<Fix>>,
}

/// Examines this machine, and prints whether an objective is realistic on it.
///
/// # Errors
/// The measurement fails, a signal ends it, or the result cannot be printed.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let cores = args.cores.as_ref().map(|cores| cores.0.clone());
    let purpose = Purpose {
        slo: args.slo,
        cores: cores.unwrap_or_else(|| match isolated() {
            none if none.is_empty() => vec![default_core()],
            isolated => isolated,
        }),
        has_dpdk: cfg!(feature = "dpdk"),
    };
    let stop = stop_on_signals()?;
    let findings = examine(&LiveSystem, &purpose);
    let measured = match args.no_measuring {
        true => None,
        false => {
            let measured = measure(&purpose, args.duration, &stop).map_err(|source| CliError::System {
                what: "cannot measure",
                source,
            })?;
            // A part of the measurements allows no verdict.
            Some(measured.ok_or_else(interrupted)?)
        }
    };
    let mut diagnosis = Diagnosis::new(&LiveSystem, &purpose, findings, measured);
    let mut fixes = None;
    {
        let steps = plan(&diagnosis.findings, &LiveSystem, &diagnosis.environment);
        if let Some(unknown) = args
            .only
            .iter()
            .find(|only| !diagnosis.findings.iter().any(|f| f.check == **only))
        {
            let checks: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.check).collect();
            return Err(CliError::Input(format!(
                "--only: no check {unknown:?}; expected one of {}",
                checks.join(", ")
            )));
        }
        if args.output == ReportOutput::Table {
            print(&table(&diagnosis, &steps))?;
        }
        if args.fix {
            fixes = Some(fix::fix(args, &steps)?);
        }
    }
    let has = |status: FixStatus| fixes.iter().flatten().any(|fix| fix.status == status);
    let (changed, failed) = (has(FixStatus::Done), has(FixStatus::Failed));
    if changed {
        // Measurements are those before the changes.
        let findings = examine(&LiveSystem, &purpose);
        diagnosis = Diagnosis::new(&LiveSystem, &purpose, findings, diagnosis.measured);
    }
    match (args.output, fixes) {
        (ReportOutput::Json, fixes) => print(&json(&Document {
            diagnosis: &diagnosis,
            fixes,
        })?)?,
        (ReportOutput::Table, Some(fixes)) => {
            print(&fix::table(&fixes))?;
            if changed {
                let again = "The measurements above were made before the changes: run `tailwater doctor` again.\n";
                print(&format!("\n{again}{}", verdict(&diagnosis)))?;
            }
        }
        (ReportOutput::Table, None) => {}
    }
    if args.fix && stop.load(Ordering::Relaxed) {
        let message = "interrupted: changes after the last answer were not asked for, and not made";
        return Err(CliError::Stopped(message.to_owned()));
    }
    if failed {
        return Ok(ExitCode::FAILURE);
    }
    Ok(match diagnosis.verdict.realistic {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(SLO_MISSED),
    })
}

/// Returns the error of a diagnosis that ended while it measured, by a signal or since memory ran out.
fn interrupted() -> CliError {
    let reason = match memory::is_short() {
        true => "out of memory",
        false => "interrupted",
    };
    let checks = MEASURED_CHECKS.join(" and ");
    CliError::Stopped(format!(
        "{reason}: the checks {checks} were not done; there is no verdict"
    ))
}

/// Formats the diagnosis for people: problems with their cost and fixes, then the other findings in a line each, then
/// the verdict.
fn table(diagnosis: &Diagnosis, plan: &[Mending<'_>]) -> String {
    let mut text = format!("{}; cores {}\n", one_line(&diagnosis.machine), diagnosis.cores);
    // Writing into a string cannot fail.
    if let Some(environment) = diagnosis.environment.words() {
        let _ = writeln!(text, "{}", one_line(&environment));
    }
    for Mending { finding, steps } in plan {
        let (severity, found) = (finding.severity.name(), one_line(&finding.found));
        let _ = writeln!(text, "\n{severity:<9} {}: {found}", finding.check);
        let _ = writeln!(text, "          {}", finding.why);
        match &finding.cost {
            Some(cost) => {
                let source = one_line(&cost.source);
                let _ = writeln!(
                    text,
                    "          costs {} us: {} ({source})",
                    short_us(cost.us),
                    cost.each
                );
            }
            None if finding.severity == Severity::Missing => {}
            None => text.push_str("          its cost is not known for this machine\n"),
        }
        for step in steps {
            let _ = match step {
                Step::Change { action, .. } => writeln!(text, "          $ {}", one_line(&action.command())),
                Step::ByHand { command, .. } => writeln!(text, "          $ {}", one_line(command)),
                Step::Elsewhere(place) => writeln!(text, "          -> {place}"),
            };
        }
    }
    let rest: Vec<&Finding> = diagnosis
        .findings
        .iter()
        .filter(|finding| finding.severity >= Severity::Unknown)
        .collect();
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
    text + &verdict(diagnosis)
}

/// Formats microseconds with about three digits.
fn short_us(us: f64) -> String {
    match us {
        _ if us >= 100.0 => format!("{us:.0}"),
        _ if us >= 1.0 => format!("{us:.1}"),
        _ => format!("{us:.3}"),
    }
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let verdict = &diagnosis.verdict;
    format!(
        "\np99 within {} us on cores {} {}: {}\n",
        verdict.slo_us,
        diagnosis.cores,
        match verdict.realistic {
            true => "is realistic",
            false => "is not realistic",
        },
        one_line(&verdict.because)
    )
}
