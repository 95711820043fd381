//! The end of a stream that restores what was sent.

use super::checksum::checksum;
use super::header::{Content, MAX_RANGES};
use super::{LINE, lines_of};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words of a line.
const WORDS: usize = LINE / 8;

/// A stream's cache, as its encoder has it, with holes where packets were lost.
///
/// It may be used by several cores. Packets of a stream come to one core at a time, and are in order then; should two cores have
/// some at the same time, one may read a line that the other one writes, and the checksum finds that. So there is no lock.
pub(super) struct Decoder {
    words: Box<[AtomicU64]>,
    /// For each place, the epoch and, in the low half, the line that is there; 0: none, as epochs are not 0.
    lines: Box<[AtomicU64]>,
    /// The present epoch, and the line that it began with here.
    epoch: AtomicU64,
    /// The epoch before it, of which packets may still be on their way, and how many have come in a row: since the last one of
    /// the present epoch.
    before: AtomicU64,
}

/// So many packets of the epoch before in a row are no late ones: by the worst chance an encoder has begun it again.
const MOST_LATE: u64 = 1024;

/// The lines that content refers to and that are not here, and its own, which cannot be.
#[derive(Debug)]
pub(super) struct Missing {
    ranges: Vec<[u32; 2]>,
}

impl Missing {
    /// None, with room for those of any content.
    pub(super) fn new() -> Missing {
        Missing {
            ranges: Vec::with_capacity(MAX_RANGES),
        }
    }

    /// The first lines of ranges, and how many each has.
    pub(super) fn ranges(&self) -> &[[u32; 2]] {
        &self.ranges
    }
}

/// Why content was not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// It refers to lines that are not here.
    Missing,
    /// What it refers to is something else here, or it was damaged on its way.
    Damaged,
}

/// What a place holds that has a line of an epoch.
#[inline]
fn tag(epoch: u32, line: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(line)
}

impl Decoder {
    /// With a cache of so many bytes, a power of two from a line on; `None` if there is no memory.
    pub(super) fn new(bytes: u64) -> Option<Decoder> {
        let count = bytes as usize / LINE;
        Some(Decoder {
            words: bytemuck::allocation::try_zeroed_slice_box(count * WORDS).ok()?,
            lines: bytemuck::allocation::try_zeroed_slice_box(count).ok()?,
            epoch: AtomicU64::new(0),
            before: AtomicU64::new(0),
        })
    }

    /// Lines of the cache.
    pub(super) fn lines(&self) -> u32 {
        self.lines.len() as u32
    }

    /// The first line of an epoch that can be here.
    pub(super) fn since(&self, epoch: u32) -> u32 {
        let present = self.epoch.load(Relaxed);
        match present >> 32 == u64::from(epoch) {
            true => present as u32,
            false => 1,
        }
    }

    /// Notes that a packet came. `false`: it is a late one, of the epoch before the present one.
    fn arrive(&self, epoch: u32, line: u32) -> bool {
        let present = self.epoch.load(Relaxed);
        let before = self.before.load(Relaxed);
        if present >> 32 == u64::from(epoch) {
            if before as u32 != 0 {
                self.before.store(tag((before >> 32) as u32, 0), Relaxed);
            }
            return true;
        }
        if before >> 32 == u64::from(epoch) && before & u64::from(u32::MAX) < MOST_LATE {
            self.before.store(before + 1, Relaxed);
            return false;
        }
        // Should two cores do so at the same moment, they say the same, but for the line: the later one is the safe one.
        self.before.store(present >> 32 << 32, Relaxed);
        self.epoch.store(tag(epoch, line), Relaxed);
        true
    }

    /// Restores content over the front of `out`, which has as many bytes at least, and remembers it.
    ///
    /// # Errors
    /// It cannot; `missing` then has the lines that are missing.
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
                // Before the first line: the encoder made no such thing.
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
            // What it would have been is not here either.
            missing.ranges.push([line, lines_of(out.len())]);
            return Err(Lost::Missing);
        }
        if checksum(out, epoch, line) != content.checksum {
            return Err(Lost::Damaged);
        }
        self.keep((epoch, present), line, out);
        Ok(())
    }

    /// Copies bytes of the stream from its byte `from` on; `false` if not all are here.
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
        // Word by word, each of which may be cut at either end.
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

    /// Remembers content, but where a later line is by now: of its epoch, or, if that is not `present` any more, of another.
    fn keep(&self, (epoch, present): (u32, bool), line: u32, content: &[u8]) {
        for (bytes, line) in content.chunks(LINE).zip(line..) {
            let place = line as usize & (self.lines.len() - 1);
            let there = self.lines[place].load(Relaxed);
            let later = match there >> 32 == u64::from(epoch) {
                true => there as u32 >= line,
                false => !present && there >> 32 == self.epoch.load(Relaxed) >> 32,
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
