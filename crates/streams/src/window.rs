//! Last bytes of a stream in a window, in order and out of order.
//!
//! Bytes are stored at their final position in the window, so filling a gap moves nothing. Of duplicate bytes the first
//! copy counts, as receivers keep it. When the window is full, inspected bytes are shifted out.

use crate::ranges::{ByteRange, Piece, merged, pieces};
use crate::sequence::distance;
use bytemuck::{Pod, Zeroable};

/// Largest number of out-of-order ranges.
pub const MAX_RANGES: usize = 8;

/// Position of a stream in its window, whose bytes are stored elsewhere. All zeros is a stream without packets so far.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct WindowState {
    /// Stream offset of the window's start.
    base: u64,
    /// Sequence number of the stream's first byte.
    first: u32,
    /// Sequence number after the last byte, if a FIN was seen.
    fin: u32,
    /// In-order bytes in the window.
    filled: u32,
    /// In-order bytes already taken by the caller.
    scanned: u32,
    range_count: u8,
    started: u8,
    /// Set when a segment was too far ahead to be stored.
    missed: u8,
    finned: u8,
    /// Padding: the structure must have no implicit padding bytes.
    unused: [u8; 4],
    /// Window positions of the bytes behind a gap, sorted and disjoint. Last, since most streams have none.
    ranges: [ByteRange; MAX_RANGES],
}

/// In-order bytes of a window.
#[derive(Clone, Copy, Debug)]
pub struct InOrder<'a> {
    /// Stream offset of the first byte.
    pub base: u64,
    /// Bytes.
    pub bytes: &'a [u8],
}

impl<'a> InOrder<'a> {
    /// Returns the stream offset after the last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Returns the bytes from a stream offset on; `None` if it lies after the last byte.
    #[inline]
    pub fn from(&self, offset: u64) -> Option<&'a [u8]> {
        self.bytes.get(offset.saturating_sub(self.base) as usize..)
    }
}

/// Result of inserting a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// Bytes that are in the window or were there before. The rest found no room.
    pub taken: usize,
    /// `true` if bytes differ from the first copy.
    pub conflict: bool,
}

