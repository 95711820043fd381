//! Configured function that waits for its memory.

use super::turns::TurnFunction;
use crate::host::WrongFunction;
use crate::protocol::layout::ResponseArea;
use crate::protocol::memory::Memory;
use crate::protocol::message::Description;
use std::io;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Configured function, which receives memory when its chain needs it.
pub trait UnattachedFunction {
    /// The function once it has its memory.
    type Attached: TurnFunction;

    /// Returns the function's description.
    fn describe(&self) -> Description;

    /// Attaches the function to this memory.
    ///
    /// # Errors
    /// An error of the system.
    fn attach(self, given: AttachedMemory) -> io::Result<Self::Attached>;
}

/// Memory passed to a function.
#[derive(Debug)]
pub struct AttachedMemory {
    /// Packet buffers, [`MAX_BATCH`](crate::protocol::layout::MAX_BATCH) of them.
    pub packets: Memory,
    /// Size of a buffer in bytes.
    pub buffer_bytes: usize,
    /// For a stateful function: capacity of the flow table, and memory of the function's flow state, zero at first.
    pub flows: Option<(usize, Memory)>,
    /// If flow state is stored externally: wall-clock time of the run's start, and memory of the state's snapshots,
    /// zero at first.
    pub snapshots: Option<(Nanos, Memory)>,
    /// Response area, read by its worker.
    pub responses: Arc<ResponseArea>,
}

/// Reasons for which a function cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The configuration is invalid.
    Config {
        /// Field; empty for the whole configuration.
        field: String,
        /// Description of the error.
        message: String,
    },
    /// The function cannot be run with any configuration.
    Unfit {
        /// Description of the error.
        message: String,
    },
}

impl Refusal {
    /// Creates an error about the configuration as a whole.
    pub fn of_all(message: impl Into<String>) -> Refusal {
        Refusal::Config {
            field: String::new(),
            message: message.into(),
        }
    }
}

impl From<WrongFunction> for Refusal {
    fn from(wrong: WrongFunction) -> Refusal {
        Refusal::Unfit {
            message: wrong.to_string(),
        }
    }
}
