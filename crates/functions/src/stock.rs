//! Memory for streams that something is kept of: one region that all instances of a function share.
//!
//! One of the few modules with `unsafe` code. A buffer belongs to a flow, whose state names it by
//! [`Lease`]; the flow is processed by one instance at a time, but not always by the same. Free
//! buffers are a stack that instances take from, and give back to, many at a time.
//!
//! # Who may touch a buffer's bytes
//!
//! Each buffer has a word that says whether it is free, taken, or *open*. Only the [`Window`] that made
//! it open, by a compare-and-exchange from one of the other two, may touch the bytes, until it stores
//! another value; the exchange acquires what that store released. So whatever the flows' states hold,
//! and in whatever order instances run, no two of them are at the same bytes: it takes no trust in
//! the flows' owners. These make sure of something else, that an exchange never fails because another
//! instance is at work: it does only if the buffer was taken back from a silent stream.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tailwater_chain::region::{CACHE_LINE, Region, prefetch};
use tailwater_net::Nanos;

/// A buffer whose stream has been silent for this long is taken back when there is no free one.
pub(crate) const SILENT: Nanos = Nanos::from_secs(10);
/// Buffers looked at for a silent stream each time that there is no free one.
const SCAN: usize = 32;
/// Bits of a place in a flow's state: buffers have the places from 1 on.
pub(crate) const PLACE_BITS: u32 = 20;
/// No buffer.
const NONE: u32 = 0;

// The word: from the lowest bit the generation, two flags, and when the buffer was used.
const GENERATION_BITS: u32 = 28;
const GENERATION: u64 = (1 << GENERATION_BITS) - 1;
const OPEN: u64 = 1 << GENERATION_BITS;
const TAKEN: u64 = OPEN << 1;
const TIME_SHIFT: u32 = GENERATION_BITS + 2;
const TIME_BITS: u32 = u64::BITS - TIME_SHIFT;
/// A nanosecond count shifted right by this is a tick of the word's time: a millisecond, about.
const TICK_SHIFT: u32 = 20;

/// A buffer's word, in front of its bytes.
const WORD: usize = size_of::<AtomicU64>();

/// Bytes from one buffer to the next. An odd number of cache lines, so that the starts of all do not
/// share a few sets of the cache.
pub(crate) const fn stride(bytes: usize) -> usize {
    ((WORD + bytes).div_ceil(CACHE_LINE) | 1) * CACHE_LINE
}

/// A flow's right to a buffer, until that is given back or, the stream being silent, taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Which buffer, from 1 on.
    pub(crate) place: u32,
    /// How often it had been taken, so that a stream sees that it lost it.
    pub(crate) generation: u32,
    /// Of which stock: flows may outlive the process that this one was in, or go to another.
    pub(crate) stock: u32,
}

/// The buffers of all instances.
#[derive(Debug)]
pub(crate) struct Stock {
    /// Tells it from others: a number at random.
    number: u32,
    region: Region,
    bytes: usize,
    count: u32,
    /// The first free buffer, and above it a number that every change makes one more, so that an
    /// exchange fails if the stack has changed in the meantime.
    head: AtomicU64,
    /// For each buffer that is on the stack the one below it. Not in the buffers: a walk would wait for
    /// memory at each.
    below: Box<[AtomicU32]>,
}

impl Stock {
    /// So many buffers of so many bytes each, which begin at a multiple of 8.
    ///
    /// # Errors
    /// What the kernel says when there is not that much memory; too many buffers.
    pub(crate) fn new(count: usize, bytes: usize) -> io::Result<Stock> {
        if count >> PLACE_BITS != 0 {
            return Err(io::Error::other(format!("{count} buffers are too many")));
        }
        let stock = Stock {
            number: RandomState::new().hash_one(count) as u32,
            region: Region::zeroed(count * stride(bytes))?,
            bytes,
            count: count as u32,
            head: AtomicU64::new(0),
            below: (0..=count).map(|_| AtomicU32::new(NONE)).collect(),
        };
        let all: Vec<u32> = (1..=stock.count).collect();
        stock.put(&all);
        Ok(stock)
    }

