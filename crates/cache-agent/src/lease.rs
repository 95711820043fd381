//! The lease, as the agent holds it, and a controller in the same process.

use crate::drive::Controller;
use tailwater_net::Nanos;
use tailwater_placement::lease::{Amount, Grant, Holder, Lessor, Request, Terms};
use tailwater_placement::on_demand::Decision;

/// Ticks in a row with ways to spare before leased ones are given back.
const PATIENCE: u32 = 8;

/// What the agent may divide, and what it would like to.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    holder: Holder,
    terms: Terms,
    /// Ways that belong to on-demand instances, without a lease.
    own: u16,
    /// Leased ways that there is a use for.
    wish: u16,
    /// Ticks in a row with ways to spare, and the fewest of them.
    idle: (u32, u16),
    /// When what was asked for last.
    asked: Option<(Nanos, u16, Amount)>,
}

impl Lease {
    pub(crate) fn new(terms: Terms, incarnation: u64, own: u16) -> Self {
        Lease {
            holder: Holder::new(terms, incarnation, Amount::NONE),
            terms,
            own,
            wish: 0,
            idle: (0, u16::MAX),
            asked: None,
        }
    }

    /// Ways that may be used now, and all of these that there is a use for.
    pub(crate) fn ways(&self, now: Nanos) -> u16 {
        self.own
            .saturating_add(self.holder.allowed(now).ways.min(self.wish))
    }

    /// Leased ways that may be used now.
    pub(crate) fn allowed(&self, now: Nanos) -> u16 {
        self.holder.allowed(now).ways
    }

    /// What was decided with so many ways, and how many are in use since. `false` if those are more than are leased.
    pub(crate) fn follow(&mut self, now: Nanos, ways: u16, decision: &Decision, used: u16) -> bool {
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
        self.holder
            .set_in_use(now, Amount { cores: 0, ways })
            .is_ok()
    }

    /// A request, if one is to be sent now: in time before the lease ends, and when needs change.
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

/// A controller in the agent's own process, for a server without another: it leases ways that nothing is reserved of as
/// they are needed, so that everything else on the machine has them while they are not.
#[derive(Clone, Debug)]
pub struct Local(Lessor);

impl Local {
    /// So many ways can be leased.
    pub fn new(terms: Terms, ways: u16) -> Self {
        Local(Lessor::new(terms, 1, Amount { cores: 0, ways }))
    }

    /// What it leases, and to whom.
    pub fn lessor(&mut self) -> &mut Lessor {
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
