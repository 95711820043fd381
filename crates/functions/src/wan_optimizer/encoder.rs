//! Encoder: the end of a stream that finds repeated content.

use super::checksum::{checksum, fingerprint};
use super::header::{self, MAX_REGIONS, Region, Request, coded_length};
use super::sampling::Fingerprints;
use super::text::{common_prefix, common_suffix};
use super::{LINE, MAX_CONTENT, WINDOW, lines_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};

/// Line number of an empty slot: lines are numbered from 1.
const NONE: u32 = 0;
/// Inverse of the share of oldest lines that are no longer referred to: reordered packets may have overwritten them at
/// the decoder.
const GUARD: u32 = 16;

/// Most lines of one batch: all packets have the maximum length, and as many lines are skipped at the cache's end
/// before each.
pub(super) const MOST_OF_BATCH: u32 = (2 * MAX_BATCH * MAX_CONTENT.div_ceil(LINE)) as u32;

/// State shared by an encoder and the instance that receives its requests, on any core. No ordering is required.
pub(super) struct Outbound {
    /// Per cache slot, the line stored that may be referred to.
    lines: CounterArray<AtomicU32>,
    numbers: CounterArray,
}

// Indices of an outbound stream's numbers.
const EPOCH: usize = 0;
/// Epoch that must end.
const ENDED: usize = 1;
/// Epoch, and in the low half its first line that may be referred to.
const FLOOR: usize = 2;
/// Capacity of the remote cache, in lines.
const REMOTE_LINES: usize = 3;
const NUMBERS: usize = 4;

impl Outbound {
    /// Takes the state for a cache of `bytes` from the counters. Returns `None` without enough memory.
    pub(super) fn new(bytes: u64, shared_counters: &SharedCounters) -> Option<Outbound> {
        Some(Outbound {
            lines: shared_counters.take_halves(bytes as usize / LINE)?,
            numbers: shared_counters.take(NUMBERS),
        })
    }

    /// Returns the bytes of counters for a cache of `bytes`.
    pub(super) fn shared_bytes(bytes: u64) -> usize {
        SharedCounters::bytes_of_halves(bytes as usize / LINE) + SharedCounters::bytes_of(NUMBERS)
    }

    /// Applies a request of the remote end. Returns `false` if its epoch is not the current one.
    pub(super) fn apply_request(&self, request: &Request<'_>) -> bool {
        let epoch = self.numbers[EPOCH].load(Relaxed) as u32;
        if request.epoch != epoch {
            return false;
        }
        if request.reset {
            self.numbers[ENDED].store(epoch.into(), Relaxed);
        }
        self.numbers[REMOTE_LINES].store(request.lines.into(), Relaxed);
        let floor = u64::from(epoch) << 32 | u64::from(request.since);
        let _ = self.numbers[FLOOR].fetch_update(Relaxed, Relaxed, |before| {
            (before >> 32 != floor >> 32 || before < floor).then_some(floor)
        });
        for [first, count] in request.ranges() {
            for line in first..first + count {
                let place = &self.lines[line as usize & (self.lines.len() - 1)];
                // Only if the slot still holds this line.
                let _ = place.compare_exchange(line, NONE, Relaxed, Relaxed);
            }
        }
        true
    }
}

/// Window of the content: its offset, its slot in the fingerprint table, and the cache offset found there.
#[derive(Clone, Copy)]
struct Window {
    at: u32,
    slot: u32,
    seen: u32,
}

/// Encodes content as references to earlier content, and stores it.
pub(super) struct Encoder {
    outbound: Arc<Outbound>,
    fingerprints: Fingerprints,
    /// Cache. Content starts at a line, and does not wrap around the end.
    bytes: Box<[u8]>,
    /// Cache offset of a window by fingerprint. Matches are verified against the cache, so stale entries need no
    /// removal.
    table: Box<[u32]>,
    shift: u32,
    epoch: u32,
    /// First line of the next content.
    next: u32,
    /// First line that may be referred to; `reach` is the largest distance in lines.
    floor: u32,
    reach: u32,
    windows: Vec<Window>,
    regions: Vec<Region>,
}

