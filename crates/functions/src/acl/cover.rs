//! Rules that never decide, since one earlier rule matches all that they match.
//!
//! A rule is a box: a range in each field. An earlier rule that holds both ends of the range in every field holds the box.
//! The rules that hold a value are a set, found as the [classifier](super::classifier) finds it, so the first rule that
//! is in the sets of all ends is the one: no rule is compared with another, and long lists take no time to speak of.

use super::classifier::value_intervals;
use super::classifier::{ClassifierError, MAX_MEMORY_BYTES, Version, address_intervals, ports};
use super::rule::Rule;
use super::rule_sets::{Packer, RuleSets, dense_words};
use ipnet::IpNet;

/// Rules whose sets are made together.
const PART: usize = 1 << 16;

/// A rule that never decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Its place.
    pub rule: usize,
    /// The place of the first rule that matches all that it matches.
    pub by: usize,
}

/// Ranges of a field's values, each with the set of rules that hold it.
type Intervals = Vec<(u128, u32)>;

/// Ends of ranges: of two addresses in two IP versions, of two ports and the protocol; and the class.
const ENDS: usize = 2 * 4 + 2 * 3 + 1;

/// The sets of some consecutive rules.
struct Part {
    /// By side, then by version.
    addresses: [[Intervals; 2]; 2],
    /// Source ports, destination ports, protocols.
    values: [Intervals; 3],
    /// For each class of rules, those that hold it.
    classes: Vec<u32>,
    sets: RuleSets,
}

impl Part {
    fn new(
        rules: &[Rule],
        classes: &[u16],
        count: u16,
        holds: &impl Fn(u16, u16) -> bool,
    ) -> Result<Part, ClassifierError> {
        let mut packer = Packer::new(rules.len(), 0, MAX_MEMORY_BYTES);
        let mut side = |side: fn(&Rule) -> Option<IpNet>| {
            let v4 = address_intervals(&mut packer, rules, side, Version::V4)?;
            Ok([v4, address_intervals(&mut packer, rules, side, Version::V6)?])
        };
        let addresses = [side(|rule| rule.source)?, side(|rule| rule.destination)?];
        let values = [
            value_intervals(&mut packer, rules, u16::MAX, |r| ports(&r.source_ports))?,
            value_intervals(&mut packer, rules, u16::MAX, |r| ports(&r.destination_ports))?,
            value_intervals(&mut packer, rules, u8::MAX.into(), |rule| {
                rule.protocol.map(|p| (u16::from(p), u16::from(p)))
            })?,
        ];
        let of_class = |class| {
            let mut dense = vec![0_u64; dense_words(rules.len())];
            let of_rules = classes.iter().enumerate();
            for (i, _) in of_rules.filter(|(_, its)| holds(**its, class)) {
                dense[i / 64] |= 1 << (i % 64);
            }
            packer.pack(&dense)
        };
        let classes = (0..count).map(of_class).collect::<Result<_, _>>()?;
        Ok(Part {
            addresses,
            values,
            classes,
            sets: packer.finish(),
        })
    }

    /// The first rule that holds all of this one.
    fn first(&self, rule: &Rule, class: u16) -> Option<u32> {
        let mut ends = [self.classes[usize::from(class)]; ENDS];
        let sides = [rule.source, rule.destination];
        let given = sides.iter().flatten().next();
        for (version, is_it) in [
            given.is_none_or(|net| net.addr().is_ipv4()),
            given.is_none_or(|net| net.addr().is_ipv6()),
        ]
        .into_iter()
        .enumerate()
        {
            for (side, net) in sides.iter().enumerate().filter(|_| is_it) {
                let [first, last] = range(*net, version);
                let intervals = &self.addresses[side][version];
                let at = 4 * version + 2 * side;
                (ends[at], ends[at + 1]) = (find(intervals, first), find(intervals, last));
            }
        }
        let protocols = rule.protocol.map_or([0, u8::MAX], |p| [p, p]).map(u16::from);
        let ranges = [&rule.source_ports, &rule.destination_ports];
        let ranges = ranges.map(|range| [*range.start(), *range.end()]);
        let [sources, destinations] = ranges;
        let ranges = [sources, destinations, protocols];
        for (i, ([first, last], intervals)) in ranges.into_iter().zip(&self.values).enumerate() {
            let at = 8 + 2 * i;
            ends[at] = find(intervals, first.into());
            ends[at + 1] = find(intervals, last.into());
        }
        self.sets.first_in_all(ends)
    }
}

/// The first and the last address of a prefix, or of a version.
fn range(net: Option<IpNet>, version: usize) -> [u128; 2] {
    match (net, version) {
        (Some(IpNet::V4(net)), _) => [net.network(), net.broadcast()].map(|a| a.to_bits().into()),
        (Some(IpNet::V6(net)), _) => [net.network(), net.broadcast()].map(|a| a.to_bits()),
        (None, 0) => [0, u32::MAX.into()],
        (None, _) => [0, u128::MAX],
    }
}

/// The set of a value.
fn find(intervals: &Intervals, value: u128) -> u32 {
    let behind = intervals.partition_point(|(first, _)| *first <= value);
    // The first interval begins at 0.
    intervals[behind - 1].1
}

/// Rules that one earlier rule covers, in order; those that only several earlier ones cover together are not found. Rules
/// have a class each, below `count`, and `holds(a, b)` says whether rules of class `a` match in all the ways of class `b`:
/// for what a rule asks beside its 5-tuple. Rules that nothing matches (empty ranges of ports, prefixes of both IP
/// versions) are left out.
///
/// # Errors
/// If the rules overlap in so many ways that their sets take too much memory.
///
/// # Panics
/// If a rule has no class, or one that is not below `count`.
pub fn covered(
    rules: &[Rule],
    (classes, count): (&[u16], u16),
    holds: impl Fn(u16, u16) -> bool,
) -> Result<Vec<Covered>, ClassifierError> {
    assert_eq!(rules.len(), classes.len(), "a class for each rule");
    let parts = rules.chunks(PART).zip(classes.chunks(PART));
    let parts = parts.map(|(rules, classes)| Part::new(rules, classes, count, &holds));
    let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (i, (rule, class)) in rules.iter().zip(classes).enumerate() {
        let versions = [rule.source, rule.destination].map(|n| n.map(|n| n.addr().is_ipv4()));
        let mixed = matches!(versions, [Some(a), Some(b)] if a != b);
        if mixed || rule.source_ports.is_empty() || rule.destination_ports.is_empty() {
            continue;
        }
        let first = parts[..=i / PART].iter().enumerate();
        let mut first = first.filter_map(|(at, part)| Some(at * PART + part.first(rule, *class)? as usize));
        if let Some(by) = first.next().filter(|by| *by < i) {
            found.push(Covered { rule: i, by });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
