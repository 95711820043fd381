//! Buffer pool for stream data: one region that all instances of a function share.
//!
//! One of the few modules with `unsafe` code. A buffer belongs to a flow, whose state names it by [`Lease`]. One
//! instance at a time processes the flow, but not always the same one. Free buffers form a stack, from which instances
//! take, and to which they return, several at a time.
//!
//! # Access to a buffer's bytes
//!
//! Each buffer has a word that marks it as free, taken, or *open*. Only the [`Window`] that opened it, by a
//! compare-and-exchange from one of the other two, may access the bytes, until it stores another value. The exchange
//! acquires what that store released. So no two instances access the same bytes, whatever the flows' states hold and in
//! whatever order instances run: correctness does not depend on the flows' owners. The owners guarantee something else,
//! that an exchange never fails because another instance is at work. It fails only if the buffer was reclaimed from a
//! silent stream, or taken from a process that failed.
//!
//! Processes may share a pool. Each of them has the number of the buffer that it has open in a place of its own, by
//! which its successor finds and frees it. One that is killed while it takes a buffer off the stack, or returns it,
//! loses that buffer for the run: it is on no list then, and no successor can tell whether it is.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tailwater_chain::region::{CACHE_LINE, Region, prefetch, write_in_order};
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_net::Nanos;

/// Time after which a stream counts as silent. Its buffer is reclaimed when there is no free one.
pub(crate) const SILENT: Nanos = Nanos::from_secs(10);
/// Number of buffers checked for a silent stream each time there is no free one.
const SCAN: usize = 32;
/// Width in bits of a buffer index in a flow's state; indices start at 1.
pub(crate) const PLACE_BITS: u32 = 20;
/// No buffer.
const NONE: u32 = 0;

// Layout of the word, from the lowest bit: generation, two flags, time of last use.
const GENERATION_BITS: u32 = 28;
const GENERATION: u64 = (1 << GENERATION_BITS) - 1;
const OPEN: u64 = 1 << GENERATION_BITS;
const TAKEN: u64 = OPEN << 1;
const TIME_SHIFT: u32 = GENERATION_BITS + 2;
const TIME_BITS: u32 = u64::BITS - TIME_SHIFT;
/// Shift from nanoseconds to ticks of the word's time, about 1 ms each.
const TICK_SHIFT: u32 = 20;

/// Size in bytes of a buffer's word, which precedes its bytes.
const WORD: usize = size_of::<AtomicU64>();

/// Distance in bytes from one buffer to the next. It is an odd number of cache lines, so that the buffers' first lines
/// do not share a few sets of the cache.
pub(crate) const fn stride(bytes: usize) -> usize {
    ((WORD + bytes).div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}

/// Flow's right to a buffer, until the buffer is returned or, if the stream is silent, reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Index of the buffer, starting at 1.
    pub(crate) slot: u32,
    /// Generation of the buffer when it was taken, by which a stream detects that it lost the buffer.
    pub(crate) generation: u32,
    /// Number of the pool. Flows can outlive the process of the pool, or move to another process.
    pub(crate) pool: u32,
}

/// Buffers of all instances.
#[derive(Debug)]
pub(crate) struct StreamPool {
    /// Random number that identifies the pool.
    number: u32,
    region: Region,
    bytes: usize,
    count: u32,
    /// First free buffer in the low bits, and a counter above it that every change increments. An exchange therefore
    /// fails if the stack has changed in the meantime.
    head: CounterArray,
    /// Next lower buffer for each buffer on the stack. Stored outside the buffers, where a walk would wait for memory
    /// at each.
    below: CounterArray<AtomicU32>,
    /// Number of this process among those that share the pool, from 1; 0 if they are all in one.
    owner: u64,
    /// Buffer that this process has open, or is about to open: its successor frees it. `None` in a pool of one process.
    opened: Option<CounterArray>,
}

impl StreamPool {
    /// Creates a pool of `count` buffers of `bytes` bytes each, which start at a multiple of 8.
    ///
    /// # Errors
    /// If the kernel cannot map that much memory, or if there are too many buffers.
    pub(crate) fn new(count: usize, bytes: usize) -> io::Result<StreamPool> {
        let stock = StreamPool::with_shared_counters((count, bytes), [0, 0], &SharedCounters::of_this_process())?;
        stock.fill();
        Ok(stock)
    }

