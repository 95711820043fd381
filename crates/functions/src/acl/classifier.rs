//! Rule classifier: finds the first matching rule in an ordered list of 5-tuple rules.
//!
//! Each field of a key selects the set of rules that match the key in that field. The result is the lowest rule in the
//! intersection of these sets. This is the *aggregated bit vector* method (Baboescu and Varghese, SIGCOMM 2001) with
//! four changes:
//!
//! - Equal sets are stored once.
//! - Zero words of a set are not stored.
//! - Ports and protocol form one field if they have few combinations.
//! - An IPv4 address selects its set by a table and one vector comparison instead of a trie walk.
//!
//! # Memory
//!
//! For up to 65,536 rules the look-up tables take 0.8 MB, plus some 200 bytes for every distinct IPv4 prefix. A set of
//! `n` rules takes `8 * (ceil(n / 4096) + w)` bytes if `w` of its `ceil(n / 64)` words are non-zero. There are at most
//! `2n + 1` sets per field, and at most 64 MiB of sets for combinations of ports and protocol. ClassBench sets of 8,000
//! rules take 2 to 7 MB in total. Longer lists are split into parts of 65,536 rules, which are searched one after the
//! other. Building fails with an error beyond [`MAX_MEMORY_BYTES`].

use super::address::{GROUP, V4Table, V6Table};
use super::dispatch::{self, NO_RULE, Search, Searchable};
use super::rule::Rule;
use super::rule_sets::{self, Packer, RuleSets, Span};
use super::service::ServiceTable;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use tailwater_net::flow::FlowKey;

pub use super::limits::{ClassifierError, MAX_MEMORY_BYTES, MAX_RULES};

/// Finds the first matching rule of a fixed list. It is read-only after building, so cores share one.
pub struct Classifier {
    /// Classifiers of consecutive rules, `limits.part_rules` each.
    parts: Vec<Part>,
    /// Number of rules in each part but the last.
    part_rules: usize,
}

/// Limits at which the structure changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Rules per part.
    pub(super) part_rules: usize,
    /// Maximum work, in word operations, for which combinations of ports and protocol are built. It bounds build time
    /// and, during the build, memory.
    pub(super) combination_words: usize,
    /// Maximum memory of the whole classifier, in bytes.
    pub(super) memory_bytes: usize,
}

impl Limits {
    pub(super) const DEFAULT: Limits = Limits {
        part_rules: 1 << 16,
        combination_words: 1 << 23,
        memory_bytes: MAX_MEMORY_BYTES,
    };
}

impl Classifier {
    /// Builds the tables.
    ///
    /// # Errors
    ///
    /// If there are more than [`MAX_RULES`] rules, or if the tables exceed [`MAX_MEMORY_BYTES`].
    pub fn new(rules: &[Rule]) -> Result<Self, ClassifierError> {
        Self::with_limits(rules, Limits::DEFAULT)
    }

    /// Builds the tables within the given limits.
    pub(super) fn with_limits(rules: &[Rule], limits: Limits) -> Result<Self, ClassifierError> {
        if rules.len() > MAX_RULES {
            return Err(ClassifierError::TooManyRules { rules: rules.len() });
        }
        let mut classifier = Classifier {
            parts: Vec::new(),
            part_rules: limits.part_rules,
        };
        let mut used = 0;
        for rules in rules.chunks(limits.part_rules) {
            let part = Part::new(rules, used, limits)?;
            used += part.memory_bytes();
            classifier.parts.push(part);
        }
        Ok(classifier)
    }

    /// Returns the index of the first rule that matches.
    ///
    /// [`classify_batch`](Self::classify_batch) is several times faster per key.
    pub fn classify(&self, key: &FlowKey) -> Option<u32> {
        let mut found = [None];
        self.classify_batch(std::slice::from_ref(key), &mut found);
        found[0]
    }

    /// Writes to `found[i]` the index of the first rule that matches `keys[i]`.
    ///
    /// # Panics
    ///
    /// If the slices' lengths differ.
    pub fn classify_batch(&self, keys: &[FlowKey], found: &mut [Option<u32>]) {
        assert_eq!(keys.len(), found.len(), "one result per key");
        dispatch::find(self, keys, found);
    }

    /// Returns the memory of the tables in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.parts.iter().map(Part::memory_bytes).sum::<usize>() + self.parts.capacity() * size_of::<Part>()
    }
}

