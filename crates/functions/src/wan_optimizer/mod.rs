//! `WanOptimizer`: what went over a slow link before is not sent again. Packets go through a tunnel to another such function, and
//! stretches of them that are in both ends' caches go as references, after Aggarwal et al., "EndRE: an end-system redundancy
//! elimination service for enterprises" (NSDI 2010), and Spring and Wetherall, "A protocol-independent technique for eliminating
//! redundant network traffic" (SIGCOMM 2000).
//!
//! # Caches
//!
//! Each instance that encodes has a *stream*: a cache of its own, and a UDP source port, so that the other end's port gives all
//! of a stream to one core. The content of a stream is laid out in lines of [`LINE`] bytes, numbered from 1 within an *epoch*, which is a
//! number by chance; every packet says its epoch and its first line. So both ends know which bytes are where, whatever is lost, comes twice
//! or in another order, and the decoder has for each line the number that is there: what it lacks it knows. It sends such a packet
//! back as a request not to be referred to these lines again. A checksum of what was restored finds all else, and has the encoder begin a
//! new epoch.

mod checksum;
mod decoder;
mod encoder;
mod function;
pub mod header;
mod sampling;
mod table;
mod text;

pub use function::WanOptimizer;
pub(crate) use sampling::PERIODS;
pub use sampling::{Fingerprints, Sampling, WINDOW};
pub use table::{MAX_DESTINATIONS, MAX_STREAMS, NoMemory, Options, WanTable};

/// Bytes of a line of a cache.
pub const LINE: usize = 64;
/// The least bytes of a cache: several of the longest packets.
pub const LEAST_CACHE: u64 = 1 << 18;
/// The most bytes of a cache: bytes in it have numbers of 32 bits.
pub const MOST_CACHE: u64 = 1 << 30;
/// The longest content: an IP packet's.
pub const MAX_CONTENT: usize = 65_535;

/// The lines that content of this length takes.
fn lines_of(length: usize) -> u32 {
    length.div_ceil(LINE) as u32
}

#[cfg(test)]
mod tests;
