//! Buffers for streams whose text or segments have to be kept: a fixed number, each of a fixed size.

use super::normalize::MAX_HOST;
use super::parser::Text;
use tailwater_net::Nanos;

/// Most stretches of bytes that wait for a gap in front of them to be filled.
const MAX_STRETCHES: usize = 16;
/// A buffer whose stream has been silent for this long is taken back when there is no free one.
pub(crate) const SILENT: Nanos = Nanos::from_secs(10);
/// The buffer for what is found within one packet: it has no owner.
pub(crate) const SCRATCH: u32 = 0;
const NONE: u32 = u32::MAX;

/// Bytes of a stream from `start` on, as sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl Stretch {
    fn end(self) -> u32 {
        self.start.wrapping_add(self.length)
    }
}

/// How far `a` lies behind `b`; negative if in front.
#[inline]
pub(crate) fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// What is known of a buffer.
#[derive(Clone, Debug)]
struct Buffer {
    /// In order, apart from each other.
    stretches: [Stretch; MAX_STRETCHES],
    count: u8,
    taken: bool,
    /// Goes up each time the buffer is taken, so that a stream sees that it lost it.
    generation: u16,
    used: Nanos,
    /// Neighbours in the list of taken buffers, the one used last first; `next` in that of free ones.
    previous: u32,
    next: u32,
}

/// There is no room for what must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// A worker's buffers. Nothing is allocated after [`Pool::new`].
#[derive(Debug)]
pub(crate) struct Pool {
    /// For each buffer the text (target, host) and a ring for segments out of order.
    bytes: Box<[u8]>,
    buffers: Box<[Buffer]>,
    size: usize,
    free: u32,
    newest: u32,
    oldest: u32,
}

