//! Strings by a few bytes in a row of each, in a table of bits: only one of so many places of a text is looked up.

use super::strings::{Allowance, CASE, REACH, Strings, common};

/// Bytes of a text that are looked at together, and those of the last places' words behind them.
const BLOCK: usize = 32;
const WORD: usize = 8;
/// A factor whose products' upper bits depend on all of the other's: 2⁶⁴ by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of the table for each gram of a string, at least.
const SPARSE: usize = 16;
/// Bits of the tables, as powers of two.
const FILTER: std::ops::RangeInclusive<u32> = 12..=20;
/// Counts of grams while some are chosen, as a power of two.
const COUNTS: u32 = 16;

/// A string with a gram at a place of it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The gram's bytes, mixed.
    tag: u32,
    string: u32,
    offset: u32,
}

/// Strings by `STRIDE` grams of `BYTES` bytes each, one byte apart.
#[derive(Debug)]
pub(super) struct Grams<const BYTES: usize, const STRIDE: usize> {
    /// A bit for each value of the upper bits of mixed grams.
    filter: Box<[u64]>,
    filter_shift: u32,
    /// For the upper bits of mixed grams, where their entries begin; one more for the end.
    starts: Box<[u32]>,
    starts_shift: u32,
    entries: Box<[Entry]>,
    /// How far in front of a text's new bytes grams of strings that end among these can begin.
    reach: usize,
}

impl<const BYTES: usize, const STRIDE: usize> Grams<BYTES, STRIDE> {
    /// The shortest strings that have so many grams.
    pub(super) const SHORTEST: usize = BYTES + STRIDE - 1;

    /// Where the grams of each string begin, all of which are not shorter: those that are rare, and few strings share.
    pub(super) fn choose<'a>(
        strings: impl Iterator<Item = (u32, &'a [u8])> + Clone,
    ) -> impl Iterator<Item = (u32, u32)> {
        // How many strings share grams, about.
        let mut counts = vec![0u32; 1 << COUNTS];
        for (_, string) in strings.clone() {
            for gram in string[string.len().saturating_sub(REACH)..].windows(BYTES) {
                counts[(mixed::<BYTES>(word(gram)) >> (64 - COUNTS)) as usize] += 1;
            }
        }
        strings.filter_map(move |(string, bytes)| {
            let first = bytes.len().saturating_sub(REACH);
            let cost = |offset: &usize| {
                let window = &bytes[*offset..offset + Self::SHORTEST];
                let shared = window
                    .windows(BYTES)
                    .map(|gram| counts[(mixed::<BYTES>(word(gram)) >> (64 - COUNTS)) as usize].min(1 << 16));
                let common: u32 = window.iter().map(|byte| common(*byte)).sum();
                16 * shared.sum::<u32>() + common
            };
            let offsets = first..=bytes.len() - Self::SHORTEST;
            Some((string, offsets.min_by_key(cost)? as u32))
        })
    }

    /// For some of the strings, none of which is shorter. `None` without strings.
    pub(super) fn new(strings: &Strings, some: impl Iterator<Item = u32>) -> Option<Self> {
        let (mut grams, mut reach) = (Vec::new(), 0);
        for string in some {
            let (bytes, chosen) = (strings.get(string), strings.chosen[string as usize] as usize);
            reach = reach.max(bytes.len() - chosen);
            for offset in chosen..chosen + STRIDE {
                let gram = mixed::<BYTES>(word(&bytes[offset..offset + BYTES]));
                let entry = Entry {
                    tag: tag::<BYTES>(gram),
                    string,
                    offset: offset as u32,
                };
                grams.push((gram, entry));
            }
        }
        if grams.is_empty() {
            return None;
        }
        grams.sort_unstable_by_key(|(gram, entry)| (*gram, entry.string, entry.offset));
        let bits = (SPARSE * grams.len()).next_power_of_two().trailing_zeros();
        let filter_shift = 64 - bits.clamp(*FILTER.start(), *FILTER.end());
        let starts_shift = 64 - grams.len().next_power_of_two().trailing_zeros().max(1);
        let mut filter = vec![0u64; 1 << (64 - filter_shift - 6)];
        let mut starts = vec![0u32; (1 << (64 - starts_shift)) + 1];
        for (gram, _) in &grams {
            let bit = gram >> filter_shift;
            filter[(bit >> 6) as usize] |= 1 << (bit & 63);
            starts[(gram >> starts_shift) as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        Some(Grams {
            filter: filter.into(),
            filter_shift,
            starts: starts.into(),
            starts_shift,
            entries: grams.into_iter().map(|(_, entry)| entry).collect(),
            reach,
        })
    }

    /// Whether the word begins with a gram, as far as the table of bits tells.
    #[inline(always)]
    fn may_be(&self, word: u64) -> bool {
        let bit = mixed::<BYTES>(word) >> self.filter_shift;
        self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 != 0
    }

    /// Runs `each` on the strings that end behind the text's first bytes. `false` if the allowance did not last.
    #[inline]
    pub(super) fn find(
        &self,
        strings: &Strings,
        (text, from): (&[u8], usize),
        left: &mut Allowance,
        each: &mut impl FnMut(u32),
    ) -> bool {
        let mut at = from.saturating_sub(self.reach);
        let mut hit = |at: usize, word: u64| {
            let gram = mixed::<BYTES>(word);
            let slot = (gram >> self.starts_shift) as usize;
            let entries = self.starts[slot] as usize..self.starts[slot + 1] as usize;
            if !left.spend() {
                return false;
            }
            for entry in &self.entries[entries] {
                if entry.tag != tag::<BYTES>(gram) {
                    continue;
                }
                if strings.is_at(entry.string, (text, from), at, entry.offset) {
                    each(entry.string);
                }
                if !left.spend() {
                    return false;
                }
            }
            true
        };
        while let Some(block) = text.get(at..).and_then(<[u8]>::first_chunk::<{ BLOCK + WORD }>) {
            let mut hits = 0u32;
            for i in 0..BLOCK / STRIDE {
                hits |= u32::from(self.may_be(word(&block[i * STRIDE..][..WORD]))) << i;
            }
            while hits != 0 {
                let place = hits.trailing_zeros() as usize * STRIDE;
                hits &= hits - 1;
                if !hit(at + place, word(&block[place..][..WORD])) {
                    return false;
                }
            }
            at += BLOCK;
        }
        // What is left fits into a block with nothing behind it.
        let rest = text.get(at..).unwrap_or_default();
        let mut block = [0; BLOCK + 2 * WORD];
        block[..rest.len()].copy_from_slice(rest);
        for place in (0..(rest.len() + 1).saturating_sub(BYTES)).step_by(STRIDE) {
            let word = word(&block[place..][..WORD]);
            if self.may_be(word) && !hit(at + place, word) {
                return false;
            }
        }
        true
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        8 * self.filter.len() + 4 * self.starts.len() + size_of_val(&*self.entries)
    }
}

/// Up to eight bytes as a word, the first ones lowest.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The first bytes of a word, without letters' case, so that upper bits depend on all of them. No two are the same.
#[inline(always)]
fn mixed<const BYTES: usize>(word: u64) -> u64 {
    (word | CASE).wrapping_mul(FACTOR << (64 - 8 * BYTES))
}

/// With the upper bits, which are an entry's place, this tells a gram from all others.
#[inline(always)]
fn tag<const BYTES: usize>(mixed: u64) -> u32 {
    (mixed >> (64 - 8 * BYTES)) as u32
}
