//! String search at every byte of a text by up to four bytes of each string. SIMD shuffles look up the nibbles of 32 or
//! 64 bytes at once, in 16-entry tables that give the candidates among 16 groups of strings. This is "Teddy" of
//! Hyperscan: Wang et al., "Hyperscan: a fast multi-pattern regex matcher for modern CPUs", NSDI 2019.

use super::strings::{Allowance, REACH, Strings, common};

/// Representative bytes per string.
const BYTES: usize = 4;
/// Number of string groups.
const GROUPS: usize = 16;
/// Largest number of text bytes processed at a time.
const WIDEST: usize = 64;

/// Instruction set to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Any,
}

/// String with its representative bytes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Representative bytes ignoring case, and the mask of valid ones.
    key: u32,
    mask: u32,
    string: u32,
    offset: u32,
}

/// Group bitmaps by nibble value: groups 0 to 7, and 8 to 15.
#[derive(Clone, Copy, Debug, Default)]
struct Halves {
    low: [[u8; 16]; 2],
    high: [[u8; 16]; 2],
}

/// Search for a set of strings.
#[derive(Debug)]
pub(super) struct Nibbles {
    instructions: Instructions,
    halves: [Halves; BYTES],
    /// `true` if there are more than eight groups.
    wide: bool,
    entries: Vec<Entry>,
    /// End of each group's entries; they start at the previous group's end.
    ends: [u32; GROUPS],
    /// Largest distance from the representative bytes to a string's end: the search starts this far before new bytes.
    reach: usize,
}

/// Bits that distinguish upper and lower case.
const CASE: u32 = super::strings::CASE as u32;

