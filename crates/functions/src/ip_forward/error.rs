//! Limits of the look-up structures, and the errors beyond them.

use super::route::{Decision, MAX_NEXT_HOPS, MAX_ROUTES};
use std::io;

/// Maximum number of /24s that contain longer prefixes. The first table's entries hold their index below a flag.
pub(super) const MAX_EXTENDED: usize = Decision::LIMIT as usize;

/// Maximum bytes of the IPv6 structure's nodes and leaves.
pub(super) const MAX_V6_BYTES: usize = 1 << 30;

/// Failure to build a route table.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The second level of the IPv4 structure is full.
    #[error(
        "expected at most {} IPv4 /24 networks with prefixes longer than /24, found more",
        MAX_EXTENDED
    )]
    TooManyLongPrefixes,
    /// The IPv6 structure would exceed its memory limit.
    #[error("expected at most {} MiB for the IPv6 routes, found more", MAX_V6_BYTES >> 20)]
    TooLarge,
    /// There are more than [`MAX_ROUTES`] routes.
    #[error("expected at most {MAX_ROUTES} routes, found more")]
    TooManyRoutes,
    /// There are too many next hops, or a route refers to an unknown one.
    #[error("expected at most {MAX_NEXT_HOPS} next hops and routes to these only")]
    NextHops,
    /// The system is out of memory.
    #[error("not enough memory for the routes ({0})")]
    Memory(io::Error),
}
