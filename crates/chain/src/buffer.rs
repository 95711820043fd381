//! Packet buffers: fixed-size pieces of one region, addressed by index.

use crate::region::{CACHE_LINE, Region, prefetch};
use std::any::Any;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bytes kept free before a frame, so that a function can push headers without moving the frame.
pub const HEADROOM: usize = 128;

/// The longest frame any buffer holds: lengths and header offsets are 16 bits wide.
pub const MAX_FRAME: usize = 65_535;

/// The number of no pool: a handle with it reaches no memory.
const SENT: u16 = u16::MAX;

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

    /// Takes the buffer away. What is left can only be given to its pool, which then knows that the
    /// buffer went elsewhere: to look at its bytes is to look into another pool.
    #[inline]
    pub(crate) fn take_away(&mut self) -> Buffer {
        let sent = Buffer {
            index: self.index,
            pool: SENT,
        };
        std::mem::replace(self, sent)
    }

    /// Whether the buffer is of the pool of that number.
    #[inline]
    pub(crate) fn is_of(&self, pool: u16) -> bool {
        self.pool == pool
    }

    /// Whether the buffer was [taken away](Buffer::take_away).
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        self.pool == SENT
    }
}

/// The shape of a pool's region: what is needed to find a buffer's bytes.
#[derive(Clone, Debug)]
pub struct BufferMemory {
    base: *mut u8,
    /// Keeps the memory.
    _owner: Arc<dyn Any + Send + Sync>,
    /// Bytes from one buffer to the next.
    stride: usize,
    /// Bytes in a buffer; what is between buffers is the region's owner's.
    bytes: usize,
    count: u32,
    pool: u16,
}

// SAFETY: an address, and who keeps what is there; a buffer's bytes are reached with its handle only, of
// which there is one.
unsafe impl Send for BufferMemory {}
// SAFETY: as above.
unsafe impl Sync for BufferMemory {}

impl BufferMemory {
    /// Whether `buffer` belongs to this memory.
    #[inline]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool == self.pool
    }

    /// Whether both are the same buffers.
    #[inline]
    pub fn is(&self, other: &BufferMemory) -> bool {
        self.pool == other.pool
    }

    /// The pool's number.
    pub(crate) fn pool(&self) -> u16 {
        self.pool
    }

    /// Bytes in a buffer, headroom included.
    #[inline]
    pub fn buffer_bytes(&self) -> usize {
        self.bytes
    }

    /// `count` buffers of `bytes` each, headroom included, from `base` on, one `stride` apart, in memory of
    /// somebody else's, such as a driver's. What is between them is the owner's, and he says which of them
    /// are whose. He is dropped after the last user of the memory.
    ///
    /// # Safety
    /// As long as `owner` is not dropped, the buffers' bytes are there, readable, writable and initialised,
    /// and whoever touches those of a buffer without a [`Buffer`] of it in hand knows that there is none.
    ///
    /// # Errors
    /// After 65,535 pools.
    ///
    /// # Panics
    /// If buffers overlap, or have no room behind the headroom.
    pub unsafe fn lent(
        base: *mut u8,
        count: u32,
        [stride, bytes]: [usize; 2],
        owner: Arc<dyn Any + Send + Sync>,
    ) -> io::Result<BufferMemory> {
        assert!(
            HEADROOM < bytes && bytes <= stride,
            "buffers of {bytes} bytes, {stride} apart"
        );
        Ok(BufferMemory {
            base,
            _owner: owner,
            stride,
            bytes,
            count,
            pool: number_of_pool()?,
        })
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

    /// Starts to fetch what is so many bytes behind the start of the buffer of that index. Any numbers will do.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize, bytes: usize) {
        let start = self.base.wrapping_add(index.wrapping_mul(self.stride));
        prefetch(start.wrapping_add(bytes));
    }

    /// The same in registers, for loops over a batch.
    #[inline]
    pub(crate) fn view(&self) -> BufferView<'_> {
        BufferView {
            base: self.base,
            stride: self.stride,
            bytes: self.bytes,
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
    bytes: usize,
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
        // SAFETY: the pool made this handle, so `index < count` and the range lies in the memory,
        // which its borrowed owner keeps and whose bytes are initialised. The handle is the
        // only one for this buffer, and is borrowed shared: nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.start(buffer), self.bytes) }
    }

    /// As [`BufferMemory::bytes_mut`].
    #[inline]
    pub(crate) fn bytes_mut<'a>(self, buffer: &'a mut Buffer) -> &'a mut [u8]
    where
        'm: 'a,
    {
        // SAFETY: as in `bytes`; the only handle of this buffer is borrowed exclusively for as long
        // as the slice lives, and buffers do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start(buffer), self.bytes) }
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
///
/// Or one worker's part in a region that is [lent](BufferPool::lent) by a device, which keeps the free
/// buffers itself: here are those that are on their way back to it.
#[derive(Debug)]
pub struct BufferPool {
    memory: BufferMemory,
    free: Vec<u32>,
    exhausted: u64,
    lent: Option<Lent>,
}

/// How many buffers a worker has of a device.
#[derive(Debug)]
struct Lent {
    /// Claimed, and neither given back nor sent.
    held: usize,
    /// How many it may hold.
    most: usize,
}

/// Buffers that a device hands over to a pool, which counts them already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claims {
    pool: u16,
    count: u32,
}

