//! Output of commands: results on standard output, messages on standard error.

use crate::error::CliError;
use crate::text::one_line;
use clap::ValueEnum;
use std::io::{self, Write};

/// Output format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportOutput {
    Table,
    Json,
}

/// Prints one line to standard error, with control characters escaped.
pub fn complain(kind: &str, text: &str) {
    let _ = writeln!(io::stderr(), "{kind}: {}", one_line(text));
}

/// Prints a result to standard output. A closed pipe is not an error.
///
/// # Errors
/// The result cannot be written.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Formats a document as indented JSON.
///
/// # Errors
/// The document cannot be serialised.
pub fn json(document: &impl serde::Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(document);
    text.map(|text| text + "\n").map_err(not_json)
}

/// Returns the error of a document that cannot be serialised.
pub fn not_json(error: serde_json::Error) -> CliError {
    CliError::System {
        what: "the report cannot be written as JSON",
        source: error.into(),
    }
}
