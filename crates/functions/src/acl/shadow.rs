//! Shadowed rules: rules that never decide, because one earlier rule matches everything they match.
//!
//! A rule is a box: a range in each field. An earlier rule contains the box if it contains both ends of the range in
//! every field. The rules that contain a value form a set, found as in the [classifier](super::classifier). So the
//! first rule in the sets of all ends is the shadowing rule. No rule is compared with another, so long lists take
//! little time.

use super::classifier::value_intervals;
use super::classifier::{ClassifierError, MAX_MEMORY_BYTES, Version, address_intervals, ports};
use super::rule::Rule;
use super::rule_sets::{Packer, RuleSets, dense_words};
use ipnet::IpNet;

/// Number of rules whose sets are built together.
const PART: usize = 1 << 16;

/// A shadowed rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowedRule {
    /// Index of the rule.
    pub rule: usize,
    /// Index of the first rule that matches everything the rule matches.
    pub by: usize,
}

/// First value of each interval of a field, with the set of rules that contain the interval.
type Intervals = Vec<(u128, u32)>;

/// Number of sets to intersect: the range ends of two addresses in two IP versions, of two ports and of the protocol,
/// and the class.
const ENDS: usize = 2 * 4 + 2 * 3 + 1;

/// Sets of up to [`PART`] consecutive rules.
struct Part {
    /// Address intervals by side, then by IP version.
    addresses: [[Intervals; 2]; 2],
    /// Intervals of source ports, destination ports and protocols.
    values: [Intervals; 3],
    /// For each class of rules, the set of rules whose class contains it.
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

    /// Returns the first rule that contains all of `rule`, which may be `rule` itself.
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

/// Returns the first and the last address of a prefix, or of an IP version.
fn range(net: Option<IpNet>, version: usize) -> [u128; 2] {
    match (net, version) {
        (Some(IpNet::V4(net)), _) => [net.network(), net.broadcast()].map(|a| a.to_bits().into()),
        (Some(IpNet::V6(net)), _) => [net.network(), net.broadcast()].map(|a| a.to_bits()),
        (None, 0) => [0, u32::MAX.into()],
        (None, _) => [0, u128::MAX],
    }
}

/// Returns the set of a value.
fn find(intervals: &Intervals, value: u128) -> u32 {
    let behind = intervals.partition_point(|(first, _)| *first <= value);
    // The first interval begins at 0.
    intervals[behind - 1].1
}

/// Returns the rules that one earlier rule shadows, in order. Rules that only several earlier ones shadow together are
/// not found. Rules that match nothing (empty port ranges, prefixes of both IP versions) are skipped.
///
/// Each rule has a class below `count`, for match conditions other than the 5-tuple. `holds(a, b)` returns `true` if
/// rules of class `a` match whenever rules of class `b` do.
///
/// # Errors
/// If the rules overlap in so many ways that their sets exceed the memory limit.
///
/// # Panics
/// If a rule has no class, or a class that is not below `count`.
pub fn find_shadowed(
    rules: &[Rule],
    (classes, count): (&[u16], u16),
    holds: impl Fn(u16, u16) -> bool,
) -> Result<Vec<ShadowedRule>, ClassifierError> {
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
            found.push(ShadowedRule { rule: i, by });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
