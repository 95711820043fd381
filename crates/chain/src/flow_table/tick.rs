//! Time unit of flows' ages.

use tailwater_net::Nanos;

/// Shift from nanoseconds to ticks of 65.5 µs. Ages are 32-bit tick counts, valid for flows idle for up to 39 hours.
pub(super) const TICK_SHIFT: u32 = 16;

/// Converts a time span to whole ticks, at least one.
pub(super) fn ticks(span: Nanos) -> u32 {
    (span.0 >> TICK_SHIFT).clamp(1, u64::from(u32::MAX / 2)) as u32
}

/// Tick of a time on the run's clock.
pub(crate) fn tick_of(now: Nanos) -> u32 {
    (now.0 >> TICK_SHIFT) as u32
}
