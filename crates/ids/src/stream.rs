//! One direction of a TCP stream: a window of its bytes, in order, and those that came too early.
//!
//! Bytes lie in the window where they belong from the start, so that filling a gap moves nothing. Of bytes that come
//! twice the first count: what a receiver has, it keeps. When the window is full, what was looked at slides out of it.

use bytemuck::{Pod, Zeroable};

/// Most stretches of bytes that wait for a gap in front of them to be filled.
const MAX_STRETCHES: usize = 8;
/// Most rules of which a part was seen in the stream.
pub(crate) const MAX_PENDING: usize = 8;
/// Most rules that are known to have matched in the stream.
const MAX_DONE: usize = 8;

/// What is known of a direction. All zero is a direction of which nothing was seen.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Side {
    /// The stream's byte that the window begins with.
    pub(crate) base: u64,
    /// The byte that the message at hand begins with.
    pub(crate) message: u64,
    /// Up to which byte the message's framing was followed.
    pub(crate) parsed: u64,
    /// The byte behind the message's head.
    pub(crate) head_end: u64,
    /// Bytes that are left of a body or chunk; or the byte that must be there before there is anything to read.
    pub(crate) left: u64,
    /// The sequence number of the stream's first byte.
    first: u32,
    /// The sequence number of the byte behind the last, if a FIN was seen.
    fin: u32,
    /// Bytes in order in the window.
    filled: u32,
    /// Bytes of these that streams' rules were asked about.
    scanned: u32,
    /// The rules that the ones below are of.
    pub(crate) version: u32,
    pending: [u32; MAX_PENDING],
    done: [u32; MAX_DONE],
    stretches: [[u32; 2]; MAX_STRETCHES],
    pending_count: u8,
    done_count: u8,
    stretch_count: u8,
    /// What of a message is read next.
    pub(crate) phase: u8,
    /// What is known of the message at hand.
    pub(crate) message_flags: u8,
    started: u8,
    /// A segment was too far ahead to be kept.
    missed: u8,
    finned: u8,
    /// So that all bytes are of a field.
    unused: [u8; 4],
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Bytes that are in the window, or had been. The others found no room.
    pub(crate) taken: usize,
    /// Whether bytes differ from those that came first.
    pub(crate) conflict: bool,
}

/// How far `a` lies behind `b`; negative if in front.
#[inline]
fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Side {
    /// Whether a byte or a SYN was seen.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.started != 0
    }

    /// The stream begins with this sequence number.
    pub(crate) fn start(&mut self, first: u32) {
        *self = Side {
            first,
            started: 1,
            ..Side::zeroed()
        };
    }

    /// The bytes in order.
    #[inline]
    pub(crate) fn filled(&self) -> usize {
        self.filled as usize
    }

    /// The stream's byte behind those in order.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.base + u64::from(self.filled)
    }

    /// The sequence number of the byte that comes next.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.end() as u32)
    }

    /// Where a byte of the stream is in the window.
    #[inline]
    pub(crate) fn at(&self, byte: u64) -> usize {
        byte.saturating_sub(self.base) as usize
    }

    /// Takes the bytes in order that rules were not asked about yet.
    #[inline]
    pub(crate) fn take_fresh(&mut self) -> std::ops::Range<usize> {
        let from = std::mem::replace(&mut self.scanned, self.filled);
        from as usize..self.filled as usize
    }

    /// A FIN says where the stream ends; the first counts.
    pub(crate) fn fin(&mut self, behind: u32) {
        if self.finned == 0 {
            (self.finned, self.fin) = (1, behind);
        }
    }

    /// Whether all bytes up to the FIN are there.
    pub(crate) fn is_over(&self) -> bool {
        self.finned != 0 && distance(self.next(), self.fin) >= 0
    }

    /// Whether something waits for a gap to be filled.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.stretch_count > 0 || self.missed != 0
    }

    /// Puts a segment's bytes where they belong.
    pub(crate) fn insert(&mut self, window: &mut [u8], sequence: u32, data: &[u8]) -> Inserted {
        let at = i64::from(self.filled) + i64::from(distance(sequence, self.next()));
        let seen = (i64::from(self.filled) - at).clamp(0, data.len() as i64) as usize;
        let mut conflict = false;
        if seen > 0 {
            // What is still in the window is compared.
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

    /// Puts bytes at a place among the stretches; whether some differ from what is there. `None` without room for
    /// another stretch.
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
        // Gap by gap: what is there stays.
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

    /// The first stretch may follow what is in order.
    fn join(&mut self) {
        let count = usize::from(self.stretch_count);
        if count > 0 && self.stretches[0][0] <= self.filled {
            self.filled = self.filled.max(self.stretches[0][1]);
            self.stretches.copy_within(1..count, 0);
            self.stretch_count -= 1;
        }
    }

    /// Lets the first bytes of the window go: only such as are in order.
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

    /// The receiver has acknowledged bytes that were never seen: goes on behind them. Whether there was such a gap.
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
            // What waits is farther on, or nowhere.
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

    /// The rules of which a part was seen.
    #[inline]
    pub(crate) fn pending(&self) -> &[u32] {
        &self.pending[..usize::from(self.pending_count)]
    }

    /// Notes a rule of which a part was seen; whether there was room.
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

    /// A rule has matched: it is not asked again, as long as it is remembered.
    pub(crate) fn finish(&mut self, rule: u32) {
        if let Some(at) = self.pending().iter().position(|known| *known == rule) {
            self.pending_count -= 1;
            self.pending[at] = self.pending[usize::from(self.pending_count)];
        }
        self.done[usize::from(self.done_count) % MAX_DONE] = rule;
        self.done_count = match self.done_count + 1 {
            // The oldest is forgotten from now on.
            count if usize::from(count) == 2 * MAX_DONE => MAX_DONE as u8,
            count => count,
        };
    }

    /// Whether a rule is known to have matched.
    pub(crate) fn is_done(&self, rule: u32) -> bool {
        let count = usize::from(self.done_count).min(MAX_DONE);
        self.done[..count].contains(&rule)
    }

    /// Forgets rules of which a part was seen.
    pub(crate) fn forget_pending(&mut self) {
        self.pending_count = 0;
    }

    /// Other rules are in force.
    pub(crate) fn renew(&mut self, version: u32) {
        if self.version != version {
            self.version = version;
            (self.pending_count, self.done_count) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests;
