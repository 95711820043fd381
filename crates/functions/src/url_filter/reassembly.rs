//! Buffers of an instance for text and segments that must wait: the current stream's buffer in the shared pool, or a
//! scratch area for streams without one.

use super::normalize::MAX_HOST;
use super::parser::Text;
use crate::stream_pool::{Lease, StreamPool, StreamPoolCache, Window, stride};
use bytemuck::{Pod, Zeroable};
use std::io;
use std::sync::Arc;
use tailwater_chain::region::CACHE_LINE;
use tailwater_net::Nanos;

/// Largest number of ranges that wait for a gap before them to be filled.
pub(super) const MAX_STRETCHES: usize = 16;

/// Range of stream bytes, `start` being a sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ByteRange {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// Header of a buffer.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BufferHeader {
    /// Buffered ranges, sorted and disjoint.
    pub(super) stretches: [ByteRange; MAX_STRETCHES],
    pub(super) count: u32,
}

/// Offset of a buffer's text, behind the header.
const HEAD: usize = (size_of::<BufferHeader>() + 8).next_multiple_of(64) - 8;

/// Returns a buffer's size in bytes: header, text (target and host), and a ring for out-of-order segments.
const fn content(size: usize) -> usize {
    HEAD + 2 * size + MAX_HOST
}

/// Returns the bytes of memory a buffer takes.
pub(super) const fn buffer_memory(size: usize) -> usize {
    stride(content(size))
}

/// Creates a pool of `count` buffers, each for `size` bytes of a request's target and as many out-of-order bytes.
/// `size` is a power of two, so that sequence numbers wrap where the ring does.
///
/// # Errors
/// There is not enough memory, or there are too many buffers.
///
/// # Panics
/// If `size` is not a power of two, or less than a cache line.
pub(super) fn pool(count: usize, size: usize) -> io::Result<StreamPool> {
    let fits = size.is_power_of_two() && size >= CACHE_LINE;
    assert!(fits, "a ring of {size} bytes");
    StreamPool::new(count, content(size))
}

impl ByteRange {
    fn end(self) -> u32 {
        self.start.wrapping_add(self.length)
    }
}

/// Returns the open buffer's header, and its text and ring.
#[inline]
fn parts(window: &mut Window) -> Option<(&mut BufferHeader, &mut [u8])> {
    let (head, bytes) = window.bytes_mut()?.split_at_mut(HEAD);
    Some((bytemuck::from_bytes_mut(&mut head[..size_of::<BufferHeader>()]), bytes))
}

/// Returns the open buffer's header.
#[inline]
fn header(window: &Window) -> Option<&BufferHeader> {
    let bytes = window.bytes()?;
    Some(bytemuck::from_bytes(&bytes[..size_of::<BufferHeader>()]))
}

