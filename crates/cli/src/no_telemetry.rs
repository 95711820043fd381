//! Stand-in for the export of telemetry in a program without the feature `metrics`: `--otlp` and
//! `spec.telemetry.otlp` are refused.

use crate::error::CliError;
pub use crate::export_sources::{ExportSources, Observed};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use tailwater_dataplane::kept_packets::KeptObserver;

/// Configuration of the export: no value of this type exists.
#[derive(Debug)]
pub enum ExportConfig {}

impl ExportConfig {
    /// Returns the error that the feature is missing, if an option or field names a URL.
    pub fn find(
        named: Option<(&str, &str)>,
        _: impl Fn(&str) -> Option<String>,
        _: impl FnMut(&str),
    ) -> Result<Option<ExportConfig>, CliError> {
        match named {
            Some((option, _)) => Err(CliError::built_without(option, "metrics")),
            None => Ok(None),
        }
    }

    /// Never called.
    pub fn observe_kept(&self, _: &Arc<Counts>) -> (Option<KeptObserver>, Option<Receiver<String>>) {
        match *self {}
    }
}

/// Counts of records, which do not exist.
#[derive(Debug, Default)]
pub struct Counts;

impl Counts {
    /// Number of dropped records.
    pub fn all_dropped(&self) -> u64 {
        0
    }
}

/// Running export: no value of this type exists.
#[derive(Debug)]
pub enum Exporter {}

impl Exporter {
    pub fn stop(self) {}

    /// Never called.
    pub fn start(config: ExportConfig, _: ExportSources, _: &Arc<Counts>) -> Result<Exporter, CliError> {
        match config {}
    }
}
