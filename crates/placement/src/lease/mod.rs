//! What the controller lets a server's agent divide among on-demand instances by itself, and for how long (ResQ §5.3).
//!
//! Cores and ways of a server that no reserved SLO has are spare. The controller ([`Lessor`]) leases them to the server's
//! agent ([`Holder`]), which then divides them without asking anybody; it may place reserved SLOs on what is not
//! leased, and on what was leased once the lease has ended or the agent has said that it holds less.
//!
//! **Nothing is ever given twice**, whatever messages are lost, repeated, late or out of order, and whichever of the two
//! restarts, as long as
//!
//! - neither clock is faster or slower than real time by more than [`Terms::drift`]. Clocks need not agree on the time:
//!   a lease begins, for the agent, when it *sent* the request that the grant answers, and for the controller
//!   when it answered; and the controller waits longer than the agent by the drift of both. Clocks that stop while
//!   a machine sleeps (Linux: `CLOCK_MONOTONIC`; use `CLOCK_BOOTTIME`) are not within any drift;
//! - the agent stops using within [`Terms::release`] what it is no longer [allowed](Holder::allowed). Reserved instances
//!   are started by the same agent, so one that is dead, and cannot let go, does not start them either;
//! - there is one controller at a time that places reserved SLOs, and each has a higher *epoch* than those before. What an
//!   earlier one still has under way is refused.
//!
//! Without the controller a lease ends, and the agent is left with what its configuration says belongs to on-demand
//! instances: on the next tick their classes shrink to it. Both sides are told the time and do no I/O.

mod holder;
mod lessor;

pub use holder::{Exceeds, Holder};
pub use lessor::{Lessor, NotFree};

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
    /// Nothing.
    pub const NONE: Amount = Amount { cores: 0, ways: 0 };

    /// Of each what both have.
    pub fn min(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.min(other.cores),
            ways: self.ways.min(other.ways),
        }
    }

    /// Of each the larger.
    pub fn max(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.max(other.cores),
            ways: self.ways.max(other.ways),
        }
    }

    /// Whether this is no more than another of either.
    pub fn is_within(self, other: Amount) -> bool {
        self.cores <= other.cores && self.ways <= other.ways
    }

    /// What is left of it, nothing where the other has more.
    pub fn less(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_sub(other.cores),
            ways: self.ways.saturating_sub(other.ways),
        }
    }

    /// Both together.
    pub fn and(self, other: Amount) -> Amount {
        Amount {
            cores: self.cores.saturating_add(other.cores),
            ways: self.ways.saturating_add(other.ways),
        }
    }
}

/// What both sides know of leases before any is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long a lease is, by the agent's clock, from the request that it answers.
    pub duration: Nanos,
    /// The most by which a clock is faster or slower than real time, in parts per million; below a million. Clocks that
    /// NTP disciplines are within 500.
    pub drift: u32,
    /// The time that the agent takes to let go of what it is no longer allowed.
    pub release: Nanos,
}

impl Terms {
    /// Ours: 30 s, within a tenth of a per cent, and 2 s to let go.
    pub const DEFAULT: Terms = Terms {
        duration: Nanos::from_secs(30),
        drift: 1000,
        release: Nanos::from_secs(2),
    };

    /// When the agent should send the next request, after one: often enough for two to be lost.
    pub fn renewal(&self) -> Nanos {
        Nanos(self.duration.saturating_sub(self.release).0 / 3)
    }

    /// How long the controller counts a lease: what is `duration` by the slowest clock, by the fastest one.
    fn counted(&self) -> Nanos {
        const MILLION: u128 = 1_000_000;
        let drift = u128::from(self.drift).min(MILLION - 1);
        let counted = (u128::from(self.duration.0) * (MILLION + drift)).div_ceil(MILLION - drift);
        Nanos(u64::try_from(counted).unwrap_or(u64::MAX))
    }
}

/// From the agent: what it holds, and what it would like to. Sent every [`Terms::renewal`], and when its needs change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which start of the agent this is from; no two have the same.
    pub incarnation: u64,
    /// When it was sent, by the agent's clock.
    pub sent: Nanos,
    /// The last grant that it keeps to: what it uses is within it, and will not be within an earlier one only.
    pub kept: (u64, u64),
    /// What it uses now of what was ever leased.
    pub in_use: Amount,
    /// What it has a use for.
    pub wants: Amount,
}

/// From the controller, in answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Its epoch and its number in it: a grant replaces all that are lower.
    pub number: (u64, u64),
    /// The request's.
    pub incarnation: u64,
    /// The request's.
    pub sent: Nanos,
    /// What is leased: all of it, not what is more than before.
    pub amount: Amount,
    /// For how long, from `sent`.
    pub duration: Nanos,
}
