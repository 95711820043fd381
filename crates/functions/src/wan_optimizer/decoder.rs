//! Decoder: the end of a stream that restores content.

use super::checksum::checksum;
use super::header::{Content, MAX_RANGES};
use super::{LINE, lines_of};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};

/// 64-bit words per line.
const WORDS: usize = LINE / 8;

/// Copy of the encoder's cache, with holes where packets were lost.
///
/// Several cores may use it without a lock. Normally a stream's packets reach one core at a time, in order. If two
/// cores have some concurrently, one may read a line the other writes; the checksum detects that.
pub(super) struct Decoder {
    words: CounterArray,
    /// Per slot, the epoch, and in the low half the line stored; 0 if empty, as epochs are not 0.
    lines: CounterArray,
    epochs: CounterArray,
}

// Indices of a decoder's epochs.
/// Current epoch, and the line it started with here.
const EPOCH: usize = 0;
/// Previous epoch, whose packets may still be in flight, and the number received in a row since the last packet of the
/// current epoch.
const BEFORE: usize = 1;
const EPOCHS: usize = 2;

/// After this many packets of the previous epoch in a row, they are not late: by chance an encoder has reused its
/// number.
const MOST_LATE: u64 = 1024;

/// Lines that content refers to and the cache lacks, and the content's own lines, which cannot be restored.
#[derive(Debug)]
pub(super) struct Missing {
    ranges: Vec<[u32; 2]>,
}

impl Missing {
    /// Creates an empty list with room for any content's lines.
    pub(super) fn new() -> Missing {
        Missing {
            ranges: Vec::with_capacity(MAX_RANGES),
        }
    }

    /// Returns the ranges: first line and number of lines.
    pub(super) fn ranges(&self) -> &[[u32; 2]] {
        &self.ranges
    }
}

/// Reasons content was not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Referenced lines are not in the cache.
    Missing,
    /// Referenced lines hold other data here, or the packet was damaged.
    Damaged,
}

/// Returns the tag of a slot that holds this line of an epoch.
#[inline]
fn tag(epoch: u32, line: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(line)
}

impl Decoder {
    /// Takes a cache of `bytes`, a power of two and at least one line, from the counters. Returns `None` without enough
    /// memory.
    pub(super) fn new(bytes: u64, shared_counters: &SharedCounters) -> Option<Decoder> {
        let count = bytes as usize / LINE;
        Some(Decoder {
            words: shared_counters.try_take(count * WORDS)?,
            lines: shared_counters.try_take(count)?,
            epochs: shared_counters.take(EPOCHS),
        })
    }

    /// Returns the bytes of counters for a cache of `bytes`.
    pub(super) fn shared_bytes(bytes: u64) -> usize {
        let count = bytes as usize / LINE;
        let taken = [count * WORDS, count, EPOCHS];
        taken.map(SharedCounters::bytes_of).iter().sum()
    }

    /// Returns the number of lines of the cache.
    pub(super) fn lines(&self) -> u32 {
        self.lines.len() as u32
    }

    /// Returns the first line of an epoch that may be in the cache.
    pub(super) fn since(&self, epoch: u32) -> u32 {
        let present = self.epochs[EPOCH].load(Relaxed);
        match present >> 32 == u64::from(epoch) {
            true => present as u32,
            false => 1,
        }
    }

    /// Records the arrival of a packet. Returns `false` if it is a late one of the previous epoch.
    fn arrive(&self, epoch: u32, line: u32) -> bool {
        let present = self.epochs[EPOCH].load(Relaxed);
        let before = self.epochs[BEFORE].load(Relaxed);
        if present >> 32 == u64::from(epoch) {
            if before as u32 != 0 {
                self.epochs[BEFORE].store(tag((before >> 32) as u32, 0), Relaxed);
            }
            return true;
        }
        if before >> 32 == u64::from(epoch) && before & u64::from(u32::MAX) < MOST_LATE {
            self.epochs[BEFORE].store(before + 1, Relaxed);
            return false;
        }
        // Two cores doing this concurrently store the same values, except the line, of which the later one is safe.
        self.epochs[BEFORE].store(present >> 32 << 32, Relaxed);
        self.epochs[EPOCH].store(tag(epoch, line), Relaxed);
        true
    }

