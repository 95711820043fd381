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

use grams::Grams;
use nibbles::Nibbles;

/// As many strings as are looked for at every byte, if there are no more.
const FEW: usize = 48;
/// How far from a string's end the bytes that stand for it begin, at most.
const REACH: usize = 32;
/// Bits by which a capital letter differs from a small one, in a word of eight bytes.
const CASE: u64 = 0x2020_2020_2020_2020;

/// What of a text could be a string: looking it up is worth 1, comparing it another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance(u32);

impl Allowance {
    /// For a text of so many bytes.
    pub(crate) fn for_bytes(bytes: usize) -> Allowance {
        Allowance(64 + (bytes / 4).min(1 << 24) as u32)
    }

    #[inline]
    fn spend(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// Strings in lower case, some or all of which are looked for by [`Literals`].
#[derive(Debug)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// For each string, where it ends; it begins where the one in front ends.
    ends: Vec<u32>,
    /// For each string, where its grams begin, if it is long enough for any.
    chosen: Vec<u32>,
}

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

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.chosen.len())
    }

    #[inline]
    fn get(&self, string: u32) -> &[u8] {
        let string = string as usize;
        let from = string.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from as usize..self.ends[string] as usize]
    }

    /// Whether a string is in a text with one of its bytes at a place, and ends behind another.
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

/// How common a byte is in what passes, from 0 on: text above all, then zeros.
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
