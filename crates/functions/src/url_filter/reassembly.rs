//! Buffers of an instance for text and segments that must wait: the current stream's buffer in the shared pool, or a
//! scratch area for streams without one.

use crate::stream_pool::{Lease, StreamPool, StreamPoolCache, Window, stride};
use std::io;
use std::sync::Arc;
use tailwater_chain::region::CACHE_LINE;
use tailwater_net::Nanos;
use tailwater_streams::http::host::MAX_HOST;
use tailwater_streams::ranges::ByteRange;
use tailwater_streams::ring::{NoRoom, RingState};
use tailwater_streams::state::Text;

/// Offset of a buffer's text, behind the header.
const HEAD: usize = (size_of::<RingState>() + 8).next_multiple_of(64) - 8;

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

/// Returns the open buffer's header, and its text and ring.
#[inline]
fn parts(window: &mut Window) -> Option<(&mut RingState, &mut [u8])> {
    let (head, bytes) = window.bytes_mut()?.split_at_mut(HEAD);
    Some((bytemuck::from_bytes_mut(&mut head[..size_of::<RingState>()]), bytes))
}

/// Returns the open buffer's header.
#[inline]
fn header(window: &Window) -> Option<&RingState> {
    let bytes = window.bytes()?;
    Some(bytemuck::from_bytes(&bytes[..size_of::<RingState>()]))
}

/// Splits a buffer with `size` bytes of a target, or the scratch area, into text and ring.
#[inline]
fn split(bytes: &mut [u8], size: usize) -> (Text<'_>, &mut [u8]) {
    let (target, rest) = bytes.split_at_mut(size);
    let (host, ring) = rest.split_at_mut(MAX_HOST);
    (Text { target, host }, ring)
}

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
        let (state, bytes) = parts(&mut self.window)?;
        state.clear();
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

    /// Number of the buffer pool.
    pub(super) fn number(&self) -> u32 {
        self.window.pool().number()
    }

    /// Appends the bytes of a stream's buffer while none is open, unless the stream has lost it.
    pub(super) fn copy_out(&mut self, lease: Lease, now: Nanos, out: &mut Vec<u8>) {
        if self.window.open(lease) {
            out.extend_from_slice(self.window.bytes().unwrap_or_default());
            self.window.close(now);
        }
    }

    /// Takes a buffer while none is open, and fills it with the bytes of one of another pool. `None` if none is free,
    /// or it is of another size.
    pub(super) fn copy_in(&mut self, bytes: &[u8], now: Nanos) -> Option<Lease> {
        let lease = self.window.take(now)?;
        match self.window.bytes_mut().filter(|own| own.len() == bytes.len()) {
            Some(own) => {
                own.copy_from_slice(bytes);
                self.window.close(now);
                Some(lease)
            }
            None => {
                self.window.release();
                None
            }
        }
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

    /// Returns the open buffer's text, or the scratch area's.
    #[inline]
    pub(super) fn text(&mut self) -> Text<'_> {
        let bytes = match parts(&mut self.window) {
            Some((_, bytes)) => bytes,
            None => &mut self.scratch,
        };
        split(bytes, self.size).0
    }

    /// Returns the ranges in the open buffer; the scratch area has none.
    #[inline]
    pub(super) fn ranges(&self) -> &[ByteRange] {
        header(&self.window).map_or(&[], RingState::ranges)
    }

    /// Returns the open buffer's ring.
    #[inline]
    fn ring(&mut self) -> Option<(&mut RingState, &mut [u8])> {
        let at = self.size + MAX_HOST;
        let (state, bytes) = parts(&mut self.window)?;
        Some((state, &mut bytes[at..]))
    }

    /// Returns the first buffered bytes, as far as they are contiguous in the ring, and the text.
    pub(super) fn first(&mut self) -> Option<(&[u8], Text<'_>)> {
        let (state, bytes) = parts(&mut self.window)?;
        let (text, ring) = split(bytes, self.size);
        Some((state.first(ring)?, text))
    }

    /// Discards buffered bytes before `next`.
    pub(super) fn discard_before(&mut self, next: u32) {
        if let Some((state, _)) = self.ring() {
            state.discard_before(next);
        }
    }

    /// Returns `true` if bytes of a segment differ from buffered ones at the same positions.
    pub(super) fn conflicts(&mut self, sequence: u32, data: &[u8]) -> bool {
        let ring = self.ring();
        ring.is_some_and(|(state, ring)| state.conflicts(ring, sequence, data))
    }

    /// Copies a segment after `next` to the open buffer; bytes already buffered are not overwritten.
    pub(super) fn insert(&mut self, next: u32, sequence: u32, data: &[u8]) -> Result<(), NoRoom> {
        let (state, ring) = self.ring().ok_or(NoRoom)?;
        state.insert(ring, next, sequence, data)
    }
}
