//! A worker's program: its maps and stack, and runs on packets.

use super::execute::execute;
use super::maps::MapData;
use super::memory::{FRAME_BYTES, Frame, MAX_DEPTH, Memory};
use super::program::Program;
use super::run::{Environment, Run};
use std::sync::Arc;
use tailwater_net::Nanos;

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
            environment: Environment::new(worker, seed, largest.unwrap_or(0) as usize),
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
