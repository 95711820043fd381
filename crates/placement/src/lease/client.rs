//! The agent's side of a lease.

use super::{Amount, Grant, Request, Terms};
use tailwater_net::Nanos;

/// Error: the use would exceed the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected at most {} cores and {} ways of the lease, found {} and {}", .allowed.cores, .allowed.ways,
    .found.cores, .found.ways)]
pub struct Exceeds {
    /// Allowed amount.
    pub allowed: Amount,
    /// Amount that would be used.
    pub found: Amount,
}

/// Lease state of a server's agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseClient {
    terms: Terms,
    incarnation: u64,
    /// Number, amount and end of the latest grant.
    number: (u64, u64),
    amount: Amount,
    until: Nanos,
    /// Last grant that covered everything in use.
    last_covering: (u64, u64),
    in_use: Amount,
}

impl LeaseClient {
    /// Creates the state of an agent that has just started, while `in_use` of an earlier lease is still in use. Nothing
    /// is allowed until the first grant. No earlier start has the same `incarnation`.
    pub fn new(terms: Terms, incarnation: u64, in_use: Amount) -> Self {
        LeaseClient {
            terms,
            incarnation,
            number: (0, 0),
            amount: Amount::NONE,
            until: Nanos::ZERO,
            last_covering: (0, 0),
            in_use,
        }
    }

    /// Returns the leased cores and ways that may be used now. Use beyond it must end within [`Terms::release`].
    pub fn allowed(&self, now: Nanos) -> Amount {
        match now < self.until.saturating_sub(self.terms.release) {
            true => self.amount,
            false => Amount::NONE,
        }
    }

    /// Returns the amount in use.
    pub fn in_use(&self) -> Amount {
        self.in_use
    }

    /// Sets the amount in use. A decrease is always possible.
    ///
    /// # Errors
    /// The amount exceeds both the previous one and the [allowed](Self::allowed) one. Nothing changes.
    pub fn set_in_use(&mut self, now: Nanos, found: Amount) -> Result<(), Exceeds> {
        let allowed = self.allowed(now);
        if !found.is_within(allowed.max(self.in_use)) {
            return Err(Exceeds { allowed, found });
        }
        self.in_use = found;
        self.record_covered();
        Ok(())
    }

    /// Sets the amount in use even if it is not allowed, when resources could not be released in time. Requests then
    /// report the real use, and a grant of less is not confirmed.
    pub fn found_in_use(&mut self, found: Amount) {
        self.in_use = found;
        self.record_covered();
    }

    /// Returns a request to send now.
    pub fn request(&self, now: Nanos, wants: Amount) -> Request {
        Request {
            incarnation: self.incarnation,
            sent: now,
            kept: self.last_covering,
            in_use: self.in_use,
            wants,
        }
    }

    /// Processes a grant. Returns `true` if it takes effect: it is newer than the last one and belongs to this
    /// incarnation.
    pub fn receive(&mut self, now: Nanos, grant: &Grant) -> bool {
        if grant.incarnation != self.incarnation || grant.number <= self.number || grant.sent > now {
            return false;
        }
        self.number = grant.number;
        self.amount = grant.amount;
        self.until = Nanos(grant.sent.0.saturating_add(grant.duration.min(self.terms.duration).0));
        self.record_covered();
        true
    }

    /// Confirms the latest grant once everything in use is within it.
    fn record_covered(&mut self) {
        if self.in_use.is_within(self.amount) {
            self.last_covering = self.number;
        }
    }
}
