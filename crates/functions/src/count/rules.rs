//! Counters, their rules and their names.

use crate::acl::Rule;
use crate::acl::linear::matches;
use crate::tunnel::VlanMatch;
use tailwater_chain::live::Live;
use tailwater_net::FlowKey;

/// Maximum number of counters of one function. A flow's state has one bit for each.
pub const MAX_COUNTERS: usize = 64;

/// Named counter. A packet must match every given field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name of the packet count. The byte count has the same name with the suffix `-bytes`.
    pub name: String,
    /// Addresses, ports and protocol, as in an access list. The rule's action is ignored.
    pub rule: Rule,
    /// Match on the outer VLAN tag.
    pub vlan: Option<VlanMatch>,
}

/// Set of counters in force together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    counters: Vec<Counter>,
    /// Bit set of the counters with a VLAN match.
    of_vlans: u64,
}

impl Counters {
    /// Creates a set of counters. Counters beyond [`MAX_COUNTERS`] are discarded.
    pub fn new(mut counters: Vec<Counter>) -> Counters {
        counters.truncate(MAX_COUNTERS);
        let of_vlans = (0..).zip(&counters).filter(|(_, counter)| counter.vlan.is_some());
        Counters {
            of_vlans: of_vlans.fold(0, |bits, (at, _)| bits | 1 << at),
            counters,
        }
    }

    /// Returns the bit set of counters that a flow's packets match, VLAN tags aside.
    pub(super) fn of_flow(&self, key: &FlowKey) -> u64 {
        let matching = (0..)
            .zip(&self.counters)
            .filter(|(_, counter)| matches(&counter.rule, key));
        matching.fold(0, |bits, (at, _)| bits | 1 << at)
    }

    /// Returns the counters in `among` whose VLAN match excludes a packet with this outer VLAN identifier.
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

/// State shared by all workers of a `Count` function.
#[derive(Debug)]
pub struct CountTable {
    live: Live<Counters>,
    /// For each counter, its name and the name of its byte count.
    names: &'static [&'static str],
}

impl CountTable {
    /// Creates a table. The names are leaked and live as long as the program: a chain has few of them.
    pub fn new(counters: Counters) -> CountTable {
        let notes = counters
            .names()
            .flat_map(|name| [name.to_owned(), format!("{name}-bytes")])
            .map(|name| &*String::leak(name));
        CountTable {
            names: Vec::leak(notes.collect()),
            live: Live::new(counters),
        }
    }

    /// Returns the live counters, which can be replaced while workers run.
    pub fn live(&self) -> &Live<Counters> {
        &self.live
    }

    /// Returns `true` if `counters` have the same names in the same order, so that they may replace those in force.
    pub fn has_names_of(&self, counters: &Counters) -> bool {
        self.names.iter().step_by(2).copied().eq(counters.names())
    }

    pub(super) fn names(&self) -> &'static [&'static str] {
        self.names
    }
}
