//! Packet buffers: fixed-size parts of one memory region, addressed by index.

use crate::region::{CACHE_LINE, Region, prefetch};
use std::any::Any;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Headroom in bytes in front of a frame, so that a function can push headers without moving the frame.
pub const HEADROOM: usize = 128;

/// Maximum frame length in bytes. Lengths and header offsets are 16 bits wide.
pub const MAX_FRAME: usize = 65_535;

/// Pool number that no pool has: a handle with it reaches no memory.
const SENT: u16 = u16::MAX;

/// Handle that owns one packet buffer. Only a [`BufferPool`] creates handles, once for each buffer, and they cannot be
/// copied.
#[derive(Debug)]
pub struct Buffer {
    index: u32,
    pool: u16,
}

impl Buffer {
    /// Index of the buffer in its region.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (u32, u16) {
        (self.index, self.pool)
    }

    /// Rebuilds a handle from the parts that [`into_parts`](Buffer::into_parts) returned; once only.
    #[inline]
    pub(crate) fn from_parts(index: u32, pool: u16) -> Buffer {
        Buffer { index, pool }
    }

    /// Moves the buffer out. The handle that remains can only be returned to its pool, which detects that the buffer
    /// went elsewhere. Access to its bytes fails as if it belonged to another pool.
    #[inline]
    pub(crate) fn lend(&mut self) -> Buffer {
        let sent = Buffer {
            index: self.index,
            pool: SENT,
        };
        std::mem::replace(self, sent)
    }

    /// Returns `true` if the buffer belongs to the pool with this number.
    #[inline]
    pub(crate) fn is_of(&self, pool: u16) -> bool {
        self.pool == pool
    }

    /// Returns `true` if the buffer was [moved out](Buffer::lend).
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.pool == SENT
    }
}

/// Layout of a pool's region, sufficient to locate a buffer's bytes.
#[derive(Clone, Debug)]
pub struct BufferMemory {
    base: *mut u8,
    /// Keeps the memory alive.
    _owner: Arc<dyn Any + Send + Sync>,
    /// Distance in bytes from one buffer to the next.
    stride: usize,
    /// Size of a buffer in bytes. Bytes between buffers belong to the region's owner.
    bytes: usize,
    count: u32,
    pool: u16,
}

// SAFETY: the type holds an address and the owner that keeps its memory alive. A buffer's bytes are reached only
// through its handle, which is unique.
unsafe impl Send for BufferMemory {}
// SAFETY: as above.
unsafe impl Sync for BufferMemory {}

impl BufferMemory {
    /// Returns `true` if `buffer` belongs to this memory.
    #[inline]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool == self.pool
    }

    /// Returns `true` if both describe the same buffers.
    #[inline]
    pub fn is(&self, other: &BufferMemory) -> bool {
        self.pool == other.pool
    }

    /// Number of buffers.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Number of the pool.
    pub(crate) fn pool(&self) -> u16 {
        self.pool
    }

    /// Size of a buffer in bytes, including headroom.
    #[inline]
    pub fn buffer_bytes(&self) -> usize {
        self.bytes
    }

    /// Describes `count` foreign buffers, such as a driver's, of `bytes` bytes each including headroom. They start at
    /// `base`, `stride` bytes apart. The owner keeps the bytes between them and decides who holds which buffer. It is
    /// dropped after the last user of the memory.
    ///
    /// # Safety
    /// Until `owner` is dropped, the buffers' bytes are mapped, readable, writable and initialised. Code that accesses
    /// a buffer without its [`Buffer`] handle must know that no such handle exists.
    ///
    /// # Errors
    /// If 65,535 pools have been created already.
    ///
    /// # Panics
    /// If buffers overlap, or have no room after the headroom.
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

    /// Bytes of one buffer, including headroom.
    ///
    /// # Panics
    /// If the buffer belongs to another pool.
    #[inline]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.view().bytes(buffer)
    }

    /// Mutable bytes of one buffer, including headroom.
    ///
    /// # Panics
    /// If the buffer belongs to another pool.
    #[inline]
    // The borrow of `buffer`, not of `self`, makes access exclusive.
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        self.view().bytes_mut(buffer)
    }

    /// Prefetches the cache line at offset `bytes` of the buffer with this index. Any values are allowed.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize, bytes: usize) {
        let start = self.base.wrapping_add(index.wrapping_mul(self.stride));
        prefetch(start.wrapping_add(bytes));
    }

    /// Returns the same layout in registers, for loops over a batch.
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

