//! `Xdp`: XDP programs of the kernel, run in user space as functions of a chain.
//!
//! An object that clang has compiled is read (`object`, `btf`), its program verified (`instruction`) and decoded
//! (`step`, `program`), and run on each packet by an interpreter (`execute`, `machine`). The interpreter checks every
//! memory access (`memory`) and counts instructions, so that no program can reach other memory or keep its core.
//! Helpers are in `helpers`, maps in `maps` and `hash_index`.
//!
//! The interpreter is not a library's: XDP programs read packet addresses from 32-bit fields, which calls for addresses
//! that do not depend on the host's; and accesses and instructions are bounded without unsafe code.

mod btf;
mod error;
mod execute;
mod function;
mod hash_index;
mod helpers;
mod instruction;
mod kind;
mod machine;
mod maps;
mod memory;
mod object;
mod program;
mod run;
mod spec;
mod step;

pub use error::ProgramError;
pub use function::Xdp;
pub use instruction::{Instruction, MAX_INSTRUCTIONS};
pub use kind::KIND;
pub use machine::Machine;
pub use maps::{MAX_MAP_BYTES, MAX_MAPS, MapKind, MapSpec};
pub use memory::Frame;
pub use object::{MAX_OBJECT, parse_object};
pub use program::Program;
pub use run::{Fault, Run};
pub use spec::XdpConfig;

#[cfg(test)]
mod tests;
