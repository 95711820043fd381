//! Prefilter: finds candidate rules for a buffer. Each rule is represented by one content it requires (its fast
//! pattern); those of all rules are searched at once.

use crate::buffer::BufferKey;
use crate::dense::Dense;
use crate::literal::{Literals, Strings};
use crate::port_groups::GroupSet;
use crate::unit::Unit;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::{Anchored, nfa};
use std::collections::HashMap;

/// Largest total of pattern bytes for which the automaton is a dense table. That takes some hundred bytes per pattern
/// byte, and a tenth of the time.
const DENSE: usize = 1 << 15;

/// Limit on the strings of all port-specific search sets: this number, plus a multiple of the strings for all
/// connections.
const SET_STRINGS: usize = 1 << 14;
const SET_TIMES: usize = 8;

/// Case-insensitive automaton for all patterns.
#[derive(Debug)]
enum Automaton {
    Dense(Dense),
    Sparse(Box<nfa::contiguous::NFA>),
}

/// Rule with its fast pattern.
#[derive(Clone, Debug)]
pub(crate) struct FastPattern {
    pub(crate) rule: u32,
    /// Fast pattern, in lower case.
    pub(crate) content: Vec<u8>,
    /// Index of the buffer it must be in.
    pub(crate) buffer: usize,
    /// Port groups of the connections the rule applies to.
    pub(crate) ports: GroupSet,
}

/// Rules of one buffer, or of a few with mostly the same bytes, by their fast patterns.
#[derive(Debug)]
pub(crate) struct Group {
    buffers: Vec<BufferKey>,
    strings: Strings,
    /// Search for all strings, then searches for subsets.
    literals: Vec<Literals>,
    /// Index in `literals` per port group; empty if all groups use the first.
    by_ports: Vec<u8>,
    /// Fallback for bytes crafted to be expensive for [`Literals`].
    automaton: Automaton,
    /// Length of the longest pattern, in bytes.
    longest: usize,
    /// Per pattern, the end of its rules; they start at the previous pattern's end.
    ends: Vec<u32>,
    /// Rules, each with a bitmap of its buffer.
    rules: Vec<(u32, u8)>,
}

impl Group {
    /// Builds the searches for rules with their case-insensitive fast patterns. `ports` lists the port groups with
    /// their weights.
    ///
    /// # Errors
    /// There are too many patterns.
    pub(crate) fn new(buffers: Vec<BufferKey>, wanted: Vec<FastPattern>, ports: &[(u8, u64)]) -> Result<Group, String> {
        Group::with_limit(buffers, wanted, ports, DENSE)
    }

    /// Like [`new`](Group::new), with another limit for the dense table.
    fn with_limit(
        buffers: Vec<BufferKey>,
        wanted: Vec<FastPattern>,
        ports: &[(u8, u64)],
        dense: usize,
    ) -> Result<Group, String> {
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut of: Vec<Vec<(u32, u8)>> = Vec::new();
        let mut may_match: Vec<GroupSet> = Vec::new();
        for one in wanted {
            let place = *places.entry(one.content).or_insert_with_key(|pattern| {
                patterns.push(pattern.clone());
                of.push(Vec::new());
                may_match.push(GroupSet::default());
                of.len() - 1
            });
            of[place].push((one.rule, 1 << one.buffer));
            may_match[place].add(&one.ports);
        }
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        let automaton = match bytes <= dense {
            true => Ok(Automaton::Dense(Dense::new(&patterns))),
            false => nfa::contiguous::NFA::new(&patterns).map(|nfa| Automaton::Sparse(Box::new(nfa))),
        };
        let ends = of.iter().scan(0, |end, rules| {
            *end += rules.len() as u32;
            Some(*end)
        });
        let strings = Strings::new(&patterns);
        let (literals, by_ports) = by_ports(&strings, &may_match, ports);
        Ok(Group {
            buffers,
            strings,
            literals,
            by_ports,
            automaton: automaton.map_err(|error| error.to_string())?,
            longest: patterns.iter().map(Vec::len).max().unwrap_or(0),
            ends: ends.collect(),
            rules: of.concat(),
        })
    }

