//! Cache lines of atomic numbers.

use std::sync::atomic::AtomicU64;

/// Numbers in a line.
pub(super) const WORDS: usize = 8;

/// A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [AtomicU64; WORDS]);

/// So many lines of zeros, in memory from the start: no packet pays for a page fault.
pub(super) fn lines(count: usize) -> Box<[Line]> {
    (0..count).map(|_| Line::default()).collect()
}
