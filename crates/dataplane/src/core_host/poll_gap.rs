//! Longest time in which a core polled no port, and the chain that had the core then: packets that a port loses had
//! arrived in such times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Longest time between two polls of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollGap {
    /// Number of the core.
    pub core: usize,
    /// Its length.
    pub length: Nanos,
    /// Number of the shared port, and slot there, of the chain that had a turn then. `None` if none had one: the thread
    /// was off its core, or slept.
    pub chain: Option<(usize, usize)>,
}

/// Bits of a packed gap that name the chain: eight for the port, and eight for the slot.
const CHAIN_BITS: u32 = 16;
/// Names no chain.
const NONE: u64 = (1 << CHAIN_BITS) - 1;

/// Longest gap since it was last read: its nanoseconds, and below them the chain.
#[derive(Debug, Default)]
pub(super) struct LongestGap(AtomicU64);

impl LongestGap {
    /// Returns the longest gap since the last call, of this core.
    pub(super) fn take(&self, core: usize) -> PollGap {
        let packed = self.0.swap(0, Ordering::Relaxed);
        let chain = packed & NONE;
        PollGap {
            core,
            length: Nanos(packed >> CHAIN_BITS),
            chain: (packed > 0 && chain != NONE).then_some(((chain >> 8) as usize, (chain & 0xff) as usize)),
        }
    }
}

/// Core's side.
#[derive(Debug)]
pub(super) struct GapMeter {
    longest: Arc<LongestGap>,
    polled_at: Nanos,
    /// Chain that has had a turn since, packed.
    holder: u64,
}

impl GapMeter {
    pub(super) fn new(longest: Arc<LongestGap>) -> GapMeter {
        GapMeter {
            longest,
            polled_at: Nanos::MAX,
            holder: NONE,
        }
    }

    /// Notes that a chain has had a turn since the last poll.
    #[inline]
    pub(super) fn hold(&mut self, chain: Option<(usize, usize)>) {
        self.holder = match chain {
            Some((port @ 0..0xff, slot @ 0..=0xff)) => ((port << 8) | slot) as u64,
            _ => NONE,
        };
    }

    /// Notes a poll.
    #[inline]
    pub(super) fn poll(&mut self, now: Nanos) {
        let packed = now.saturating_sub(self.polled_at).0 << CHAIN_BITS | self.holder;
        if packed > self.longest.0.load(Ordering::Relaxed) {
            self.longest.0.store(packed, Ordering::Relaxed);
        }
        (self.polled_at, self.holder) = (now, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_names_the_chain_that_had_the_core() {
        let longest = Arc::<LongestGap>::default();
        let mut meter = GapMeter::new(Arc::clone(&longest));
        let gap = |length, chain| PollGap {
            core: 3,
            length: Nanos(length),
            chain,
        };
        assert_eq!(longest.take(3), gap(0, None));
        // The first poll ends no gap.
        meter.poll(Nanos(50));
        assert_eq!(longest.take(3), gap(0, None));
        meter.hold(Some((2, 63)));
        meter.poll(Nanos(90));
        meter.hold(Some((0, 0)));
        meter.poll(Nanos(100));
        assert_eq!(longest.take(3), gap(40, Some((2, 63))));
        meter.hold(Some((0, 0)));
        meter.poll(Nanos(107));
        assert_eq!(longest.take(3), gap(7, Some((0, 0))));
        // Off its core.
        meter.poll(Nanos(1_000));
        meter.hold(Some((300, 1)));
        meter.poll(Nanos(1_001));
        assert_eq!(longest.take(3), gap(893, None));
    }
}
