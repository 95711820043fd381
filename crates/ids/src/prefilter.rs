//! Which rules a buffer could match: for each rule, one content that it must hold is looked for, those of all rules at
//! once.

use crate::buffer::BufferKey;
use crate::dense::Dense;
use crate::literal::Literals;
use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::{Anchored, nfa};
use std::collections::HashMap;

/// Bytes of all patterns up to which there is a table of all states and bytes: it takes some hundred bytes for each, and
/// a tenth of the time.
const DENSE: usize = 1 << 15;

/// An automaton for all patterns, letters in lower case.
#[derive(Debug)]
enum Automaton {
    Dense(Dense),
    Sparse(Box<nfa::contiguous::NFA>),
}

/// Rules of one buffer, by a content of each.
#[derive(Debug)]
pub(crate) struct Group {
    /// The buffer.
    pub(crate) buffer: BufferKey,
    literals: Literals,
    /// For bytes that are made to cost much with [`Literals`].
    automaton: Automaton,
    /// Bytes of the longest pattern.
    longest: usize,
    /// For each pattern, where its rules end; they begin where those of the one in front end.
    ends: Vec<u32>,
    rules: Vec<u32>,
}

impl Group {
    /// Rules with a content each, letters of which may be of either case.
    ///
    /// # Errors
    /// The patterns are too many.
    pub(crate) fn new(buffer: BufferKey, rules: &[(u32, Vec<u8>)]) -> Result<Group, String> {
        Group::with_limit(buffer, rules, DENSE)
    }

    /// The same with another limit for a table of all.
    fn with_limit(
        buffer: BufferKey,
        rules: &[(u32, Vec<u8>)],
        dense: usize,
    ) -> Result<Group, String> {
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut of: Vec<Vec<u32>> = Vec::new();
        for (rule, content) in rules {
            let pattern = content.to_ascii_lowercase();
            let place = *places.entry(pattern).or_insert_with_key(|pattern| {
                patterns.push(pattern.clone());
                of.push(Vec::new());
                of.len() - 1
            });
            of[place].push(*rule);
        }
        let bytes: usize = patterns.iter().map(Vec::len).sum();
        let automaton = match bytes <= dense {
            true => Ok(Automaton::Dense(Dense::new(&patterns))),
            false => {
                nfa::contiguous::NFA::new(&patterns).map(|nfa| Automaton::Sparse(Box::new(nfa)))
            }
        };
        let ends = of.iter().scan(0, |end, rules| {
            *end += rules.len() as u32;
            Some(*end)
        });
        Ok(Group {
            buffer,
            literals: Literals::new(&patterns),
            automaton: automaton.map_err(|error| error.to_string())?,
            longest: patterns.iter().map(Vec::len).max().unwrap_or(0),
            ends: ends.collect(),
            rules: of.concat(),
        })
    }

    /// Runs `each` on the rules whose content is among the bytes and ends behind the first `from` of them, perhaps several
    /// times.
    #[inline]
    pub(crate) fn find(&self, bytes: &[u8], from: usize, mut each: impl FnMut(u32)) {
        let mut all = |pattern: u32| self.rules_of(pattern).iter().for_each(|rule| each(*rule));
        if !self.literals.find(bytes, from, &mut all) {
            self.find_at_any_cost(bytes, from, all);
        }
    }

    /// The same by the automaton, and patterns.
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
                // There is a start, of all automata made here.
                let Ok(state) = automaton.start_state(Anchored::No) else {
                    return;
                };
                let state = run(automaton, state, before, |_| {});
                run(automaton, state, bytes, &mut each);
            }
        }
    }

    /// The rules that a pattern stands for.
    #[inline]
    fn rules_of(&self, pattern: u32) -> &[u32] {
        let pattern = pattern as usize;
        let from = pattern.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rules[from as usize..self.ends[pattern] as usize]
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let automaton = match &self.automaton {
            Automaton::Dense(table) => table.memory_bytes(),
            Automaton::Sparse(automaton) => automaton.memory_usage(),
        };
        automaton + self.literals.memory_bytes() + 4 * (self.ends.len() + self.rules.len())
    }
}

/// Goes over bytes from a state on, and runs `each` on the patterns that end. Returns the state behind them.
fn run(
    automaton: &nfa::contiguous::NFA,
    mut state: StateID,
    bytes: &[u8],
    mut each: impl FnMut(u32),
) -> StateID {
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

/// Rules that were found, each once.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) rules: Vec<u32>,
    /// For each rule, in which round it was found last.
    seen: Vec<u32>,
    round: u32,
}

impl Candidates {
    /// For so many rules.
    pub(crate) fn new(rules: usize) -> Candidates {
        Candidates {
            rules: Vec::with_capacity(rules),
            seen: vec![0; rules],
            round: 0,
        }
    }

    /// Begins anew.
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

    /// Puts them in the order in which rules are asked.
    #[inline]
    pub(crate) fn order(&mut self) {
        self.rules.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However bytes are cut, by whatever means, what is found is what a plain search finds.
        #[test]
        fn a_group_finds_every_content(
            contents in prop::collection::vec("[abAB]{1,4}|[abAB]{4,12}|[a-zA-Z0-9 \\x00@\\[`{]{1,3}", 1..200),
            text in "[abABc]{0,60}|[abAB]{0,300}|[a-zA-Z0-9 \\x00@\\[`{]{0,60}",
            cut in 0usize..300,
            dense in any::<bool>(),
        ) {
            let rules: Vec<(u32, Vec<u8>)> = contents.iter().enumerate().map(|(i, c)| (i as u32, c.clone().into_bytes())).collect();
            let group = Group::with_limit(BufferKey::PAYLOAD, &rules, if dense { 100_000 } else { 0 }).unwrap();
            let cut = cut.min(text.len());
            let mut candidates = Candidates::new(rules.len());
            for (text, from) in [(&text[..], cut), (&text[..cut], 0)] {
                let lower = text.to_ascii_lowercase();
                let expected: Vec<u32> = rules.iter().filter(|(_, c)| {
                    let content = String::from_utf8_lossy(c).to_ascii_lowercase();
                    lower.rfind(&content).is_some_and(|at| at + content.len() > from)
                }).map(|(i, _)| *i).collect();
                candidates.clear();
                group.find(text.as_bytes(), from, |rule| candidates.add(rule));
                candidates.order();
                prop_assert_eq!(&candidates.rules, &expected);
                candidates.clear();
                group.find_at_any_cost(text.as_bytes(), from, |pattern| {
                    group.rules_of(pattern).iter().for_each(|rule| candidates.add(*rule));
                });
                candidates.order();
                prop_assert_eq!(&candidates.rules, &expected);
            }
        }
    }
}
