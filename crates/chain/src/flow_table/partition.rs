//! Partition of a flow table: one bucket's slot allocation and timers.
//!
//! Another module with `unsafe` code: the parts of all partitions are in one array that all cores share, each part used
//! by one core at a time.

use crate::flow_wheel::Wheel;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// Number of slots, from its home on, in which a key can be stored.
pub(super) const NEIGHBOURHOOD: u32 = 32;

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
    pub(super) taken: Box<[u64]>,
    pub(super) live: u32,
}

impl PartitionParts {
    /// Size in bytes of the parts of a partition with `slots` slots.
    pub(super) fn bytes(slots: u32) -> usize {
        size_of::<PartCell>() + Wheel::BYTES - size_of::<Wheel>() + (slots / 64) as usize * size_of::<u64>()
    }

    /// Returns the distance of the first free slot in the neighbourhood of `home`.
    #[inline]
    pub(super) fn free_distance(&self, home: u32) -> Option<u32> {
        // The slots from `home` on, wrapped, as the low bits of one word.
        let (word, bit) = ((home / 64) as usize, home % 64);
        let next = if word + 1 < self.taken.len() { word + 1 } else { 0 };
        let mut near = self.taken[word] >> bit;
        if bit > 0 {
            near |= self.taken[next] << (64 - bit);
        }
        let distance = near.trailing_ones();
        (distance < NEIGHBOURHOOD).then_some(distance)
    }

    /// Returns the first slot that holds a flow.
    pub(super) fn first_taken(&self) -> Option<u32> {
        let word = self.taken.iter().position(|word| *word != 0)?;
        Some(word as u32 * 64 + self.taken[word].trailing_zeros())
    }

    pub(super) fn is_taken(&self, index: u32) -> bool {
        self.taken[(index / 64) as usize] >> (index % 64) & 1 != 0
    }

    /// Returns the first slot at or after `index` that holds a flow.
    pub(super) fn taken_from(&self, index: u32) -> Option<u32> {
        let first = (index / 64) as usize;
        let rest = self.taken[first] & (u64::MAX << (index % 64));
        let later = self.taken[first + 1..].iter().copied();
        let mut words = (first..).zip(std::iter::once(rest).chain(later));
        let (word, bits) = words.find(|(_, bits)| *bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    pub(super) fn set_taken(&mut self, index: u32, taken: bool) {
        let bit = 1 << (index % 64);
        let word = &mut self.taken[(index / 64) as usize];
        *word = if taken { *word | bit } else { *word & !bit };
    }
}
