//! Sets of rules as compressed bit vectors, and the search for the first rule in the intersection of several sets.
//!
//! A set over `n` rules is a bit vector of `ceil(n / 64)` words. Most words are zero. So a set is stored as its
//! *summary*, one bit per word that is set if the word is non-zero, followed by the non-zero words. The summaries alone
//! exclude most words from an intersection; only the few remaining words are read.

use super::limits::ClassifierError;
use std::collections::HashMap;

/// Number of bits in a word.
const BITS: usize = u64::BITS as usize;

/// Number of words after the last set, so that eight words can be read starting at any word.
const PADDING: usize = 8;

/// Sets over the same rules, stored in one array. A set is identified by its position in the array.
pub(super) struct RuleSets {
    /// For each set, `summary_words` words of summary, then the set's non-zero words in order.
    words: Vec<u64>,
    /// Number of words in each set's summary: one per 4,096 rules.
    summary_words: usize,
}

impl RuleSets {
    /// Returns the lowest rule that is in all sets at `positions`.
    #[inline(always)]
    pub(super) fn first_in_all<const SETS: usize>(&self, positions: [u32; SETS]) -> Option<u32> {
        let sets = positions.map(|position| self.at(position));
        // Start of each set's words for the current summary word.
        let mut begin = [self.summary_words; SETS];
        for part in 0..self.summary_words {
            let summaries = sets.map(|set| set[part]);
            let mut common = summaries.iter().fold(u64::MAX, |all, s| all & s);
            while common != 0 {
                let below = (common & common.wrapping_neg()) - 1;
                let mut word = u64::MAX;
                for ((set, summary), begin) in sets.iter().zip(summaries).zip(begin) {
                    word &= set[begin + (summary & below).count_ones() as usize];
                }
                if word != 0 {
                    let index = part * BITS + common.trailing_zeros() as usize;
                    return Some((index * BITS) as u32 + word.trailing_zeros());
                }
                common &= common - 1;
            }
            for (begin, summary) in begin.iter_mut().zip(summaries) {
                *begin += summary.count_ones() as usize;
            }
        }
        None
    }

    /// One step of [`first_in_all`](RuleSets::first_in_all), for summaries of one word. It processes the first word
    /// whose bit is set in `common`, which must not be 0, and clears that bit.
    #[inline(always)]
    pub(super) fn step<const SETS: usize>(&self, positions: [u32; SETS], common: &mut u64) -> Option<u32> {
        let index = common.trailing_zeros();
        let below = (1 << index) - 1;
        *common &= *common - 1;
        let word = positions.iter().fold(u64::MAX, |all, position| {
            let set = self.at(*position);
            all & set[1 + (set[0] & below).count_ones() as usize]
        });
        (word != 0).then(|| index * BITS as u32 + word.trailing_zeros())
    }

    /// Returns the number of words in each set's summary.
    #[inline(always)]
    pub(super) fn summary_words(&self) -> usize {
        self.summary_words
    }

    /// Returns a set's summary and words, followed by at least [`PADDING`] other words.
    #[inline(always)]
    pub(super) fn at(&self, position: u32) -> &[u64] {
        &self.words[position as usize..]
    }

    /// Returns the address of a set's summary, for prefetching.
    #[inline(always)]
    pub(super) fn address(&self, position: u32) -> *const u64 {
        self.words.as_ptr().wrapping_add(position as usize)
    }

    /// Returns the heap size in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

/// Builder of [`RuleSets`] that stores each distinct set once.
pub(super) struct Packer {
    sets: RuleSets,
    /// Position of each set by its hash. A set with a colliding hash uses the next free hash.
    by_hash: HashMap<u64, u32>,
    /// Maximum number of stored words.
    limit_words: usize,
    /// Memory limit from the caller, in bytes, for the error.
    limit_bytes: usize,
}

impl Packer {
    /// Creates a builder for sets over `rules` rules, when `used_bytes` of `limit_bytes` are already allocated.
    pub(super) fn new(rules: usize, used_bytes: usize, limit_bytes: usize) -> Self {
        let available = limit_bytes.saturating_sub(used_bytes) / size_of::<u64>();
        Packer {
            sets: RuleSets {
                words: Vec::new(),
                summary_words: dense_words(rules).div_ceil(BITS),
            },
            by_hash: HashMap::new(),
            limit_words: available.min(u32::MAX as usize),
            limit_bytes,
        }
    }