    /// Calls `each` on rules whose fast pattern is in their buffer and ends after its first `from` bytes, possibly
    /// several times. Rules for connections of port group `ports` are all found. Buffers with the same bytes are
    /// searched once.
    #[inline]
    pub(crate) fn search(&self, unit: &Unit<'_>, from: usize, ports: u8, mut each: impl FnMut(u32)) {
        let mut done = 0u8;
        for (i, buffer) in self.buffers.iter().enumerate() {
            let Some(bytes) = unit.get(*buffer) else {
                continue;
            };
            if done >> i & 1 != 0 {
                continue;
            }
            let mut same = 1u8 << i;
            for (j, other) in self.buffers.iter().enumerate().skip(i + 1) {
                let other = unit.get(*other);
                same |= u8::from(other.is_some_and(|other| std::ptr::eq(other, bytes))) << j;
            }
            done |= same;
            self.find(bytes, from, ports, |pattern| {
                for (rule, buffer) in self.rules_of(pattern) {
                    if buffer & same != 0 {
                        each(*rule);
                    }
                }
            });
        }
    }

    /// Calls `each` on the patterns found.
    #[inline]
    fn find(&self, bytes: &[u8], from: usize, ports: u8, mut each: impl FnMut(u32)) {
        let which = self.by_ports.get(usize::from(ports));
        let literals = &self.literals[which.map_or(0, |which| usize::from(*which))];
        if !literals.find(&self.strings, (bytes, from), &mut each) {
            self.find_at_any_cost(bytes, from, each);
        }
    }

    /// Like [`find`](Group::find), with the automaton and all patterns.
    #[cold]
    fn find_at_any_cost(&self, bytes: &[u8], from: usize, mut each: impl FnMut(u32)) {
        let (from, whole) = (from.min(bytes.len()), bytes);
        let start = (from + 1).saturating_sub(self.longest).min(from);
        let (before, bytes) = (&whole[start..from], &whole[from..]);
        match &self.automaton {
            Automaton::Dense(table) => {
                let state = table.run(Dense::START, before, |_| {});
                table.run(state, bytes, each);
            }
            Automaton::Sparse(automaton) => {
                // All automata built here have a start state.
                let Ok(state) = automaton.start_state(Anchored::No) else {
                    return;
                };
                let state = run(automaton, state, before, |_| {});
                run(automaton, state, bytes, &mut each);
            }
        }
    }

    /// Returns the rules a pattern represents.
    #[inline]
    fn rules_of(&self, pattern: u32) -> &[(u32, u8)] {
        let pattern = pattern as usize;
        let from = pattern.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rules[from as usize..self.ends[pattern] as usize]
    }

    /// Returns the bytes of memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        let automaton = match &self.automaton {
            Automaton::Dense(table) => table.memory_bytes(),
            Automaton::Sparse(automaton) => automaton.memory_usage(),
        };
        let literals: usize = self.literals.iter().map(Literals::memory_bytes).sum();
        let rules = 4 * self.ends.len() + size_of_val(&self.rules[..]);
        automaton + literals + self.strings.memory_bytes() + rules
    }
}

