//! Token buckets.
//!
//! A bucket is stored as the time at which it will be full, in 256ths of a nanosecond. A packet delays that time by the
//! refill time of the tokens it takes. So a bucket is one number without timers, and one atomic number if cores share
//! it. This is the "virtual scheduling" form of the generic cell rate algorithm (ITU-T I.371), which admits exactly
//! what a token bucket does.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Binary digits of a nanosecond's fraction: one step is 2^-8 ns.
pub(super) const STEPS: u32 = 8;

/// Refill rate and unit of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Bits of frames per second, without preamble, frame check sequence and inter-frame gap.
    Bits(u64),
    /// Packets per second.
    Packets(u64),
}

/// Rate and depth of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Refill time of one packet, in 2^-24 steps.
    per_packet: u64,
    /// Refill time of one byte, in 2^-24 steps.
    per_byte: u64,
    /// Time to fill an empty bucket, in steps.
    depth: u64,
}

impl Meter {
    /// Meter of a bucket that refills at `rate` up to `burst`: bytes, or packets if the rate is in packets.
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

    /// Returns the refill time of a packet's tokens, in steps.
    #[inline]
    fn cost(&self, bytes: usize) -> u64 {
        let steps = u128::from(self.per_byte) * bytes as u128 + u128::from(self.per_packet);
        u64::try_from(steps >> 24).unwrap_or(u64::MAX)
    }

    /// Takes a packet's tokens if the bucket has them, and returns `true` if so. `full` is the bucket.
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

    /// Tokens in a bucket, and tokens of a full one: bytes, or packets if the rate is in packets.
    pub(super) fn level(&self, full: u64, now: Nanos) -> (u64, u64) {
        let now = now.0.saturating_mul(1 << STEPS);
        let each = u128::from(self.per_packet.max(self.per_byte)).max(1);
        let tokens = |steps: u64| ((u128::from(steps) << 24) / each) as u64;
        let left = self.depth.saturating_sub(full.saturating_sub(now));
        (tokens(left), tokens(self.depth))
    }

    /// Unit of its tokens.
    pub(super) fn unit(&self) -> &'static str {
        match self.per_packet {
            0 => "bytes",
            _ => "packets",
        }
    }

    /// Converts a bucket of another meter to this one. Tokens taken still count, up to this meter's burst.
    #[inline]
    pub(super) fn take_over(&self, full: u64, now: Nanos) -> u64 {
        let now = now.0.saturating_mul(1 << STEPS);
        full.min(now.saturating_add(self.depth))
    }

    /// Like [`take_over`](Self::take_over) when the current time is unknown. It assumes the latest possible time, that
    /// at which the other meter's bucket was empty.
    pub(super) fn take_over_from(&self, other: &Meter, full: u64) -> u64 {
        full.min(full.saturating_sub(other.depth).saturating_add(self.depth))
    }

    /// Like [`take`](Meter::take), for packets in order, from a bucket shared with other cores. The packets take their
    /// tokens atomically as a group. Writes the result for each packet to `conforms`.
    #[inline]
    pub fn take_all(
        &self,
        full: &AtomicU64,
        packets: impl Iterator<Item = (Nanos, usize)> + Clone,
        conforms: &mut Vec<bool>,
    ) {
        // Relaxed is enough: the number guards no other data.
        let mut before = full.load(Ordering::Relaxed);
        loop {
            let mut after = before;
            conforms.clear();
            let each = packets.clone();
            conforms.extend(each.map(|(now, bytes)| self.take(&mut after, now, bytes)));
            match full.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                // Another core took tokens and so made progress: these packets are evaluated again.
                Err(now) => before = now,
            }
        }
    }
}
