//! Memory that the processes of an isolated detection function share.

use super::alert_ring::AlertRing;
use crate::kind::{IsolationContext, Requirements};
use crate::stream_pool::StreamPool;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_ids::slots::slot_bytes;
use tailwater_ids::threshold::Thresholds;

/// Sizes of the shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedSizes {
    /// Stream buffers.
    pub(super) streams: usize,
    /// Bytes of a stream's window.
    pub(super) window: usize,
    /// `true` if the host writes alerts.
    pub(super) has_alerts: bool,
}

impl SharedSizes {
    /// Returns number and bytes of the stream buffers.
    fn pool(&self) -> (usize, usize) {
        (self.streams, slot_bytes(self.window))
    }
}

/// Number of alerts that could not be written and that no process has counted.
#[derive(Debug)]
pub(super) struct UnwrittenAlerts(CounterArray);

impl UnwrittenAlerts {
    pub(super) fn add(&self, lost: u64) {
        if lost > 0 {
            self.0[0].fetch_add(lost, Relaxed);
        }
    }

    /// Returns and resets the number. Writes no memory while it is 0.
    #[inline]
    pub(super) fn take(&self) -> u64 {
        match self.0[0].load(Relaxed) {
            0 => 0,
            _ => self.0[0].swap(0, Relaxed),
        }
    }
}

/// A process's part of the shared memory.
#[derive(Debug)]
pub(super) struct SharedParts {
    pub(super) thresholds: Thresholds,
    pub(super) stream_pool: StreamPool,
    /// Alerts for the host, if it writes them, and those that it could not write.
    pub(super) alerts: Option<(AlertRing, UnwrittenAlerts)>,
}

/// Takes the arrays in front of the stream pool.
fn first_arrays(shared_counters: &SharedCounters) -> (Thresholds, UnwrittenAlerts) {
    let seed = shared_counters.take_seed();
    let thresholds = Thresholds::with_words(shared_counters.take(Thresholds::WORDS), seed);
    (thresholds, UnwrittenAlerts(shared_counters.take(1)))
}

impl SharedParts {
    /// Takes the part of one of the processes.
    ///
    /// # Errors
    /// If there are too many streams.
    pub(super) fn new(sizes: SharedSizes, isolation: &IsolationContext) -> io::Result<SharedParts> {
        let shared_counters = &isolation.shared_counters;
        let (thresholds, unwritten) = first_arrays(shared_counters);
        let stream_pool = StreamPool::sharing(sizes.pool(), isolation.part, shared_counters)?;
        let [part, of] = isolation.part;
        let alerts = sizes.has_alerts.then(|| {
            let rings: Vec<_> = (0..of).map(|_| AlertRing::new(shared_counters)).collect();
            let own = rings.into_iter().nth(part.into());
            own.map(|ring| (ring, unwritten))
        });
        Ok(SharedParts {
            thresholds,
            stream_pool,
            alerts: alerts.flatten(),
        })
    }

    /// Sets the sizes of the shared memory.
    pub(super) fn require(sizes: SharedSizes, requirements: Requirements) -> Requirements {
        let words = [1, Thresholds::WORDS, 1].map(SharedCounters::bytes_of);
        let pool = |of| StreamPool::shared_bytes(sizes.pool(), of);
        let ring = if sizes.has_alerts { AlertRing::shared_bytes() } else { 0 };
        Requirements {
            shared_bytes: words.iter().sum::<usize>() + pool(0),
            shared_bytes_of_process: pool(1) - pool(0) + ring,
            ..requirements
        }
    }
}

/// The host's part of the shared memory, which it fills before any process has it.
#[derive(Debug)]
pub(super) struct HostParts {
    /// Ring of each process, if the host writes alerts.
    pub(super) rings: Vec<AlertRing>,
    pub(super) unwritten: UnwrittenAlerts,
}

impl HostParts {
    /// Takes the host's part of the memory of this many processes.
    ///
    /// # Errors
    /// If there are too many streams.
    pub(super) fn new(sizes: SharedSizes, processes: u16, shared_counters: &SharedCounters) -> io::Result<HostParts> {
        let (_, unwritten) = first_arrays(shared_counters);
        StreamPool::fill_shared(sizes.pool(), processes, shared_counters)?;
        let count = if sizes.has_alerts { processes } else { 0 };
        let rings = (0..count).map(|_| AlertRing::new(shared_counters)).collect();
        Ok(HostParts { rings, unwritten })
    }
}
