//! The agent's lease, and a controller in the same process.

use crate::controller::Controller;
use tailwater_net::Nanos;
use tailwater_placement::lease::{Amount, Grant, LeaseClient, LeaseServer, Request, Terms};
use tailwater_placement::on_demand::Decision;

/// Consecutive ticks with spare ways before leased ones are given back.
const PATIENCE: u32 = 8;

/// Ways available to the agent, and its demand for leased ones.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    holder: LeaseClient,
    terms: Terms,
    /// Ways that belong to on-demand instances without a lease.
    own: u16,
    /// Demand for leased ways.
    wish: u16,
    /// Consecutive ticks with spare ways, and the fewest spare ways in them.
    idle: (u32, u16),
    /// Time and content of the last request.
    asked: Option<(Nanos, u16, Amount)>,
}

impl Lease {
    pub(crate) fn new(terms: Terms, incarnation: u64, own: u16) -> Self {
        Lease {
            holder: LeaseClient::new(terms, incarnation, Amount::NONE),
            terms,
            own,
            wish: 0,
            idle: (0, u16::MAX),
            asked: None,
        }
    }

    /// Returns the ways that may be used now, limited to the demand.
    pub(crate) fn ways(&self, now: Nanos) -> u16 {
        self.own.saturating_add(self.holder.allowed(now).ways.min(self.wish))
    }

    /// Returns the leased ways that may be used now.
    pub(crate) fn allowed(&self, now: Nanos) -> u16 {
        self.holder.allowed(now).ways
    }

    /// Records the decision for `ways` ways, and the ways in use afterwards. The latter exceed the lease if some could
    /// not be released.
    pub(crate) fn follow(&mut self, ways: u16, decision: &Decision, used: u16) {
        let leased = ways.saturating_sub(self.own);
        match (decision.short, decision.spare) {
            (0, 0) => self.idle = (0, u16::MAX),
            (0, spare) => {
                self.idle = (self.idle.0 + 1, self.idle.1.min(spare));
                if self.idle.0 >= PATIENCE {
                    self.wish = leased.saturating_sub(self.idle.1);
                    self.idle = (0, u16::MAX);
                }
            }
            (short, _) => {
                self.wish = leased.saturating_add(short);
                self.idle = (0, u16::MAX);
            }
        }
        let ways = used.saturating_sub(self.own);
        self.holder.found_in_use(Amount { cores: 0, ways });
    }

    /// Returns a request, if one is due: in time before the lease ends, and when the demand changes.
    pub(crate) fn request(&mut self, now: Nanos) -> Option<Request> {
        let in_use = self.holder.in_use();
        let due = self.asked.is_none_or(|(at, wish, used)| {
            now.saturating_sub(at) >= self.terms.renewal() || wish != self.wish || used != in_use
        });
        if !due {
            return None;
        }
        self.asked = Some((now, self.wish, in_use));
        let wants = Amount {
            cores: 0,
            ways: self.wish,
        };
        Some(self.holder.request(now, wants))
    }

    pub(crate) fn receive(&mut self, now: Nanos, grant: &Grant) -> bool {
        self.holder.receive(now, grant)
    }
}

/// Controller in the agent's own process, for a server without another. It leases unreserved ways on demand, so that
/// everything else on the machine can use them meanwhile.
#[derive(Clone, Debug)]
pub struct Local(LeaseServer);

impl Local {
    /// Creates a controller with `ways` ways to lease.
    pub fn new(terms: Terms, ways: u16) -> Self {
        Local(LeaseServer::new(terms, 1, Amount { cores: 0, ways }))
    }

    /// Returns its lease state.
    pub fn server(&mut self) -> &mut LeaseServer {
        &mut self.0
    }
}

impl Controller for Local {
    fn exchange(&mut self, now: Nanos, request: Option<&Request>) -> Vec<Grant> {
        request
            .map(|request| self.0.receive(now, request))
            .into_iter()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_placement::on_demand::Allocation;

    #[test]
    fn ways_that_could_not_be_let_go_of_are_told_and_their_grant_is_not_given_up() {
        let mut lease = Lease::new(Terms::DEFAULT, 1, 2);
        let mut server = LeaseServer::new(Terms::DEFAULT, 1, Amount { cores: 0, ways: 10 });
        let decision = |short| Decision {
            allocation: Allocation::default(),
            short,
            spare: 0,
            shares: Vec::new(),
            refused: Vec::new(),
            asks: Vec::new(),
            policing: Vec::new(),
        };
        let mut exchange = |lease: &mut Lease, now: Nanos, most: u16| {
            server.offer(Amount { cores: 0, ways: most });
            let request = lease.request(now).expect("something changed");
            let grant = server.receive(now, &request);
            assert!(lease.receive(now, &grant));
            (request, server.leased(now).ways)
        };
        lease.follow(2, &decision(8), 2);
        assert_eq!(exchange(&mut lease, Nanos::from_secs(1), 8).1, 8);
        lease.follow(10, &decision(0), 10);
        assert_eq!(exchange(&mut lease, Nanos::from_secs(2), 8).0.in_use.ways, 8);
        // The controller requires four back, but a class could not shrink: it was moved, and has grown instead.
        exchange(&mut lease, Nanos::from_secs(12), 4);
        lease.follow(6, &decision(0), 11);
        let (request, leased) = exchange(&mut lease, Nanos::from_secs(13), 4);
        assert_eq!((request.in_use.ways, leased), (9, 8));
        // After the release is complete, the ways are free.
        lease.follow(6, &decision(0), 6);
        let (request, leased) = exchange(&mut lease, Nanos::from_secs(14), 4);
        assert_eq!((request.in_use.ways, leased), (4, 4));
    }
}
