//! The controller's side of a lease.

use super::{Amount, Grant, Request, Terms};
use tailwater_net::Nanos;

/// Maximum number of grants stored individually. Older ones are merged.
const MOST_GRANTS: usize = 8;

/// Error: the amount to reserve is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {} cores and {} ways that are neither reserved nor leased, found {} and {}", .wanted.cores,
    .wanted.ways, .free.cores, .free.ways)]
pub struct NotFree {
    /// Requested amount.
    pub wanted: Amount,
    /// Free amount.
    pub free: Amount,
    /// Time at which all current leases have expired, if none is renewed.
    pub at: Nanos,
}

/// Grant that the agent has or may still receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Granted {
    number: (u64, u64),
    amount: Amount,
    until: Nanos,
}

/// Lease state of a server at the controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseServer {
    terms: Terms,
    /// Total capacity, without the part that always belongs to on-demand instances.
    capacity: Amount,
    reserved: Amount,
    /// Maximum amount for future leases.
    offer: Amount,
    /// Number of the last grant.
    number: (u64, u64),
    granted: Vec<Granted>,
}

impl LeaseServer {
    /// Creates the state of a server without any earlier lease. `capacity` excludes the part that always belongs to
    /// on-demand instances.
    pub fn new(terms: Terms, epoch: u64, capacity: Amount) -> Self {
        LeaseServer {
            terms,
            capacity,
            reserved: Amount::NONE,
            offer: capacity,
            number: (epoch, 0),
            granted: Vec::new(),
        }
    }

    /// Creates the state of a server whose leases from an earlier controller are unknown, apart from the present
    /// reservations. All the rest counts as leased, until the agent reports its confirmed grant or all leases must have
    /// expired. `epoch` is higher than that of any earlier controller.
    pub fn after_restart(terms: Terms, epoch: u64, capacity: Amount, reserved: Amount, now: Nanos) -> Self {
        let granted = Granted {
            number: (epoch, 0),
            amount: capacity.less(reserved),
            until: now + terms.counted(),
        };
        LeaseServer {
            reserved,
            granted: vec![granted],
            ..LeaseServer::new(terms, epoch, capacity)
        }
    }

    /// Returns the maximum amount that the agent may hold now.
    pub fn leased(&self, now: Nanos) -> Amount {
        let running = self.granted.iter().filter(|granted| now < granted.until);
        running.fold(Amount::NONE, |most, granted| most.max(granted.amount))
    }

    /// Returns the reserved amount.
    pub fn reserved(&self) -> Amount {
        self.reserved
    }

    /// Returns the amount that can be reserved now.
    pub fn free(&self, now: Nanos) -> Amount {
        self.capacity.less(self.reserved).less(self.leased(now))
    }

    /// Limits future leases to `most`. Current leases shrink with the agent's next requests, or when they expire.
    pub fn offer(&mut self, most: Amount) {
        self.offer = most;
    }

    /// Reserves cores and ways for a reserved SLO, if they are free.
    ///
    /// # Errors
    /// They are not free. Reduce the [`offer`](Self::offer), and try again later.
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

    /// Frees the resources of a reserved SLO.
    pub fn free_reserved(&mut self, amount: Amount) {
        self.reserved = self.reserved.less(amount);
    }

    /// Answers a request with a grant: the agent's wanted amount, limited by the offer and the reservations.
    pub fn receive(&mut self, now: Nanos, request: &Request) -> Grant {
        self.granted.retain(|granted| now < granted.until);
        // The agent never returns to a grant older than its confirmed one.
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
