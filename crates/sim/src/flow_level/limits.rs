//! Limits of the flow-level model.

use tailwater_net::Nanos;

/// Length of a step, in nanoseconds.
pub(super) const STEP: f64 = 1e6;

/// Maximum number of servers and cores of a rack at flow level.
pub const MOST_SERVERS: usize = 20_000;
/// Maximum number of cores of a rack at flow level.
pub const MOST_CORES: usize = 1 << 20;
/// Maximum number of chains at flow level.
pub const MOST_CHAINS: usize = 10_000;
/// Maximum number of windows of all chains together.
pub const MOST_WINDOWS: usize = 2_000_000;

/// Policies that the flow-level model has.
pub const POLICIES: &[&str] = &[
    "static",
    "rss++",
    "metron",
    "netblaze",
    "netblaze-core-static-safe",
    "netblaze-core-static-unsafe",
    "netblaze-no-core-mapper",
    "netblaze-no-boost",
    "netblaze-server-static-safe",
    "netblaze-server-static-unsafe",
    "tailwater",
];

/// A chain's part of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerShare {
    pub cores: usize,
    pub reta_delay: Nanos,
}