impl Claims {
    /// One of them.
    ///
    /// # Safety
    /// As for [`BufferPool::claim`].
    ///
    /// # Panics
    /// If there is no buffer of that index.
    #[inline]
    pub unsafe fn buffer(self, index: u32) -> Buffer {
        assert!(index < self.count, "a buffer of another pool");
        Buffer { index, pool: self.pool }
    }
}

/// Each pool has a number of its own, so that a buffer is never read through another's region.
static POOLS: AtomicU16 = AtomicU16::new(0);

fn number_of_pool() -> io::Result<u16> {
    POOLS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1))
        .map_err(|_| io::Error::other("more than 65,535 buffer pools"))
}

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
        let pool = number_of_pool()?;
        let region = Region::zeroed(count as usize * stride)?;
        Ok(BufferPool {
            memory: BufferMemory {
                base: region.base(),
                _owner: Arc::new(region),
                stride,
                bytes: stride,
                count,
                pool,
            },
            free: (0..count).rev().collect(),
            exhausted: 0,
            lent: None,
        })
    }

    /// A worker's part in memory that a device lends: it may hold up to `most` buffers. It has none
    /// at first; the device's side [claims](BufferPool::claim) those in which packets have come.
    pub fn lent(memory: BufferMemory, most: usize) -> BufferPool {
        BufferPool {
            free: Vec::with_capacity(memory.count as usize),
            memory,
            exhausted: 0,
            lent: Some(Lent { held: 0, most }),
        }
    }

    /// A buffer that the device has handed over. Only for a pool of [lent](BufferPool::lent) buffers.
    ///
    /// # Safety
    /// Nobody else uses the buffer: neither has the device kept it, nor is there another handle, of this
    /// pool or another one of the same memory.
    ///
    /// # Panics
    /// If there is no buffer of that index.
    #[inline]
    pub unsafe fn claim(&mut self, index: u32) -> Buffer {
        let claims = self.claims(1);
        // SAFETY: as the caller says.
        unsafe { claims.buffer(index) }
    }

    /// Many buffers that the device has handed over: all of them count as held from now on, each
    /// [becomes](Claims::buffer) a handle once it is known which one it is. Only for a pool of
    /// [lent](BufferPool::lent) buffers.
    #[inline]
    pub fn claims(&mut self, count: usize) -> Claims {
        self.hold(count);
        Claims {
            pool: self.memory.pool,
            count: self.memory.count,
        }
    }

    /// Lets a buffer go to another pool of the same memory, which [admits](BufferPool::admit) it.
    ///
    /// # Panics
    /// If the buffer is of other memory.
    #[inline]
    pub fn dismiss(&mut self, buffer: &Buffer) {
        assert!(self.memory.owns(buffer), "a buffer of another pool");
        self.let_go(1);
    }

    /// Takes a buffer over that another pool of the same memory [let go](BufferPool::dismiss).
    ///
    /// # Panics
    /// If the buffer is of other memory.
    #[inline]
    pub fn admit(&mut self, buffer: &Buffer) {
        assert!(self.memory.owns(buffer), "a buffer of another pool");
        self.hold(1);
    }

    /// The buffers that were given back, for the device: they are its own from now on.
    #[inline]
    pub fn returned(&mut self) -> impl ExactSizeIterator<Item = u32> {
        self.free.drain(..)
    }

    /// Where the pool's buffers lie.
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// A free buffer; its content is whatever was there last. `None`, counted, if there is none.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        match self.free.pop() {
            Some(index) => {
                self.hold(1);
                Some(Buffer {
                    index,
                    pool: self.memory.pool,
                })
            }
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
        self.hold(there);
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
        self.give_all(std::iter::once(buffer));
    }

    /// Counts buffers of a device that are in use again.
    #[inline]
    fn hold(&mut self, buffers: usize) {
        if let Some(lent) = &mut self.lent {
            lent.held += buffers;
        }
    }

    /// Gives many back.
    ///
    /// # Panics
    /// If one is of another pool.
    #[inline]
    pub fn give_all(&mut self, buffers: impl Iterator<Item = Buffer>) {
        let memory = &self.memory;
        if let Some(lent) = &mut self.lent {
            let (mut given, free) = (0, &mut self.free);
            buffers.for_each(|buffer| {
                given += 1;
                if !buffer.is_away() {
                    assert!(memory.owns(&buffer), "a buffer of another pool");
                    free.push(buffer.index);
                }
            });
            lent.held -= given;
            return;
        }
        self.free.extend(buffers.map(|buffer| {
            assert!(memory.owns(&buffer), "a buffer of another pool");
            buffer.index
        }));
    }

    /// Counts that many fewer as held: they have been sent.
    #[inline]
    pub(crate) fn let_go(&mut self, buffers: usize) {
        if let Some(lent) = &mut self.lent {
            lent.held -= buffers;
        }
    }

    /// How many buffers are free, or how many more of a device's a worker may hold.
    pub fn available(&self) -> usize {
        match &self.lent {
            None => self.free.len(),
            Some(lent) => lent.most.saturating_sub(lent.held),
        }
    }

    /// How many buffers there are in the pool's memory.
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

    /// Memory of four buffers, 64 bytes of a device's own in front of each.
    fn of_a_device() -> BufferMemory {
        let region = Region::zeroed(4 * 512).unwrap();
        let base = region.base().wrapping_add(64);
        // SAFETY: four times 512 bytes, of which nobody else knows.
        unsafe { BufferMemory::lent(base, 4, [512, 448], Arc::new(region)) }.unwrap()
    }

    #[test]
    fn buffers_that_are_lent_go_back_or_are_sent() {
        let memory = of_a_device();
        let (mut pool, mut other) = (BufferPool::lent(memory.clone(), 2), BufferPool::lent(memory.clone(), 2));
        assert_eq!((pool.available(), pool.capacity()), (2, 4));
        assert!(pool.take().is_none());
        // SAFETY: there is no device, and these are the only handles.
        let [mut kept, mut sent] = unsafe { [pool.claim(3), pool.claim(1)] };
        assert_eq!(memory.bytes(&kept).len(), 448);
        memory.bytes_mut(&mut kept).fill(7);
        assert_eq!(pool.available(), 0);
        assert_eq!(sent.take_away().index(), 1);
        pool.give_all([sent].into_iter());
        // One goes through another worker, and back to the device from there.
        pool.dismiss(&kept);
        other.admit(&kept);
        other.give(kept);
        assert_eq!([pool.available(), other.available()], [2, 2]);
        assert_eq!(other.returned().collect::<Vec<_>>(), [3]);
        assert_eq!(pool.returned().len(), 0);
    }

    #[test]
    #[should_panic(expected = "another pool")]
    fn nobody_reads_what_was_sent() {
        let memory = of_a_device();
        let mut pool = BufferPool::lent(memory.clone(), 1);
        // SAFETY: there is no device, and this is the only handle.
        let mut buffer = unsafe { pool.claim(0) };
        let _ = buffer.take_away();
        memory.bytes(&buffer);
    }

    #[test]
    #[should_panic(expected = "buffers of 600 bytes, 512 apart")]
    fn buffers_do_not_overlap() {
        let region = Region::zeroed(4 * 512).unwrap();
        // SAFETY: it is refused.
        let _ = unsafe { BufferMemory::lent(region.base(), 2, [512, 600], Arc::new(region)) };
    }

    #[test]
    #[should_panic(expected = "another pool")]
    fn a_buffer_of_another_pool_is_refused() {
        let (mut a, mut b) = (BufferPool::new(1, 64).unwrap(), BufferPool::new(1, 64).unwrap());
        b.give(a.take().unwrap());
    }
}