impl Encoder {
    /// Creates an encoder for a cache of `outbound`'s size. It encodes nothing before its first epoch
    /// [begins](Encoder::begin): until then another process may use the stream.
    pub(super) fn new(outbound: Arc<Outbound>, fingerprints: Fingerprints) -> Encoder {
        let bytes = outbound.lines.len() * LINE;
        // Twice the slots that fingerprints need: few are overwritten before their windows are.
        let slots = (2 * bytes / usize::from(fingerprints.period)).next_power_of_two();
        Encoder {
            bytes: vec![0; bytes].into(),
            table: vec![0; slots].into(),
            shift: u64::BITS - slots.trailing_zeros(),
            windows: Vec::with_capacity(fingerprints.most(MAX_CONTENT)),
            regions: Vec::with_capacity(MAX_REGIONS),
            outbound,
            fingerprints,
            epoch: 0,
            next: 1,
            floor: 1,
            reach: 0,
        }
    }

    /// Returns the bytes of an encoder with a cache of this size, without those of its stream.
    pub(super) fn bytes(cache: u64, fingerprints: Fingerprints) -> u64 {
        let slots = (2 * cache / u64::from(fingerprints.period)).next_power_of_two();
        cache + slots * size_of::<u32>() as u64
    }

    /// Starts an epoch. Slots of earlier epochs need no clearing: a line's slot follows from its number, so an old line
    /// is overwritten before its number is reached again.
    pub(super) fn begin(&mut self, epoch: u32) {
        (self.epoch, self.next) = (epoch, 1);
        let numbers = &self.outbound.numbers;
        numbers[EPOCH].store(epoch.into(), Relaxed);
        numbers[REMOTE_LINES].store(self.outbound.lines.len() as u64, Relaxed);
    }

