//! What is counted, and under which names.

use crate::acl::Rule;
use crate::acl::linear::matches;
use crate::tunnel::VlanMatch;
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// The most counters of one function: which of them a flow is for is kept with it, a bit each.
pub const MAX_COUNTERS: usize = 64;

/// A counter: a packet must match every field that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name: that of the packets' count. Bytes are counted under it with `-bytes` behind.
    pub name: String,
    /// Addresses, ports and protocol, as an access list has them; what its action is makes no difference.
    pub rule: Rule,
    /// The outer VLAN tag.
    pub vlan: Option<VlanMatch>,
}

/// Counters that are in force together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    counters: Vec<Counter>,
    /// Those that ask for a tag, or for none, a bit each.
    of_vlans: u64,
}

impl Counters {
    /// Of more than [`MAX_COUNTERS`], those beyond count nothing.
    pub fn new(mut counters: Vec<Counter>) -> Counters {
        counters.truncate(MAX_COUNTERS);
        let of_vlans = (0..).zip(&counters).filter(|(_, counter)| counter.vlan.is_some());
        Counters {
            of_vlans: of_vlans.fold(0, |bits, (at, _)| bits | 1 << at),
            counters,
        }
    }

    /// Those that a flow's packets match, whatever tags they have: a bit each.
    pub(super) fn of_flow(&self, key: &FlowKey) -> u64 {
        let matching = (0..)
            .zip(&self.counters)
            .filter(|(_, counter)| matches(&counter.rule, key));
        matching.fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// Those, among some, that a packet with this outer VLAN identifier does not match.
    #[inline]
    pub(super) fn of_other_vlans(&self, among: u64, vlan: impl FnOnce() -> Option<u16>) -> u64 {
        let (mut left, mut others) = (among & self.of_vlans, 0);
        if left == 0 {
            return 0;
        }
        let vlan = vlan();
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            let wanted = self.counters[at as usize].vlan;
            others |= u64::from(wanted.is_some_and(|wanted| wanted.id() != vlan)) << at;
        }
        others
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.counters.iter().map(|counter| &*counter.name)
    }
}

/// What all workers of a function share.
#[derive(Debug)]
pub struct CountTable {
    live: Live<Counters>,
    /// For each counter its name, and that of its bytes.
    notes: &'static [&'static str],
}

impl CountTable {
    /// Names live as long as the program: a chain's are few.
    pub fn new(counters: Counters) -> CountTable {
        let notes = counters
            .names()
            .flat_map(|name| [name.to_owned(), format!("{name}-bytes")])
            .map(|name| &*String::leak(name));
        CountTable {
            notes: Vec::leak(notes.collect()),
            live: Live::new(counters),
        }
    }

    /// The counters, to replace them while workers run.
    pub fn live(&self) -> &Live<Counters> {
        &self.live
    }

    /// Whether these have the same names in the same order, so that they may replace those in force.
    pub fn has_names_of(&self, counters: &Counters) -> bool {
        self.notes.iter().step_by(2).copied().eq(counters.names())
    }

    pub(super) fn notes(&self) -> &'static [&'static str] {
        self.notes
    }
}