/// Borrowed [`BufferMemory`] without its owner. The compiler has to assume that any written byte may belong to a
/// `BufferMemory`, and would reload that for each packet.
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
    /// Same as [`BufferMemory::bytes`].
    #[inline]
    pub(crate) fn bytes<'a>(self, buffer: &'a Buffer) -> &'a [u8]
    where
        'm: 'a,
    {
        // SAFETY: the pool created this handle, so `index < count` and the range lies in the memory, whose borrowed
        // owner keeps it mapped and initialised. The handle is the only one for this buffer and is borrowed shared, so
        // nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.start(buffer), self.bytes) }
    }

    /// Same as [`BufferMemory::bytes_mut`].
    #[inline]
    pub(crate) fn bytes_mut<'a>(self, buffer: &'a mut Buffer) -> &'a mut [u8]
    where
        'm: 'a,
    {
        // SAFETY: as in `bytes`. The only handle of this buffer is borrowed exclusively for as long as the slice lives,
        // and buffers do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start(buffer), self.bytes) }
    }

    /// Address of the buffer's first byte.
    ///
    /// # Panics
    /// If the buffer belongs to another pool.
    #[inline]
    pub(crate) fn start(self, buffer: &Buffer) -> *mut u8 {
        assert!(buffer.pool == self.pool, "a buffer of another pool");
        debug_assert!(buffer.index < self.count);
        self.base.wrapping_add(buffer.index as usize * self.stride)
    }
}

/// Free buffers of one region, last in, first out: the buffer used last is most likely still cached.
///
/// For a region [lent](BufferPool::lent) by a device, which keeps the free buffers itself, it is one worker's share:
/// the pool then holds the buffers on their way back to the device.
#[derive(Debug)]
pub struct BufferPool {
    memory: BufferMemory,
    free: Vec<u32>,
    exhausted: u64,
    lent: Option<Lent>,
}

/// Number of a device's buffers that a worker holds and may hold.
#[derive(Debug)]
struct Lent {
    /// Buffers claimed, and neither returned nor sent.
    held: usize,
    /// Maximum for `held`.
    most: usize,
}

/// Buffers that a device passes to a pool, already counted as held by it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claims {
    pool: u16,
    count: u32,
}

impl Claims {
    /// Returns the handle of one claimed buffer.
    ///
    /// # Safety
    /// Same as for [`BufferPool::claim`].
    ///
    /// # Panics
    /// If there is no buffer with this index.
    #[inline]
    pub unsafe fn buffer(self, index: u32) -> Buffer {
        assert!(index < self.count, "a buffer of another pool");
        Buffer { index, pool: self.pool }
    }
}

/// Next pool number. Numbers are unique, so a buffer is never read through another pool's region.
static POOLS: AtomicU16 = AtomicU16::new(0);

fn number_of_pool() -> io::Result<u16> {
    POOLS
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1))
        .map_err(|_| io::Error::other("more than 65,535 buffer pools"))
}

impl BufferPool {
    /// Creates a pool of `count` buffers for frames of up to `frame_bytes` bytes.
    ///
    /// Buffers start an odd number of cache lines apart. With an even number, the frames' first lines would share a few
    /// sets of the L1 cache.
    ///
    /// # Errors
    /// If the memory cannot be mapped, or if 65,535 pools have been created already.
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