    /// Continues at a much later line.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, line: u32) {
        self.next = line;
    }

    /// Applies requests, once per batch. Returns `true` if a new epoch must [begin](Encoder::begin), as before the
    /// first one.
    pub(super) fn refresh(&mut self) -> bool {
        if self.epoch == 0 {
            return true;
        }
        let count = self.outbound.lines.len() as u32;
        let numbers = &self.outbound.numbers;
        let floor = numbers[FLOOR].load(Relaxed);
        self.floor = match floor >> 32 == u64::from(self.epoch) {
            true => (floor as u32).max(1),
            false => 1,
        };
        let lines = (numbers[REMOTE_LINES].load(Relaxed) as u32).min(count);
        self.reach = lines - lines.div_ceil(GUARD).min(lines);
        numbers[ENDED].load(Relaxed) == u64::from(self.epoch) || u32::MAX - self.next < MOST_OF_BATCH
    }

    /// Finds repeated regions of the content; fingerprints start at byte `from`. Returns the bytes
    /// [`write`](Encoder::write) will need. Does not store the content.
    pub(super) fn plan(&mut self, content: &[u8], from: usize) -> usize {
        self.make_room(lines_of(content.len()));
        let Encoder {
            windows,
            regions,
            fingerprints,
            shift,
            table,
            ..
        } = self;
        windows.clear();
        regions.clear();
        let sampled = content.get(from..).unwrap_or_default();
        fingerprints.sample(sampled, |at, window| {
            let slot = (fingerprint(window) >> *shift) as u32;
            windows.push(Window {
                at: (from + at) as u32,
                slot,
                seen: 0,
            });
        });
        // A separate loop, so that the table's cache misses overlap.
        for window in windows.iter_mut() {
            window.seen = table[window.slot as usize];
        }
        let mut covered = 0;
        for i in 0..self.windows.len() {
            let Window { at, seen, .. } = self.windows[i];
            let (at, seen) = (at as usize, seen as usize);
            if at < covered || self.regions.len() == MAX_REGIONS {
                continue;
            }
            let after = self.same_after(seen, &content[at..]);
            if after < WINDOW {
                continue;
            }
            let before = self.same_before(seen, &content[covered..at]);
            self.regions.push(Region {
                at: (at - before) as u16,
                length: (before + after) as u16,
                distance: self.distance(seen - before),
            });
            covered = at + after;
        }
        coded_length(content.len(), &self.regions)
    }

    /// Encodes the content last [planned](Encoder::plan), and stores it. Returns its encoded length; `None` if there is
    /// no room.
    pub(super) fn write(&mut self, content: &[u8], out: &mut [u8]) -> Option<usize> {
        let checksum = checksum(content, self.epoch, self.next);
        let numbers = [self.epoch, self.next, checksum];
        let length = header::write_content(out, content, &self.regions, numbers)?;
        let place = self.place(self.next);
        let start = place * LINE;
        let lines = lines_of(content.len());
        let end = start + lines as usize * LINE;
        self.bytes[start..start + content.len()].copy_from_slice(content);
        self.bytes[start + content.len()..end].fill(0);
        let places = &self.outbound.lines[place..place + lines as usize];
        for (place, line) in places.iter().zip(self.next..) {
            place.store(line, Relaxed);
        }
        for window in &self.windows {
            self.table[window.slot as usize] = start as u32 + window.at;
        }
        self.next += lines;
        Some(length)
    }

    /// Skips to the cache's start if this many lines would wrap around its end.
    fn make_room(&mut self, lines: u32) {
        let (place, count) = (self.place(self.next), self.outbound.lines.len());
        if place + lines as usize > count {
            self.outbound.lines[place..]
                .iter()
                .for_each(|place| place.store(NONE, Relaxed));
            self.next += (count - place) as u32;
        }
    }

    /// Returns a line's slot; the number of slots is a power of two.
    #[inline]
    fn place(&self, line: u32) -> usize {
        line as usize & (self.outbound.lines.len() - 1)
    }

    /// Returns `true` if the line in a slot may be referred to.
    #[inline]
    fn is_known(&self, place: usize) -> bool {
        let count = self.outbound.lines.len() as u32;
        let distance = (self.next.wrapping_sub(1 + place as u32) & (count - 1)) + 1;
        let line = self.next.wrapping_sub(distance);
        distance <= self.reach
            && distance < self.next
            && line >= self.floor
            && self.outbound.lines[place].load(Relaxed) == line
    }

    /// Returns the distance in bytes from a cache offset to the next content.
    fn distance(&self, at: usize) -> u32 {
        let size = self.bytes.len();
        let next = self.place(self.next) * LINE;
        ((next.wrapping_sub(at + 1) & (size - 1)) + 1) as u32
    }

    /// Returns the length of the match from cache offset `seen` on, within lines that may be referred to.
    fn same_after(&self, seen: usize, content: &[u8]) -> usize {
        let mut same = 0;
        while same < content.len() {
            let at = seen + same;
            let line = at / LINE;
            let end = (line + 1) * LINE;
            if at == self.bytes.len() || !self.is_known(line) {
                break;
            }
            let here = common_prefix(&self.bytes[at..end], &content[same..]);
            same += here;
            if at + here < end {
                break;
            }
        }
        same
    }

    /// Returns the length of the match that ends at cache offset `seen` and at the content's end, within lines that may
    /// be referred to.
    fn same_before(&self, seen: usize, content: &[u8]) -> usize {
        let mut same = 0;
        while same < content.len() {
            let at = seen - same;
            if at == 0 || !self.is_known((at - 1) / LINE) {
                break;
            }
            let start = (at - 1) / LINE * LINE;
            let here = common_suffix(&self.bytes[start..at], &content[..content.len() - same]);
            same += here;
            if at - here > start {
                break;
            }
        }
        same
    }
}
