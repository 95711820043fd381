//! Sequence numbers: each outbound number is given once, each inbound number is accepted once.
//!
//! All workers share them without locks, possibly in memory that outlives their processes. Each number is one word of
//! it. A process killed at any instant leaves the word as before or as after an update, and an accepted number stays
//! accepted.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};

/// Last 32-bit sequence number.
const LAST_SHORT: u64 = u32::MAX as u64;
/// Last 64-bit sequence number given out. The headroom above absorbs concurrent increments by several workers.
const LAST_LONG: u64 = u64::MAX - (1 << 32);

/// Outbound sequence numbers of an association.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Count of numbers given, and base of the initialisation vectors, 0 until set.
    shared: CounterArray,
    first: u64,
    last: u64,
}

impl Sequence {
    /// Shared words per association.
    pub(super) const SHARED: usize = 2;

    /// Starts at `first`; numbers have 64 bits if `extended`.
    pub(super) fn new(first: u64, extended: bool, shared_counters: &SharedCounters) -> Sequence {
        let last = if extended { LAST_LONG } else { LAST_SHORT };
        Sequence {
            shared: shared_counters.take(Sequence::SHARED),
            first,
            last,
        }
    }

    /// Returns the value added to a sequence number to make its initialisation vector, and sets it to `wished` if
    /// unset. Numbers are given once, but a vector must not be reused either.
    pub(super) fn iv_base(&self, wished: u64) -> u64 {
        let wished = wished.max(1);
        match self.shared[1].compare_exchange(0, wished, Relaxed, Relaxed) {
            Ok(_) => wished,
            Err(begun) => begun,
        }
    }

    /// Takes `count` numbers exclusively; fewer or none when the numbers are exhausted. They never wrap.
    #[inline]
    pub(super) fn take(&self, count: u32) -> Range<u64> {
        let end = self.last + 1;
        let given = &self.shared[0];
        let next = |given: u64| self.first.saturating_add(given).min(end);
        // Keeps the counter itself from wrapping, however many calls follow exhaustion.
        if next(given.load(Relaxed)) >= end {
            return end..end;
        }
        let start = next(given.fetch_add(count.into(), Relaxed));
        start..(start + u64::from(count)).min(end)
    }
}

/// Reasons a sequence number is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Received before.
    Replayed,
    /// Left of the window, so its state is unknown; or below the first number, as 0 is.
    TooOld,
}

/// Sequence numbers per word of the window.
const WORD: u64 = 32;

/// Anti-replay window: the received ones among the last `size` sequence numbers (RFC 4303 §3.4.3).
///
/// As in RFC 6479 the window is a ring of words, so nothing is shifted. Each word holds 32 bits and the number of the
/// block of sequence numbers they describe; one compare-and-swap changes both. So each number is accepted once, even
/// with concurrent workers, and a word only moves forward.
#[derive(Debug)]
pub(super) struct Window {
    /// Highest number received, relative to the number before the first.
    ahead: CounterArray,
    /// Per word: low 32 bits of the block's number, and 32 bits of received flags. All zero: none received.
    words: CounterArray,
    size: u64,
    /// Lowest valid number.
    first: u64,
    extended: bool,
}

impl Window {
    /// Returns the shared words a window of this size needs: two groups, each in its own cache lines.
    pub(super) fn shared(size: u32) -> [usize; 2] {
        // One block more than the size, since the highest number's block is incomplete.
        let words = (u64::from(size).div_ceil(WORD) + 1).next_power_of_two();
        [1, words as usize]
    }

    /// Creates a window of `size` numbers. `first` is at least 1; numbers have 64 bits if `extended`.
    pub(super) fn new(size: u32, extended: bool, first: u64, shared_counters: &SharedCounters) -> Window {
        let [ahead, words] = Window::shared(size).map(|count| shared_counters.take(count));
        Window {
            ahead,
            words,
            size: size.into(),
            first,
            extended,
        }
    }

    /// Returns the highest number received.
    #[inline]
    fn top(&self) -> u64 {
        let ahead = self.ahead[0].load(Relaxed);
        (self.first - 1).saturating_add(ahead)
    }

    /// Returns the whole sequence number for these low 32 bits, if it may be new. The packet is not yet authenticated.
    #[inline]
    pub(super) fn check(&self, low: u32) -> Result<u64, Refused> {
        let top = self.top();
        let sequence = self.whole(top, low).ok_or(Refused::TooOld)?;
        if sequence < self.first || self.is_left(top, sequence) {
            return Err(Refused::TooOld);
        }
        let (word, block, bit) = self.place(sequence);
        let word = word.load(Relaxed);
        match ((word >> 32) as u32 == block, word & bit != 0) {
            (true, true) => Err(Refused::Replayed),
            _ => Ok(sequence),
        }
    }

    /// Marks the sequence number of an authenticated packet as received.
    #[inline]
    pub(super) fn mark(&self, sequence: u64) -> Result<(), Refused> {
        let top = self.top();
        if self.is_left(top, sequence) {
            return Err(Refused::TooOld);
        }
        let (word, block, bit) = self.place(sequence);
        let mut before = word.load(Relaxed);
        loop {
            let ahead = block.wrapping_sub((before >> 32) as u32) as i32;
            let after = match ahead {
                0 if before & bit != 0 => return Err(Refused::Replayed),
                0 => before | bit,
                // Another worker is a whole window ahead.
                ..0 if before != 0 => return Err(Refused::TooOld),
                _ => u64::from(block) << 32 | bit,
            };
            match word.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        if sequence > top {
            let ahead = sequence - (self.first - 1);
            self.ahead[0].fetch_max(ahead, Relaxed);
        }
        Ok(())
    }

    #[inline]
    fn is_left(&self, top: u64, sequence: u64) -> bool {
        top.saturating_sub(sequence) >= self.size
    }

    /// Returns a number's word, the low bits of its block's number, and its bit.
    #[inline]
    fn place(&self, sequence: u64) -> (&AtomicU64, u32, u64) {
        let block = sequence / WORD;
        // The number of words is a power of two.
        let at = block as usize & (self.words.len() - 1);
        (&self.words[at], block as u32, 1 << (sequence % WORD))
    }

    /// Recovers a whole number from its low bits: the only candidate not far left of the window (RFC 4303, A2.2).
    /// Returns `None` if it would be negative or exceed 64 bits.
    #[inline]
    fn whole(&self, top: u64, low: u32) -> Option<u64> {
        if !self.extended {
            return Some(low.into());
        }
        let (high, top_low) = (top >> 32, top as u32);
        let most = (self.size - 1) as u32;
        let left = top_low.wrapping_sub(most);
        let high = match (top_low >= most, low >= left) {
            (true, true) | (false, false) => high,
            (true, false) => high.checked_add(1)?,
            (false, true) => high.checked_sub(1)?,
        };
        (high <= LAST_SHORT).then_some(high << 32 | u64::from(low))
    }
}
