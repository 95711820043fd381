//! Packet buffers: fixed-size pieces of one region, addressed by index.

use crate::region::{CACHE_LINE, Region};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes kept free before a frame, so that a function can push headers without moving the frame.
pub const HEADROOM: usize = 128;

/// The longest frame any buffer holds: lengths and header offsets are 16 bits wide.
pub const MAX_FRAME: usize = 65_535;

/// A buffer. Whoever holds the handle owns the memory: handles are made by a
/// [`BufferPool`] only, once for each buffer, and cannot be copied.
#[derive(Debug)]
pub struct Buffer {
    index: u32,
    pool: u16,
}

impl Buffer {
    /// The buffer's place in its region.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (u32, u16) {
        (self.index, self.pool)
    }

    /// What [`into_parts`](Buffer::into_parts) took apart, once.
    #[inline]
    pub(crate) fn from_parts(index: u32, pool: u16) -> Buffer {
        Buffer { index, pool }
    }
}

/// The shape of a pool's region: what is needed to find a buffer's bytes.
#[derive(Clone, Debug)]
pub struct BufferMemory {
    region: Arc<Region>,
    /// Bytes from one buffer to the next.
    stride: usize,
    count: u32,
    pool: u16,
}

impl BufferMemory {
    /// Whether `buffer` belongs to this memory.
    #[inline]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool == self.pool
    }

    /// The pool's number.
    pub(crate) fn pool(&self) -> u16 {
        self.pool
    }

    /// Bytes in a buffer, headroom included.
    #[inline]
    pub fn buffer_bytes(&self) -> usize {
        self.stride
    }

    /// The memory of one buffer, headroom included.
    ///
    /// # Panics
    /// If the buffer is of another pool.
    #[inline]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.view().bytes(buffer)
    }

    /// The memory of one buffer, headroom included, to write.
    ///
    /// # Panics
    /// If the buffer is of another pool.
    #[inline]
    // The borrow of `buffer`, not of `self`, makes access exclusive.
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        self.view().bytes_mut(buffer)
    }

    /// The same in registers, for loops over a batch.
    #[inline]
    pub(crate) fn view(&self) -> BufferView<'_> {
        BufferView {
            base: self.region.base(),
            stride: self.stride,
            count: self.count,
            pool: self.pool,
            memory: PhantomData,
        }
    }
}

/// A [`BufferMemory`], borrowed, without the way to its region: a compiler that must assume that every
/// byte written might be of a `BufferMemory` reads that anew for each packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferView<'m> {
    base: *mut u8,
    stride: usize,
    count: u32,
    pool: u16,
    memory: PhantomData<&'m BufferMemory>,
}

impl<'m> BufferView<'m> {
    /// As [`BufferMemory::bytes`].
    #[inline]
    pub(crate) fn bytes<'a>(self, buffer: &'a Buffer) -> &'a [u8]
    where
        'm: 'a,
    {
        // SAFETY: the pool made this handle, so `index < count` and the range lies in the region,
        // which the borrowed memory keeps alive and whose bytes are initialised. The handle is the
        // only one for this buffer, and is borrowed shared: nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.start(buffer), self.stride) }
    }

    /// As [`BufferMemory::bytes_mut`].
    #[inline]
    pub(crate) fn bytes_mut<'a>(self, buffer: &'a mut Buffer) -> &'a mut [u8]
    where
        'm: 'a,
    {
        // SAFETY: as in `bytes`; the only handle of this buffer is borrowed exclusively for as long
        // as the slice lives, and buffers do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start(buffer), self.stride) }
    }

    /// The first byte of a buffer's memory.
    ///
    /// # Panics
    /// If the buffer is of another pool.
    #[inline]
    pub(crate) fn start(self, buffer: &Buffer) -> *mut u8 {
        assert!(buffer.pool == self.pool, "a buffer of another pool");
        debug_assert!(buffer.index < self.count);
        self.base.wrapping_add(buffer.index as usize * self.stride)
    }
}

/// The free buffers of one region. Last in, first out: the buffer used last is the warmest.
#[derive(Debug)]
pub struct BufferPool {
    memory: BufferMemory,
    free: Vec<u32>,
    exhausted: u64,
}