impl Pool {
    /// So many buffers, each for `size` bytes of a request's target and as many out of order: a power
    /// of two, so that sequence numbers wrap around where the ring does.
    pub(crate) fn new(streams: usize, size: usize) -> Pool {
        assert!(size.is_power_of_two(), "a ring of {size} bytes");
        let count = streams + 1;
        let buffer = |i: usize| Buffer {
            stretches: [Stretch::default(); MAX_STRETCHES],
            count: 0,
            taken: false,
            generation: 0,
            used: Nanos::ZERO,
            previous: NONE,
            next: if i + 1 < count { i as u32 + 1 } else { NONE },
        };
        Pool {
            // Not zero, so that the memory is there before the first packet.
            bytes: vec![0xff; count * stride(size)].into(),
            buffers: (0..count).map(buffer).collect(),
            size,
            free: if count > 1 { 1 } else { NONE },
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Takes a buffer, with a copy of the scratch text's first bytes: target and host of these
    /// lengths. Without a free one, that of the stream silent for longest, if that is long enough.
    pub(crate) fn take(&mut self, now: Nanos, target: u16, host: u16) -> Option<(u32, u16)> {
        if self.free == NONE {
            let oldest = self.oldest;
            let used = self.buffers.get(oldest as usize)?.used;
            if now.saturating_sub(used) < SILENT {
                return None;
            }
            self.unlink(oldest);
            self.buffers[oldest as usize].next = self.free;
            self.free = oldest;
        }
        let place = self.free;
        let buffer = &mut self.buffers[place as usize];
        self.free = buffer.next;
        buffer.taken = true;
        buffer.generation = buffer.generation.wrapping_add(1);
        buffer.count = 0;
        let generation = buffer.generation;
        self.link(place, now);
        let at = self.at(place);
        self.bytes.copy_within(..usize::from(target), at);
        let (from, to) = (self.size, at + self.size);
        self.bytes.copy_within(from..from + usize::from(host), to);
        Some((place, generation))
    }

    /// Whether a stream still has its buffer.
    pub(crate) fn holds(&self, place: u32, generation: u16) -> bool {
        let buffer = self.buffers.get(place as usize);
        buffer.is_some_and(|buffer| buffer.taken && buffer.generation == generation)
    }

    /// Notes that a taken buffer is in use.
    pub(crate) fn touch(&mut self, place: u32, now: Nanos) {
        if self.newest != place {
            self.unlink(place);
            self.link(place, now);
        }
        self.buffers[place as usize].used = now;
    }

    /// Gives a taken buffer back.
    pub(crate) fn give(&mut self, place: u32) {
        self.unlink(place);
        let buffer = &mut self.buffers[place as usize];
        (buffer.taken, buffer.next) = (false, self.free);
        self.free = place;
    }

    fn link(&mut self, place: u32, now: Nanos) {
        let newest = self.newest;
        let buffer = &mut self.buffers[place as usize];
        (buffer.previous, buffer.next, buffer.used) = (NONE, newest, now);
        match self.buffers.get_mut(newest as usize) {
            Some(newest) => newest.previous = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let buffer = &self.buffers[place as usize];
        let (previous, next) = (buffer.previous, buffer.next);
        match self.buffers.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.newest = next,
        }
        match self.buffers.get_mut(next as usize) {
            Some(next) => next.previous = previous,
            None => self.oldest = previous,
        }
    }

    fn at(&self, place: u32) -> usize {
        place as usize * stride(self.size)
    }

    /// A buffer's text, and its ring.
    fn split(&mut self, place: u32) -> (Text<'_>, &mut [u8]) {
        let at = self.at(place);
        let bytes = &mut self.bytes[at..at + stride(self.size)];
        let (target, rest) = bytes.split_at_mut(self.size);
        let (host, ring) = rest.split_at_mut(MAX_HOST);
        (Text { target, host }, ring)
    }

    /// A buffer's text.
    pub(crate) fn text(&mut self, place: u32) -> Text<'_> {
        self.split(place).0
    }

    /// The stretches that a buffer keeps.
    pub(crate) fn stretches(&self, place: u32) -> &[Stretch] {
        let buffer = &self.buffers[place as usize];
        &buffer.stretches[..usize::from(buffer.count)]
    }

    /// The first bytes that a buffer keeps, as many as lie together in its ring, and its text.
    pub(crate) fn first(&mut self, place: u32) -> Option<(&[u8], Text<'_>)> {
        let stretch = *self.stretches(place).first()?;
        let (text, ring) = self.split(place);
        let start = stretch.start as usize % ring.len();
        let end = ring.len().min(start + stretch.length as usize);
        Some((&ring[start..end], text))
    }

    /// Forgets what is kept in front of `next`.
    pub(crate) fn forget_before(&mut self, place: u32, next: u32) {
        let buffer = &mut self.buffers[place as usize];
        let mut gone = 0;
        for stretch in &mut buffer.stretches[..usize::from(buffer.count)] {
            if distance(stretch.end(), next) <= 0 {
                gone += 1;
                continue;
            }
            let cut = distance(next, stretch.start).max(0) as u32;
            stretch.start = stretch.start.wrapping_add(cut);
            stretch.length -= cut;
            break;
        }
        buffer
            .stretches
            .copy_within(gone..usize::from(buffer.count), 0);
        buffer.count -= gone as u8;
    }

    /// Whether bytes of a segment differ from what is kept in their place.
    pub(crate) fn conflicts(&mut self, place: u32, sequence: u32, data: &[u8]) -> bool {
        let stretches = self.buffers[place as usize].stretches;
        let count = usize::from(self.buffers[place as usize].count);
        let (_, ring) = self.split(place);
        stretches[..count].iter().any(|stretch| {
            let from = distance(stretch.start, sequence).clamp(0, data.len() as i32) as usize;
            let to = distance(stretch.end(), sequence).clamp(0, data.len() as i32) as usize;
            data[from..to.max(from)]
                .iter()
                .enumerate()
                .any(|(i, &byte)| {
                    let at = sequence.wrapping_add((from + i) as u32) as usize;
                    ring[at % ring.len()] != byte
                })
        })
    }

    /// Keeps a segment that lies behind `next`; bytes that are there already stay.
    pub(crate) fn keep(
        &mut self,
        place: u32,
        next: u32,
        sequence: u32,
        data: &[u8],
    ) -> Result<(), NoRoom> {
        let new = Stretch {
            start: sequence,
            length: data.len() as u32,
        };
        let end = i64::from(distance(sequence, next)) + data.len() as i64;
        if end > self.size as i64 {
            return Err(NoRoom);
        }
        let old = self.buffers[place as usize].stretches;
        let old = &old[..usize::from(self.buffers[place as usize].count)];
        let mut merged = new;
        let mut kept = [Stretch::default(); MAX_STRETCHES];
        let mut count = 0;
        for &stretch in old {
            let apart =
                distance(stretch.end(), new.start) < 0 || distance(stretch.start, new.end()) > 0;
            if apart {
                *kept.get_mut(count).ok_or(NoRoom)? = stretch;
                count += 1;
            } else {
                let end = if distance(stretch.end(), merged.end()) > 0 {
                    stretch.end()
                } else {
                    merged.end()
                };
                if distance(stretch.start, merged.start) < 0 {
                    merged.start = stretch.start;
                }
                merged.length = end.wrapping_sub(merged.start);
            }
        }
        let before = kept[..count].partition_point(|s| distance(s.start, merged.start) < 0);
        if count == MAX_STRETCHES {
            return Err(NoRoom);
        }
        kept.copy_within(before..count, before + 1);
        kept[before] = merged;
        let (_, ring) = self.split(place);
        let mut at = new.start;
        let mut rest = data;
        // Gap by gap: what lies between the old stretches is new.
        for stretch in old.iter().chain([&Stretch {
            start: new.end(),
            length: 0,
        }]) {
            let gap = distance(stretch.start, at).clamp(0, rest.len() as i32) as usize;
            let ring_length = ring.len();
            for (i, &byte) in rest[..gap].iter().enumerate() {
                ring[at.wrapping_add(i as u32) as usize % ring_length] = byte;
            }
            let past = distance(stretch.end(), at).clamp(0, rest.len() as i32) as usize;
            at = at.wrapping_add(past as u32);
            rest = &rest[past..];
        }
        let buffer = &mut self.buffers[place as usize];
        (buffer.stretches, buffer.count) = (kept, count as u8 + 1);
        Ok(())
    }
}

/// Bytes of a buffer.
pub(crate) const fn stride(size: usize) -> usize {
    2 * size + MAX_HOST
}