    /// How many buffers there are.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of each buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What tells its leases from those of others.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Where in the region a buffer begins.
    #[inline]
    fn offset(&self, place: u32) -> usize {
        assert!((1..=self.count).contains(&place), "there is no such buffer");
        (place as usize - 1) * stride(self.bytes)
    }

    /// A buffer's word.
    #[inline]
    fn word(&self, place: u32) -> &AtomicU64 {
        let start = self.region.base().wrapping_add(self.offset(place));
        // SAFETY: in the region, by the assertion in `offset`; aligned, since regions are and strides are
        // whole cache lines; zero at first, which is valid. Nobody has an exclusive reference to it.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// Brings near what is touched of a buffer first: its word, and its bytes at these places. All at once, while an
    /// exchange of the word waits for memory and holds up what comes after it.
    #[inline]
    pub(crate) fn prefetch<const N: usize>(&self, place: u32, at: [usize; N]) {
        let start = self.region.base().wrapping_add(self.offset(place));
        prefetch(start);
        for at in at {
            prefetch(start.wrapping_add(WORD + at));
        }
    }

    /// Takes up to `most` free buffers from the stack.
    pub(crate) fn get(&self, most: usize, places: &mut Vec<u32>) {
        let before = places.len();
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let mut place = head as u32;
            // If others change the stack meanwhile, this is a walk among valid places to no avail.
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

    /// Puts free buffers onto the stack.
    pub(crate) fn put(&self, places: &[u32]) {
        let Some((&last, _)) = places.split_last() else {
            return;
        };
        for pair in places.windows(2) {
            self.below[pair[0] as usize].store(pair[1], Ordering::Relaxed);
        }
        let mut head = self.head.load(Ordering::Acquire);
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
        self.head
            .compare_exchange_weak(head, changed, Ordering::AcqRel, Ordering::Acquire)
    }

    /// How many free buffers are on the stack.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        let mut place = self.head.load(Ordering::Acquire) as u32;
        let mut count = 0;
        while place != NONE {
            count += 1;
            place = self.below[place as usize].load(Ordering::Relaxed);
        }
        count
    }
}

/// An instance's access to the stock: to one buffer at a time.
#[derive(Debug)]
pub(crate) struct Window {
    stock: Arc<Stock>,
    /// The buffer whose word this window has made open, or [`NONE`].
    open: u32,
    /// Where that begins in the region.
    offset: usize,
    /// Where the search for silent streams goes on.
    hand: u32,
}

impl Window {
    /// Onto no buffer.
    pub(crate) fn new(stock: Arc<Stock>) -> Window {
        Window {
            stock,
            open: NONE,
            offset: 0,
            hand: 0,
        }
    }

    pub(crate) fn stock(&self) -> &Stock {
        &self.stock
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open != NONE
    }

    /// Opens a stream's buffer, none being open; `false` if it is not the stream's any more, or in another stock.
    #[inline]
    pub(crate) fn open(&mut self, lease: Lease) -> bool {
        if lease.stock != self.stock.number {
            return false;
        }
        let generation = u64::from(lease.generation);
        let word = self.stock.word(lease.place).load(Ordering::Relaxed);
        word & (GENERATION | OPEN | TAKEN) == generation | TAKEN && self.make_open(lease.place, word, generation)
    }

    /// Opens a free buffer, none being open, and takes it. `None` if it is not free.
    pub(crate) fn take(&mut self, place: u32) -> Option<Lease> {
        let word = self.stock.word(place).load(Ordering::Relaxed);
        if word & (OPEN | TAKEN) != 0 {
            return None;
        }
        self.take_from(place, word)
    }

