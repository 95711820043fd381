//! `Mirror`: copies of packets to a capture file or an interface, while the originals go on.
//!
//! A worker cuts each copy into cells of a ring of its own, and a thread (`writer`) puts them together and writes
//! them. What finds the ring full is not copied, and counted.

mod capture_file;
mod cells;
mod function;
mod interface;
mod writer;

pub use function::{Mirror, MirrorRules, Sampling};
pub use writer::{MirrorTable, Options, Outlet};

#[cfg(test)]
mod tests;