impl Nibbles {
    /// Builds the search for strings in lower case. Returns `None` without strings.
    pub(super) fn new<'a>(strings: impl Iterator<Item = (u32, &'a [u8])>) -> Option<Nibbles> {
        let mut chosen: Vec<(usize, [u8; BYTES], u32, usize)> = Vec::new();
        let mut reach = 0;
        for (string, bytes) in strings.filter(|(_, bytes)| !bytes.is_empty()) {
            let count = bytes.len().min(BYTES);
            let first = bytes.len().saturating_sub(REACH);
            let cost = |offset: &usize| -> u32 {
                let window = &bytes[*offset..offset + count];
                window.iter().map(|byte| common(*byte)).sum()
            };
            let offset = (first..=bytes.len() - count).min_by_key(cost).unwrap_or(0);
            let mut gram = [0; BYTES];
            gram[..count].copy_from_slice(&bytes[offset..offset + count]);
            reach = reach.max(bytes.len() - offset);
            chosen.push((count, gram, string, offset));
        }
        if chosen.is_empty() {
            return None;
        }
        // Similar strings share groups, so that a group has few values per byte. Groups of short, less selective
        // strings are smaller.
        chosen.sort_unstable();
        let weight = |count: usize| 1u64 << (BYTES - count).min(2);
        let wide = chosen.len() > 8;
        let groups = if wide { GROUPS } else { GROUPS / 2 } as u64;
        let total: u64 = chosen.iter().map(|(count, ..)| weight(*count)).sum();
        let (mut halves, mut ends) = ([Halves::default(); BYTES], [0; GROUPS]);
        let (mut entries, mut before) = (Vec::with_capacity(chosen.len()), 0);
        for (count, gram, string, offset) in chosen {
            let group = (before * groups / total) as usize;
            before += weight(count);
            let (half, bit) = (group / 8, 1u8 << (group % 8));
            for (i, halves) in halves.iter_mut().enumerate() {
                let (low, high) = (&mut halves.low[half], &mut halves.high[half]);
                if i >= count {
                    low.iter_mut().chain(high).for_each(|groups| *groups |= bit);
                    continue;
                }
                low[usize::from(gram[i] & 15)] |= bit;
                high[usize::from(gram[i] >> 4)] |= bit;
                high[usize::from(gram[i].to_ascii_uppercase() >> 4)] |= bit;
            }
            let mask = u32::MAX >> (8 * (BYTES - count));
            entries.push(Entry {
                key: (u32::from_le_bytes(gram) | CASE) & mask,
                mask,
                string,
                offset: offset as u32,
            });
            ends[group..].fill(entries.len() as u32);
        }
        Some(Nibbles {
            instructions: Instructions::detect(),
            halves,
            wide,
            entries,
            ends,
            reach,
        })
    }

    #[cfg(test)]
    pub(super) fn portable(self) -> Nibbles {
        let instructions = Instructions::Any;
        Nibbles { instructions, ..self }
    }

    #[cfg(test)]
    pub(super) fn narrow(self) -> Nibbles {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            let instructions = Instructions::Avx2;
            return Nibbles { instructions, ..self };
        }
        self
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
        let mut block = [0; WIDEST + BYTES - 1];
        let mut groups = [[0; WIDEST]; 2];
        while at < text.len() {
            let rest = &text[at..];
            let block = match rest.first_chunk() {
                Some(block) => block,
                None => {
                    block[..rest.len()].copy_from_slice(rest);
                    block[rest.len()..].fill(0);
                    &block
                }
            };
            let wanted = rest.len().min(WIDEST);
            let mut hits = self.groups(block, wanted, &mut groups);
            if wanted < WIDEST {
                hits &= (1 << wanted) - 1;
            }
            while hits != 0 {
                let place = hits.trailing_zeros() as usize;
                hits &= hits - 1;
                let word = [0, 1, 2, 3].map(|i| block[place + i]);
                let word = u32::from_le_bytes(word) | CASE;
                if !left.spend() {
                    return false;
                }
                let mut found = u32::from(groups[0][place]) | u32::from(groups[1][place]) << 8;
                while found != 0 {
                    let group = found.trailing_zeros() as usize;
                    found &= found - 1;
                    let start = group.checked_sub(1).map_or(0, |before| self.ends[before]);
                    for entry in &self.entries[start as usize..self.ends[group] as usize] {
                        if word & entry.mask != entry.key {
                            continue;
                        }
                        let (string, offset) = (entry.string, entry.offset);
                        if strings.is_at(string, (text, from), at + place, offset) {
                            each(string);
                        }
                        if !left.spend() {
                            return false;
                        }
                    }
                }
            }
            at += WIDEST;
        }
        true
    }

    /// Writes, for each of the first `wanted` bytes, the groups of which a string may start there. Returns a bitmap of
    /// the bytes with any; `groups` is valid only for those.
    #[inline]
    fn groups(&self, block: &[u8; WIDEST + BYTES - 1], wanted: usize, groups: &mut [[u8; WIDEST]; 2]) -> u64 {
        match self.instructions {
            // SAFETY: this variant is selected only if the processor supports the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { self.groups_avx512(block, groups) },
            // SAFETY: this variant is selected only if the processor supports the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { self.groups_avx2(block, wanted, groups) },
            Instructions::Any => self.groups_any(block, wanted, groups),
        }
    }

    fn groups_any(&self, block: &[u8; WIDEST + BYTES - 1], wanted: usize, groups: &mut [[u8; WIDEST]; 2]) -> u64 {
        let mut hits = 0;
        for place in 0..wanted {
            for (half, groups) in groups.iter_mut().enumerate() {
                let all = self.halves.iter().enumerate().map(|(i, halves)| {
                    let byte = block[place + i];
                    halves.low[half][usize::from(byte & 15)] & halves.high[half][usize::from(byte >> 4)]
                });
                groups[place] = all.fold(u8::MAX, |all, groups| all & groups);
                hits |= u64::from(groups[place] != 0) << place;
            }
        }
        hits
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn groups_avx2(&self, block: &[u8; WIDEST + BYTES - 1], wanted: usize, groups: &mut [[u8; WIDEST]; 2]) -> u64 {
        use std::arch::x86_64::*;
        const WIDTH: usize = 32;
        // SAFETY: the array has 16 bytes.
        let table = |table: &[u8; 16]| unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
        let nibble = _mm256_set1_epi8(15);
        let halves_used = 1 + usize::from(self.wide);
        let mut hits = 0;
        for part in 0..wanted.div_ceil(WIDTH) {
            let mut found = [_mm256_set1_epi8(-1); 2];
            for (i, halves) in self.halves.iter().enumerate() {
                let bytes = &block[part * WIDTH + i..][..WIDTH];
                // SAFETY: the slice has 32 bytes.
                let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
                let low = _mm256_and_si256(bytes, nibble);
                let high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
                for (half, found) in found.iter_mut().enumerate().take(halves_used) {
                    let low = _mm256_shuffle_epi8(table(&halves.low[half]), low);
                    let high = _mm256_shuffle_epi8(table(&halves.high[half]), high);
                    *found = _mm256_and_si256(*found, _mm256_and_si256(low, high));
                }
            }
            if !self.wide {
                found[1] = _mm256_setzero_si256();
            }
            let any = _mm256_or_si256(found[0], found[1]);
            let none = _mm256_cmpeq_epi8(any, _mm256_setzero_si256());
            let some = !(_mm256_movemask_epi8(none) as u32);
            if some != 0 {
                hits |= u64::from(some) << (part * WIDTH);
                for (groups, found) in groups.iter_mut().zip(found) {
                    let groups = &mut groups[part * WIDTH..][..WIDTH];
                    // SAFETY: the slice has 32 bytes.
                    unsafe { _mm256_storeu_si256(groups.as_mut_ptr().cast(), found) };
                }
            }
        }
        hits
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn groups_avx512(&self, block: &[u8; WIDEST + BYTES - 1], groups: &mut [[u8; WIDEST]; 2]) -> u64 {
        use std::arch::x86_64::*;
        // SAFETY: the array has 16 bytes.
        let table = |table: &[u8; 16]| unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) };
        let nibble = _mm512_set1_epi8(15);
        let halves_used = 1 + usize::from(self.wide);
        let mut found = [_mm512_set1_epi8(-1); 2];
        for (i, halves) in self.halves.iter().enumerate() {
            let bytes = &block[i..][..WIDEST];
            // SAFETY: 64 bytes are available.
            let bytes = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
            let low = _mm512_and_si512(bytes, nibble);
            let high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
            for (half, found) in found.iter_mut().enumerate().take(halves_used) {
                let low = _mm512_shuffle_epi8(table(&halves.low[half]), low);
                let high = _mm512_shuffle_epi8(table(&halves.high[half]), high);
                *found = _mm512_and_si512(*found, _mm512_and_si512(low, high));
            }
        }
        if !self.wide {
            found[1] = _mm512_setzero_si512();
        }
        let any = _mm512_or_si512(found[0], found[1]);
        let hits = _mm512_test_epi8_mask(any, any);
        if hits != 0 {
            for (groups, found) in groups.iter_mut().zip(found) {
                // SAFETY: the array has 64 bytes.
                unsafe { _mm512_storeu_si512(groups.as_mut_ptr().cast(), found) };
            }
        }
        hits
    }

    /// Returns the bytes of memory used.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Nibbles>() + size_of_val(&self.entries[..])
    }
}

impl Instructions {
    fn detect() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bw") {
            return Instructions::Avx512;
        } else if is_x86_feature_detected!("avx2") {
            return Instructions::Avx2;
        }
        Instructions::Any
    }
}
