//! Cache lines of atomic numbers.

use std::sync::atomic::AtomicU64;

/// Numbers per cache line.
pub(super) const WORDS: usize = 8;

/// Cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [AtomicU64; WORDS]);

/// Allocates `count` lines of zeros, populated at once: no packet incurs a page fault.
pub(super) fn lines(count: usize) -> Box<[Line]> {
    (0..count).map(|_| Line::default()).collect()
}
