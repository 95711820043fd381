//! Lookup of associations by security parameters index (SPI).

/// Immutable hash table from SPIs to association numbers: open addressing with linear probing, at most half full.
#[derive(Debug)]
pub(super) struct SpiTable {
    /// SPI, and association number plus one; 0 marks an empty slot.
    slots: Box<[(u32, u32)]>,
    shift: u32,
}

impl SpiTable {
    /// Builds the table; each SPI maps to its position in the list.
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
        // The table has an empty slot, so the loop ends.
        loop {
            match self.slots[at] {
                (_, 0) => return None,
                (found, number) if found == spi => return Some(number as usize - 1),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }
}

/// Fibonacci hashing: spreads consecutive SPIs, which are common.
#[inline]
fn place(spi: u32, shift: u32) -> usize {
    (spi.wrapping_mul(0x9e37_79b1) >> shift) as usize
}