impl WindowState {
    /// Returns `true` if a byte or a SYN was seen.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.started != 0
    }

    /// Returns the ranges behind the in-order bytes, as window positions.
    #[inline]
    fn ranges(&self) -> &[ByteRange] {
        &self.ranges[..usize::from(self.range_count)]
    }

    /// Starts the stream at this sequence number.
    pub fn start(&mut self, first: u32) {
        *self = WindowState {
            first,
            started: 1,
            ..WindowState::zeroed()
        };
    }

    /// Returns the number of in-order bytes.
    #[inline]
    pub fn filled(&self) -> usize {
        self.filled as usize
    }

    /// Returns the stream offset of the end of the in-order bytes.
    #[inline]
    pub fn end(&self) -> u64 {
        self.base + u64::from(self.filled)
    }

    /// Returns the next expected sequence number.
    #[inline]
    pub fn next(&self) -> u32 {
        self.first.wrapping_add(self.end() as u32)
    }

    /// Returns the window position of a stream offset.
    #[inline]
    pub fn at(&self, byte: u64) -> usize {
        byte.saturating_sub(self.base) as usize
    }

    /// Returns the stream offset of the window's start.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the in-order bytes of the window.
    #[inline]
    pub fn in_order<'a>(&self, window: &'a [u8]) -> InOrder<'a> {
        InOrder {
            base: self.base,
            bytes: &window[..self.filled()],
        }
    }

    /// Takes the range of in-order bytes not yet evaluated.
    #[inline]
    pub fn take_fresh(&mut self) -> std::ops::Range<usize> {
        let from = std::mem::replace(&mut self.scanned, self.filled);
        from as usize..self.filled as usize
    }

    /// Records the stream's end from a FIN; the first FIN counts.
    pub fn fin(&mut self, behind: u32) {
        if self.finned == 0 {
            (self.finned, self.fin) = (1, behind);
        }
    }

    /// Returns `true` if all bytes up to the FIN are present.
    pub fn is_over(&self) -> bool {
        self.finned != 0 && distance(self.next(), self.fin) >= 0
    }

    /// Returns `true` if bytes wait for a gap to be filled.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.range_count > 0 || self.missed != 0
    }

    /// Inserts a segment's bytes at their position.
    pub fn insert(&mut self, window: &mut [u8], sequence: u32, data: &[u8]) -> Inserted {
        let at = i64::from(self.filled) + i64::from(distance(sequence, self.next()));
        let seen = (i64::from(self.filled) - at).clamp(0, data.len() as i64) as usize;
        let mut conflict = false;
        if seen > 0 {
            // Bytes still in the window are compared.
            let skip = (-at).clamp(0, seen as i64) as usize;
            let from = (at + skip as i64) as usize;
            let there = window.get(from..from + (seen - skip));
            conflict = there.is_some_and(|there| there != &data[skip..seen]);
        }
        let data = &data[seen..];
        let at = (at + seen as i64) as usize;
        let fits = window.len().saturating_sub(at).min(data.len());
        if fits == 0 {
            self.missed |= u8::from(!data.is_empty() && at > self.filled());
            return Inserted { taken: seen, conflict };
        }
        if self.range_count == 0 && at == self.filled() {
            window[at..at + fits].copy_from_slice(&data[..fits]);
            self.filled += fits as u32;
            return Inserted {
                taken: seen + fits,
                conflict,
            };
        }
        match self.put(window, at, &data[..fits]) {
            Some(differs) => Inserted {
                taken: seen + fits,
                conflict: conflict | differs,
            },
            None => {
                self.missed = 1;
                Inserted { taken: seen, conflict }
            }
        }
    }

    /// Inserts bytes behind a gap. Returns `true` if some differ from bytes present, and `None` without room for
    /// another range.
    fn put(&mut self, window: &mut [u8], at: usize, data: &[u8]) -> Option<bool> {
        let new = ByteRange::from(at as u32, data.len());
        let (list, count) = merged(self.ranges(), new)?;
        let mut differs = false;
        for Piece { bytes, present } in pieces(self.ranges(), new) {
            let there = &mut window[at + bytes.start..at + bytes.end];
            match present {
                true => differs |= there != &data[bytes],
                false => there.copy_from_slice(&data[bytes]),
            }
        }
        (self.ranges, self.range_count) = (list, count as u8);
        self.join();
        Some(differs)
    }

    /// Merges the first range into the in-order bytes if it is adjacent.
    fn join(&mut self) {
        let count = usize::from(self.range_count);
        if count > 0 && self.ranges[0].start <= self.filled {
            self.filled = self.filled.max(self.ranges[0].end);
            self.ranges.copy_within(1..count, 0);
            self.range_count -= 1;
        }
    }

    /// Shifts up to `by` in-order bytes out of the window.
    pub fn slide(&mut self, window: &mut [u8], by: usize) {
        let by = by.min(self.filled());
        let last = usize::from(self.range_count).checked_sub(1);
        let end = last.map_or(self.filled, |last| self.ranges[last].end);
        window.copy_within(by..end as usize, 0);
        let by = by as u32;
        self.base += u64::from(by);
        self.filled -= by;
        self.scanned = self.scanned.saturating_sub(by);
        for range in &mut self.ranges[..usize::from(self.range_count)] {
            range.start -= by;
            range.end -= by;
        }
    }

    /// Skips bytes that the receiver has acknowledged but that were never seen. Returns `true` if there was such a gap.
    pub fn skip_to(&mut self, window: &mut [u8], acknowledged: u32) -> bool {
        let ahead = distance(acknowledged, self.next());
        if ahead <= 0 || !self.is_waiting() {
            return false;
        }
        let mut to = self.filled.saturating_add(ahead as u32);
        if self.range_count > 0 {
            to = to.min(self.ranges[0].start);
        }
        self.missed = 0;
        if self.range_count > 0 && self.ranges[0].start == to {
            self.filled = to;
            self.scanned = to;
            self.slide(window, to as usize);
            self.join();
        } else {
            // Out-of-order bytes start further on, or there are none.
            let end = self.ranges().last().map(|last| last.end);
            self.base += u64::from(to);
            (self.filled, self.scanned) = (0, 0);
            if let Some(end) = end {
                window.copy_within(to as usize..end as usize, 0);
            }
            for range in &mut self.ranges[..usize::from(self.range_count)] {
                range.start = range.start.saturating_sub(to);
                range.end = range.end.saturating_sub(to);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