    /// Stores the set given as a plain bit vector, unless it exists. Returns its position.
    ///
    /// # Errors
    ///
    /// If the sets would together exceed the memory limit.
    pub(super) fn pack(&mut self, dense: &[u64]) -> Result<u32, ClassifierError> {
        let mut hash = hash(dense);
        while let Some(&position) = self.by_hash.get(&hash) {
            if self.equals(position, dense) {
                return Ok(position);
            }
            hash = hash.wrapping_add(1);
        }
        let non_zero = dense.iter().filter(|word| **word != 0).count();
        let begin = self.sets.words.len();
        if begin + self.sets.summary_words + non_zero > self.limit_words {
            return Err(ClassifierError::TooLarge {
                limit_bytes: self.limit_bytes,
            });
        }
        self.sets
            .words
            .extend((0..self.sets.summary_words).map(|part| summary(dense, part)));
        self.sets.words.extend(dense.iter().filter(|word| **word != 0));
        self.by_hash.insert(hash, begin as u32);
        Ok(begin as u32)
    }

    /// Returns a set as a plain bit vector of `words` words.
    pub(super) fn unpack(&self, position: u32, words: usize) -> Vec<u64> {
        let packed = &self.sets.words[position as usize..];
        let (summaries, packed) = packed.split_at(self.sets.summary_words);
        let mut packed = packed.iter();
        (0..words)
            .map(|i| match (summaries[i / BITS] >> (i % BITS)) & 1 {
                0 => 0,
                _ => packed.next().copied().unwrap_or_default(),
            })
            .collect()
    }

    /// Returns `true` if the packed set equals the plain one.
    fn equals(&self, position: u32, dense: &[u64]) -> bool {
        let packed = &self.sets.words[position as usize..];
        let (summaries, words) = packed.split_at(self.sets.summary_words);
        summaries.iter().enumerate().all(|(part, s)| *s == summary(dense, part))
            && dense.iter().filter(|word| **word != 0).zip(words).all(|(a, b)| a == b)
    }

    /// Returns all sets packed so far.
    pub(super) fn finish(mut self) -> RuleSets {
        self.sets.words.extend([0; PADDING]);
        self.sets.words.shrink_to_fit();
        self.sets
    }
}

/// Returns the number of words of a plain bit vector over `rules` rules.
pub(super) fn dense_words(rules: usize) -> usize {
    rules.div_ceil(BITS)
}

/// Returns the `part`-th word of a set's summary.
fn summary(dense: &[u64], part: usize) -> u64 {
    dense
        .iter()
        .skip(part * BITS)
        .take(BITS)
        .enumerate()
        .fold(0, |bits, (i, word)| bits | (u64::from(*word != 0) << i))
}

/// Returns a hash of a plain bit vector.
fn hash(dense: &[u64]) -> u64 {
    dense.iter().fold(0x243f_6a88_85a3_08d3, |state, word| {
        let product = u128::from(state ^ word) * 0x9e37_79b9_7f4a_7c15;
        (product as u64 ^ (product >> 64) as u64).wrapping_add(0x1319_8a2e_0370_7344)
    })
}

/// Range of one field's values, from `low` to `high` inclusive, that a rule matches.
pub(super) struct Span {
    /// Index of the rule.
    pub(super) rule: usize,
    /// Lowest value.
    pub(super) low: u128,
    /// Highest value, at least `low`.
    pub(super) high: u128,
}

/// Splits a field's values, 0 to `last`, into intervals that the same rules match, and packs the set of each.
///
/// Returns the first value and the set of each interval, in order. The first interval begins at 0, and adjacent
/// intervals have different sets. `everywhere` contains the rules that match every value.
///
/// # Errors
/// If the sets exceed the memory limit.
pub(super) fn intervals(
    packer: &mut Packer,
    last: u128,
    everywhere: &[u64],
    spans: impl Iterator<Item = Span>,
) -> Result<Vec<(u128, u32)>, ClassifierError> {
    // Values at which a rule starts or stops matching. Either flips the rule's bit.
    let mut flips: Vec<(u128, usize)> = Vec::new();
    for span in spans {
        flips.push((span.low, span.rule));
        if span.high < last {
            flips.push((span.high + 1, span.rule));
        }
    }
    flips.sort_unstable();
    let mut dense = everywhere.to_vec();
    let mut intervals: Vec<(u128, u32)> = Vec::new();
    let mut next = 0;
    let mut start = 0;
    loop {
        while let Some(&(_, rule)) = flips.get(next).filter(|(value, _)| *value == start) {
            dense[rule / BITS] ^= 1 << (rule % BITS);
            next += 1;
        }
        let set = packer.pack(&dense)?;
        if intervals.last().is_none_or(|(_, last)| *last != set) {
            intervals.push((start, set));
        }
        match flips.get(next) {
            Some(&(value, _)) => start = value,
            None => return Ok(intervals),
        }
    }
}