/// Builds the search for all strings, and searches for subsets by port group. A subset is built only if it is much
/// smaller, and while all subsets are within the limit. Groups of the largest weight come first.
fn by_ports(strings: &Strings, may_match: &[GroupSet], ports: &[(u8, u64)]) -> (Vec<Literals>, Vec<u8>) {
    let all: Vec<u32> = (0..strings.len() as u32).collect();
    let mut literals = vec![Literals::new(strings, &all)];
    // Groups with the same strings share a subset; there are few distinct sets of groups.
    let mut kinds: HashMap<GroupSet, usize> = HashMap::new();
    for groups in may_match {
        *kinds.entry(*groups).or_default() += 1;
    }
    let kinds: Vec<(GroupSet, usize)> = kinds.into_iter().collect();
    let mut alike: HashMap<Vec<bool>, (u64, Vec<u8>)> = HashMap::new();
    for &(group, weight) in ports {
        let kinds = kinds.iter().map(|(groups, _)| groups.contains(group));
        let (sum, groups) = alike.entry(kinds.collect()).or_default();
        *sum = sum.saturating_add(weight);
        groups.push(group);
    }
    let sets = alike.into_iter().map(|(has, (weight, groups))| {
        let sizes = kinds.iter().zip(has).filter(|(_, has)| *has);
        let size: usize = sizes.map(|((_, size), _)| size).sum();
        (size, weight, groups)
    });
    let mut sets: Vec<_> = sets.filter(|(size, ..)| 4 * size <= 3 * all.len()).collect();
    sets.sort_unstable_by_key(|(size, weight, groups)| {
        let saved = weight.saturating_mul((all.len() - size) as u64);
        (std::cmp::Reverse(saved), groups[0])
    });
    let mut left = SET_STRINGS + SET_TIMES * all.len();
    let mut by_ports = Vec::new();
    for (size, _, groups) in sets {
        if size > left || literals.len() > usize::from(u8::MAX) {
            continue;
        }
        left -= size;
        let some = all.iter().copied();
        let some = some.filter(|string| may_match[*string as usize].contains(groups[0]));
        by_ports.resize(usize::from(u8::MAX), 0);
        for group in &groups {
            by_ports[usize::from(*group)] = literals.len() as u8;
        }
        literals.push(Literals::new(strings, &some.collect::<Vec<u32>>()));
    }
    (literals, by_ports)
}

/// Runs over bytes from a state on, and calls `each` for every pattern that ends. Returns the final state.
fn run(automaton: &nfa::contiguous::NFA, mut state: StateID, bytes: &[u8], mut each: impl FnMut(u32)) -> StateID {
    for byte in bytes {
        state = automaton.next_state(Anchored::No, state, byte.to_ascii_lowercase());
        if automaton.is_special(state) && automaton.is_match(state) {
            for i in 0..automaton.match_len(state) {
                each(automaton.match_pattern(state, i).as_u32());
            }
        }
    }
    state
}

/// Candidate rules, each once.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) rules: Vec<u32>,
    /// Per rule, the last round in which it was found.
    seen: Vec<u32>,
    round: u32,
}

impl Candidates {
    /// Creates an empty list for this many rules.
    pub(crate) fn new(rules: usize) -> Candidates {
        Candidates {
            rules: Vec::with_capacity(rules),
            seen: vec![0; rules],
            round: 0,
        }
    }

