//! Numbering of slots and homes.

use tailwater_net::toeplitz::BUCKETS;

/// Slots in a partition are a multiple of this, the width of a word of its bit map.
const STEP: u32 = 64;

/// Number of slots of a table. They are numbered partition by partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Slots in a partition.
    pub(super) slots: u32,
    /// `2^shift / slots`, rounded up.
    reciprocal: u64,
    shift: u32,
}

impl Shape {
    /// Shape of a table for `capacity` flows: twice as many slots, in each bucket at least [`STEP`].
    pub(super) fn new(capacity: usize) -> Shape {
        let slots = (2 * capacity).div_ceil(BUCKETS).max(1) as u32;
        Shape::of_slots(slots.next_multiple_of(STEP))
    }

    fn of_slots(slots: u32) -> Shape {
        let shift = 32 + slots.ilog2();
        Shape {
            slots,
            // At most 2^32, so a product with an index does not overflow.
            reciprocal: (1u64 << shift).div_ceil(u64::from(slots)),
            shift,
        }
    }

    /// Same with two slots for each one.
    pub(super) fn doubled(self) -> Shape {
        Shape {
            slots: 2 * self.slots,
            shift: self.shift + 1,
            ..self
        }
    }

    /// Number of slots of the table.
    pub(super) fn all_slots(&self) -> usize {
        BUCKETS * self.slots as usize
    }

    /// Bucket of a slot; not below [`BUCKETS`] for numbers that are no slot's.
    ///
    /// Exact below 2^31: the reciprocal's error is below `slots / 2^shift`, of which `index` is then less than one
    /// slot's share.
    #[inline]
    pub(super) fn bucket(&self, index: u32) -> usize {
        ((u64::from(index) * self.reciprocal) >> self.shift) as usize
    }

    /// First slot of a bucket.
    #[inline]
    pub(super) fn first(&self, bucket: usize) -> u32 {
        bucket as u32 * self.slots
    }

    /// Number of a slot within its partition.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> u32 {
        index - self.first(self.bucket(index))
    }

    /// Home slot of a key with this hash.
    #[inline]
    pub(super) fn home(&self, hash: u64, bucket: u16) -> u32 {
        let within = (u64::from(hash as u32) * u64::from(self.slots)) >> 32;
        u32::from(bucket) * self.slots + within as u32
    }

    /// Slot at `distance`, at most the number of slots, after another of the same partition, which is a ring.
    #[inline]
    pub(super) fn after(&self, index: u32, distance: u32) -> u32 {
        let end = self.first(self.bucket(index)) + self.slots;
        let after = index + distance;
        if after < end { after } else { after - self.slots }
    }

    /// Slot at `distance` before another of the same partition.
    #[inline]
    pub(super) fn before(&self, index: u32, distance: u32) -> u32 {
        self.after(index, self.slots - distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `spec.flows.capacity` is documented.
    #[test]
    fn below_16384_there_is_room_for_16384() {
        for capacity in [1, 512, 16_384] {
            assert_eq!(Shape::new(capacity).all_slots(), 2 * 16_384, "{capacity}");
        }
        assert!(Shape::new(16_385).all_slots() > 2 * 16_384);
    }

    #[test]
    fn every_slot_is_in_its_bucket() {
        for capacity in [1, 512, 2_000, 65_536, 100_000, 1 << 20, 10_000_000, 1 << 24] {
            for shape in [Shape::new(capacity), Shape::new(capacity).doubled()] {
                for bucket in [0, 1, 7, 255, BUCKETS - 1] {
                    let first = shape.first(bucket);
                    for index in [first, first + 1, first + shape.slots / 2, first + shape.slots - 1] {
                        assert_eq!(shape.bucket(index), bucket, "{shape:?} {index}");
                        assert_eq!(shape.slot(index), index - first);
                        for distance in [0, 1, 31] {
                            let after = shape.after(index, distance);
                            assert_eq!(shape.bucket(after), bucket);
                            assert_eq!(shape.before(after, distance), index);
                        }
                    }
                }
                for index in [shape.all_slots() as u32, 1 << 31, u32::MAX - 1, u32::MAX] {
                    assert!(shape.bucket(index) >= BUCKETS, "{shape:?} {index}");
                }
            }
        }
    }

    #[test]
    fn homes_are_in_their_bucket() {
        let shape = Shape::new(100_000);
        for hash in [0, 1, 0x8000_0000, 0xffff_ffff, u64::MAX] {
            for bucket in [0, 3, BUCKETS as u16 - 1] {
                assert_eq!(shape.bucket(shape.home(hash, bucket)), usize::from(bucket));
            }
        }
    }

    #[test]
    fn there_are_twice_as_many_slots_as_flows() {
        let share = |capacity| Shape::new(capacity).all_slots() as f64 / capacity as f64;
        for capacity in [65_536, 1_000_000, 10_000_000, 1 << 24] {
            assert!((2.0..2.05).contains(&share(capacity)), "{capacity}");
        }
    }
}
