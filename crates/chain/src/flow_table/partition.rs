//! Partition of a flow table: one bucket's slot allocation and timers.

use crate::flow_memory::FlowMemory;
use crate::flow_wheel::Wheel;
use std::sync::Arc;

/// Number of slots, from its home on, in which a key can be stored.
pub(super) const NEIGHBOURHOOD: u32 = 32;

/// One bucket's part of the flow table: its timers, and the right to use its entries. There is exactly one for each
/// bucket, so its holder has exclusive access.
#[derive(Debug)]
pub struct Partition(pub(super) Box<PartitionParts>);

#[derive(Debug)]
pub(super) struct PartitionParts {
    /// Memory that the partition gives access to.
    pub(super) memory: Arc<FlowMemory>,
    pub(super) bucket: u16,
    pub(super) wheel: Wheel,
    /// Bit map of the slots that are taken.
    pub(super) taken: Box<[u64]>,
    pub(super) live: u32,
}

impl Partition {
    /// RSS bucket of the partition.
    pub fn bucket(&self) -> u16 {
        self.0.bucket
    }

    /// Number of flows in the partition.
    pub fn flows(&self) -> usize {
        self.0.live as usize
    }
}

impl PartitionParts {
    /// Returns the distance of the first free slot in the neighbourhood of `home`.
    #[inline]
    pub(super) fn free_distance(&self, home: u32, mask: u32) -> Option<u32> {
        // The slots from `home` on, wrapped, as the low bits of one word.
        let (word, bit) = ((home / 64) as usize, home % 64);
        let next = if word + 1 < self.taken.len() { word + 1 } else { 0 };
        debug_assert!(mask as usize + 1 == self.taken.len() * 64);
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