    /// Creates a pool as [`new`](StreamPool::new) does, for process `part` of several. All of them, and the one that
    /// [fills](StreamPool::fill_shared) it before, use the same `shared_counters` of [this
    /// size](StreamPool::shared_bytes).
    ///
    /// # Errors
    /// If there are too many buffers.
    pub(crate) fn sharing(
        shape: (usize, usize),
        [part, of]: [u16; 2],
        shared_counters: &SharedCounters,
    ) -> io::Result<StreamPool> {
        StreamPool::with_shared_counters(shape, [part + 1, of], shared_counters)
    }

    /// Returns the bytes of state shared by `of` processes.
    pub(crate) fn shared_bytes((count, bytes): (usize, usize), of: usize) -> usize {
        let words = 2 * SharedCounters::bytes_of(1) + SharedCounters::bytes_of_halves(count + 1);
        words + of * SharedCounters::bytes_of(1) + SharedCounters::bytes_of_region(count * stride(bytes))
    }

    fn with_shared_counters(
        (count, bytes): (usize, usize),
        [owner, of]: [u16; 2],
        shared_counters: &SharedCounters,
    ) -> io::Result<StreamPool> {
        if count >> PLACE_BITS != 0 {
            return Err(io::Error::other(format!("{count} buffers are too many")));
        }
        let number = shared_counters.take_seed() as u32;
        let head = shared_counters.take(1);
        let below = shared_counters.take_halves(count + 1);
        let opened: Vec<_> = (1..=of).map(|_| shared_counters.take(1)).collect();
        let own = opened.into_iter().zip(1..).find(|(_, number)| *number == owner);
        let region = match shared_counters.take_region(count * stride(bytes))? {
            Some(region) => region,
            None => Region::zeroed(count * stride(bytes))?,
        };
        Ok(StreamPool {
            number,
            region,
            bytes,
            count: count as u32,
            head,
            below: below.ok_or(io::ErrorKind::OutOfMemory)?,
            owner: owner.into(),
            opened: own.map(|(opened, _)| opened),
        })
    }

    /// Makes all buffers of a pool of `of` processes free, before the first of them has it.
    ///
    /// # Errors
    /// If there are too many buffers.
    pub(crate) fn fill_shared(shape: (usize, usize), of: u16, shared_counters: &SharedCounters) -> io::Result<()> {
        StreamPool::with_shared_counters(shape, [0, of], shared_counters).map(|pool| pool.fill())
    }

    /// Makes all buffers free. Called once, before the pool is used.
    fn fill(&self) {
        let all: Vec<u32> = (1..=self.count).collect();
        self.put(&all);
    }

    /// Records the buffer that this process is about to open, or [`NONE`] after it is closed.
    #[inline]
    fn set_opened(&self, place: u32) {
        if let Some(opened) = &self.opened {
            opened[0].store(place.into(), Ordering::Relaxed);
            // A process that takes over sees this before the buffer's word.
            write_in_order();
        }
    }

    /// Frees the buffer that a process before this one, which has failed, had open. Its stream loses it.
    pub(crate) fn recover(&self) {
        let Some(opened) = &self.opened else {
            return;
        };
        let place = opened[0].load(Ordering::Relaxed) as u32;
        if !(1..=self.count).contains(&place) {
            return;
        }
        let word = self.word(place).load(Ordering::Acquire);
        // It may have been another one's.
        if word & OPEN != 0 && word >> TIME_SHIFT == self.owner {
            self.word(place).store(word & GENERATION, Ordering::Release);
            self.put(&[place]);
        }
        self.set_opened(NONE);
    }

    /// Number of buffers.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Size of each buffer in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number that tells this pool's leases from those of other pools.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Offset of a buffer in the region.
    #[inline]
    fn offset(&self, place: u32) -> usize {
        assert!((1..=self.count).contains(&place), "there is no such buffer");
        (place as usize - 1) * stride(self.bytes)
    }

