//! Sources of an export of telemetry, for a program with that feature and without.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::packet_traces::PacketTraces;
use tailwater_dataplane::clock::Clock;
use tailwater_server::{Event, EventRing, Snapshot};

/// Traces of the chains that run, by name.
pub type TracedChains = BTreeMap<String, Arc<PacketTraces>>;

/// Events, and the chains that can be traced.
#[derive(Debug)]
pub enum Observed {
    /// Those of a server: its latest state.
    Server(Arc<Mutex<Snapshot>>),
    /// Those of a run.
    Run {
        /// Its events.
        events: Arc<Mutex<EventRing>>,
        /// Its chain.
        chains: TracedChains,
    },
}

#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "nobody reads it without an export")
)]
impl Observed {
    /// Events after this sequence number, and the chains that can be traced now.
    pub fn after(&self, sequence: u64) -> (Vec<Arc<Event>>, TracedChains) {
        match self {
            Observed::Server(snapshot) => {
                let snapshot = snapshot.lock().unwrap_or_else(PoisonError::into_inner);
                let chains = snapshot.chains.iter().filter_map(|(name, status)| {
                    let traces = status.observation.as_ref()?.traces.as_ref()?;
                    Some((name.clone(), Arc::clone(&traces.0)))
                });
                (snapshot.events.after(sequence).cloned().collect(), chains.collect())
            }
            Observed::Run { events, chains } => {
                let events = events.lock().unwrap_or_else(PoisonError::into_inner);
                (events.after(sequence).cloned().collect(), chains.clone())
            }
        }
    }
}

/// Sources of what is exported.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "nobody reads it without an export")
)]
pub struct ExportSources {
    /// Name of the server, or of a run's chain.
    pub server: String,
    /// Events, and chains with their traces.
    pub observed: Observed,
    /// Clock of the chains.
    pub clock: Clock,
    /// Packets of each chain that are traced in a second.
    pub traced_packets: u32,
    /// Spans of kept packets, if packets are kept.
    pub kept: Option<Receiver<String>>,
}
