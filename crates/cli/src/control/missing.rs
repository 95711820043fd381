//! Stand-in for the clients of servers in a program without the feature `control`: the commands are refused.

use super::args::{ApplyArgs, DeleteArgs, DescribeArgs, DrainArgs, EventsArgs, GetArgs};
use crate::error::CliError;
use std::process::ExitCode;

fn missing(command: &str) -> Result<ExitCode, CliError> {
    Err(CliError::built_without(command, "control"))
}

/// Returns the error that the feature is missing.
pub fn apply(_: &ApplyArgs) -> Result<ExitCode, CliError> {
    missing("apply")
}

/// Returns the error that the feature is missing.
pub fn get(_: &GetArgs) -> Result<ExitCode, CliError> {
    missing("get")
}

/// Returns the error that the feature is missing.
pub fn describe(_: &DescribeArgs) -> Result<ExitCode, CliError> {
    missing("describe")
}

/// Returns the error that the feature is missing.
pub fn delete(_: &DeleteArgs) -> Result<ExitCode, CliError> {
    missing("delete")
}

/// Returns the error that the feature is missing.
pub fn drain(_: &DrainArgs) -> Result<ExitCode, CliError> {
    missing("drain")
}

/// Returns the error that the feature is missing.
pub fn events(_: &EventsArgs) -> Result<ExitCode, CliError> {
    missing("events")
}
