//! Partition of a flow table: one bucket's slot allocation and timers.
//!
//! Another module with `unsafe` code: the parts of all partitions are in one array that all cores share, each part used
//! by one core at a time.

use crate::flow_wheel::Wheel;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// One bucket's part of the flow table: the right to its timers and entries. There is exactly one for each bucket. Its
/// holder has exclusive access, unless it lends the bucket.
#[derive(Debug)]
pub struct Partition {
    pub(super) all: Arc<AllParts>,
    pub(super) bucket: u16,
}

impl Partition {
    /// RSS bucket of the partition.
    pub fn bucket(&self) -> u16 {
        self.bucket
    }
}

/// Parts of all partitions, by bucket.
#[derive(Debug)]
pub(super) struct AllParts(Box<[PartCell]>);

/// Parts of a partition, in cache lines of their own: neighbours may be in use on other cores.
#[derive(Debug)]
#[repr(align(128))]
struct PartCell(UnsafeCell<PartitionParts>);

// SAFETY: access requires the right to the bucket, which one core has at a time: see `AllParts::get`.
unsafe impl Sync for PartCell {}

impl AllParts {
    pub(super) fn new(parts: impl Iterator<Item = PartitionParts>) -> AllParts {
        AllParts(parts.map(|parts| PartCell(UnsafeCell::new(parts))).collect())
    }

    /// Parts of a bucket.
    ///
    /// # Safety
    /// The caller has the right to use the bucket: it holds its [`Partition`] and has not lent it, or it was lent to
    /// the caller. Earlier uses by other cores happened before. Nothing changes the parts while the reference exists.
    #[inline]
    pub(super) unsafe fn get(&self, bucket: usize) -> &PartitionParts {
        // SAFETY: shared, as guaranteed by the caller.
        unsafe { &*self.0[bucket].0.get() }
    }

    /// Mutable parts of a bucket.
    ///
    /// # Safety
    /// Same as [`get`](AllParts::get), and no other reference to the parts exists.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(super) unsafe fn get_mut(&self, bucket: usize) -> &mut PartitionParts {
        // SAFETY: exclusive, as guaranteed by the caller.
        unsafe { &mut *self.0[bucket].0.get() }
    }
}

#[derive(Debug)]
pub(super) struct PartitionParts {
    pub(super) wheel: Wheel,
    /// Bit map of the slots that are taken.
    taken: Box<[u64]>,
    pub(super) live: u32,
    /// Index of the first slot in the list of those that flows have left.
    pub(super) left: u32,
    /// First slot that no flow has had, as all after it.
    pub(super) fresh: u32,
}

impl PartitionParts {
    /// Parts of an empty partition with `slots` slots, whose timers run up to `longest` ticks. `none` is the index of
    /// no flow.
    pub(super) fn new(slots: u32, longest: u32, none: u32) -> PartitionParts {
        PartitionParts {
            wheel: Wheel::new(longest),
            taken: vec![0; slots.div_ceil(64) as usize].into(),
            live: 0,
            left: none,
            fresh: 0,
        }
    }

    /// Size in bytes of the parts of a partition with `slots` slots.
    pub(super) fn bytes(slots: u32) -> usize {
        size_of::<PartCell>() + Wheel::BYTES - size_of::<Wheel>() + slots.div_ceil(64) as usize * size_of::<u64>()
    }

    /// Returns the first slot that holds a flow.
    pub(super) fn first_taken(&self) -> Option<u16> {
        let word = self.taken.iter().position(|word| *word != 0)?;
        Some((word as u32 * 64 + self.taken[word].trailing_zeros()) as u16)
    }

    pub(super) fn is_taken(&self, index: u16) -> bool {
        self.taken[usize::from(index / 64)] >> (index % 64) & 1 != 0
    }

    /// Returns the first slot at or after `index` that holds a flow.
    pub(super) fn taken_from(&self, index: u16) -> Option<u16> {
        let first = usize::from(index / 64);
        let rest = self.taken[first] & (u64::MAX << (index % 64));
        let later = self.taken[first + 1..].iter().copied();
        let mut words = (first..).zip(std::iter::once(rest).chain(later));
        let (word, bits) = words.find(|(_, bits)| *bits != 0)?;
        Some((word as u32 * 64 + bits.trailing_zeros()) as u16)
    }

    pub(super) fn set_taken(&mut self, index: u16, taken: bool) {
        let bit = 1 << (index % 64);
        let word = &mut self.taken[usize::from(index / 64)];
        *word = if taken { *word | bit } else { *word & !bit };
    }
}
