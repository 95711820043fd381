//! Report of a finished run: on standard output, as a page, and as an exit code.

use super::plan::Outputs;
use crate::error::{CliError, SLO_MISSED};
use crate::output::{ReportOutput, complain, json, print};
use crate::{html, table};
use std::process::ExitCode;
use std::time::SystemTime;
use tailwater_dataplane::RunError;
use tailwater_dataplane::report::RunReport;

/// Prints the report of a run, and writes its page, also if recording failed or a worker panicked. `recorded` is the
/// result of recording the policy's decisions.
///
/// # Errors
/// The run or the recording failed, or the report cannot be written.
pub fn finish(
    ran: Result<RunReport, RunError>,
    recorded: Result<(), CliError>,
    outputs: Outputs,
) -> Result<ExitCode, CliError> {
    let (report, failure) = match ran {
        Ok(report) => (report, None),
        Err(error) => match error.report().cloned() {
            Some(report) => (report, Some(error)),
            None => return Err(error.into()),
        },
    };
    print(&match outputs.format {
        ReportOutput::Table => table::report(&report),
        ReportOutput::Json => json(&report)?,
    })?;
    let written = match outputs.page {
        Some(page) => html::page(&report, &page.spec, SystemTime::now()).and_then(|text| page.file.write(&text)),
        None => Ok(()),
    };
    let failures = [failure.map(CliError::from), recorded.err(), written.err()];
    let mut failures = failures.into_iter().flatten();
    if let Some(first) = failures.next() {
        // Each names another file.
        failures.for_each(|other| complain("error", &other.to_string()));
        return Err(first);
    }
    Ok(match report.slo_met.filter(|_| outputs.check_slo) {
        Some(false) => ExitCode::from(SLO_MISSED),
        None if outputs.check_slo => {
            let text = format!("--check-slo: no verdict: {}", table::without_verdict(&report));
            complain("error", &text);
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    })
}
