//! One bucket's part of a flow table: which of its places are taken, and its timers.

use crate::flow_memory::FlowMemory;
use crate::flow_wheel::Wheel;
use std::sync::Arc;

/// How many places, from its home on, a key may lie in.
pub(super) const NEIGHBOURHOOD: u32 = 32;

/// One bucket's part of the flow table: the right to use its entries, and its timers. There is one
/// for each bucket, so whoever holds it is the only one.
#[derive(Debug)]
pub struct Partition(pub(super) Box<PartitionParts>);

#[derive(Debug)]
pub(super) struct PartitionParts {
    /// The memory that the partition gives a right to.
    pub(super) memory: Arc<FlowMemory>,
    pub(super) bucket: u16,
    pub(super) wheel: Wheel,
    /// A bit for each place: taken or free.
    pub(super) taken: Box<[u64]>,
    pub(super) live: u32,
}

impl Partition {
    /// The RSS bucket.
    pub fn bucket(&self) -> u16 {
        self.0.bucket
    }

    /// Flows in the partition.
    pub fn flows(&self) -> usize {
        self.0.live as usize
    }
}

impl PartitionParts {
    /// The first free place among the neighbourhood's from `home` on, as a distance.
    #[inline]
    pub(super) fn free_distance(&self, home: u32, mask: u32) -> Option<u32> {
        // The places from `home` on, wrapped, as the low bits of one word.
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

    /// The first place that holds a flow.
    pub(super) fn first_taken(&self) -> Option<u32> {
        let word = self.taken.iter().position(|word| *word != 0)?;
        Some(word as u32 * 64 + self.taken[word].trailing_zeros())
    }

    pub(super) fn is_taken(&self, place: u32) -> bool {
        self.taken[(place / 64) as usize] >> (place % 64) & 1 != 0
    }

    /// The first place from this one on that holds a flow.
    pub(super) fn taken_from(&self, place: u32) -> Option<u32> {
        let first = (place / 64) as usize;
        let rest = self.taken[first] & (u64::MAX << (place % 64));
        let later = self.taken[first + 1..].iter().copied();
        let mut words = (first..).zip(std::iter::once(rest).chain(later));
        let (word, bits) = words.find(|(_, bits)| *bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    pub(super) fn set_taken(&mut self, place: u32, taken: bool) {
        let bit = 1 << (place % 64);
        let word = &mut self.taken[(place / 64) as usize];
        *word = if taken { *word | bit } else { *word & !bit };
    }
}