    /// Restores content to the front of `out`, which must be long enough, and stores it in the cache.
    ///
    /// # Errors
    /// Lines are missing, which `missing` then lists, or the result is damaged.
    pub(super) fn restore(&self, content: &Content<'_>, out: &mut [u8], missing: &mut Missing) -> Result<(), Lost> {
        missing.ranges.clear();
        let (epoch, line) = (content.epoch, content.line);
        let present = self.arrive(epoch, line);
        let out = &mut out[..content.length.into()];
        let (mut end, mut literals) = (0, content.literals);
        for region in content.regions() {
            let (at, length) = (usize::from(region.at), usize::from(region.length));
            let (here, rest) = literals.split_at(at - end);
            out[end..at].copy_from_slice(here);
            (literals, end) = (rest, at + length);
            let from = u64::from(line) * LINE as u64;
            let Some(from) = from.checked_sub(region.distance.into()) else {
                // A reference before the first line: no encoder writes this.
                return Err(Lost::Damaged);
            };
            if !self.copy(epoch, from, &mut out[at..end]) {
                let first = (from / LINE as u64) as u32;
                let last = ((from + length as u64 - 1) / LINE as u64) as u32;
                missing.ranges.push([first, last - first + 1]);
            }
        }
        out[end..].copy_from_slice(literals);
        if !missing.ranges.is_empty() {
            // The content's own lines are missing as well.
            missing.ranges.push([line, lines_of(out.len())]);
            return Err(Lost::Missing);
        }
        if checksum(out, epoch, line) != content.checksum {
            return Err(Lost::Damaged);
        }
        self.store((epoch, present), line, out);
        Ok(())
    }

    /// Copies stream bytes from offset `from` on; returns `false` if some are not in the cache.
    fn copy(&self, epoch: u32, from: u64, out: &mut [u8]) -> bool {
        let first = from / LINE as u64;
        let last = (from + out.len() as u64 - 1) / LINE as u64;
        let here = |line: u64| {
            let place = line as usize & (self.lines.len() - 1);
            self.lines[place].load(Acquire) == tag(epoch, line as u32)
        };
        if !(first..=last).all(here) {
            return false;
        }
        // Copies word by word; the first and last may be partial.
        let mask = self.words.len() - 1;
        let word = |at: u64| self.words[(at / 8) as usize & mask].load(Relaxed).to_le_bytes();
        let skip = (from % 8) as usize;
        let (head, rest) = out.split_at_mut((8 - skip).min(out.len()));
        head.copy_from_slice(&word(from)[skip..skip + head.len()]);
        let mut at = from + head.len() as u64;
        let (words, tail) = rest.as_chunks_mut::<8>();
        for chunk in words {
            *chunk = word(at);
            at += 8;
        }
        tail.copy_from_slice(&word(at)[..tail.len()]);
        true
    }

    /// Stores content, except in slots that hold a later line of its epoch, or of a newer epoch if its own is not
    /// `present` any more.
    fn store(&self, (epoch, present): (u32, bool), line: u32, content: &[u8]) {
        for (bytes, line) in content.chunks(LINE).zip(line..) {
            let place = line as usize & (self.lines.len() - 1);
            let there = self.lines[place].load(Relaxed);
            let later = match there >> 32 == u64::from(epoch) {
                true => there as u32 >= line,
                false => !present && there >> 32 == self.epochs[EPOCH].load(Relaxed) >> 32,
            };
            if later {
                continue;
            }
            self.lines[place].store(0, Relaxed);
            let mut whole = [0; LINE];
            whole[..bytes.len()].copy_from_slice(bytes);
            let words = &self.words[place * WORDS..][..WORDS];
            for (word, bytes) in words.iter().zip(whole.as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
            self.lines[place].store(tag(epoch, line), Release);
        }
    }
}
