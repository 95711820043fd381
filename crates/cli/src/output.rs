//! Output of commands: results on standard output, messages on standard error.

use crate::error::CliError;
use crate::text::one_line;
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    print_while_read(text).map(drop)
}

/// Prints a part of an output without end to standard output. Returns `false` if the pipe is closed: nobody reads on.
///
/// # Errors
/// The text cannot be written.
pub fn print_while_read(text: &str) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CliError::Output(error)),
    }
}

/// Returns `false` if standard output is a pipe whose reader is gone. Writing would report it, too, but there may be
/// nothing to write for hours.
#[cfg_attr(
    not(feature = "control"),
    allow(dead_code, reason = "only clients of servers follow")
)]
pub fn has_reader() -> bool {
    let stdout = io::stdout();
    // Without events to wait for, the kernel reports errors only.
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let _ = poll(&mut polled, Some(&Timespec::default()));
    !polled[0].revents().contains(PollFlags::ERR)
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
