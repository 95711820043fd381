//! Strings that are looked for, and what the ways of looking have in common.

/// How far from a string's end the bytes that stand for it begin, at most.
pub(super) const REACH: usize = 32;
/// Bits by which a capital letter differs from a small one, in a word of eight bytes.
pub(super) const CASE: u64 = 0x2020_2020_2020_2020;

/// Strings in lower case, some or all of which are looked for by [`Literals`].
#[derive(Debug)]
pub(crate) struct Strings {
    pub(super) bytes: Vec<u8>,
    /// For each string, where it ends; it begins where the one in front ends.
    pub(super) ends: Vec<u32>,
    /// For each string, where its grams begin, if it is long enough for any.
    pub(super) chosen: Vec<u32>,
}

impl Strings {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.chosen.len())
    }

    #[inline]
    pub(super) fn get(&self, string: u32) -> &[u8] {
        let string = string as usize;
        let from = string.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from as usize..self.ends[string] as usize]
    }

    /// Whether a string is in a text with one of its bytes at a place, and ends behind another.
    #[inline]
    pub(super) fn is_at(&self, string: u32, (text, from): (&[u8], usize), at: usize, offset: u32) -> bool {
        let string = self.get(string);
        let Some(start) = at.checked_sub(offset as usize) else {
            return false;
        };
        let end = start + string.len();
        let found = text.get(start..end);
        end > from && found.is_some_and(|found| found.eq_ignore_ascii_case(string))
    }
}

/// What of a text could be a string: looking it up is worth 1, comparing it another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance(u32);

impl Allowance {
    /// For a text of so many bytes.
    pub(crate) fn for_bytes(bytes: usize) -> Allowance {
        Allowance(64 + (bytes / 4).min(1 << 24) as u32)
    }

    #[inline]
    pub(super) fn spend(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// How common a byte is in what passes, from 0 on: text above all, then zeros.
pub(super) fn common(byte: u8) -> u32 {
    match byte.to_ascii_lowercase() {
        b' ' | b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' => 8,
        b'd' | b'l' | b'h' | b'c' | b'u' | b'm' | b'p' | b'0' | 0 => 6,
        b'g' | b'f' | b'w' | b'y' | b'b' | b'v' | b'k' | b'.' | b'/' | b'-' | b'1' | b'2' => 5,
        b'=' | b'"' | b'<' | b'>' | b'\r' | b'\n' | b':' | b',' | b'3'..=b'9' | 255 => 4,
        b'!'..=b'~' => 3,
        _ => 1,
    }
}
