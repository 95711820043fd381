//! Runs of programs: results, and what helpers refer to.

use super::memory::{FRAME_BYTES, MAX_DEPTH};
use std::fmt;
use tailwater_net::Nanos;

/// Reason why the run of a program was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The program has executed as many instructions as it may.
    Limit,
    /// It accesses memory that it does not have, or writes what it may only read.
    Access {
        /// Address.
        address: u64,
        /// Number of bytes.
        bytes: u8,
        /// `true` if it writes them.
        writes: bool,
    },
    /// It passes a helper an argument that its signature does not allow.
    Argument(&'static str),
    /// Its functions call each other too deeply.
    Depth,
    /// It leaves the program, which verified programs do not.
    Left,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Limit => write!(f, "more instructions than allowed"),
            Fault::Access { address, bytes, writes } => {
                let what = if *writes { "write" } else { "read" };
                write!(f, "{what} of {bytes} bytes out of bounds (address {address:#x})")
            }
            Fault::Argument(helper) => write!(f, "wrong argument of {helper}"),
            Fault::Depth => write!(f, "calls deeper than {MAX_DEPTH}"),
            Fault::Left => write!(f, "a jump out of the program"),
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The program's return value, or why it was ended.
    pub result: Result<u64, Fault>,
    /// Executed instructions.
    pub instructions: u32,
    /// Index of the last one.
    pub last: u32,
}

/// State of a worker that helpers refer to.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) now: Nanos,
    pub(super) worker: u32,
    random: u64,
    /// Copy of a value in transit, as large as the largest one.
    pub(super) value: Box<[u8]>,
}

impl Environment {
    /// State of worker number `worker`, whose maps have values of at most `largest_value` bytes.
    pub(super) fn new(worker: u32, seed: u64, largest_value: usize) -> Environment {
        Environment {
            now: Nanos::ZERO,
            worker,
            random: (seed ^ u64::from(worker) << 32) | 1,
            value: vec![0; largest_value.max(FRAME_BYTES)].into(),
        }
    }

    /// Next pseudo-random number (xorshift64*).
    pub(super) fn random(&mut self) -> u32 {
        let mut state = self.random;
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random = state;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}
