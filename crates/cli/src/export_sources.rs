//! Sources of an export of telemetry, for a program with that feature and without.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use tailwater_dataplane::clock::Clock;
use tailwater_server::Snapshot;

/// Sources of what is exported.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "nobody reads it without an export")
)]
pub struct ExportSources {
    /// Name of the server.
    pub server: String,
    /// Latest state of the server: its events, and its chains with their traces.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// Clock of the chains.
    pub clock: Clock,
    /// Packets of each chain that are traced in a second.
    pub traced_packets: u32,
    /// Spans of kept packets, if packets are kept.
    pub kept: Option<Receiver<String>>,
}
