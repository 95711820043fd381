//! Index of rules by address: finds all rules that may concern an address with one binary search.

use crate::address::AddressSet;
use crate::interval::{Intervals, Number};
use std::net::IpAddr;

/// Rules by addresses of one IP version.
#[derive(Debug)]
struct Stretches<T> {
    /// Starts of the address ranges; within a range the set of rules in [`Stretches::rules`] is constant.
    starts: Vec<T>,
    /// End of each range's rules; they start at the previous range's end.
    ends: Vec<u32>,
    rules: Vec<u32>,
}

impl<T: Number> Stretches<T> {
    fn new<'a>(sets: impl Iterator<Item = (u32, &'a Intervals<T>)> + Clone) -> Stretches<T>
    where
        T: 'a,
    {
        let mut starts: Vec<T> = sets
            .clone()
            .flat_map(|(_, set)| set.intervals())
            .flat_map(|&(first, last)| [Some(first), last.after()])
            .flatten()
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let mut of: Vec<Vec<u32>> = vec![Vec::new(); starts.len()];
        for (rule, set) in sets {
            for &(first, last) in set.intervals() {
                let from = starts.partition_point(|start| *start < first);
                let to = starts.partition_point(|start| *start <= last);
                for rules in &mut of[from..to] {
                    rules.push(rule);
                }
            }
        }
        let ends = of.iter().scan(0, |end, rules| {
            *end += rules.len() as u32;
            Some(*end)
        });
        Stretches {
            ends: ends.collect(),
            starts,
            rules: of.concat(),
        }
    }

    fn find(&self, address: T) -> &[u32] {
        let behind = self.starts.partition_point(|start| *start <= address);
        let Some(stretch) = behind.checked_sub(1) else {
            return &[];
        };
        let from = stretch.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rules[from as usize..self.ends[stretch] as usize]
    }
}

/// Rules by address.
#[derive(Debug)]
pub(crate) struct AddressIndex {
    v4: Stretches<u32>,
    v6: Stretches<u128>,
}

impl AddressIndex {
    pub(crate) fn new(sets: &[(u32, &AddressSet)]) -> AddressIndex {
        AddressIndex {
            v4: Stretches::new(sets.iter().map(|(rule, set)| (*rule, &set.v4))),
            v6: Stretches::new(sets.iter().map(|(rule, set)| (*rule, &set.v6))),
        }
    }

    /// Returns `true` if there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.v4.rules.is_empty() && self.v6.rules.is_empty()
    }

    /// Returns the rules whose sets contain an address.
    pub(crate) fn find(&self, address: IpAddr) -> &[u32] {
        match address {
            IpAddr::V4(address) => self.v4.find(address.to_bits()),
            IpAddr::V6(address) => self.v6.find(address.to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_index_finds_what_sets_hold(sets in prop::collection::vec(prop::collection::vec((0u16..50, 0u16..50), 0..5), 0..8), high in any::<bool>()) {
            let shift = if high { u16::MAX - 49 } else { 0 };
            let sets: Vec<Intervals<u16>> = sets.iter().map(|pairs| {
                let mut set = Intervals::none();
                for (a, b) in pairs {
                    set.add(&Intervals::from_to(shift + a, shift + b));
                }
                set
            }).collect();
            let index = Stretches::new(sets.iter().enumerate().map(|(i, set)| (i as u32, set)));
            for n in 0..50 {
                let n = n + shift;
                let expected: Vec<u32> = (0..sets.len()).filter(|i| sets[*i].contains(n)).map(|i| i as u32).collect();
                prop_assert_eq!(index.find(n), expected);
            }
        }
    }
}