impl Searchable for Classifier {
    #[inline(always)]
    fn find(&self, search: impl Search, keys: &[FlowKey], found: &mut [Option<u32>]) {
        for (keys, found) in keys.chunks(GROUP).zip(found.chunks_mut(GROUP)) {
            found.fill(None);
            for (i, part) in self.parts.iter().enumerate() {
                part.find(search, keys, found, (i * self.part_rules) as u32);
            }
        }
    }
}

/// Classifier of up to [`Limits::part_rules`] rules.
struct Part {
    source_v4: V4Table,
    destination_v4: V4Table,
    source_v6: V6Table,
    destination_v6: V6Table,
    service: ServiceTable,
    sets: RuleSets,
}

impl Part {
    /// Builds the tables of these rules when `used` bytes are already allocated.
    fn new(rules: &[Rule], used: usize, limits: Limits) -> Result<Self, ClassifierError> {
        let words = rule_sets::dense_words(rules.len());
        let mut sets = Packer::new(rules.len(), used, limits.memory_bytes);
        let packer = &mut sets;
        let source = |rule: &Rule| rule.source;
        let destination = |rule: &Rule| rule.destination;
        let source_v4 = V4Table::new(&address_intervals(packer, rules, source, V4)?);
        let destination_v4 = V4Table::new(&address_intervals(packer, rules, destination, V4)?);
        let source_v6 = V6Table::new(&address_intervals(packer, rules, source, V6)?);
        let destination_v6 = V6Table::new(&address_intervals(packer, rules, destination, V6)?);
        let service = [
            value_intervals(packer, rules, u16::MAX, |rule| ports(&rule.source_ports))?,
            value_intervals(packer, rules, u16::MAX, |rule| ports(&rule.destination_ports))?,
            value_intervals(packer, rules, u8::MAX.into(), |rule| {
                rule.protocol.map(|p| (u16::from(p), u16::from(p)))
            })?,
        ];
        let service = ServiceTable::new(packer, words, service, limits.combination_words)?;
        let part = Part {
            source_v4,
            destination_v4,
            source_v6,
            destination_v6,
            service,
            sets: sets.finish(),
        };
        match used + part.memory_bytes() > limits.memory_bytes {
            true => Err(ClassifierError::TooLarge {
                limit_bytes: limits.memory_bytes,
            }),
            false => Ok(part),
        }
    }

    /// Looks up those keys of a group that have no rule yet. `first` is the index of the part's first rule.
    #[inline(always)]
    fn find(&self, search: impl Search, keys: &[FlowKey], found: &mut [Option<u32>], first: u32) {
        let mut addresses = [[0; GROUP]; 2];
        self.find_addresses(keys, &mut addresses);
        let [sources, destinations] = &addresses;
        if self.service.is_combined() {
            self.find_in(search, keys, found, first, |i| {
                let service = self.service.find_combined(&keys[i]);
                [sources[i], destinations[i], service]
            });
        } else {
            self.find_in(search, keys, found, first, |i| {
                let [source_port, destination_port, protocol] = self.service.find_separate(&keys[i]);
                let (source, destination) = (sources[i], destinations[i]);
                [source, destination, source_port, destination_port, protocol]
            });
        }
    }

    /// Searches the sets of all keys. The sets of every key are located and prefetched before the first search.
    #[inline(always)]
    fn find_in<const SETS: usize>(
        &self,
        search: impl Search,
        keys: &[FlowKey],
        found: &mut [Option<u32>],
        first: u32,
        sets_of: impl Fn(usize) -> [u32; SETS],
    ) {
        let mut located = [[0_u32; SETS]; GROUP];
        for (i, located) in located.iter_mut().enumerate().take(keys.len()) {
            *located = sets_of(i);
            for position in *located {
                dispatch::prefetch(self.sets.address(position));
            }
        }
        if self.sets.summary_words() == 1 {
            return self.search_in_rounds(search, &located, found, first);
        }
        for (found, located) in found.iter_mut().zip(located) {
            if found.is_none() {
                *found = search.first_in_all(&self.sets, located).map(|rule| first + rule);
            }
        }
    }

    /// Searches sets whose summaries have one word. Each round takes one step for every key that has no rule yet. The
    /// number of steps per key is unpredictable, so a branch on it for each key would cost as much as the steps.
    #[inline(always)]
    fn search_in_rounds<const SETS: usize>(
        &self,
        search: impl Search,
        located: &[[u32; SETS]; GROUP],
        found: &mut [Option<u32>],
        first: u32,
    ) {
        let mut common = [0_u64; GROUP];
        let mut pending = [0_u8; GROUP];
        let mut left = 0;
        for (i, (found, located)) in found.iter().zip(located).enumerate() {
            let summaries = located.map(|position| self.sets.at(position)[0]);
            common[i] = summaries.iter().fold(u64::MAX, |all, summary| all & summary);
            pending[left] = i as u8;
            left += usize::from(found.is_none() && common[i] != 0);
        }
        while left > 0 {
            let round = pending;
            let before = std::mem::take(&mut left);
            for &at in &round[..before] {
                let i = usize::from(at);
                let rule = search.step(&self.sets, located[i], &mut common[i]);
                let none = rule == NO_RULE;
                found[i] = (!none).then_some(first.wrapping_add(rule));
                pending[left] = at;
                left += usize::from(none && common[i] != 0);
            }
        }
    }

