//! String search by grams in a Bloom-like bitmap: only one in `STRIDE` positions of the text is looked up.

use super::strings::{Allowance, CASE, REACH, Strings, common};

/// Bytes of text processed at a time; `WORD` more follow for the last positions' words.
const BLOCK: usize = 32;
const WORD: usize = 8;
/// Multiplier whose products' upper bits depend on all bits of the other factor: 2⁶⁴ divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Minimum number of filter bits per gram.
const SPARSE: usize = 16;
/// Binary logarithm of the filter's size in bits: smallest and largest.
const FILTER: std::ops::RangeInclusive<u32> = 12..=20;
/// Binary logarithm of the number of gram counters used for selection.
const COUNTS: u32 = 16;

/// String with one of its grams.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Tag of the gram's mixed bytes.
    tag: u32,
    string: u32,
    offset: u32,
}

/// Index of strings by `STRIDE` consecutive grams of `BYTES` bytes, each one byte after the previous.
#[derive(Debug)]
pub(super) struct Grams<const BYTES: usize, const STRIDE: usize> {
    /// Bitmap indexed by the upper bits of mixed grams.
    filter: Box<[u64]>,
    filter_shift: u32,
    /// Start of the entries for the upper bits of mixed grams, with a final end.
    starts: Box<[u32]>,
    starts_shift: u32,
    entries: Box<[Entry]>,
    /// Largest distance from a gram's start to its string's end: the search starts this far before new bytes.
    reach: usize,
}

impl<const BYTES: usize, const STRIDE: usize> Grams<BYTES, STRIDE> {
    /// Length in bytes of the shortest string with `STRIDE` grams.
    pub(super) const SHORTEST: usize = BYTES + STRIDE - 1;

    /// Selects the grams' offset in each string (none shorter than `SHORTEST`). Rare bytes and grams of few strings are
    /// preferred.
    pub(super) fn choose<'a>(
        strings: impl Iterator<Item = (u32, &'a [u8])> + Clone,
    ) -> impl Iterator<Item = (u32, u32)> {
        // Approximate number of strings per gram.
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

    /// Builds the index for `some` of the strings, none shorter than `SHORTEST`. Returns `None` without strings.
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

    /// Returns `true` if the filter does not rule out that the word starts with a gram.
    #[inline(always)]
    fn may_be(&self, word: u64) -> bool {
        let bit = mixed::<BYTES>(word) >> self.filter_shift;
        self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 != 0
    }

    /// Calls `each` on strings that end after the text's first `from` bytes. Returns `false` if the allowance ran out.
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
        // The remainder fits in one zero-padded block.
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

    /// Returns the bytes of memory used.
    pub(super) fn memory_bytes(&self) -> usize {
        8 * self.filter.len() + 4 * self.starts.len() + size_of_val(&*self.entries)
    }
}

/// Returns up to eight bytes as a little-endian word.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Mixes the first bytes of a word, ignoring case, so that the upper bits depend on all of them. The mapping is
/// injective.
#[inline(always)]
fn mixed<const BYTES: usize>(word: u64) -> u64 {
    (word | CASE).wrapping_mul(FACTOR << (64 - 8 * BYTES))
}

/// Returns the tag, which together with the upper bits (an entry's index) identifies a gram.
#[inline(always)]
fn tag<const BYTES: usize>(mixed: u64) -> u32 {
    (mixed >> (64 - 8 * BYTES)) as u32
}
