//! Leases: resources that a server's agent divides among on-demand instances on its own for a limited time (ResQ §5.3).
//!
//! Cores and ways of a server without a reserved SLO are spare. The controller ([`LeaseServer`]) leases them to the
//! server's agent ([`LeaseClient`]), which divides them without further requests. The controller may place reserved
//! SLOs on resources that are not leased. Leased ones become available when the lease has expired or the agent has
//! reported a smaller use.
//!
//! **Nothing is ever assigned twice**, even if messages are lost, repeated, late or out of order, or either side
//! restarts, as long as
//!
//! - neither clock is faster or slower than real time by more than [`Terms::drift`]. Clocks need not agree on the time:
//!   for the agent, a lease begins when it *sent* the request that the grant answers, and for the controller when it
//!   answered. The controller waits longer than the agent by the drift of both. Clocks that stop while a machine sleeps
//!   (Linux: `CLOCK_MONOTONIC`; use `CLOCK_BOOTTIME`) are not within any drift;
//! - the agent stops using resources within [`Terms::release`] after they are no longer
//!   [allowed](LeaseClient::allowed). The same agent starts reserved instances, so a dead agent, which cannot release
//!   anything, does not start them either;
//! - only one controller at a time places reserved SLOs, and each has a higher *epoch* than its predecessors. Delayed
//!   grants of an earlier controller are refused.
//!
//! Without the controller a lease expires, and the agent retains the resources that its configuration assigns to
//! on-demand instances. Their classes shrink to that on the next tick. Both sides get the time as input and do no I/O.

mod client;
mod server;

pub use client::{Exceeds, LeaseClient};
pub use server::{LeaseServer, NotFree};

use tailwater_net::Nanos;

/// Cores and ways of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amount {
    /// Cores.
    pub cores: u16,
    /// Ways of the last-level cache.
    pub ways: u16,
}

impl Amount {
    /// No cores and no ways.
    pub const NONE: Amount = Amount { cores: 0, ways: 0 };

    /// Returns the minimum of both, per resource.
    pub fn min(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.min(other.cores),
            ways: self.ways.min(other.ways),
        }
    }

    /// Returns the maximum of both, per resource.
    pub fn max(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.max(other.cores),
            ways: self.ways.max(other.ways),
        }
    }

    /// Returns `true` if neither resource exceeds that of `other`.
    pub fn is_within(self, other: Amount) -> bool {
        self.cores <= other.cores && self.ways <= other.ways
    }

    /// Returns the difference, or zero for a resource of which `other` has more.
    pub fn less(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_sub(other.cores),
            ways: self.ways.saturating_sub(other.ways),
        }
    }

    /// Returns the sum of both.
    pub fn and(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_add(other.cores),
            ways: self.ways.saturating_add(other.ways),
        }
    }
}

/// Parameters that both sides share before any lease is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Length of a lease, by the agent's clock, from the request that it answers.
    pub duration: Nanos,
    /// Maximum deviation of a clock's speed from real time, in parts per million. Below a million. Clocks disciplined
    /// by NTP are within 500.
    pub drift: u32,
    /// Time that the agent needs to release resources that are no longer allowed.
    pub release: Nanos,
}

impl Terms {
    /// Default: 30 s, a drift of a tenth of a percent, and 2 s for the release.
    pub const DEFAULT: Terms = Terms {
        duration: Nanos::from_secs(30),
        drift: 1000,
        release: Nanos::from_secs(2),
    };

    /// Returns the time between the agent's requests. It is short enough for two to be lost.
    pub fn renewal(&self) -> Nanos {
        Nanos(self.duration.saturating_sub(self.release).0 / 3)
    }

    /// Returns the time for which the controller counts a lease: `duration` on the slowest clock, measured by the
    /// fastest one.
    fn counted(&self) -> Nanos {
        const MILLION: u128 = 1_000_000;
        let drift = u128::from(self.drift).min(MILLION - 1);
        let counted = (u128::from(self.duration.0) * (MILLION + drift)).div_ceil(MILLION - drift);
        Nanos(u64::try_from(counted).unwrap_or(u64::MAX))
    }
}

/// Request of the agent, with its use and its demand. Sent every [`Terms::renewal`], and when its demand changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Identifies the start of the agent. No two starts have the same value.
    pub incarnation: u64,
    /// Send time, by the agent's clock.
    pub sent: Nanos,
    /// Last confirmed grant: the use is within it, and will not return to an earlier grant.
    pub kept: (u64, u64),
    /// Amount of resources from any lease that is in use now.
    pub in_use: Amount,
    /// Wanted amount.
    pub wants: Amount,
}

/// Answer of the controller to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Epoch, and number within it. A grant replaces all lower ones.
    pub number: (u64, u64),
    /// Value of the request.
    pub incarnation: u64,
    /// Value of the request.
    pub sent: Nanos,
    /// Total leased amount, not the increase.
    pub amount: Amount,
    /// Length of the lease, from `sent`.
    pub duration: Nanos,
}