    /// Clears the list.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.rules.clear();
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.seen.fill(0);
            self.round = 1;
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, rule: u32) {
        let seen = &mut self.seen[rule as usize];
        if *seen != self.round {
            *seen = self.round;
            self.rules.push(rule);
        }
    }

    /// Sorts the candidates into evaluation order.
    #[inline]
    pub(crate) fn order(&mut self) {
        self.rules.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::PortSet;
    use crate::buffer::Buffer;
    use crate::port_groups::PortGroups;
    use crate::rule::Direction;
    use proptest::prelude::*;

    /// However many subsets are possible, the total is within the limit, and every group's search has all of its
    /// strings.
    #[test]
    fn sets_of_strings_are_bounded() {
        let header = |port| {
            let ports = PortSet::from_to(port, port);
            crate::port_groups::tests::header(PortSet::all(), ports, false)
        };
        // Half of the strings apply to any port, the others to one port each: far more than one subset per group can
        // hold.
        let headers: Vec<_> = (0..3000).map(|i| header(2 * i + 1)).collect();
        let of_server = |header| (header, &[Direction::ToServer][..]);
        let groups = PortGroups::new(headers.iter().map(of_server));
        let one = |header| groups.may_match(header, Direction::ToServer);
        let any = std::iter::repeat_n(GroupSet::ALL, headers.len());
        let may_match: Vec<GroupSet> = headers.iter().map(one).chain(any).collect();
        let all = may_match.len();
        let strings: Vec<Vec<u8>> = (0..all).map(|i| format!("content-{i}").into()).collect();
        let ports: Vec<(u8, u64)> = groups.all().collect();
        let (literals, by_ports) = by_ports(&Strings::new(&strings), &may_match, &ports);
        let size = |set: usize| {
            let group = by_ports.iter().position(|which| usize::from(*which) == set);
            let group = group.expect("it is some group's") as u8;
            may_match.iter().filter(|may| may.contains(group)).count()
        };
        let sum: usize = (1..literals.len()).map(size).sum();
        assert!(literals.len() > 8, "{}", literals.len());
        assert!(sum <= SET_STRINGS + SET_TIMES * all, "{sum}");
        // The subset for most connections is built.
        let most = by_ports[usize::from(groups.of(50_000, 40_000))];
        assert_eq!((most > 0, size(most.into())), (true, all / 2));
    }

    proptest! {
        /// However bytes are cut, by either method and in any buffer, the result equals a plain search, except rules
        /// for other ports.
        #[test]
        fn a_group_finds_every_content(
            contents in prop::collection::vec(("[abAB]{1,4}|[abAB]{4,12}|[a-zA-Z0-9 \\x00@\\[`{]{1,3}", 0usize..3, 0usize..4), 1..200),
            text in "[abABc]{0,60}|[abAB]{0,300}|[a-zA-Z0-9 \\x00@\\[`{]{0,60}",
            cut in 0usize..300,
            dense in any::<bool>(),
            same in any::<bool>(),
        ) {
            // Rules of either of two buffers; some apply only to connections of group 0, some to group 1.
            let group_sets = {
                let header = |port| crate::port_groups::tests::header(PortSet::all(), PortSet::from_to(port, port), false);
                let headers = [header(80), header(443)];
                let groups = PortGroups::new(headers.iter().map(|header| (header, &[Direction::ToServer][..])));
                let [web, tls] = [0, 1].map(|i| groups.may_match(&headers[i], Direction::ToServer));
                let numbers = [80, 443].map(|port| groups.of(port, 40_000));
                (groups, [GroupSet::ALL, web, tls], numbers)
            };
            let (groups, sets, numbers) = group_sets;
            let wanted: Vec<FastPattern> = (0..).zip(&contents).map(|(rule, (content, buffer, set))| FastPattern {
                rule,
                content: content.to_ascii_lowercase().into_bytes(),
                buffer: (*buffer).min(1),
                ports: sets[(*set).min(2)],
            }).collect();
            let (one, other) = (BufferKey::from(Buffer::FileData), BufferKey::from(Buffer::ResponseBody));
            let ports: Vec<(u8, u64)> = groups.all().collect();
            let group = Group::with_limit(vec![one, other], wanted.clone(), &ports, if dense { 100_000 } else { 0 }).unwrap();
            let cut = cut.min(text.len());
            let mut candidates = Candidates::new(wanted.len());
            for ((text, from), port) in [(&text[..], cut), (&text[..cut], 0)].into_iter().zip(numbers) {
                let lower = text.to_ascii_lowercase();
                let reversed: Vec<u8> = lower.bytes().rev().collect();
                let mut unit = Unit::new();
                unit.set(one, text.as_bytes());
                unit.set(other, if same { text.as_bytes() } else { &reversed });
                let is_in = |one: &FastPattern| {
                    let bytes = if same || one.buffer == 0 { lower.as_bytes() } else { &reversed };
                    let mut places = bytes.windows(one.content.len()).enumerate();
                    places.any(|(at, found)| at + found.len() > from && found == one.content)
                };
                let is_wanted = |one: &&FastPattern| one.ports.contains(port) && is_in(one);
                let expected: Vec<u32> = wanted.iter().filter(is_wanted).map(|one| one.rule).collect();
                candidates.clear();
                group.search(&unit, from, port, |rule| candidates.add(rule));
                candidates.order();
                prop_assert!(candidates.rules.iter().all(|rule| is_in(&wanted[*rule as usize])));
                let about = |rule: &u32| wanted[*rule as usize].ports.contains(port);
                candidates.rules.retain(about);
                prop_assert_eq!(&candidates.rules, &expected);
                candidates.clear();
                let mut unit_of_one = |bytes: &[u8], bit: u8| group.find_at_any_cost(bytes, from, |pattern| {
                    group.rules_of(pattern).iter().filter(|(_, buffer)| buffer & bit != 0).for_each(|(rule, _)| candidates.add(*rule));
                });
                unit_of_one(text.as_bytes(), 1);
                unit_of_one(if same { text.as_bytes() } else { &reversed }, 2);
                candidates.order();
                candidates.rules.retain(about);
                prop_assert_eq!(&candidates.rules, &expected);
            }
        }
    }
}
