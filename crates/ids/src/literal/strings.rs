//! Strings, and what the ways to search for them have in common.

/// Largest distance from a string's end to its representative bytes.
pub(super) const REACH: usize = 32;
/// Bits that distinguish upper and lower case, in a word of eight bytes.
pub(super) const CASE: u64 = 0x2020_2020_2020_2020;

/// Budget of possible matches: looking one up costs 1, each comparison 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance(u32);

impl Allowance {
    /// Returns the allowance for a text of this many bytes.
    pub(crate) fn for_bytes(bytes: usize) -> Allowance {
        Allowance(64 + (bytes / 4).min(1 << 24) as u32)
    }

    #[inline]
    pub(super) fn spend(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// Strings in lower case; [`Literals`](super::Literals) searches for some or all of them.
#[derive(Debug)]
pub(crate) struct Strings {
    pub(super) bytes: Vec<u8>,
    /// End of each string in `bytes`; it starts at the previous string's end.
    pub(super) ends: Vec<u32>,
    /// Offset of each string's grams, if it is long enough.
    pub(super) chosen: Vec<u32>,
}

impl Strings {
    /// Returns the number of strings.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.chosen.len())
    }

    #[inline]
    pub(super) fn get(&self, string: u32) -> &[u8] {
        let string = string as usize;
        let from = string.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[from as usize..self.ends[string] as usize]
    }

    /// Returns `true` if the string, with its byte `offset` at text position `at`, is in the text and ends after
    /// `from`.
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

/// Returns how frequent a byte is in traffic, 0 the rarest: text first, then zeros.
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
