//! The end of a stream that finds what was sent before.

use super::checksum::{checksum, fingerprint};
use super::header::{self, MAX_REGIONS, Region, Request, coded_length};
use super::sampling::Fingerprints;
use super::text::{common_prefix, common_suffix};
use super::{LINE, MAX_CONTENT, WINDOW, lines_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tailwater_chain::batch::MAX_BATCH;

/// No line: they are numbered from 1 on.
const NONE: u32 = 0;
/// One of so many lines, the oldest, are not referred to any more: packets that overtake others on their way may have taken their
/// places already.
const GUARD: u32 = 16;

/// The most lines of a batch: its packets are the longest, and as many lines are left out before each, at the cache's end.
pub(super) const MOST_OF_BATCH: u32 = (2 * MAX_BATCH * MAX_CONTENT.div_ceil(LINE)) as u32;

/// What an encoder shares with the instance that a request comes to, on whichever core: nothing that must be seen in an order.
pub(super) struct Outbound {
    /// For each place of the cache, the line that is there and may be referred to.
    lines: Box<[AtomicU32]>,
    epoch: AtomicU32,
    /// An epoch that is to end.
    ended: AtomicU32,
    /// An epoch, and the first line of it that may be referred to in the low half.
    floor: AtomicU64,
    /// Lines that the other end has room for.
    remote_lines: AtomicU32,
}

impl Outbound {
    /// For a cache of so many bytes; `None` if there is no memory.
    pub(super) fn new(bytes: u64) -> Option<Outbound> {
        let count = bytes as usize / LINE;
        Some(Outbound {
            lines: bytemuck::allocation::try_zeroed_slice_box(count).ok()?,
            epoch: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            floor: AtomicU64::new(0),
            remote_lines: AtomicU32::new(count as u32),
        })
    }

    /// Does what the other end asks for. `false`: it is about an epoch that has ended.
    pub(super) fn heed(&self, request: &Request<'_>) -> bool {
        let epoch = self.epoch.load(Relaxed);
        if request.epoch != epoch {
            return false;
        }
        if request.reset {
            self.ended.store(epoch, Relaxed);
        }
        self.remote_lines.store(request.lines, Relaxed);
        let floor = u64::from(epoch) << 32 | u64::from(request.since);
        let _ = self.floor.fetch_update(Relaxed, Relaxed, |before| {
            (before >> 32 != floor >> 32 || before < floor).then_some(floor)
        });
        for [first, count] in request.ranges() {
            for line in first..first + count {
                let place = &self.lines[line as usize & (self.lines.len() - 1)];
                // Unless another one is there by now.
                let _ = place.compare_exchange(line, NONE, Relaxed, Relaxed);
            }
        }
        true
    }
}

/// A window of the content: where it starts, its place in the table of fingerprints, and where that was seen.
#[derive(Clone, Copy)]
struct Window {
    at: u32,
    slot: u32,
    seen: u32,
}

/// Codes content by what was sent before, and remembers it.
pub(super) struct Encoder {
    outbound: Arc<Outbound>,
    fingerprints: Fingerprints,
    /// The cache: content begins at whole lines, and does not go round the end.
    bytes: Box<[u8]>,
    /// By fingerprint, where in the cache a window with it was seen. What is there now is compared, so that nothing has to be
    /// taken out.
    table: Box<[u32]>,
    shift: u32,
    epoch: u32,
    /// The next content's first line.
    next: u32,
    /// The first line that may be referred to, and how far back lines may be.
    floor: u32,
    reach: u32,
    windows: Vec<Window>,
    regions: Vec<Region>,
}

impl Encoder {
    /// An encoder whose first epoch is `epoch`, for a cache of as many bytes as `outbound` has.
    pub(super) fn new(outbound: Arc<Outbound>, fingerprints: Fingerprints, epoch: u32) -> Encoder {
        let bytes = outbound.lines.len() * LINE;
        // Twice the room that fingerprints need: few are written over before their windows are.
        let slots = (2 * bytes / usize::from(fingerprints.period)).next_power_of_two();
        let mut encoder = Encoder {
            bytes: vec![0; bytes].into(),
            table: vec![0; slots].into(),
            shift: u64::BITS - slots.trailing_zeros(),
            windows: Vec::with_capacity(fingerprints.most(MAX_CONTENT)),
            regions: Vec::with_capacity(MAX_REGIONS),
            outbound,
            fingerprints,
            epoch,
            next: 1,
            floor: 1,
            reach: 0,
        };
        encoder.begin(epoch);
        encoder
    }

    /// Begins an epoch. Places of earlier ones need not be cleared: lines have their places by their numbers, so none of these is
    /// taken for a line of this epoch before it has been written over.
    pub(super) fn begin(&mut self, epoch: u32) {
        (self.epoch, self.next) = (epoch, 1);
        self.outbound.epoch.store(epoch, Relaxed);
        let lines = self.outbound.lines.len() as u32;
        self.outbound.remote_lines.store(lines, Relaxed);
    }

    /// Goes on at a line far behind.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, line: u32) {
        self.next = line;
    }

    /// Has the encoder do what was asked for; once a batch. `true`: it needs a new epoch to [begin](Encoder::begin).
    pub(super) fn refresh(&mut self) -> bool {
        let count = self.outbound.lines.len() as u32;
        let floor = self.outbound.floor.load(Relaxed);
        self.floor = match floor >> 32 == u64::from(self.epoch) {
            true => (floor as u32).max(1),
            false => 1,
        };
        let lines = self.outbound.remote_lines.load(Relaxed).min(count);
        self.reach = lines - lines.div_ceil(GUARD).min(lines);
        self.outbound.ended.load(Relaxed) == self.epoch || u32::MAX - self.next < MOST_OF_BATCH
    }

    /// Finds what of the content was sent before; fingerprints are taken from byte `from` on. Gives the bytes that
    /// [`write`](Encoder::write) will need. Nothing is remembered yet.
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
        // Apart from what is done with each: so the memory is waited for only once.
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

    /// Writes content that was [planned](Encoder::plan) just now, and remembers it. Gives its bytes; `None` if there is no room.
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

    /// Has the next content begin where so many lines do not go round the cache's end.
    fn make_room(&mut self, lines: u32) {
        let (place, count) = (self.place(self.next), self.outbound.lines.len());
        if place + lines as usize > count {
            self.outbound.lines[place..]
                .iter()
                .for_each(|place| place.store(NONE, Relaxed));
            self.next += (count - place) as u32;
        }
    }

    /// The place of a line: their number is a power of two.
    #[inline]
    fn place(&self, line: u32) -> usize {
        line as usize & (self.outbound.lines.len() - 1)
    }

    /// Whether the line that a place has may be referred to.
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

    /// How many bytes before the next content a byte of the cache is.
    fn distance(&self, at: usize) -> u32 {
        let size = self.bytes.len();
        let next = self.place(self.next) * LINE;
        ((next.wrapping_sub(at + 1) & (size - 1)) + 1) as u32
    }

    /// Bytes from there on that are the content's, in lines that may be referred to.
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

    /// Bytes before it that are those at the content's end, likewise.
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