/// Each pool has a number of its own, so that a buffer is never read through another's region.
static POOLS: AtomicU16 = AtomicU16::new(0);

impl BufferPool {
    /// A pool of `count` buffers that hold frames of up to `frame_bytes`.
    ///
    /// Buffers start an odd number of cache lines apart: with an even number the frames' first
    /// lines would share a few sets of the L1 cache.
    ///
    /// # Errors
    /// If the memory cannot be had, or after 65,535 pools.
    pub fn new(count: u32, frame_bytes: usize) -> io::Result<BufferPool> {
        let lines = (HEADROOM + frame_bytes.clamp(CACHE_LINE, MAX_FRAME)).div_ceil(CACHE_LINE);
        let stride = (lines | 1) * CACHE_LINE;
        let pool = POOLS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1))
            .map_err(|_| io::Error::other("more than 65,535 buffer pools"))?;
        let region = Arc::new(Region::zeroed(count as usize * stride)?);
        Ok(BufferPool {
            memory: BufferMemory {
                region,
                stride,
                count,
                pool,
            },
            free: (0..count).rev().collect(),
            exhausted: 0,
        })
    }

    /// Where the pool's buffers lie.
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// A free buffer; its content is whatever was there last. `None`, counted, if there is none.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        match self.free.pop() {
            Some(index) => Some(Buffer {
                index,
                pool: self.memory.pool,
            }),
            None => {
                self.exhausted += 1;
                None
            }
        }
    }

    /// Up to `count` free buffers, the warmest; fewer, counted, if there are not so many.
    #[inline]
    pub fn take_many(&mut self, count: usize) -> impl ExactSizeIterator<Item = Buffer> {
        let there = count.min(self.free.len());
        self.exhausted += u64::from(there < count);
        let pool = self.memory.pool;
        self.free
            .drain(self.free.len() - there..)
            .map(move |index| Buffer { index, pool })
    }

    /// Gives a buffer back.
    ///
    /// # Panics
    /// If the buffer is of another pool.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        assert!(self.memory.owns(&buffer), "a buffer of another pool");
        // Never grows: there are only as many handles as the vector's first capacity.
        self.free.push(buffer.index);
    }

    /// Gives many back.
    ///
    /// # Panics
    /// If one is of another pool.
    #[inline]
    pub fn give_all(&mut self, buffers: impl Iterator<Item = Buffer>) {
        let memory = &self.memory;
        self.free.extend(buffers.map(|buffer| {
            assert!(memory.owns(&buffer), "a buffer of another pool");
            buffer.index
        }));
    }

    /// How many buffers are free.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// How many buffers there are.
    pub fn capacity(&self) -> usize {
        self.memory.count as usize
    }

    /// How often buffers were wanted and too few were free.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_distinct_and_come_back() {
        let mut pool = BufferPool::new(4, 100).unwrap();
        let mut held: Vec<Buffer> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        assert_eq!(pool.exhausted(), 1);
        let memory = pool.memory().clone();
        for (i, buffer) in held.iter_mut().enumerate() {
            memory.bytes_mut(buffer).fill(i as u8 + 1);
        }
        for (i, buffer) in held.iter().enumerate() {
            assert!(memory.bytes(buffer).iter().all(|&b| b == i as u8 + 1));
        }
        held.drain(..).for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn strides_are_odd_numbers_of_lines() {
        for frame in [1, 64, 1518, 2048, 9000, MAX_FRAME] {
            let pool = BufferPool::new(1, frame).unwrap();
            let stride = pool.memory().buffer_bytes();
            assert_eq!(stride / CACHE_LINE % 2, 1);
            assert!(stride >= HEADROOM + frame);
        }
    }

    #[test]
    #[should_panic(expected = "another pool")]
    fn a_buffer_of_another_pool_is_refused() {
        let (mut a, mut b) = (
            BufferPool::new(1, 64).unwrap(),
            BufferPool::new(1, 64).unwrap(),
        );
        b.give(a.take().unwrap());
    }
}
