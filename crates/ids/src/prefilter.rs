//! Which rules a buffer could match: for each rule, one content that it must hold is looked for, those of all rules at
//! once.

use crate::buffer::BufferKey;
use crate::dense::Dense;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, nfa};
use std::collections::HashMap;

/// Bytes of all patterns up to which there is a table of all states and bytes: it takes some hundred bytes for each, and
/// a tenth of the time.
const DENSE: usize = 1 << 15;

/// An automaton for all patterns, letters in lower case.
#[derive(Debug)]
enum Patterns {
    Dense(Dense),
    Sparse(Box<nfa::contiguous::NFA>),
}

/// Rules of one buffer, by a content of each.
#[derive(Debug)]
pub(crate) struct Group {
    /// The buffer.
    pub(crate) buffer: BufferKey,
    patterns: Patterns,
    /// For each pattern, where its rules end; they begin where those of the one in front end.
    ends: Vec<u32>,
    rules: Vec<u32>,
}

/// Where an automaton stands before the first byte.
pub(crate) const START: u32 = u32::MAX;

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
        let patterns = match bytes <= dense {
            true => Ok(Patterns::Dense(Dense::new(&patterns))),
            false => {
                nfa::contiguous::NFA::new(&patterns).map(|nfa| Patterns::Sparse(Box::new(nfa)))
            }
        };
        let ends = of.iter().scan(0, |end, rules| {
            *end += rules.len() as u32;
            Some(*end)
        });
        Ok(Group {
            buffer,
            ends: ends.collect(),
            rules: of.concat(),
            patterns: patterns.map_err(|error| error.to_string())?,
        })
    }

    /// Runs `each` on the rules whose content ends among the bytes, going on from a state, perhaps several times.
    /// Returns the state behind them.
    #[inline]
    pub(crate) fn scan(&self, state: u32, bytes: &[u8], mut each: impl FnMut(u32)) -> u32 {
        match &self.patterns {
            Patterns::Dense(table) => {
                let state = if state == START { Dense::START } else { state };
                table.run(state, bytes, |pattern| {
                    self.rules_of(pattern as usize)
                        .iter()
                        .for_each(|rule| each(*rule));
                })
            }
            Patterns::Sparse(automaton) => self.run(automaton, state, bytes, each),
        }
    }

    /// The rules that a pattern stands for.
    #[inline]
    fn rules_of(&self, pattern: usize) -> &[u32] {
        let from = pattern.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rules[from as usize..self.ends[pattern] as usize]
    }

    #[inline]
    fn run(
        &self,
        automaton: &nfa::contiguous::NFA,
        state: u32,
        bytes: &[u8],
        mut each: impl FnMut(u32),
    ) -> u32 {
        let state = match state {
            START => automaton.start_state(Anchored::No).ok(),
            state => StateID::new(state as usize).ok(),
        };
        // There is a start, of all automata made here.
        let Some(mut state) = state else {
            return START;
        };
        for byte in bytes {
            state = automaton.next_state(Anchored::No, state, byte.to_ascii_lowercase());
            if automaton.is_special(state) && automaton.is_match(state) {
                for i in 0..automaton.match_len(state) {
                    let pattern = automaton.match_pattern(state, i).as_usize();
                    self.rules_of(pattern).iter().for_each(|rule| each(*rule));
                }
            }
        }
        state.as_u32()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let automaton = match &self.patterns {
            Patterns::Dense(table) => table.memory_bytes(),
            Patterns::Sparse(automaton) => automaton.memory_usage(),
        };
        automaton + 4 * (self.ends.len() + self.rules.len())
    }
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
        /// However bytes are cut, in either automaton, what is found is what a plain search finds.
        #[test]
        fn a_group_finds_every_content(
            contents in prop::collection::vec("[abAB]{1,4}|[a-zA-Z0-9 \\x00@\\[`{]{1,3}", 1..80),
            text in "[abABc]{0,60}|[a-zA-Z0-9 \\x00@\\[`{]{0,60}",
            cut in 0usize..60,
            dense in any::<bool>(),
        ) {
            let rules: Vec<(u32, Vec<u8>)> = contents.iter().enumerate().map(|(i, c)| (i as u32, c.clone().into_bytes())).collect();
            let group = Group::with_limit(BufferKey::PAYLOAD, &rules, if dense { 1000 } else { 0 }).unwrap();
            let mut candidates = Candidates::new(rules.len());
            candidates.clear();
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            let state = group.scan(START, first, |rule| candidates.add(rule));
            group.scan(state, second, |rule| candidates.add(rule));
            candidates.order();
            let lower = text.to_ascii_lowercase();
            let expected: Vec<u32> = rules.iter().filter(|(_, c)| lower.contains(&String::from_utf8_lossy(c).to_ascii_lowercase())).map(|(i, _)| *i).collect();
            prop_assert_eq!(candidates.rules, expected);
        }
    }
}