    /// Word of a buffer.
    #[inline]
    fn word(&self, place: u32) -> &AtomicU64 {
        let start = self.region.base().wrapping_add(self.offset(place));
        // SAFETY: within the region, by the assertion in `offset`. Aligned, since regions are aligned and strides are
        // whole cache lines. Zero at first, which is valid. No exclusive reference to it exists.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// Prefetches the parts of a buffer that are accessed first: its word, and its bytes at these offsets. All at once,
    /// since an exchange of the word waits for memory and delays the accesses after it.
    #[inline]
    pub(crate) fn prefetch<const N: usize>(&self, place: u32, at: [usize; N]) {
        let start = self.region.base().wrapping_add(self.offset(place));
        prefetch(start);
        for at in at {
            prefetch(start.wrapping_add(WORD + at));
        }
    }

    /// Pops up to `most` free buffers off the stack.
    pub(crate) fn get(&self, most: usize, places: &mut Vec<u32>) {
        let before = places.len();
        let mut head = self.head[0].load(Ordering::Acquire);
        loop {
            let mut place = head as u32;
            // If others change the stack meanwhile, this walk covers valid indices, and the exchange fails.
            while place != NONE && places.len() - before < most {
                places.push(place);
                place = self.below[place as usize].load(Ordering::Relaxed);
            }
            if places.len() == before {
                return;
            }
            match self.exchange(head, place) {
                Ok(_) => return,
                Err(present) => head = present,
            }
            places.truncate(before);
        }
    }

    /// Pushes free buffers onto the stack.
    pub(crate) fn put(&self, places: &[u32]) {
        let Some((&last, _)) = places.split_last() else {
            return;
        };
        for pair in places.windows(2) {
            self.below[pair[0] as usize].store(pair[1], Ordering::Relaxed);
        }
        let mut head = self.head[0].load(Ordering::Acquire);
        loop {
            self.below[last as usize].store(head as u32, Ordering::Relaxed);
            match self.exchange(head, places[0]) {
                Ok(_) => return,
                Err(present) => head = present,
            }
        }
    }

    #[inline]
    fn exchange(&self, head: u64, first: u32) -> Result<u64, u64> {
        let changed = (head >> 32).wrapping_add(1) << 32 | u64::from(first);
        self.head[0].compare_exchange_weak(head, changed, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Number of free buffers on the stack.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        let mut place = self.head[0].load(Ordering::Acquire) as u32;
        let mut count = 0;
        while place != NONE {
            count += 1;
            place = self.below[place as usize].load(Ordering::Relaxed);
        }
        count
    }
}

/// Instance's access to the pool, one buffer at a time.
#[derive(Debug)]
pub(crate) struct Window {
    pool: Arc<StreamPool>,
    /// Buffer that this window has opened, or [`NONE`].
    open: u32,
    /// Offset of that buffer in the region.
    offset: usize,
    /// Buffer at which the search for silent streams continues.
    hand: u32,
}

impl Window {
    /// Creates a window with no open buffer.
    pub(crate) fn new(stock: Arc<StreamPool>) -> Window {
        Window {
            pool: stock,
            open: NONE,
            offset: 0,
            hand: 0,
        }
    }

    pub(crate) fn pool(&self) -> &StreamPool {
        &self.pool
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open != NONE
    }

    /// Opens a stream's buffer while none is open. Returns `false` if the stream has lost it, or it is in another pool.
    #[inline]
    pub(crate) fn open(&mut self, lease: Lease) -> bool {
        if lease.pool != self.pool.number {
            return false;
        }
        let generation = u64::from(lease.generation);
        let word = self.pool.word(lease.slot).load(Ordering::Relaxed);
        word & (GENERATION | OPEN | TAKEN) == generation | TAKEN && self.make_open(lease.slot, word, generation)
    }

    /// Takes and opens a free buffer while none is open. Returns `None` if it is not free.
    pub(crate) fn take(&mut self, place: u32) -> Option<Lease> {
        let word = self.pool.word(place).load(Ordering::Relaxed);
        if word & (OPEN | TAKEN) != 0 {
            return None;
        }
        self.take_from(place, word)
    }

    /// Reclaims a buffer from a stream that has been silent for [`SILENT`], if the scan finds one.
    pub(crate) fn take_idle(&mut self, now: Nanos) -> Option<Lease> {
        for _ in 0..SCAN.min(self.pool.count()) {
            let place = self.hand % self.pool.count + 1;
            self.hand = place;
            let word = self.pool.word(place).load(Ordering::Relaxed);
            // The time is part of the word: if the stream becomes active meanwhile, the exchange fails.
            if word & (OPEN | TAKEN) == TAKEN && is_idle(word, now) {
                let lease = self.take_from(place, word);
                if lease.is_some() {
                    return lease;
                }
            }
        }
        None
    }

    fn take_from(&mut self, place: u32, word: u64) -> Option<Lease> {
        let generation = word.wrapping_add(1) & GENERATION;
        let lease = Lease {
            slot: place,
            generation: generation as u32,
            pool: self.pool.number,
        };
        self.make_open(place, word, generation).then_some(lease)
    }

    #[inline]
    fn make_open(&mut self, place: u32, word: u64, generation: u64) -> bool {
        // Any other open buffer would stay open for ever.
        assert!(!self.is_open(), "one buffer at a time");
        self.pool.set_opened(place);
        let opened = self.pool.word(place).compare_exchange(
            word,
            generation | OPEN | TAKEN | self.pool.owner << TIME_SHIFT,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        match opened {
            Ok(_) => (self.open, self.offset) = (place, self.pool.offset(place)),
            Err(_) => self.pool.set_opened(NONE),
        }
        opened.is_ok()
    }

    /// Closes the open buffer, if any, which stays with its stream.
    #[inline]
    pub(crate) fn close(&mut self, now: Nanos) {
        self.end(TAKEN | tick(now) << TIME_SHIFT);
    }

    /// Closes the open buffer, if any, and marks it as free. It is on no list then.
    pub(crate) fn free(&mut self) -> Option<u32> {
        self.end(0)
    }

    #[inline]
    fn end(&mut self, state: u64) -> Option<u32> {
        let place = std::mem::replace(&mut self.open, NONE);
        if place == NONE {
            return None;
        }
        // No other code changes the word of an open buffer.
        let word = self.pool.word(place);
        let generation = word.load(Ordering::Relaxed) & GENERATION;
        word.store(generation | state, Ordering::Release);
        self.pool.set_opened(NONE);
        Some(place)
    }

    /// Mutable bytes of the open buffer.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.open == NONE {
            return None;
        }
        // SAFETY: within the region, apart from the word, and initialised. This window opened the buffer, so no other
        // accesses it, and `&mut self` is borrowed as long as the reference exists.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start().add(WORD), self.pool.bytes) })
    }

    /// Bytes of the open buffer.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.open == NONE {
            return None;
        }
        // SAFETY: as in `bytes_mut`, shared for as long as `&self` is.
        Some(unsafe { std::slice::from_raw_parts(self.start().add(WORD), self.pool.bytes) })
    }

    /// First byte of the open buffer.
    #[inline]
    fn start(&self) -> *mut u8 {
        self.pool.region.base().wrapping_add(self.offset)
    }
}

