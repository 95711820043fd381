//! `WanOptimizer`: redundancy elimination for slow links. Packets go through a tunnel to another such function. Byte
//! ranges present in both ends' caches are sent as references, after Aggarwal et al., "EndRE: an end-system redundancy
//! elimination service for enterprises" (NSDI 2010), and Spring and Wetherall, "A protocol-independent technique for
//! eliminating redundant network traffic" (SIGCOMM 2000).
//!
//! # Caches
//!
//! Each encoding instance has a *stream*: a cache of its own and a UDP source port, so that the remote port gives all
//! of a stream to one core. A stream's content is laid out in lines of [`LINE`] bytes, numbered from 1 within an
//! *epoch*, which is a random number. Every packet carries its epoch and its first line. So both ends agree on the
//! position of bytes, whatever is lost, duplicated or reordered.
//!
//! The decoder stores each line's number, and so detects missing lines. It returns such a packet as a request not to
//! refer to these lines again. A checksum of the restored content detects all other errors, and makes the encoder start
//! a new epoch.

mod checksum;
mod decoder;
mod encoder;
mod function;
pub mod header;
mod kind;
mod sampling;
mod spec;
mod table;
mod text;

pub use function::WanOptimizer;
pub use kind::KIND;
pub(crate) use sampling::PERIODS;
pub use sampling::{Fingerprints, Sampling, WINDOW};
pub use spec::WanOptimizerConfig;
pub use table::{MAX_DESTINATIONS, MAX_STREAMS, NoMemory, Options, WanTable};

/// Bytes per cache line of the stream.
pub const LINE: usize = 64;
/// Smallest cache, in bytes: room for several packets of maximum length.
pub const LEAST_CACHE: u64 = 1 << 18;
/// Largest cache, in bytes: offsets in it have 32 bits.
pub const MOST_CACHE: u64 = 1 << 30;
/// Longest content, in bytes: that of an IP packet.
pub const MAX_CONTENT: usize = 65_535;

/// Returns the number of lines that content of this length occupies.
fn lines_of(length: usize) -> u32 {
    length.div_ceil(LINE) as u32
}

#[cfg(test)]
mod tests;
