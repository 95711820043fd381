//! Looks for thousands of strings at once, letters of either case being the same: bytes are asked a few at a time
//! whether a string could be there, and only where one could are strings compared.
//!
//! Of each string a few bytes stand for it, those that are rare elsewhere. Long strings have four places in a row in
//! a table of bits ([`Grams`]), so that only every fourth byte of a text is looked up; shorter ones two; and the few that
//! are shorter still, or all where there are not many, are looked for at every byte, 32 or 64 at a time ([`Nibbles`]).
//!
//! What that costs depends on the text: one made for it could have a string's bytes everywhere. So looking has an
//! [`Allowance`], and whoever asks goes on with an automaton, at a fixed cost for each byte, when it is used up.

mod grams;
mod nibbles;
mod strings;

use grams::Grams;
use nibbles::Nibbles;
use strings::Allowance;

pub(crate) use strings::Strings;

/// As many strings as are looked for at every byte, if there are no more.
const FEW: usize = 48;
impl Strings {
    /// Each of a byte at least.
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

/// Some strings, ready to be looked for.
#[derive(Debug)]
pub(crate) struct Literals {
    long: Option<Grams<5, 4>>,
    middle: Option<Grams<4, 2>>,
    short: Option<Nibbles>,
}

impl Literals {
    /// For some of the strings, by their numbers.
    pub(crate) fn new(strings: &Strings, some: &[u32]) -> Literals {
        let some = || some.iter().map(|string| (*string, strings.get(*string)));
        let few = |of: &dyn Fn(usize) -> bool| some().filter(|(_, s)| of(s.len())).count() <= FEW;
        // Strings of this length and longer are found by the tables.
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

    /// Runs `each` on the strings in a text that end behind its first `from` bytes, perhaps several times. `false` if the
    /// allowance did not last: not all were found then.
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

    /// The same without special instructions of the processor.
    #[cfg(test)]
    pub(crate) fn portable(mut self) -> Literals {
        self.short = self.short.map(Nibbles::portable);
        self
    }

    /// The same with the instructions that many processors have.
    #[cfg(test)]
    pub(crate) fn narrow(mut self) -> Literals {
        self.short = self.short.map(Nibbles::narrow);
        self
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, Grams::memory_bytes);
        let middle = self.middle.as_ref().map_or(0, Grams::memory_bytes);
        let short = self.short.as_ref().map_or(0, Nibbles::memory_bytes);
        long + middle + short
    }
}

#[cfg(test)]
mod tests;
