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
mod strings;

use grams::Grams;
use nibbles::Nibbles;
use strings::Allowance;

pub(crate) use strings::Strings;

/// Up to this many strings are searched at every byte.
const FEW: usize = 48;

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

#[cfg(test)]
mod tests;
