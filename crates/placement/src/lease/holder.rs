//! The agent's side.

use super::{Amount, Grant, Request, Terms};
use tailwater_net::Nanos;

/// More would be used than is leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected at most {} cores and {} ways of the lease, found {} and {}", .allowed.cores, .allowed.ways,
    .found.cores, .found.ways)]
pub struct Exceeds {
    /// What is allowed.
    pub allowed: Amount,
    /// What would be used.
    pub found: Amount,
}

/// What a server's agent knows of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    terms: Terms,
    incarnation: u64,
    /// The latest grant's number, what it gives, and when it ends.
    number: (u64, u64),
    amount: Amount,
    until: Nanos,
    /// The last grant that everything in use was within.
    kept: (u64, u64),
    in_use: Amount,
}

impl Holder {
    /// An agent that has just started, on a server where so much of what was leased before is still in use: it is allowed
    /// nothing until it is granted something. Its `incarnation` is that of no start before it.
    pub fn new(terms: Terms, incarnation: u64, in_use: Amount) -> Self {
        Holder {
            terms,
            incarnation,
            number: (0, 0),
            amount: Amount::NONE,
            until: Nanos::ZERO,
            kept: (0, 0),
            in_use,
        }
    }

    /// What may be used now, of leased cores and ways. What is in use beyond it is to be let go of within
    /// [`Terms::release`].
    pub fn allowed(&self, now: Nanos) -> Amount {
        match now < self.until.saturating_sub(self.terms.release) {
            true => self.amount,
            false => Amount::NONE,
        }
    }

    /// What is in use.
    pub fn in_use(&self) -> Amount {
        self.in_use
    }

    /// So much is in use from now on; less may always be.
    ///
    /// # Errors
    /// It is more than before and than is [allowed](Self::allowed): nothing changes.
    pub fn set_in_use(&mut self, now: Nanos, found: Amount) -> Result<(), Exceeds> {
        let allowed = self.allowed(now);
        if !found.is_within(allowed.max(self.in_use)) {
            return Err(Exceeds { allowed, found });
        }
        self.in_use = found;
        self.keep();
        Ok(())
    }

    /// So much is in use, allowed or not: what could not be let go of in time is told as it is, and a grant that gives
    /// less is not kept to.
    pub fn found_in_use(&mut self, found: Amount) {
        self.in_use = found;
        self.keep();
    }

    /// A request to send now.
    pub fn request(&self, now: Nanos, wants: Amount) -> Request {
        Request {
            incarnation: self.incarnation,
            sent: now,
            kept: self.kept,
            in_use: self.in_use,
            wants,
        }
    }

    /// Takes a grant, and says whether it is in force: not one that is older than the last, or for an earlier start.
    pub fn receive(&mut self, now: Nanos, grant: &Grant) -> bool {
        if grant.incarnation != self.incarnation || grant.number <= self.number || grant.sent > now {
            return false;
        }
        self.number = grant.number;
        self.amount = grant.amount;
        self.until = Nanos(grant.sent.0.saturating_add(grant.duration.min(self.terms.duration).0));
        self.keep();
        true
    }

    /// When all is let go of that the latest grant does not give, it is kept to.
    fn keep(&mut self) {
        if self.in_use.is_within(self.amount) {
            self.kept = self.number;
        }
    }
}
