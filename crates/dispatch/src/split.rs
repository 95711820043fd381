//! Split flow: its route over auxiliary cores.

use tailwater_handover::route::{Hop, MAX_PARTS, Route};
use tailwater_net::Nanos;

/// Maximum number of flows that are split at a time.
pub(crate) const MOST_SPLIT: usize = 64;

/// Split flow.
#[derive(Debug)]
pub(crate) struct SplitRecord {
    pub(crate) number: u16,
    pub(crate) route: Route,
    /// Number of last functions with which each part of the route begins.
    pub(crate) last_functions: [u8; MAX_PARTS],
    /// Time of the last change of the route.
    pub(crate) since: Nanos,
    /// Packets that have passed this core's segments.
    pub(crate) passed: u64,
}

/// Cut of the chain: the first segment behind it, and the number of last functions there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub from: usize,
    pub last_functions: usize,
}

/// Next list of a packet of a split flow, and the segment in front of which the core of that list stops: 0 for none.
pub type NextHop = (usize, usize);

pub(crate) fn next(hop: Hop) -> NextHop {
    (usize::from(hop.auxiliary) + 1, hop.until.into())
}
