//! Stand-in for the export of telemetry in a program without the feature `metrics`: `--otlp` and
//! `spec.telemetry.otlp` are refused.

use crate::error::CliError;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::kept_packets::KeptObserver;
use tailwater_server::Snapshot;

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

/// Sources of what would be exported.
#[derive(Debug)]
#[allow(dead_code, reason = "nobody reads it without an export")]
pub struct ExportSources {
    /// Name of the server.
    pub server: String,
    /// Latest state of the server.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// Clock of the chains.
    pub clock: Clock,
    /// Packets of each chain that would be traced in a second.
    pub traced_packets: u32,
    /// Spans of kept packets, if packets are kept.
    pub kept: Option<Receiver<String>>,
}

/// Counts of records, which do not exist.
#[derive(Debug, Default)]
pub struct Counts;

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