/// Instance's cache of free buffers, which keeps instances off the shared stack most of the time, and its open buffer.
#[derive(Debug)]
pub(crate) struct StreamPoolCache {
    window: Window,
    free: Vec<u32>,
    /// Maximum number of free buffers cached here, and the number moved at a time.
    hoard: usize,
    block: usize,
}

impl StreamPoolCache {
    /// Creates the cache. Nothing is allocated after this.
    pub(crate) fn new(stock: Arc<StreamPool>) -> StreamPoolCache {
        // Free buffers cached in one instance are unavailable to others, so none of a small pool are cached, nor of one
        // that outlives the instance's process.
        let hoard = match stock.owner {
            0 => (stock.count() / 128).min(64),
            _ => 0,
        };
        StreamPoolCache {
            free: Vec::with_capacity(hoard + 1),
            hoard,
            block: (hoard / 2).max(1),
            window: Window::new(stock),
        }
    }

    /// Pool behind the cache.
    #[inline]
    pub(crate) fn pool(&self) -> &StreamPool {
        self.window.pool()
    }

    /// Takes and opens a buffer while none is open. If none is free, reclaims one from a silent stream.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Lease> {
        if self.free.is_empty() {
            self.window.pool().get(self.block, &mut self.free);
        }
        match self.free.pop() {
            Some(place) => self.window.take(place),
            None => self.window.take_idle(now),
        }
    }

    /// Buffer that the next call takes, if one is free here.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Returns the open buffer.
    pub(crate) fn release(&mut self) {
        let Some(place) = self.window.free() else {
            return;
        };
        self.free.push(place);
        if self.free.len() > self.hoard {
            // The buffers used last, most likely still cached, stay here.
            let surplus = self.block.min(self.free.len());
            self.window.pool().put(&self.free[..surplus]);
            self.free.drain(..surplus);
        }
    }
}

impl Deref for StreamPoolCache {
    type Target = Window;

    fn deref(&self) -> &Window {
        &self.window
    }
}

impl DerefMut for StreamPoolCache {
    fn deref_mut(&mut self) -> &mut Window {
        &mut self.window
    }
}

/// Returns the instance's free buffers.
impl Drop for StreamPoolCache {
    fn drop(&mut self) {
        self.release();
        self.window.pool().put(&self.free);
    }
}

fn tick(time: Nanos) -> u64 {
    (time.0 >> TICK_SHIFT) & ((1 << TIME_BITS) - 1)
}

/// Returns `true` if a taken buffer was last used at least [`SILENT`] ago.
fn is_idle(word: u64, now: Nanos) -> bool {
    let since = tick(now).wrapping_sub(word >> TIME_SHIFT) & ((1 << TIME_BITS) - 1);
    // A time in the future, from another worker, does not count as silence.
    since >> (TIME_BITS - 1) == 0 && since >= tick(SILENT)
}
