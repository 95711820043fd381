//! Which association a security parameters index (SPI) stands for.

/// From indices to numbers; fixed once it is made. Open addressing with linear probing, at most half full.
#[derive(Debug)]
pub(super) struct SpiTable {
    /// An index, and its number plus one; 0 where there is none.
    slots: Box<[(u32, u32)]>,
    shift: u32,
}

impl SpiTable {
    /// Each index with its place in the list.
    pub(super) fn new(indices: &[u32]) -> SpiTable {
        let bits = (2 * indices.len().max(1)).next_power_of_two().trailing_zeros();
        let mut slots = vec![(0, 0); 1 << bits].into_boxed_slice();
        let shift = u32::BITS - bits;
        for (number, spi) in (1..).zip(indices) {
            let mut at = place(*spi, shift);
            while slots[at].1 != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = (*spi, number);
        }
        SpiTable { slots, shift }
    }

    #[inline]
    pub(super) fn find(&self, spi: u32) -> Option<usize> {
        let mut at = place(spi, self.shift);
        // There is an empty slot, so this ends.
        loop {
            match self.slots[at] {
                (_, 0) => return None,
                (found, number) if found == spi => return Some(number as usize - 1),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }
}

/// Fibonacci hashing: neighbours, as indices often are, fall apart.
#[inline]
fn place(spi: u32, shift: u32) -> usize {
    (spi.wrapping_mul(0x9e37_79b1) >> shift) as usize
}