    /// Creates `pools` pools that share one memory of `count` buffers for frames of up to `frame_bytes` bytes, so that
    /// buffers can pass between their owners. The pool with number `n` begins with the buffers `n * share..(n + 1) *
    /// share`, where `share` is `count / pools`.
    ///
    /// # Errors
    /// Same as [`new`](BufferPool::new).
    pub fn sharing(pools: u32, count: u32, frame_bytes: usize) -> io::Result<Vec<BufferPool>> {
        let whole = BufferPool::new(count, frame_bytes)?;
        let share = count / pools.max(1);
        let pool = |number: u32| BufferPool {
            memory: whole.memory.clone(),
            // Room for all: buffers may come together in one pool.
            free: {
                let mut free = Vec::with_capacity(count as usize);
                free.extend((number * share..(number + 1) * share).rev());
                free
            },
            exhausted: 0,
            lent: None,
        };
        Ok((0..pools).map(pool).collect())
    }

    /// Creates a worker's share of memory that a device lends, limited to `most` buffers. It starts empty; the device's
    /// side [claims](BufferPool::claim) the buffers of received packets.
    pub fn lent(memory: BufferMemory, most: usize) -> BufferPool {
        BufferPool {
            free: Vec::with_capacity(memory.count as usize),
            memory,
            exhausted: 0,
            lent: Some(Lent { held: 0, most }),
        }
    }

    /// Returns the handle of a buffer that the device passed on. Only for a pool of [lent](BufferPool::lent) buffers.
    ///
    /// # Safety
    /// Nothing else uses the buffer: the device no longer does, and no other handle exists, in this pool or in another
    /// one of the same memory.
    ///
    /// # Panics
    /// If there is no buffer with this index.
    #[inline]
    pub unsafe fn claim(&mut self, index: u32) -> Buffer {
        let claims = self.claims(1);
        // SAFETY: guaranteed by the caller.
        unsafe { claims.buffer(index) }
    }

    /// Counts `count` buffers that the device passed on as held from now on. Each [becomes](Claims::buffer) a handle as
    /// soon as its index is known. Only for a pool of [lent](BufferPool::lent) buffers.
    #[inline]
    pub fn claims(&mut self, count: usize) -> Claims {
        self.add_held(count);
        Claims {
            pool: self.memory.pool,
            count: self.memory.count,
        }
    }

    /// Releases a buffer to another pool of the same memory, which [admits](BufferPool::admit) it.
    ///
    /// # Panics
    /// If the buffer belongs to other memory.
    #[inline]
    pub fn dismiss(&mut self, buffer: &Buffer) {
        assert!(self.memory.owns(buffer), "a buffer of another pool");
        self.forget_sent(1);
    }

    /// Same for this number of the pool's buffers.
    #[inline]
    pub fn dismiss_all(&mut self, buffers: usize) {
        self.forget_sent(buffers);
    }

    /// Takes over this number of buffers that another pool of the same memory [released](BufferPool::dismiss).
    #[inline]
    pub fn admit_all(&mut self, buffers: usize) {
        self.add_held(buffers);
    }

    /// Takes over a buffer that another pool of the same memory [released](BufferPool::dismiss).
    ///
    /// # Panics
    /// If the buffer belongs to other memory.
    #[inline]
    pub fn admit(&mut self, buffer: &Buffer) {
        assert!(self.memory.owns(buffer), "a buffer of another pool");
        self.add_held(1);
    }

    /// Drains the returned buffers, which belong to the device from now on.
    #[inline]
    pub fn returned(&mut self) -> impl ExactSizeIterator<Item = u32> {
        self.free.drain(..)
    }

    /// Takes a returned buffer out, for another pool of the same memory, which [admits](BufferPool::admit) it. Only for
    /// a pool of [lent](BufferPool::lent) buffers.
    #[inline]
    pub fn take_returned(&mut self) -> Option<Buffer> {
        debug_assert!(self.lent.is_some(), "a pool of its own buffers");
        let index = self.free.pop()?;
        let pool = self.memory.pool;
        Some(Buffer { index, pool })
    }

    /// Same for all returned buffers.
    #[inline]
    pub fn take_all_returned(&mut self) -> impl ExactSizeIterator<Item = Buffer> {
        debug_assert!(self.lent.is_some(), "a pool of its own buffers");
        let pool = self.memory.pool;
        self.free.drain(..).map(move |index| Buffer { index, pool })
    }

