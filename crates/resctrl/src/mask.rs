//! Masks of adjacent cache ways.

use std::fmt;

/// Mask of adjacent ways of a cache, at least one. Bit 0 is the first way. Most processors accept no other masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mask(u32);

impl Mask {
    /// Returns the mask of `ways` ways from the way `first` on. Returns `None` for no ways, or for ways beyond 32.
    ///
    /// ```
    /// # use tailwater_resctrl::Mask;
    /// assert_eq!(Mask::new(2, 3).unwrap().bits(), 0b11100);
    /// assert_eq!(Mask::new(30, 3), None);
    /// ```
    pub fn new(first: u32, ways: u32) -> Option<Mask> {
        let end = first.checked_add(ways)?;
        if ways == 0 || end > 32 {
            return None;
        }
        Some(Mask((u32::MAX >> (32 - ways)) << first))
    }

    /// Returns the mask with these bits, or `None` if they are not adjacent.
    pub fn from_bits(bits: u32) -> Option<Mask> {
        let mask = Mask::new(bits.trailing_zeros(), bits.count_ones())?;
        (mask.0 == bits).then_some(mask)
    }

    /// Returns the mask's bits, one per way.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns the number of ways.
    pub fn ways(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the lowest way.
    pub fn first(self) -> u32 {
        self.0.trailing_zeros()
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Returns the longest run of adjacent ways in `bits`, the lowest of equals.
pub(crate) fn longest(bits: u32) -> Option<Mask> {
    (1..=32).rev().find_map(|ways| lowest(bits, ways))
}

/// Returns the lowest run of `ways` adjacent ways in `bits`.
fn lowest(bits: u32, ways: u32) -> Option<Mask> {
    positions(bits, ways).next()
}

fn positions(bits: u32, ways: u32) -> impl Iterator<Item = Mask> {
    (0..32)
        .filter_map(move |first| Mask::new(first, ways))
        .filter(move |mask| mask.0 & !bits == 0)
}

/// Chooses `ways` adjacent ways within `free` so that the longest possible run of `rest`, the ways left for others,
/// remains.
pub(crate) fn find_free(free: u32, ways: u32, rest: u32) -> Option<Mask> {
    let left = |mask: &Mask| longest(rest & !mask.0).map_or(0, Mask::ways);
    // `max_by_key` returns the last of equals, so iterate from the top.
    let all: Vec<Mask> = positions(free, ways).collect();
    all.into_iter().rev().max_by_key(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masks_of_the_kernel_s_documentation() {
        // "So 0x3, 0x6 and 0xC are legal 4-bit masks with two bits set, but 0x5, 0x9 and 0xA are not."
        for legal in [0x3, 0x6, 0xc] {
            assert_eq!(Mask::from_bits(legal).map(Mask::ways), Some(2));
        }
        for illegal in [0x5, 0x9, 0xa, 0] {
            assert_eq!(Mask::from_bits(illegal), None);
        }
    }

    #[test]
    fn what_is_left_stays_in_a_row() {
        // Hardware shares the upper two of 20 ways.
        assert_eq!(find_free(0x3_ffff, 4, 0xf_ffff).unwrap().bits(), 0xf);
        // Hardware shares the lower two: choose from the top.
        assert_eq!(find_free(0xf_fffc, 4, 0xf_ffff).unwrap().bits(), 0xf_0000);
        // Adjacent to an existing partition.
        assert_eq!(find_free(0x3_fff0, 2, 0xf_fff0).unwrap().bits(), 0x30);
        assert_eq!(find_free(0b1011, 3, 0xf), None);
    }

    proptest! {
        #[test]
        fn a_place_is_free_and_as_large_as_asked(free: u32, ways in 1..=32u32, rest: u32) {
            let found = find_free(free, ways, rest);
            let mut text = format!("{free:032b}");
            text.push('0');
            prop_assert_eq!(found.is_some(), text.contains(&"1".repeat(ways as usize)));
            if let Some(mask) = found {
                prop_assert_eq!(mask.bits() & !free, 0);
                prop_assert_eq!(mask.ways(), ways);
                prop_assert_eq!(Mask::from_bits(mask.bits()), Some(mask));
            }
        }

        #[test]
        fn the_longest_row_is_as_long_as_in_text(bits: u32) {
            let text = format!("{bits:b}");
            let rows = text.split('0').map(str::len).max().unwrap() as u32;
            prop_assert_eq!(longest(bits).map_or(0, Mask::ways), rows);
        }
    }
}
