//! The controller's side.

use super::{Amount, Grant, Request, Terms};
use tailwater_net::Nanos;

/// The most grants that are remembered one by one. Older ones are taken together.
const MOST_GRANTS: usize = 8;

/// What is to be reserved is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} cores and {} ways that are neither reserved nor leased, found {} and {}", .wanted.cores,
    .wanted.ways, .free.cores, .free.ways)]
pub struct NotFree {
    /// What is to be reserved.
    pub wanted: Amount,
    /// What is free.
    pub free: Amount,
    /// When all that is leased will have ended, if no lease is renewed.
    pub at: Nanos,
}

/// A grant that the agent may have, or may come to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Granted {
    number: (u64, u64),
    amount: Amount,
    until: Nanos,
}

/// What the controller knows of a server's lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lessor {
    terms: Terms,
    /// What there is besides what belongs to on-demand instances anyway.
    capacity: Amount,
    reserved: Amount,
    /// The most that may be leased from now on.
    offer: Amount,
    /// The number of the last grant.
    number: (u64, u64),
    granted: Vec<Granted>,
}

impl Lessor {
    /// A server of which nothing was ever leased. `capacity` is without what belongs to on-demand instances anyway.
    pub fn new(terms: Terms, epoch: u64, capacity: Amount) -> Self {
        Lessor {
            terms,
            capacity,
            reserved: Amount::NONE,
            offer: capacity,
            number: (epoch, 0),
            granted: Vec::new(),
        }
    }

    /// A server that an earlier controller leased nobody knows what of, beyond what is reserved now: all of that
    /// counts as leased, until the agent says what it keeps to or all leases must have ended. `epoch` is higher than
    /// that of any controller before.
    pub fn after_restart(terms: Terms, epoch: u64, capacity: Amount, reserved: Amount, now: Nanos) -> Self {
        let granted = Granted {
            number: (epoch, 0),
            amount: capacity.less(reserved),
            until: now + terms.counted(),
        };
        Lessor {
            reserved,
            granted: vec![granted],
            ..Lessor::new(terms, epoch, capacity)
        }
    }

    /// What the agent may hold now, for all that is known here.
    pub fn leased(&self, now: Nanos) -> Amount {
        let running = self.granted.iter().filter(|granted| now < granted.until);
        running.fold(Amount::NONE, |most, granted| most.max(granted.amount))
    }

    /// What is reserved.
    pub fn reserved(&self) -> Amount {
        self.reserved
    }

    /// What can be reserved now.
    pub fn free(&self, now: Nanos) -> Amount {
        self.capacity.less(self.reserved).less(self.leased(now))
    }

    /// Leases no more than this from now on. What is leased already comes back with the agent's next requests, or
    /// when it ends.
    pub fn offer(&mut self, most: Amount) {
        self.offer = most;
    }

    /// Reserves cores and ways for a reserved SLO, if they are free.
    ///
    /// # Errors
    /// They are not: [`offer`](Self::offer) less, and try again.
    pub fn reserve(&mut self, now: Nanos, wanted: Amount) -> Result<(), NotFree> {
        let free = self.free(now);
        if !wanted.is_within(free) {
            let at = self.granted.iter().map(|granted| granted.until).max();
            return Err(NotFree {
                wanted,
                free,
                at: at.unwrap_or(now),
            });
        }
        self.reserved = self.reserved.and(wanted);
        Ok(())
    }

    /// Gives back what a reserved SLO had.
    pub fn free_reserved(&mut self, amount: Amount) {
        self.reserved = self.reserved.less(amount);
    }

    /// Answers a request: a grant of what the agent wants, as far as that is offered and not reserved.
    pub fn receive(&mut self, now: Nanos, request: &Request) -> Grant {
        self.granted.retain(|granted| now < granted.until);
        // The agent never goes back to what is lower than what it keeps to.
        self.granted.retain(|granted| granted.number >= request.kept);
        let amount = request.wants.max(request.in_use).min(self.offer);
        let amount = amount.min(self.capacity.less(self.reserved));
        self.number.1 += 1;
        self.granted.push(Granted {
            number: self.number,
            amount,
            until: now + self.terms.counted(),
        });
        if self.granted.len() > MOST_GRANTS {
            let old = self.granted.remove(0);
            let next = &mut self.granted[0];
            next.amount = next.amount.max(old.amount);
            next.until = next.until.max(old.until);
        }
        Grant {
            number: self.number,
            incarnation: request.incarnation,
            sent: request.sent,
            amount,
            duration: self.terms.duration,
        }
    }
}
