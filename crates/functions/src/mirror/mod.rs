//! `Mirror`: copies packets to a capture file or an interface; the originals go on.
//!
//! A worker cuts each copy into cells of its own ring. A thread (`writer`) reassembles and writes them. A copy that
//! finds the ring full is dropped and counted.

mod capture_file;
mod cells;
mod function;
mod interface;
mod kind;
mod spec;
mod writer;

pub use function::{Mirror, MirrorRules, Sampling};
pub use kind::KIND;
pub use spec::MirrorConfig;
pub use writer::{MirrorTable, Options, Outlet};

#[cfg(test)]
mod tests;