    /// Takes a buffer away from a stream that has been silent for long, if one is soon found.
    pub(crate) fn take_silent(&mut self, now: Nanos) -> Option<Lease> {
        for _ in 0..SCAN.min(self.stock.count()) {
            let place = self.hand % self.stock.count + 1;
            self.hand = place;
            let word = self.stock.word(place).load(Ordering::Relaxed);
            // The time is part of the word: if the stream speaks up meanwhile, the exchange fails.
            if word & (OPEN | TAKEN) == TAKEN && is_silent(word, now) {
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
            place,
            generation: generation as u32,
            stock: self.stock.number,
        };
        self.make_open(place, word, generation).then_some(lease)
    }

    #[inline]
    fn make_open(&mut self, place: u32, word: u64, generation: u64) -> bool {
        // Were another buffer open, it would stay so for ever.
        assert!(!self.is_open(), "one buffer at a time");
        let opened = self.stock.word(place).compare_exchange(
            word,
            generation | OPEN | TAKEN,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if opened.is_ok() {
            (self.open, self.offset) = (place, self.stock.offset(place));
        }
        opened.is_ok()
    }

    /// Closes the buffer that is open, if one is; it stays its stream's.
    #[inline]
    pub(crate) fn close(&mut self, now: Nanos) {
        self.end(TAKEN | tick(now) << TIME_SHIFT);
    }

    /// Closes the buffer that is open, if one is, and makes it free. It is on no list then.
    pub(crate) fn free(&mut self) -> Option<u32> {
        self.end(0)
    }

    #[inline]
    fn end(&mut self, state: u64) -> Option<u32> {
        let place = std::mem::replace(&mut self.open, NONE);
        if place == NONE {
            return None;
        }
        // Nobody else changes the word of an open buffer.
        let word = self.stock.word(place);
        let generation = word.load(Ordering::Relaxed) & GENERATION;
        word.store(generation | state, Ordering::Release);
        Some(place)
    }

    /// The bytes of the buffer that is open.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.open == NONE {
            return None;
        }
        // SAFETY: in the region, apart from the word, and initialised. This window made the buffer open, so that no
        // other touches it, and `&mut self` lasts as long as the reference does.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start().add(WORD), self.stock.bytes) })
    }

    /// The bytes of the buffer that is open.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.open == NONE {
            return None;
        }
        // SAFETY: as in `bytes_mut`, shared for as long as `&self` is.
        Some(unsafe { std::slice::from_raw_parts(self.start().add(WORD), self.stock.bytes) })
    }

    /// The first byte of the buffer that is open.
    #[inline]
    fn start(&self) -> *mut u8 {
        self.stock.region.base().wrapping_add(self.offset)
    }
}

/// An instance's part of a stock: buffers that are free, so that instances seldom meet at it, and the one that is open.
#[derive(Debug)]
pub(crate) struct Lender {
    window: Window,
    free: Vec<u32>,
    /// Most that are free here, and how many change hands at a time.
    hoard: usize,
    block: usize,
}

impl Lender {
    /// Nothing is allocated after this.
    pub(crate) fn new(stock: Arc<Stock>) -> Lender {
        // What is free with one instance is not there for others: of a small stock nothing is.
        let hoard = (stock.count() / 128).min(64);
        Lender {
            free: Vec::with_capacity(hoard + 1),
            hoard,
            block: (hoard / 2).max(1),
            window: Window::new(stock),
        }
    }

    /// The stock.
    #[inline]
    pub(crate) fn stock(&self) -> &Stock {
        self.window.stock()
    }

    /// Takes a buffer and opens it, none being open. Without a free one, that of a stream silent for long.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Lease> {
        if self.free.is_empty() {
            self.window.stock().get(self.block, &mut self.free);
        }
        match self.free.pop() {
            Some(place) => self.window.take(place),
            None => self.window.take_silent(now),
        }
    }

    /// The buffer that will be taken next, if one is free here.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Gives back the buffer that is open.
    pub(crate) fn give(&mut self) {
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
}

impl Deref for Lender {
    type Target = Window;

    fn deref(&self) -> &Window {
        &self.window
    }
}

impl DerefMut for Lender {
    fn deref_mut(&mut self) -> &mut Window {
        &mut self.window
    }
}

/// What is free with this instance goes back.
impl Drop for Lender {
    fn drop(&mut self) {
        self.give();
        self.window.stock().put(&self.free);
    }
}

fn tick(time: Nanos) -> u64 {
    (time.0 >> TICK_SHIFT) & ((1 << TIME_BITS) - 1)
}

/// Whether a taken buffer was used long ago.
fn is_silent(word: u64, now: Nanos) -> bool {
    let since = tick(now).wrapping_sub(word >> TIME_SHIFT) & ((1 << TIME_BITS) - 1);
    // A time after now, of another worker, is no silence.
    since >> (TIME_BITS - 1) == 0 && since >= tick(SILENT)
}
