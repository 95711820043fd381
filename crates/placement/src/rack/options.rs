//! Limits of a controller.

use tailwater_net::Nanos;

/// Limits of a [`RackController`](super::RackController).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackOptions {
    /// Time without a report after which the instances of a server count as lost.
    pub lost_after: Nanos,
    /// Maximum number of moves at a time: instances with a replacement, of which one is not yet deleted.
    pub moves: usize,
    /// Time for which a chain gets no instance on a server on which one failed.
    pub retry: Nanos,
    /// Time in which less must have sufficed all along before a chain gets less.
    pub hold: Nanos,
    /// Share by which a chain on demand gets more than it needs when it grows, and from which on it shrinks: 0 to below
    /// 1.
    pub band: f64,
}

impl Default for RackOptions {
    fn default() -> Self {
        RackOptions {
            lost_after: Nanos::from_secs(3),
            moves: 16,
            retry: Nanos::from_secs(60),
            hold: Nanos::from_secs(20),
            band: 0.2,
        }
    }
}
