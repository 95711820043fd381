//! `Synthetic`: a function with configured costs, for profilers and tests of schedulers.

mod function;
mod kind;
mod spec;
mod working_set;

pub use function::Synthetic;
pub use kind::KIND;
pub use spec::SyntheticConfig;
pub use working_set::{LINE, MAX_BYTES, Memory, Pattern, WorkingSet};

/// Largest number of cycles per packet, or per new flow.
pub const MAX_CYCLES: u32 = 10_000_000;
/// Largest number of lines a packet reads, and of lines it writes.
pub const MAX_LINES: u32 = 65_536;
/// Cycles per step of [`burn`].
const STEP: u32 = 4;

/// Cost of a packet. All of it can change during a run, except whether [`new_flow_cycles`](Work::new_flow_cycles) is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Core cycles of arithmetic per packet, rounded up to a multiple of four.
    pub cycles: u32,
    /// Additional core cycles for the first packet of a flow.
    pub new_flow_cycles: u32,
    /// Cache lines a packet reads.
    pub reads: u32,
    /// Cache lines it writes afterwards.
    pub writes: u32,
    /// Share of packets to drop, in parts of 2^64.
    pub drop: u64,
}

/// Burns this many core cycles. Each step has an exclusive or (1 cycle) and a multiplication (3 cycles on x86-64 since
/// 2008) and depends on the previous step. The compiler has no shorter way to the result.
#[inline]
fn burn(mut value: u64, cycles: u32) -> u64 {
    for _ in 0..cycles.div_ceil(STEP) {
        value = (value ^ 0x2545_f491).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    value
}

/// Returns a pseudo-random number for each number (SplitMix64's finaliser).
#[inline]
fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests;
