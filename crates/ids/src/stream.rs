//! One direction of a TCP stream: a window of its bytes, in order and out of order.
//!
//! Bytes are stored at their final position in the window, so filling a gap moves nothing. Of duplicate bytes the first
//! copy counts, as receivers keep it. When the window is full, inspected bytes are shifted out.

use bytemuck::{Pod, Zeroable};

/// Largest number of out-of-order ranges.
const MAX_STRETCHES: usize = 8;
/// Largest number of partly matched rules per stream.
pub(crate) const MAX_PENDING: usize = 8;
/// Largest number of rules remembered as matched per stream.
const MAX_DONE: usize = 8;

/// State of one direction. All zeros is a direction without packets so far.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Side {
    /// Stream offset of the window's start.
    pub(crate) base: u64,
    /// Stream offset of the current message.
    pub(crate) message: u64,
    /// Stream offset up to which the message's framing was parsed.
    pub(crate) parsed: u64,
    /// Stream offset of the end of the message's head.
    pub(crate) head_end: u64,
    /// Bytes left of a body or chunk, or the offset that must be reached before parsing continues.
    pub(crate) left: u64,
    /// Sequence number of the stream's first byte.
    first: u32,
    /// Sequence number after the last byte, if a FIN was seen.
    fin: u32,
    /// In-order bytes in the window.
    filled: u32,
    /// In-order bytes already evaluated by stream rules.
    scanned: u32,
    /// Version of the rule set that the rules below belong to.
    pub(crate) version: u32,
    pending: [u32; MAX_PENDING],
    done: [u32; MAX_DONE],
    stretches: [[u32; 2]; MAX_STRETCHES],
    pending_count: u8,
    done_count: u8,
    stretch_count: u8,
    /// Phase of the protocol's parser.
    pub(crate) phase: u8,
    /// Flags of the current message.
    pub(crate) message_flags: u8,
    started: u8,
    /// Set when a segment was too far ahead to be stored.
    missed: u8,
    finned: u8,
    /// Padding: the structure must have no implicit padding bytes.
    unused: [u8; 4],
}

/// Result of inserting a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Bytes that are in the window or were there before. The rest found no room.
    pub(crate) taken: usize,
    /// `true` if bytes differ from the first copy.
    pub(crate) conflict: bool,
}

