//! What an instance keeps of streams whose text or segments have to wait: in a buffer of the shared
//! stock, the one of the stream at hand, or in a scratch for what is found within one packet.

use super::normalize::MAX_HOST;
use super::parser::Text;
use super::stock::{Kept, Lease, MAX_STRETCHES, Stock, Stretch, Window};
use std::sync::Arc;
use tailwater_net::Nanos;

impl Stretch {
    fn end(self) -> u32 {
        self.start.wrapping_add(self.length)
    }
}

/// How far `a` lies behind `b`; negative if in front.
#[inline]
pub(super) fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// There is no room for what must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// An instance's buffers. Nothing is allocated after [`Pool::new`].
#[derive(Debug)]
pub(super) struct Pool {
    window: Window,
    /// Free buffers of this instance, so that instances seldom meet at the stock.
    free: Vec<u32>,
    /// Most of these, and how many change hands at a time.
    hoard: usize,
    block: usize,
    /// Target and host of a stream that has no buffer.
    scratch: Box<[u8]>,
    size: usize,
}

impl Pool {
    /// An instance's part of a stock.
    pub(super) fn new(stock: Arc<Stock>) -> Pool {
        let size = stock.size();
        // What is free with one instance is not there for others: of a small stock nothing is.
        let hoard = (stock.count() / 128).min(64);
        Pool {
            free: Vec::with_capacity(hoard + 1),
            hoard,
            block: (hoard / 2).max(1),
            window: Window::new(stock),
            scratch: vec![0; size + MAX_HOST].into(),
            size,
        }
    }

    /// Takes a buffer, none being open, with a copy of the scratch text's first bytes: target and host
    /// of these lengths. Without a free one, that of a stream silent for long.
    pub(super) fn take(&mut self, now: Nanos, target: u16, host: u16) -> Option<Lease> {
        if self.free.is_empty() {
            self.window.stock().get(self.block, &mut self.free);
        }
        let lease = match self.free.pop() {
            Some(place) => self.window.take(place),
            None => self.window.take_silent(now),
        }?;
        if let Some(next) = self.free.last() {
            self.window.stock().prefetch(*next, 0);
        }
        let (kept, bytes) = self.window.parts()?;
        kept.count = 0;
        let (target, host) = (usize::from(target), usize::from(host));
        bytes[..target].copy_from_slice(&self.scratch[..target]);
        let (from, to) = (self.size, self.size + host);
        bytes[from..to].copy_from_slice(&self.scratch[from..to]);
        Some(lease)
    }

    /// Opens a stream's buffer, none being open, so that what follows is about it: about the byte of this
    /// number, probably. `false` if the stream has lost it.
    #[inline]
    pub(super) fn open(&mut self, lease: Lease, sequence: u32) -> bool {
        self.window.stock().prefetch(lease.place, sequence);
        self.window.open(lease)
    }

    /// Whether a buffer is open.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.window.is_open()
    }

    /// Closes the buffer that is open, if one is; its stream keeps it.
    #[inline]
    pub(super) fn close(&mut self, now: Nanos) {
        self.window.close(now);
    }

    /// Gives back the buffer that is open.
    pub(super) fn give(&mut self) {
        let Some(place) = self.window.free() else {
            return;
        };
        self.free.push(place);
        if self.free.len() > self.hoard {
            // The ones used last, which are warm, stay.
            let surplus = self.block.min(self.free.len());
            self.window.stock().put(&self.free[..surplus]);
            self.free.drain(..surplus);
        }
    }

    /// The text of the buffer that is open, or the scratch's, and the ring.
    #[inline]
    fn split(&mut self) -> (Text<'_>, &mut [u8]) {
        let bytes = match self.window.parts() {
            Some((_, bytes)) => bytes,
            None => &mut self.scratch,
        };
        let (target, rest) = bytes.split_at_mut(self.size);
        let (host, ring) = rest.split_at_mut(MAX_HOST);
        (Text { target, host }, ring)
    }

    /// The text of the buffer that is open, or the scratch's.
    #[inline]
    pub(super) fn text(&mut self) -> Text<'_> {
        self.split().0
    }

    /// The stretches that the buffer which is open keeps; the scratch keeps none.
    #[inline]
    pub(super) fn stretches(&self) -> &[Stretch] {
        let kept = self.window.kept();
        kept.map_or(&[], |kept| &kept.stretches[..kept.count as usize])
    }

    /// The first bytes that are kept, as many as lie together in the ring, and the text.
    pub(super) fn first(&mut self) -> Option<(&[u8], Text<'_>)> {
        let stretch = *self.stretches().first()?;
        let (text, ring) = self.split();
        let start = stretch.start as usize % ring.len();
        let end = ring.len().min(start + stretch.length as usize);
        Some((&ring[start..end], text))
    }

    /// Forgets what is kept in front of `next`.
    pub(super) fn forget_before(&mut self, next: u32) {
        let Some((kept, _)) = self.window.parts() else {
            return;
        };
        let count = kept.count as usize;
        let mut gone = 0;
        for stretch in &mut kept.stretches[..count] {
            if distance(stretch.end(), next) <= 0 {
                gone += 1;
                continue;
            }
            let cut = distance(next, stretch.start).max(0) as u32;
            stretch.start = stretch.start.wrapping_add(cut);
            stretch.length -= cut;
            break;
        }
        kept.stretches.copy_within(gone..count, 0);
        kept.count -= gone as u32;
    }

    /// Whether bytes of a segment differ from what is kept in their place.
    pub(super) fn conflicts(&mut self, sequence: u32, data: &[u8]) -> bool {
        let Some(&Kept { stretches, count }) = self.window.kept() else {
            return false;
        };
        let (_, ring) = self.split();
        stretches[..count as usize].iter().any(|stretch| {
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

    /// Keeps a segment that lies behind `next` in the buffer that is open; bytes that are there already
    /// stay.
    pub(super) fn keep(&mut self, next: u32, sequence: u32, data: &[u8]) -> Result<(), NoRoom> {
        let new = Stretch {
            start: sequence,
            length: data.len() as u32,
        };
        let end = i64::from(distance(sequence, next)) + data.len() as i64;
        if end > self.size as i64 {
            return Err(NoRoom);
        }
        let Kept {
            stretches: old,
            count,
        } = *self.window.kept().ok_or(NoRoom)?;
        let old = &old[..count as usize];
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
        let (_, ring) = self.split();
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
        let (present, _) = self.window.parts().ok_or(NoRoom)?;
        *present = Kept {
            stretches: kept,
            count: count as u32 + 1,
        };
        Ok(())
    }
}

/// What is free with this instance goes back.
impl Drop for Pool {
    fn drop(&mut self) {
        self.give();
        self.window.stock().put(&self.free);
    }
}
