//! `Mirror`: copies packets to a capture file or an interface; the originals go on.
//!
//! A worker cuts each copy into cells of its own ring. A thread (`writer`) reassembles and writes them. A copy that
//! finds the ring full is dropped and counted.

mod capture_file;
mod cells;
mod function;
mod interface;
mod kind;
mod outlet;
mod rules;
mod spec;
mod table;
mod writer;

pub use function::Mirror;
pub use kind::KIND;
pub use outlet::{Options, Outlet};
pub use rules::{MirrorRules, Sampling};
pub use spec::MirrorConfig;
pub use table::MirrorTable;

#[cfg(test)]
mod tests;
