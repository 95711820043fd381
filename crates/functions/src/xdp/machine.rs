//! A worker's program: its maps and stack, and runs on packets.

use super::execute::execute;
use super::maps::MapData;
use super::memory::{FRAME_BYTES, Frame, MAX_DEPTH, Memory};
use super::program::Program;
use std::fmt;
use std::sync::Arc;
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

/// A worker's program with its maps.
#[derive(Debug)]
pub struct Machine {
    program: Arc<Program>,
    maps: Box<[MapData]>,
    stack: Box<[u8; MAX_DEPTH * FRAME_BYTES]>,
    environment: Environment,
}

impl Machine {
    /// Creates the maps of worker number `worker`, with a key for their hashes.
    pub fn new(program: Arc<Program>, worker: u32, seed: u64) -> Machine {
        let maps = program.maps.iter().map(|map| MapData::new(map, seed));
        let largest = program.maps.iter().map(|map| map.value_size).max();
        Machine {
            maps: maps.collect(),
            stack: Box::new([0; MAX_DEPTH * FRAME_BYTES]),
            environment: Environment {
                now: Nanos::ZERO,
                worker,
                random: (seed ^ u64::from(worker) << 32) | 1,
                value: vec![0; largest.unwrap_or(0).max(FRAME_BYTES as u32) as usize].into(),
            },
            program,
        }
    }

    /// Continues with another program, which has the same maps. Values are kept, but for constants.
    pub fn replace(&mut self, program: Arc<Program>) {
        for (map, spec) in self.maps.iter_mut().zip(&program.maps) {
            map.replace_constants(spec);
        }
        self.program = program;
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of the value of a key in the map of this name, for tests and reports.
    pub fn value(&mut self, map: &str, key: &[u8]) -> Option<&[u8]> {
        let at = self.program.maps.iter().position(|spec| spec.name == map)?;
        let map = &mut self.maps[at];
        let address = map.find(key)?;
        map.bytes(address, map.value_size)
    }

    /// Runs the program on a frame at time `now`, for at most `limit` instructions. A call of a helper counts as more
    /// than one, by the bytes that it processes.
    pub fn run(&mut self, frame: &mut Frame<'_>, now: Nanos, limit: u32) -> Run {
        frame.end = frame.end.min(frame.bytes.len());
        frame.start = frame.start.min(frame.end);
        self.environment.now = now;
        let Machine {
            program,
            maps,
            stack,
            environment,
        } = self;
        let mut memory = Memory::new(frame, stack, maps);
        let run = execute(&program.steps, program.entry as usize, &mut memory, environment, limit);
        let Memory { start, end, .. } = memory;
        (frame.start, frame.end) = (start, end);
        run
    }
}