    /// Returns `true` if there are returned buffers. Only for a pool of [lent](BufferPool::lent) buffers.
    #[inline]
    pub fn has_returned(&self) -> bool {
        debug_assert!(self.lent.is_some(), "a pool of its own buffers");
        !self.free.is_empty()
    }

    /// Moves the buffers returned last to `list`, as many as it has room for: another pool of the same memory
    /// [takes them over](BufferPool::take_over).
    #[inline]
    pub(crate) fn move_returned(&mut self, list: &mut Vec<u32>) {
        debug_assert!(self.lent.is_some(), "a pool of its own buffers");
        let count = self.free.len().min(list.capacity() - list.len());
        let stay = self.free.len() - count;
        list.extend_from_slice(&self.free[stay..]);
        self.free.truncate(stay);
    }

    /// Takes over buffers that were [moved](BufferPool::move_returned) out of another pool of the same memory.
    #[inline]
    pub(crate) fn take_over(&mut self, list: &mut Vec<u32>) {
        self.free.append(list);
    }

    /// Memory that holds the pool's buffers.
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// Takes a free buffer, whose content is undefined. Returns `None`, and counts it, if there is none.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        match self.free.pop() {
            Some(index) => {
                self.add_held(1);
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

    /// Takes up to `count` free buffers, most recently used first. A shortfall is counted.
    #[inline]
    pub fn take_many(&mut self, count: usize) -> impl ExactSizeIterator<Item = Buffer> {
        let there = count.min(self.free.len());
        self.exhausted += u64::from(there < count);
        self.add_held(there);
        let pool = self.memory.pool;
        self.free
            .drain(self.free.len() - there..)
            .map(move |index| Buffer { index, pool })
    }

    /// Returns a buffer to the pool.
    ///
    /// # Panics
    /// If the buffer belongs to another pool.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        self.give_all(std::iter::once(buffer));
    }

    /// Counts further buffers of a device as held.
    #[inline]
    fn add_held(&mut self, buffers: usize) {
        if let Some(lent) = &mut self.lent {
            lent.held += buffers;
        }
    }

    /// Returns several buffers to the pool.
    ///
    /// # Panics
    /// If a buffer belongs to another pool.
    #[inline]
    pub fn give_all(&mut self, buffers: impl Iterator<Item = Buffer>) {
        let memory = &self.memory;
        if let Some(lent) = &mut self.lent {
            let (mut given, free) = (0, &mut self.free);
            buffers.for_each(|buffer| {
                given += 1;
                if !buffer.is_lent() {
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

    /// Returns buffers to the pool like [`give_all`](BufferPool::give_all), and leaves handles that reach no memory.
    #[inline]
    pub(crate) fn give_back<'b>(&mut self, buffers: impl Iterator<Item = &'b mut Buffer>) {
        self.give_all(buffers.map(Buffer::lend));
    }

    /// Counts `buffers` fewer as held: they have been sent.
    #[inline]
    pub(crate) fn forget_sent(&mut self, buffers: usize) {
        if let Some(lent) = &mut self.lent {
            lent.held -= buffers;
        }
    }

    /// Returns the number of free buffers, or how many more of a device's buffers a worker may hold.
    #[inline]
    pub fn available(&self) -> usize {
        match &self.lent {
            None => self.free.len(),
            Some(lent) => lent.most.saturating_sub(lent.held),
        }
    }

    /// Number of buffers in the pool's memory.
    pub fn capacity(&self) -> usize {
        self.memory.count as usize
    }

    /// Number of buffers that the pool's worker may hold at a time.
    pub fn most(&self) -> u32 {
        let lent = self.lent.as_ref().map(|lent| lent.most as u32);
        lent.map_or(self.memory.count, |most| most.min(self.memory.count))
    }

    /// Number of requests for which too few buffers were free.
    pub fn exhausted(&self) -> u64 {
        self.exhausted
    }
}

#[cfg(test)]
mod tests;
