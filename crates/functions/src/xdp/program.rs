//! Programs ready to run, and errors of reading them.

use super::error::ProgramError;
use super::helpers::Helper;
use super::instruction::{Instruction, MAX_INSTRUCTIONS, code::CALL, verify};
use super::maps::{MAX_MAP_BYTES, MapSpec};
use super::step::{Step, decode};
use std::collections::BTreeMap;
use std::fmt;

/// Verified and decoded program with the definitions of its maps.
#[derive(Clone, PartialEq, Eq)]
pub struct Program {
    pub(super) steps: Box<[Step]>,
    /// Index of the step with which it starts.
    pub(super) entry: u32,
    /// Definitions of its maps, in the order of their addresses.
    pub maps: Vec<MapSpec>,
    /// Helpers that its instructions call.
    helpers: Vec<Helper>,
}

impl Program {
    /// Verifies and decodes a program that starts at `entry`. Addresses of `maps` are in place. `refused` has reasons
    /// against instructions, by index, if these can be reached.
    ///
    /// # Errors
    /// An instruction is refused, or the maps are too large together.
    pub(super) fn new(
        instructions: &[Instruction],
        entry: usize,
        maps: Vec<MapSpec>,
        refused: &BTreeMap<usize, String>,
    ) -> Result<Program, ProgramError> {
        let is_reached = verify(instructions, entry, refused)?;
        let bytes: u64 = maps.iter().map(MapSpec::bytes).sum();
        if bytes > MAX_MAP_BYTES {
            let why = format!("expected maps of at most {MAX_MAP_BYTES} bytes together, found {bytes}");
            return Err(ProgramError::whole(why));
        }
        let reached = instructions.iter().zip(&is_reached).filter(|(_, reached)| **reached);
        let calls = reached.filter(|(instruction, _)| instruction.code == CALL && !instruction.is_local_call());
        Ok(Program {
            steps: decode(instructions),
            entry: entry as u32,
            maps,
            helpers: calls.filter_map(|(call, _)| Helper::of(call.constant)).collect(),
        })
    }

    /// Verifies instructions that use no maps, the first of which is the first one to run.
    ///
    /// # Errors
    /// An instruction is refused.
    pub fn of_instructions(instructions: &[Instruction]) -> Result<Program, ProgramError> {
        if instructions.len() > MAX_INSTRUCTIONS {
            return Err(ProgramError::whole("too many instructions"));
        }
        Program::new(instructions, 0, Vec::new(), &BTreeMap::new())
    }

    /// Number of instructions, with those that are never reached.
    pub fn instructions(&self) -> usize {
        self.steps.len()
    }

    /// Returns `true` if it keeps values between packets: it has maps, or global variables that it can write.
    pub fn has_state(&self) -> bool {
        self.maps.iter().any(|map| !map.is_constant())
    }

    /// Memory of the maps of each worker in bytes.
    pub fn map_bytes(&self) -> u64 {
        self.maps.iter().map(MapSpec::bytes).sum()
    }

    /// Returns `true` if it calls a helper that moves the ends of frames.
    pub(super) fn resizes(&self) -> bool {
        self.helpers.iter().any(|helper| helper.resizes())
    }

    /// Name of a helper it calls that does nothing but change frames.
    pub(super) fn frame_writer(&self) -> Option<&'static str> {
        self.helpers
            .iter()
            .find(|helper| helper.writes_frame())
            .map(|helper| helper.name())
    }

    /// Returns `true` if another program's values can continue with this one: maps are equal, but for constants.
    pub(super) fn has_maps_of(&self, other: &Program) -> bool {
        let is_same = |(one, other): (&MapSpec, &MapSpec)| {
            let constants = one.is_constant() && other.is_constant();
            one == other || (constants && one.name == other.name && one.value_size == other.value_size)
        };
        self.maps.len() == other.maps.len() && self.maps.iter().zip(&other.maps).all(is_same)
    }
}

/// Measured profiles are recognised by this text, so it depends on every instruction and map.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.steps.hash(&mut hasher);
        let mut text = f.debug_struct("Program");
        text.field("entry", &self.entry)
            .field("instructions", &self.steps.len());
        text.field("hash", &hasher.finish()).field("maps", &self.maps).finish()
    }
}
