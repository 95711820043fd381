//! State that senders share with the exporter's thread.

use super::sink::{Sink, Source};
use crate::out_file::Pulse;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// Phase of an exporter. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Workers receive packets and do not wait.
    Running,
    /// A worker receives no more packets and may wait for room.
    Draining,
    /// No sender sends any more.
    Stopping,
    /// Remaining records may be lost.
    Abandoned,
}

const PHASES: [Phase; 4] = [Phase::Running, Phase::Draining, Phase::Stopping, Phase::Abandoned];

/// State shared by the senders and the thread.
#[derive(Debug)]
pub(super) struct ExporterState<S: Sink> {
    /// Rings that the thread has not taken yet.
    new_sources: Mutex<Vec<Source<S>>>,
    phase: AtomicU8,
    thread: OnceLock<Thread>,
    /// Progress of the thread.
    pub(super) pulse: Pulse,
}

impl<S: Sink> ExporterState<S> {
    pub(super) fn new(pulse: Pulse) -> ExporterState<S> {
        ExporterState {
            new_sources: Mutex::default(),
            phase: AtomicU8::new(Phase::Running as u8),
            thread: OnceLock::new(),
            pulse,
        }
    }

    pub(super) fn add(&self, source: Source<S>) {
        let mut sources = self.new_sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.push(source);
    }

    /// Moves new rings to the end of `sources`.
    pub(super) fn take_new(&self, sources: &mut Vec<Source<S>>) {
        let mut new = self.new_sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.append(&mut new);
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Release);
    }

    /// Returns the phase. Records that were sent before it began are visible afterwards.
    pub(super) fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Wakes the thread if it sleeps.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
