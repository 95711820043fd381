//! Token buckets.
//!
//! A bucket is kept as the time at which it will be full again, in 256ths of a nanosecond: an empty bucket
//! of so many bytes at such a rate is full that much later, and a packet that takes tokens puts that off by
//! what they take to come back. So a bucket is one number, nothing ticks, and a bucket that many cores
//! share is one atomic number. (The "virtual scheduling" form of the generic cell rate algorithm of ITU-T
//! I.371, which admits exactly what a bucket of tokens does.)

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Steps in a nanosecond.
const STEPS: u32 = 8;

/// What tokens are, and how fast they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Bits of frames a second, without preamble, frame check sequence and gap.
    Bits(u64),
    /// Packets a second.
    Packets(u64),
}

/// A bucket's rate and depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Steps that one packet takes, in 2^24ths.
    per_packet: u64,
    /// Steps that one byte takes, in 2^24ths.
    per_byte: u64,
    /// Steps that it takes to fill it.
    depth: u64,
}

impl Meter {
    /// A bucket that fills with `rate` up to `burst`: bytes, or packets if the rate is of these.
    ///
    /// # Panics
    /// If the rate is 0.
    pub fn new(rate: Rate, burst: u64) -> Meter {
        const SECOND: u128 = 1_000_000_000 << (STEPS + 24);
        let each = |tokens: u64, unit: u128| {
            assert!(tokens > 0, "a bucket that never fills");
            u64::try_from(SECOND * unit / u128::from(tokens)).unwrap_or(u64::MAX)
        };
        let (per_packet, per_byte) = match rate {
            Rate::Bits(bits) => (0, each(bits, 8)),
            Rate::Packets(packets) => (each(packets, 1), 0),
        };
        let depth = (u128::from(burst) * u128::from(per_packet.max(per_byte))) >> 24;
        Meter {
            per_packet,
            per_byte,
            depth: u64::try_from(depth).unwrap_or(u64::MAX),
        }
    }

    /// Steps that a packet's tokens take to come back.
    #[inline]
    fn cost(&self, bytes: usize) -> u64 {
        let steps = u128::from(self.per_byte) * bytes as u128 + u128::from(self.per_packet);
        u64::try_from(steps >> 24).unwrap_or(u64::MAX)
    }

    /// Takes a packet's tokens, if there are as many. `full` is the bucket.
    #[inline]
    pub fn take(&self, full: &mut u64, now: Nanos, bytes: usize) -> bool {
        let now = now.0.saturating_mul(1 << STEPS);
        let after = (*full).max(now).saturating_add(self.cost(bytes));
        let conforms = after - now <= self.depth;
        if conforms {
            *full = after;
        }
        conforms
    }

    /// A bucket that another meter filled, as it is to be under this one: with what was taken from it, as far as this
    /// one's burst goes.
    #[inline]
    pub(super) fn take_over(&self, full: u64, now: Nanos) -> u64 {
        let now = now.0.saturating_mul(1 << STEPS);
        full.min(now.saturating_add(self.depth))
    }

    /// As [`take_over`](Self::take_over), where nobody knows the time: at the latest it is that at which the other meter's
    /// bucket was empty.
    pub(super) fn take_over_from(&self, other: &Meter, full: u64) -> u64 {
        full.min(full.saturating_sub(other.depth).saturating_add(self.depth))
    }

    /// As [`take`](Meter::take), for packets in order, from a bucket that others take from at the same time:
    /// all of these come together, before or after what others take. `conforms` is told of each.
    #[inline]
    pub fn take_all(
        &self,
        full: &AtomicU64,
        packets: impl Iterator<Item = (Nanos, usize)> + Clone,
        conforms: &mut Vec<bool>,
    ) {
        // Only the number itself is shared, nothing that it would guard.
        let mut before = full.load(Ordering::Relaxed);
        loop {
            let mut after = before;
            conforms.clear();
            let each = packets.clone();
            conforms.extend(each.map(|(now, bytes)| self.take(&mut after, now, bytes)));
            match full.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                // Another core took some, and so got on: these packets are looked at again.
                Err(now) => before = now,
            }
        }
    }
}
