//! `Synthetic`: a function that costs what it is told to, for profilers and tests of schedules.

mod function;
mod working_set;

pub use function::Synthetic;
pub use working_set::{LINE, MAX_BYTES, Memory, Pattern, WorkingSet};

/// The most cycles for a packet, or a new flow.
pub const MAX_CYCLES: u32 = 10_000_000;
/// The most lines that a packet reads, and as many that it writes.
pub const MAX_LINES: u32 = 65_536;
/// Cycles of a step of [`burn`].
const STEP: u32 = 4;

/// What a packet costs. All of it can change while packets pass, but for whether
/// [`new_flow_cycles`](Work::new_flow_cycles) is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Core cycles of arithmetic for a packet, to the next multiple of four.
    pub cycles: u32,
    /// Core cycles more for the first packet of a flow.
    pub new_flow_cycles: u32,
    /// Cache lines that a packet reads.
    pub reads: u32,
    /// Cache lines that it writes after that.
    pub writes: u32,
    /// The share of packets to drop, in parts of 2^64.
    pub drop: u64,
}

/// Takes so many core cycles: each step takes an exclusive or (one cycle) and a multiplication (three, on x86-64 since
/// 2008), and none can begin before the one in front has ended. The compiler has no shorter way to the result either.
#[inline]
fn burn(mut value: u64, cycles: u32) -> u64 {
    for _ in 0..cycles.div_ceil(STEP) {
        value = (value ^ 0x2545_f491).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    value
}

/// A number without pattern for each number (the finaliser of SplitMix64).
#[inline]
fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests;
