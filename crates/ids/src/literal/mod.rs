//! Case-insensitive search for thousands of strings at once. A filter on a few bytes finds possible matches, and only
//! there are strings compared.
//!
//! A few bytes represent each string, chosen to be rare elsewhere. Long strings have four consecutive grams in a bitmap
//! ([`Grams`]), so only every fourth byte of the text is looked up; shorter ones have two. Strings that are shorter
//! still, or all if there are few, are searched at every byte, 32 or 64 at a time ([`Nibbles`]).
//!
//! The cost depends on the text: a crafted one could contain the representative bytes everywhere. So a search has an
//! [`Allowance`]; when it runs out, the caller falls back to an automaton with a fixed cost per byte.

mod grams;
mod nibbles;

use grams::Grams;
use nibbles::Nibbles;

/// Up to this many strings are searched at every byte.
const FEW: usize = 48;
/// Largest distance from a string's end to its representative bytes.
const REACH: usize = 32;
/// Bits that distinguish upper and lower case, in a word of eight bytes.
const CASE: u64 = 0x2020_2020_2020_2020;

/// Budget of possible matches: looking one up costs 1, each comparison 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance(u32);

impl Allowance {
    /// Returns the allowance for a text of this many bytes.
    pub(crate) fn for_bytes(bytes: usize) -> Allowance {
        Allowance(64 + (bytes / 4).min(1 << 24) as u32)
    }

    #[inline]
    fn spend(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// Strings in lower case; [`Literals`] searches for some or all of them.
#[derive(Debug)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`; it starts at the previous string's end.
    ends: Vec<u32>,
    /// Offset of each string's grams, if it is long enough.
    chosen: Vec<u32>,
}

impl Strings {
    /// Stores the strings, each at least one byte long.
    pub(crate) fn new(all: &[Vec<u8>]) -> Strings {
        let ends = all.iter().scan(0, |end, string| {
            *end += string.len() as u32;
            Some(*end)
        });
        let mut strings = Strings {
            bytes: all.concat(),
            ends: ends.collect(),
            chosen: vec![0; all.len()],
        };
        let of_length = |from: usize, to: usize| {
            let all = (0..).zip(all.iter().map(|string| &string[..]));
            all.filter(move |(_, string)| (from..to).contains(&string.len()))
        };
        let (long, middle) = (Grams::<5, 4>::SHORTEST, Grams::<4, 2>::SHORTEST);
        let long_ones = Grams::<5, 4>::choose(of_length(long, usize::MAX));
        for (string, offset) in long_ones.chain(Grams::<4, 2>::choose(of_length(middle, long))) {
            strings.chosen[string as usize] = offset;
        }
        strings
    }

    /// Returns the number of strings.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.chosen.len())
    }

    #[inline]
    fn get(&self, string: u32) -> &[u8] {
        let string = string as usize;
        let from = string.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from as usize..self.ends[string] as usize]
    }

    /// Returns `true` if the string, with its byte `offset` at text position `at`, is in the text and ends after
    /// `from`.
    #[inline]
    fn is_at(&self, string: u32, (text, from): (&[u8], usize), at: usize, offset: u32) -> bool {
        let string = self.get(string);
        let Some(start) = at.checked_sub(offset as usize) else {
            return false;
        };
        let end = start + string.len();
        let found = text.get(start..end);
        end > from && found.is_some_and(|found| found.eq_ignore_ascii_case(string))
    }
}

/// Search for some of the strings.
#[derive(Debug)]
pub(crate) struct Literals {
    long: Option<Grams<5, 4>>,
    middle: Option<Grams<4, 2>>,
    short: Option<Nibbles>,
}

impl Literals {
    /// Builds the search for the strings with these numbers.
    pub(crate) fn new(strings: &Strings, some: &[u32]) -> Literals {
        let some = || some.iter().map(|string| (*string, strings.get(*string)));
        let few = |of: &dyn Fn(usize) -> bool| some().filter(|(_, s)| of(s.len())).count() <= FEW;
        // Strings of at least this length use the gram tables.
        let long = match few(&|length| length > 0) {
            true => usize::MAX,
            false => Grams::<5, 4>::SHORTEST,
        };
        let middle = match few(&|length| length < long) {
            true => long,
            false => Grams::<4, 2>::SHORTEST,
        };
        let of_length = |from: usize, to: usize| some().filter(move |(_, string)| (from..to).contains(&string.len()));
        let numbers = |(number, _)| number;
        Literals {
            long: Grams::new(strings, of_length(long, usize::MAX).map(numbers)),
            middle: Grams::new(strings, of_length(middle, long).map(numbers)),
            short: Nibbles::new(of_length(0, middle)),
        }
    }

    /// Calls `each` on strings in the text that end after its first `from` bytes, possibly several times. Returns
    /// `false` if the allowance ran out and the result is incomplete.
    #[inline]
    pub(crate) fn find(&self, strings: &Strings, (text, from): (&[u8], usize), mut each: impl FnMut(u32)) -> bool {
        let mut left = Allowance::for_bytes(text.len() - from.min(text.len()));
        let place = (text, from);
        let long = self.long.as_ref();
        let middle = self.middle.as_ref();
        let short = self.short.as_ref();
        long.is_none_or(|grams| grams.find(strings, place, &mut left, &mut each))
            && middle.is_none_or(|grams| grams.find(strings, place, &mut left, &mut each))
            && short.is_none_or(|nibbles| nibbles.find(strings, place, &mut left, &mut each))
    }

    /// Disables SIMD instructions.
    #[cfg(test)]
    pub(crate) fn portable(mut self) -> Literals {
        self.short = self.short.map(Nibbles::portable);
        self
    }

    /// Restricts SIMD to AVX2.
    #[cfg(test)]
    pub(crate) fn narrow(mut self) -> Literals {
        self.short = self.short.map(Nibbles::narrow);
        self
    }

    /// Returns the bytes of memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, Grams::memory_bytes);
        let middle = self.middle.as_ref().map_or(0, Grams::memory_bytes);
        let short = self.short.as_ref().map_or(0, Nibbles::memory_bytes);
        long + middle + short
    }
}

/// Returns how frequent a byte is in traffic, 0 the rarest: text first, then zeros.
fn common(byte: u8) -> u32 {
    match byte.to_ascii_lowercase() {
        b' ' | b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' => 8,
        b'd' | b'l' | b'h' | b'c' | b'u' | b'm' | b'p' | b'0' | 0 => 6,
        b'g' | b'f' | b'w' | b'y' | b'b' | b'v' | b'k' | b'.' | b'/' | b'-' | b'1' | b'2' => 5,
        b'=' | b'"' | b'<' | b'>' | b'\r' | b'\n' | b':' | b',' | b'3'..=b'9' | 255 => 4,
        b'!'..=b'~' => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
