//! Decoder of header blocks (HPACK, RFC 7541), with a dynamic table of bounded size. Memory is allocated at its
//! creation only.

use super::{Unreadable, huffman};
use std::collections::VecDeque;

/// Largest size of a dynamic table, as RFC 7541 §4.1 counts it. Larger tables are refused.
pub const MAX_TABLE: usize = 16 * 1024;
/// Size of a table unless the other end allows another.
const DEFAULT_TABLE: usize = 4096;
/// Bytes each entry counts for, beside its name and value.
const ENTRY: usize = 32;
/// Largest number in a block.
const MAX_NUMBER: usize = 1 << 24;
/// Bytes of scratch memory that suffice for a block of this many bytes: a code has at least five bits, and a name may
/// come from the table.
pub const fn scratch_for(block: usize) -> usize {
    block * 8 / 5 + MAX_TABLE + 16
}

/// Entry of the dynamic table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Position of the name, with the value behind it, counted from the first byte ever added.
    at: u64,
    name: u16,
    value: u16,
}

/// Decoder of one direction's header blocks.
#[derive(Debug)]
pub struct Decoder {
    /// Names and values, oldest first.
    bytes: Vec<u8>,
    /// Position of the first of them.
    base: u64,
    /// Entries, newest first.
    entries: VecDeque<Entry>,
    size: usize,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Creates a decoder with an empty table.
    pub fn new() -> Decoder {
        Decoder {
            bytes: Vec::with_capacity(MAX_TABLE),
            base: 0,
            entries: VecDeque::with_capacity(MAX_TABLE / ENTRY),
            size: 0,
            limit: DEFAULT_TABLE,
        }
    }

    /// Returns to the initial state.
    pub fn reset(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        (self.base, self.size, self.limit) = (0, 0, DEFAULT_TABLE);
    }

    /// Returns the size of the table, as RFC 7541 §4.1 counts it.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Decodes a block, and calls `each` on the names and values of its fields.
    ///
    /// # Errors
    /// The block is malformed, or requires a larger table. Later blocks cannot be decoded, either.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        scratch: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        while let Some(first) = block.first() {
            match first {
                0x80.. => {
                    let index = number(&mut block, 7)?;
                    let (name, value) = self.entry(index)?;
                    each(name, value);
                }
                0x20..=0x3f => {
                    let limit = number(&mut block, 5)?;
                    if limit > MAX_TABLE {
                        return Err(Unreadable::TooMuch);
                    }
                    self.limit = limit;
                    self.evict(0);
                }
                _ => {
                    let is_added = first & 0x40 != 0;
                    let index = number(&mut block, if is_added { 6 } else { 4 })?;
                    scratch.clear();
                    match index {
                        0 => text(&mut block, scratch)?,
                        index => scratch.extend_from_slice(self.entry(index)?.0),
                    }
                    let name = scratch.len();
                    text(&mut block, scratch)?;
                    let (name, value) = scratch.split_at(name);
                    each(name, value);
                    if is_added {
                        self.add(name, value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns an entry's name and value: of the static table up to 61, then of the dynamic one, newest first.
    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Unreadable> {
        let index = index.checked_sub(1).ok_or(Unreadable::Malformed)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.entries.get(index - STATIC.len()).ok_or(Unreadable::Malformed)?;
        let at = (entry.at - self.base) as usize;
        let (name, value) = (usize::from(entry.name), usize::from(entry.value));
        let pair = self.bytes.get(at..at + name + value).ok_or(Unreadable::Malformed)?;
        Ok(pair.split_at(name))
    }

    /// Adds an entry. One larger than the table empties it.
    fn add(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len();
        self.evict(length + ENTRY);
        if length + ENTRY > self.limit {
            return;
        }
        if self.bytes.len() + length > MAX_TABLE {
            // Bytes of evicted entries make room.
            let oldest = self.entries.back();
            let unused = oldest.map_or(self.bytes.len(), |oldest| (oldest.at - self.base) as usize);
            self.bytes.drain(..unused);
            self.base += unused as u64;
        }
        self.entries.push_front(Entry {
            at: self.base + self.bytes.len() as u64,
            name: name.len() as u16,
            value: value.len() as u16,
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += length + ENTRY;
    }

    /// Evicts the oldest entries until there is room for this many bytes.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.limit
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= usize::from(oldest.name) + usize::from(oldest.value) + ENTRY;
        }
    }
}

/// Reads a number whose first byte has this many bits for it (RFC 7541 §5.1).
fn number(bytes: &mut &[u8], bits: u32) -> Result<usize, Unreadable> {
    let (first, mut rest) = bytes.split_first().ok_or(Unreadable::Malformed)?;
    let most = (1usize << bits) - 1;
    let mut number = usize::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (byte, behind) = rest.split_first().ok_or(Unreadable::Malformed)?;
            rest = behind;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 21 {
                return Err(Unreadable::Malformed);
            }
        }
    }
    *bytes = rest;
    match number <= MAX_NUMBER {
        true => Ok(number),
        false => Err(Unreadable::Malformed),
    }
}

/// Reads a string, and appends it to a text.
fn text(bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Unreadable> {
    let coded = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let length = number(bytes, 7)?;
    let (text, rest) = bytes.split_at_checked(length).ok_or(Unreadable::Malformed)?;
    *bytes = rest;
    match coded {
        true => huffman::decode(text, out),
        false => {
            out.extend_from_slice(text);
            Ok(())
        }
    }
}

/// Static table (RFC 7541 Appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests;
