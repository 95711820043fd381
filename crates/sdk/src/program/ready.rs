//! A function that is configured and waits for its memory.

use super::turns::Work;
use crate::host::WrongFunction;
use crate::protocol::layout::ResponseArea;
use crate::protocol::memory::Memory;
use crate::protocol::message::Description;
use std::io;
use std::sync::Arc;
use tailwater_net::Nanos;

/// A function, configured, that is given memory when its chain needs it.
pub trait Ready {
    /// What it is then.
    type Work: Work;

    /// What it says of itself.
    fn describe(&self) -> Description;

    /// Makes it one that works in this memory.
    ///
    /// # Errors
    /// What the system says.
    fn attach(self, given: Given) -> io::Result<Self::Work>;
}

/// The memory that a function is given.
#[derive(Debug)]
pub struct Given {
    /// The packets' buffers, [`MAX_BATCH`](crate::protocol::layout::MAX_BATCH) of them.
    pub packets: Memory,
    /// Bytes of a buffer.
    pub buffer_bytes: usize,
    /// The flow table's capacity, and the memory that the function's part of the flows is in, zero at first; if it keeps
    /// state.
    pub flows: Option<(usize, Memory)>,
    /// The memory of the images of these flows, zero at first, and when the run began, on the clock of the world; if their
    /// state is kept outside.
    pub images: Option<(Nanos, Memory)>,
    /// What it tells its worker.
    pub slate: Arc<ResponseArea>,
}

/// Why a function cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its configuration is wrong.
    Config {
        /// The field; empty for all of it.
        field: String,
        /// What is wrong.
        message: String,
    },
    /// It is no function that could be run, however it is configured.
    Unfit {
        /// What is wrong.
        message: String,
    },
}

impl Refusal {
    /// That the configuration is wrong as a whole.
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
