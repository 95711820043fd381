//! Sequence numbers: given to packets that leave, each once, and those of packets that came, each taken once.
//! All workers share them, without locks. What they share may be in memory that outlives their processes: each number is
//! one word of it, so that whoever is killed leaves it as it was before or as it is after, and a number that was taken is
//! taken for ever.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_chain::commons::{Commons, SharedNumbers};

/// The last sequence number of 32 bits.
const LAST_SHORT: u64 = u32::MAX as u64;
/// The last that is given of 64 bits. What is above is room for workers that ask at the same time.
const LAST_LONG: u64 = u64::MAX - (1 << 32);

/// The sequence numbers of packets that leave.
#[derive(Debug)]
pub(super) struct Sequence {
    /// How many were given, and what makes initialisation vectors of them, 0 until somebody has said.
    shared: SharedNumbers,
    first: u64,
    last: u64,
}

impl Sequence {
    /// The numbers that it shares.
    pub(super) const SHARED: usize = 2;

    /// From `first` on, of 64 bits if they are `extended`.
    pub(super) fn new(first: u64, extended: bool, commons: &Commons) -> Sequence {
        let last = if extended { LAST_LONG } else { LAST_SHORT };
        Sequence {
            shared: commons.take(Sequence::SHARED),
            first,
            last,
        }
    }

    /// What is added to a number to make an initialisation vector: `wished`, if nobody has begun before. The numbers are
    /// given once, but a vector must not come again either.
    pub(super) fn iv_base(&self, wished: u64) -> u64 {
        let wished = wished.max(1);
        match self.shared[1].compare_exchange(0, wished, Relaxed, Relaxed) {
            Ok(_) => wished,
            Err(begun) => begun,
        }
    }

    /// So many numbers that nobody else gets; fewer, or none, when they come to their end: they never wrap.
    #[inline]
    pub(super) fn take(&self, count: u32) -> Range<u64> {
        let end = self.last + 1;
        let given = &self.shared[0];
        let next = |given: u64| self.first.saturating_add(given).min(end);
        // So that the counter itself does not wrap, however long one asks in vain.
        if next(given.load(Relaxed)) >= end {
            return end..end;
        }
        let start = next(given.fetch_add(count.into(), Relaxed));
        start..(start + u64::from(count)).min(end)
    }
}

/// Why a packet's sequence number is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It was there before.
    Replayed,
    /// It is left of the window, so that nobody knows any more, or below the first, as the number 0 is.
    TooOld,
}

/// Sequence numbers in a word of the window.
const WORD: u64 = 32;

/// Which sequence numbers have come, of the last so many (RFC 4303 §3.4.3).
///
/// As in RFC 6479 the window is a ring of words, so that nothing is shifted. Here each word holds, beside 32 bits, the
/// number of the block of sequence numbers that the bits are for, and all of it is changed by one compare-and-swap: whichever
/// workers have packets at the same time, each number is taken once, and a word goes only forward.
#[derive(Debug)]
pub(super) struct Window {
    /// By how much the highest number that has come is above the one before the first.
    ahead: SharedNumbers,
    /// For each block its number's low 32 bits, and its bits. All zero: no number of the word has come.
    words: SharedNumbers,
    size: u64,
    /// The lowest number that any packet has.
    first: u64,
    extended: bool,
}

impl Window {
    /// The numbers that a window of this size shares: twice some, in lines of their own.
    pub(super) fn shared(size: u32) -> [usize; 2] {
        // One block more than the size, since the highest number's is not full.
        let words = (u64::from(size).div_ceil(WORD) + 1).next_power_of_two();
        [1, words as usize]
    }

    /// A window of so many numbers, the first of which is at least 1. They are of 64 bits if they are `extended`.
    pub(super) fn new(size: u32, extended: bool, first: u64, commons: &Commons) -> Window {
        let [ahead, words] = Window::shared(size).map(|count| commons.take(count));
        Window {
            ahead,
            words,
            size: size.into(),
            first,
            extended,
        }
    }

    /// The highest number that has come.
    #[inline]
    fn top(&self) -> u64 {
        let ahead = self.ahead[0].load(Relaxed);
        (self.first - 1).saturating_add(ahead)
    }

    /// The whole sequence number of a packet that has these low 32 bits, if it may be new. Nobody knows yet whether
    /// the packet is what it says.
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

    /// Takes a sequence number, of a packet that has been authenticated.
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

    /// A number's word, the low bits of its block's number, and its bit.
    #[inline]
    fn place(&self, sequence: u64) -> (&AtomicU64, u32, u64) {
        let block = sequence / WORD;
        // The number of words is a power of two.
        let at = block as usize & (self.words.len() - 1);
        (&self.words[at], block as u32, 1 << (sequence % WORD))
    }

    /// The whole of a number by its low bits: the only one that is not left of the window by much (RFC 4303, A2.2).
    /// `None` if that would be below zero.
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
