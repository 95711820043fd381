//! Numbering of slots and homes.

use tailwater_net::toeplitz::BUCKETS;

/// Slots of a table with few flows per bucket, so that unequal buckets find room, too.
const FEWEST_SLOTS: u32 = 63;
/// Homes of a bucket in such a table.
const FEWEST_HOMES: u32 = 32;

/// Numbers of slots and homes of a table. Slots are numbered partition by partition, and so are homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Slots in a partition.
    pub(super) slots: u32,
    /// Homes in a partition: values of a key's hash, each with a list of flows.
    homes: u32,
    /// `2^shift / slots`, rounded up.
    reciprocal: u64,
    shift: u32,
}

impl Shape {
    /// Shape of a table for `capacity` flows.
    ///
    /// Evenly hashed flows do not fill buckets evenly: with `n` in a bucket on average, the standard deviation is the
    /// square root of `n`, or of `2n` for connections whose directions are two flows. Six times the first, 4.2 times
    /// the second, is set aside. The number of slots is odd: the first slots of all partitions, the most used ones, would
    /// otherwise compete for few sets of the caches. There are two homes for each flow, so that few lists have more than one.
    pub(super) fn new(capacity: usize) -> Shape {
        let each = capacity.div_ceil(BUCKETS) as u32;
        let apart = (6.0 * f64::from(each).sqrt()).ceil() as u32;
        Shape::of_slots((each + apart).max(FEWEST_SLOTS) | 1, (2 * each).max(FEWEST_HOMES))
    }

    fn of_slots(slots: u32, homes: u32) -> Shape {
        // Slots of a partition have 16-bit numbers.
        assert!(
            slots < u32::from(u16::MAX),
            "a flow table of {slots} slots for a bucket"
        );
        let shift = 32 + slots.ilog2();
        Shape {
            slots,
            homes,
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

    /// Number of homes of the table.
    pub(super) fn all_homes(&self) -> usize {
        BUCKETS * self.homes as usize
    }

    /// Home without flows, behind those of all buckets.
    pub(super) fn no_home(&self) -> u32 {
        self.all_homes() as u32
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
    pub(super) fn slot(&self, index: u32) -> u16 {
        (index - self.first(self.bucket(index))) as u16
    }

    /// Home of a key with this hash.
    #[inline]
    pub(super) fn home(&self, hash: u64, bucket: u16) -> u32 {
        let within = (u64::from(hash as u32) * u64::from(self.homes)) >> 32;
        u32::from(bucket) * self.homes + within as u32
    }

    /// Bucket of a home. Not for each packet: it divides.
    pub(super) fn bucket_of_home(&self, home: u32) -> usize {
        (home / self.homes) as usize
    }

    /// Slot at which the search for a flow to evict begins, by the home of the new one.
    pub(super) fn first_candidate(&self, home: u32) -> u32 {
        let within = u64::from(home % self.homes);
        (within * u64::from(self.slots) / u64::from(self.homes)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_in_its_bucket() {
        for capacity in [1, 512, 2_000, 65_536, 100_000, 1 << 20, 10_000_000, 1 << 24] {
            for shape in [Shape::new(capacity), Shape::new(capacity).doubled()] {
                for bucket in [0, 1, 7, 255, BUCKETS - 1] {
                    let first = shape.first(bucket);
                    for index in [first, first + 1, first + shape.slots / 2, first + shape.slots - 1] {
                        assert_eq!(shape.bucket(index), bucket, "{shape:?} {index}");
                        assert_eq!(u32::from(shape.slot(index) as u16), (index - first) & 0xffff);
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
                let home = shape.home(hash, bucket);
                assert_eq!(shape.bucket_of_home(home), usize::from(bucket));
                assert!(shape.first_candidate(home) < shape.slots);
            }
        }
    }

    #[test]
    fn a_large_table_sets_little_aside() {
        let share = |capacity| Shape::new(capacity).all_slots() as f64 / capacity as f64;
        assert!(share(10_000_000) < 1.05 && share(1_000_000) < 1.15 && share(65_536) < 1.6);
    }
}
