//! `BpfFilter`: filters packets by `tcpdump` expressions or by programs of classic BPF.
//!
//! An expression is compiled by libpcap (`libpcap`); a program is read from a file (`program`). Either is verified,
//! decoded once into steps (`interpreter`), and run on each packet.

mod function;
mod interpreter;
mod kind;
mod libpcap;
mod program;
mod spec;

pub use function::{BpfFilter, BpfRules, MAX_RULES, Rule};
pub use interpreter::Filter;
pub use kind::KIND;
pub use libpcap::{CompileError, compile};
pub use program::{Instruction, MAX_INSTRUCTIONS, SNAPLEN, VerifyError, parse_program, verify};
pub use spec::BpfFilterConfig;
pub(crate) use spec::{EXPRESSION, PROGRAM_FILE, program};

#[cfg(test)]
mod tests;