    /// Finds the sets of the keys' source and destination addresses.
    #[inline(always)]
    fn find_addresses(&self, keys: &[FlowKey], sets: &mut [[u32; GROUP]; 2]) {
        let mut v4 = [[0_u32; GROUP]; 2];
        let mut others = false;
        for (i, key) in keys.iter().enumerate() {
            // Both addresses of a key have the same IP version.
            if let (IpAddr::V4(source), IpAddr::V4(destination)) = (key.source(), key.destination()) {
                v4[0][i] = source.to_bits();
                v4[1][i] = destination.to_bits();
            } else {
                others = true;
            }
        }
        let [sources, destinations] = sets;
        self.source_v4.find_all(&v4[0][..keys.len()], sources);
        self.destination_v4.find_all(&v4[1][..keys.len()], destinations);
        if others {
            for (i, key) in keys.iter().enumerate().filter(|(_, key)| !key.is_v4()) {
                sources[i] = self.source_v6.find(to_v6(key.source()));
                destinations[i] = self.destination_v6.find(to_v6(key.destination()));
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.source_v4.memory_bytes()
            + self.destination_v4.memory_bytes()
            + self.source_v6.memory_bytes()
            + self.destination_v6.memory_bytes()
            + self.service.memory_bytes()
            + self.sets.memory_bytes()
    }
}

/// IP version of a table's addresses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Version {
    V4,
    V6,
}
use Version::{V4, V6};

/// Computes the intervals of one IP version's addresses.
pub(super) fn address_intervals(
    packer: &mut Packer,
    rules: &[Rule],
    field: impl Fn(&Rule) -> Option<IpNet>,
    version: Version,
) -> Result<Vec<(u128, u32)>, ClassifierError> {
    let spans = rules.iter().enumerate().filter_map(|(rule, fields)| {
        let (low, high) = match (field(fields)?, version) {
            (IpNet::V4(net), V4) => (net.network().to_bits().into(), net.broadcast().to_bits().into()),
            (IpNet::V6(net), V6) => (net.network().to_bits(), net.broadcast().to_bits()),
            _ => return None,
        };
        Some(Span { rule, low, high })
    });
    let everywhere = all_of(rules, |rule| field(rule).is_none());
    let last = match version {
        V4 => u32::MAX.into(),
        V6 => u128::MAX,
    };
    rule_sets::intervals(packer, last, &everywhere, spans)
}

/// Computes the intervals of a numeric field with values up to `last`. `field` returns `None` for all values.
pub(super) fn value_intervals(
    packer: &mut Packer,
    rules: &[Rule],
    last: u16,
    field: impl Fn(&Rule) -> Option<(u16, u16)>,
) -> Result<Vec<(u128, u32)>, ClassifierError> {
    let spans = rules.iter().enumerate().filter_map(|(rule, fields)| {
        let (low, high) = field(fields)?;
        // An empty range matches nothing.
        (low <= high).then_some(Span {
            rule,
            low: low.into(),
            high: high.into(),
        })
    });
    let everywhere = all_of(rules, |rule| field(rule).is_none());
    rule_sets::intervals(packer, last.into(), &everywhere, spans)
}

/// Returns the ends of a port range.
pub(super) fn ports(range: &RangeInclusive<u16>) -> Option<(u16, u16)> {
    Some((*range.start(), *range.end()))
}

/// Returns the rules for which a condition holds, as a plain bit vector.
fn all_of(rules: &[Rule], holds: impl Fn(&Rule) -> bool) -> Vec<u64> {
    let mut bits = vec![0; rule_sets::dense_words(rules.len())];
    for (i, _) in rules.iter().enumerate().filter(|(_, rule)| holds(rule)) {
        bits[i / 64] |= 1 << (i % 64);
    }
    bits
}

/// Converts an address to an IPv6 address.
#[inline(always)]
fn to_v6(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V6(address) => address,
        IpAddr::V4(address) => address.to_ipv6_mapped(),
    }
}

#[cfg(test)]
mod tests;