/// Returns how far `a` lies after `b` in sequence space; negative if before.
#[inline]
fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Side {
    /// Returns `true` if a byte or a SYN was seen.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.started != 0
    }

    /// Starts the stream at this sequence number.
    pub(crate) fn start(&mut self, first: u32) {
        *self = Side {
            first,
            started: 1,
            ..Side::zeroed()
        };
    }

    /// Returns the number of in-order bytes.
    #[inline]
    pub(crate) fn filled(&self) -> usize {
        self.filled as usize
    }

    /// Returns the stream offset of the end of the in-order bytes.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.base + u64::from(self.filled)
    }

    /// Returns the next expected sequence number.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.end() as u32)
    }

    /// Returns the window position of a stream offset.
    #[inline]
    pub(crate) fn at(&self, byte: u64) -> usize {
        byte.saturating_sub(self.base) as usize
    }

    /// Takes the range of in-order bytes not yet evaluated.
    #[inline]
    pub(crate) fn take_fresh(&mut self) -> std::ops::Range<usize> {
        let from = std::mem::replace(&mut self.scanned, self.filled);
        from as usize..self.filled as usize
    }

    /// Records the stream's end from a FIN; the first FIN counts.
    pub(crate) fn fin(&mut self, behind: u32) {
        if self.finned == 0 {
            (self.finned, self.fin) = (1, behind);
        }
    }

    /// Returns `true` if all bytes up to the FIN are present.
    pub(crate) fn is_over(&self) -> bool {
        self.finned != 0 && distance(self.next(), self.fin) >= 0
    }

    /// Returns `true` if bytes wait for a gap to be filled.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.stretch_count > 0 || self.missed != 0
    }

    /// Inserts a segment's bytes at their position.
    pub(crate) fn insert(&mut self, window: &mut [u8], sequence: u32, data: &[u8]) -> Inserted {
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
        if self.stretch_count == 0 && at == self.filled() {
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

    /// Inserts bytes into the out-of-order ranges. Returns `true` if some differ from bytes present, and `None` without
    /// room for another range.
    fn put(&mut self, window: &mut [u8], at: usize, data: &[u8]) -> Option<bool> {
        let (start, end) = (at as u32, (at + data.len()) as u32);
        let old = self.stretches;
        let old = &old[..usize::from(self.stretch_count)];
        let mut new = [[0; 2]; MAX_STRETCHES];
        let (mut count, mut merged) = (0, [start, end]);
        for &[from, to] in old.iter().filter(|[from, to]| *to < start || *from > end) {
            *new.get_mut(count)? = [from, to];
            count += 1;
        }
        for &[from, to] in old.iter().filter(|[from, to]| *to >= start && *from <= end) {
            merged = [merged[0].min(from), merged[1].max(to)];
        }
        if count == MAX_STRETCHES {
            return None;
        }
        let place = new[..count].partition_point(|[from, _]| *from < merged[0]);
        new.copy_within(place..count, place + 1);
        new[place] = merged;
        count += 1;
        // Fills gap by gap: bytes present are preserved.
        let (mut differs, mut from) = (false, start);
        for &[begin, stop] in old.iter().chain([&[end, end]]) {
            let gap = begin.clamp(from, end);
            let range = |from: u32, to: u32| (from - start) as usize..(to - start) as usize;
            window[from as usize..gap as usize].copy_from_slice(&data[range(from, gap)]);
            let past = stop.clamp(gap, end);
            differs |= window[gap as usize..past as usize] != data[range(gap, past)];
            from = past;
        }
        (self.stretches, self.stretch_count) = (new, count as u8);
        self.join();
        Some(differs)
    }

    /// Merges the first range into the in-order bytes if it is adjacent.
    fn join(&mut self) {
        let count = usize::from(self.stretch_count);
        if count > 0 && self.stretches[0][0] <= self.filled {
            self.filled = self.filled.max(self.stretches[0][1]);
            self.stretches.copy_within(1..count, 0);
            self.stretch_count -= 1;
        }
    }

    /// Shifts up to `by` in-order bytes out of the window.
    pub(crate) fn slide(&mut self, window: &mut [u8], by: usize) {
        let by = by.min(self.filled());
        let last = usize::from(self.stretch_count).checked_sub(1);
        let end = last.map_or(self.filled, |last| self.stretches[last][1]);
        window.copy_within(by..end as usize, 0);
        let by = by as u32;
        self.base += u64::from(by);
        self.filled -= by;
        self.scanned = self.scanned.saturating_sub(by);
        for stretch in &mut self.stretches[..usize::from(self.stretch_count)] {
            *stretch = stretch.map(|at| at - by);
        }
    }

    /// Skips bytes that the receiver has acknowledged but that were never seen. Returns `true` if there was such a gap.
    pub(crate) fn skip_to(&mut self, window: &mut [u8], acknowledged: u32) -> bool {
        let ahead = distance(acknowledged, self.next());
        if ahead <= 0 || !self.is_waiting() {
            return false;
        }
        let mut to = self.filled.saturating_add(ahead as u32);
        if self.stretch_count > 0 {
            to = to.min(self.stretches[0][0]);
        }
        self.missed = 0;
        if self.stretch_count > 0 && self.stretches[0][0] == to {
            self.filled = to;
            self.scanned = to;
            self.slide(window, to as usize);
            self.join();
        } else {
            // Out-of-order bytes start further on, or there are none.
            let waiting = (self.stretches, self.stretch_count);
            self.base += u64::from(to);
            (self.filled, self.scanned, self.stretch_count) = (0, 0, 0);
            if let (stretches, 1..) = waiting {
                let end = stretches[usize::from(waiting.1) - 1][1];
                window.copy_within(to as usize..end as usize, 0);
                self.stretch_count = waiting.1;
                self.stretches = stretches.map(|stretch| stretch.map(|at| at.saturating_sub(to)));
            }
        }
        self.forget_pending();
        true
    }

    /// Returns the partly matched rules.
    #[inline]
    pub(crate) fn pending(&self) -> &[u32] {
        &self.pending[..usize::from(self.pending_count)]
    }

    /// Adds a partly matched rule; returns `false` if there is no room.
    pub(crate) fn wait_for(&mut self, rule: u32) -> bool {
        if self.pending().contains(&rule) {
            return true;
        }
        let Some(free) = self.pending.get_mut(usize::from(self.pending_count)) else {
            return false;
        };
        *free = rule;
        self.pending_count += 1;
        true
    }

    /// Marks a rule as matched: it is not evaluated again while it is remembered.
    pub(crate) fn finish(&mut self, rule: u32) {
        if let Some(at) = self.pending().iter().position(|known| *known == rule) {
            self.pending_count -= 1;
            self.pending[at] = self.pending[usize::from(self.pending_count)];
        }
        self.done[usize::from(self.done_count) % MAX_DONE] = rule;
        self.done_count = match self.done_count + 1 {
            // From here on the oldest entry is overwritten.
            count if usize::from(count) == 2 * MAX_DONE => MAX_DONE as u8,
            count => count,
        };
    }

    /// Returns `true` if a rule is remembered as matched.
    pub(crate) fn is_done(&self, rule: u32) -> bool {
        let count = usize::from(self.done_count).min(MAX_DONE);
        self.done[..count].contains(&rule)
    }

    /// Clears the partly matched rules.
    pub(crate) fn forget_pending(&mut self) {
        self.pending_count = 0;
    }

    /// Clears rule state of an older rule set.
    pub(crate) fn renew(&mut self, version: u32) {
        if self.version != version {
            self.version = version;
            (self.pending_count, self.done_count) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests;
