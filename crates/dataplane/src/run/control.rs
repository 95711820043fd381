//! Control of a run by its caller.

use crate::batches::BatchRecorder;
use crate::clock::Clock;
use crate::run::progress::Progress;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use tailwater_chain::packet_traces::PacketTraces;
use tailwater_functions::build::Reconfigure;

/// Handle by which a running chain's functions are changed, once there is one.
pub type ReconfigureCell = OnceLock<Arc<Reconfigure>>;

/// Control of a run while it lasts: its end, and the observations that its caller receives.
pub struct RunControl<'c> {
    /// Ends the run once it is set.
    pub(super) stop: &'c AtomicBool,
    /// Recorder of single batches' times.
    pub(super) batches: Option<&'c BatchRecorder>,
    /// Receives the handle by which the chain's functions are changed.
    pub(super) reconfigure: Option<&'c ReconfigureCell>,
    /// Switch of the chain's traces.
    pub(super) traces: Arc<PacketTraces>,
    /// Clock of a trace's times, if its caller reads it, too.
    pub(super) clock: Option<Clock>,
    /// Receives the progress.
    pub(super) progress: Box<dyn FnMut(&Progress) + 'c>,
}

impl<'c> RunControl<'c> {
    /// Control that only ends the run: once `stop` is set.
    pub fn new(stop: &'c AtomicBool) -> RunControl<'c> {
        RunControl {
            stop,
            batches: None,
            reconfigure: None,
            traces: Arc::default(),
            clock: None,
            progress: Box::new(|_| {}),
        }
    }

    /// Calls `progress` a few times per second, from the thread that executes the plan.
    #[must_use]
    pub fn with_progress(self, progress: impl FnMut(&Progress) + 'c) -> RunControl<'c> {
        RunControl {
            progress: Box::new(progress),
            ..self
        }
    }

    /// Puts the handle by which functions can be changed while the chain runs into `cell`, unless they are isolated.
    #[must_use]
    pub fn with_reconfigure(self, cell: &'c ReconfigureCell) -> RunControl<'c> {
        RunControl {
            reconfigure: Some(cell),
            ..self
        }
    }

    /// Lets others trace the chain's packets.
    #[must_use]
    pub fn with_traces(self, traces: Arc<PacketTraces>) -> RunControl<'c> {
        RunControl { traces, ..self }
    }

    /// Times of a trace's packets are on this clock. Without one they are on a clock that starts with the run; those of
    /// a port are on the port's.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> RunControl<'c> {
        RunControl {
            clock: Some(clock),
            ..self
        }
    }

    /// Also records times of single batches, if there is a recorder.
    #[must_use]
    pub fn with_batches(self, batches: impl Into<Option<&'c BatchRecorder>>) -> RunControl<'c> {
        RunControl {
            batches: batches.into(),
            ..self
        }
    }
}

impl fmt::Debug for RunControl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunControl")
            .field("stop", self.stop)
            .field("batches", &self.batches.is_some())
            .finish_non_exhaustive()
    }
}