/// Returns how far `a` lies after `b` in sequence space; negative if before.
#[inline]
pub(super) fn distance(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// There is no room for bytes that must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// An instance's access to the buffer pool. Nothing is allocated after [`Pool::new`].
#[derive(Debug)]
pub(super) struct Pool {
    window: StreamPoolCache,
    /// Target and host of a stream without a buffer.
    scratch: Box<[u8]>,
    size: usize,
}

impl Pool {
    /// Creates an instance's access to a buffer pool.
    pub(super) fn new(stock: Arc<StreamPool>) -> Pool {
        let size = (stock.bytes() - HEAD - MAX_HOST) / 2;
        Pool {
            window: StreamPoolCache::new(stock),
            scratch: vec![0; size + MAX_HOST].into(),
            size,
        }
    }

    /// Takes a buffer while none is open, and copies target and host of these lengths from the scratch area. If none is
    /// free, takes that of a stream idle for long.
    pub(super) fn take(&mut self, now: Nanos, target: u16, host: u16) -> Option<Lease> {
        let lease = self.window.take(now)?;
        if let Some(next) = self.window.next() {
            let places = self.touched(0);
            self.window.pool().prefetch(next, places);
        }
        let (kept, bytes) = parts(&mut self.window)?;
        kept.count = 0;
        let (target, host) = (usize::from(target), usize::from(host));
        bytes[..target].copy_from_slice(&self.scratch[..target]);
        let (from, to) = (self.size, self.size + host);
        bytes[from..to].copy_from_slice(&self.scratch[from..to]);
        Some(lease)
    }

    /// Opens a stream's buffer while none is open, and prefetches it for the byte with this sequence number. Returns
    /// `false` if the stream has lost the buffer.
    #[inline]
    pub(super) fn open(&mut self, lease: Lease, sequence: u32) -> bool {
        let places = self.touched(sequence);
        self.window.pool().prefetch(lease.slot, places);
        self.window.open(lease)
    }

    /// Returns the offsets a buffer is accessed at first: header, start of the text, and the ring at this sequence
    /// number.
    #[inline]
    fn touched(&self, sequence: u32) -> [usize; 3] {
        let ring = HEAD + self.size + MAX_HOST + (sequence as usize & (self.size - 1));
        [64, HEAD, ring]
    }

    /// Returns `true` if a buffer is open.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.window.is_open()
    }

    /// Closes the open buffer, if any; its stream keeps it.
    #[inline]
    pub(super) fn close(&mut self, now: Nanos) {
        self.window.close(now);
    }

    /// Releases the open buffer.
    pub(super) fn release(&mut self) {
        self.window.release();
    }

    /// Returns the open buffer's text, or the scratch area's, and the ring.
    #[inline]
    fn split(&mut self) -> (Text<'_>, &mut [u8]) {
        let bytes = match parts(&mut self.window) {
            Some((_, bytes)) => bytes,
            None => &mut self.scratch,
        };
        let (target, rest) = bytes.split_at_mut(self.size);
        let (host, ring) = rest.split_at_mut(MAX_HOST);
        (Text { target, host }, ring)
    }

    /// Returns the open buffer's text, or the scratch area's.
    #[inline]
    pub(super) fn text(&mut self) -> Text<'_> {
        self.split().0
    }

    /// Returns the ranges in the open buffer; the scratch area has none.
    #[inline]
    pub(super) fn stretches(&self) -> &[ByteRange] {
        let kept = header(&self.window);
        kept.map_or(&[], |kept| &kept.stretches[..kept.count as usize])
    }

    /// Returns the first buffered bytes, as far as they are contiguous in the ring, and the text.
    pub(super) fn first(&mut self) -> Option<(&[u8], Text<'_>)> {
        let stretch = *self.stretches().first()?;
        let (text, ring) = self.split();
        let start = stretch.start as usize % ring.len();
        let end = ring.len().min(start + stretch.length as usize);
        Some((&ring[start..end], text))
    }

    /// Discards buffered bytes before `next`.
    pub(super) fn discard_before(&mut self, next: u32) {
        let Some((kept, _)) = parts(&mut self.window) else {
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

    /// Returns `true` if bytes of a segment differ from buffered ones at the same positions.
    pub(super) fn conflicts(&mut self, sequence: u32, data: &[u8]) -> bool {
        let Some(&BufferHeader { stretches, count }) = header(&self.window) else {
            return false;
        };
        let (_, ring) = self.split();
        stretches[..count as usize].iter().any(|stretch| {
            let from = distance(stretch.start, sequence).clamp(0, data.len() as i32) as usize;
            let to = distance(stretch.end(), sequence).clamp(0, data.len() as i32) as usize;
            data[from..to.max(from)].iter().enumerate().any(|(i, &byte)| {
                let at = sequence.wrapping_add((from + i) as u32) as usize;
                ring[at % ring.len()] != byte
            })
        })
    }

    /// Copies a segment after `next` to the open buffer; bytes already buffered are not overwritten.
    pub(super) fn insert(&mut self, next: u32, sequence: u32, data: &[u8]) -> Result<(), NoRoom> {
        let new = ByteRange {
            start: sequence,
            length: data.len() as u32,
        };
        let end = i64::from(distance(sequence, next)) + data.len() as i64;
        if end > self.size as i64 {
            return Err(NoRoom);
        }
        let BufferHeader { stretches: old, count } = *header(&self.window).ok_or(NoRoom)?;
        let old = &old[..count as usize];
        let mut merged = new;
        let mut kept = [ByteRange::default(); MAX_STRETCHES];
        let mut count = 0;
        for &stretch in old {
            let apart = distance(stretch.end(), new.start) < 0 || distance(stretch.start, new.end()) > 0;
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
        // Fills gap by gap: the bytes between the old ranges are new.
        for stretch in old.iter().chain([&ByteRange {
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
        let (present, _) = parts(&mut self.window).ok_or(NoRoom)?;
        *present = BufferHeader {
            stretches: kept,
            count: count as u32 + 1,
        };
        Ok(())
    }
}
