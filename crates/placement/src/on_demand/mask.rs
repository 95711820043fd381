//! Cache ways as masks, and adjacent masks for classes.

use crate::cluster::MAX_WAYS;

/// One or more adjacent ways of a cache, as CAT requires of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayMask {
    first: u16,
    ways: u16,
}

impl WayMask {
    /// Creates a mask of `ways` ways from number `first` on. Way 0 is the lowest bit. Returns `None` if it is empty or
    /// exceeds [`MAX_WAYS`].
    pub fn new(first: u16, ways: u16) -> Option<Self> {
        let end = first.checked_add(ways)?;
        (ways > 0 && end <= MAX_WAYS).then_some(WayMask { first, ways })
    }

    /// Creates a mask from bits. Returns `None` if it is empty or has gaps.
    pub fn from_bits(bits: u32) -> Option<Self> {
        let mask = Self::new(bits.trailing_zeros() as u16, bits.count_ones() as u16)?;
        (mask.bits() == bits).then_some(mask)
    }

    /// Returns the bits, as in `resctrl`.
    pub fn bits(self) -> u32 {
        (u32::MAX >> (u32::from(MAX_WAYS) - u32::from(self.ways))) << self.first
    }

    /// Returns the number of ways.
    pub fn ways(self) -> u16 {
        self.ways
    }

    /// Returns the lowest way.
    pub fn first(self) -> u16 {
        self.first
    }

    /// Returns `true` if both masks share a way.
    pub fn overlaps(self, other: WayMask) -> bool {
        self.bits() & other.bits() != 0
    }

    /// Returns the number of ways that were not in `before`. These still hold other classes' data.
    pub fn fresh(self, before: Option<WayMask>) -> u16 {
        let before = before.map_or(0, WayMask::bits);
        (self.bits() & !before).count_ones() as u16
    }
}

/// Class to be arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Previous mask.
    pub before: Option<WayMask>,
    /// Number of ways, at least one.
    pub ways: u16,
}

/// Arranges pieces in this order, from the lowest way, with the fewest fresh ways for pieces with a previous mask.
/// Returns the cost and the masks, or `None` if they do not fit. It uses dynamic programming over pieces and ways.
fn in_order(usable: u32, pieces: &[Piece]) -> Option<(u32, Vec<WayMask>)> {
    const NONE: u32 = u32::MAX;
    let all = usize::from(MAX_WAYS);
    // Minimum cost of the first i pieces below way p.
    let mut best = vec![[0; MAX_WAYS as usize + 1]];
    let at = |piece: &Piece, end: usize| {
        let first = (end as u16).checked_sub(piece.ways)?;
        let mask = WayMask::new(first, piece.ways)?;
        (mask.bits() & !usable == 0).then_some(mask)
    };
    let cost = |piece: &Piece, mask: WayMask| match piece.before {
        Some(before) => u32::from(mask.fresh(Some(before))),
        None => 0,
    };
    for (i, piece) in pieces.iter().enumerate() {
        let mut row = [NONE; MAX_WAYS as usize + 1];
        for end in 1..=all {
            let placed = at(piece, end).and_then(|mask| {
                let below = best[i][usize::from(mask.first())];
                (below != NONE).then(|| below + cost(piece, mask))
            });
            row[end] = row[end - 1].min(placed.unwrap_or(NONE));
        }
        best.push(row);
    }
    let total = best[pieces.len()][all];
    if total == NONE {
        return None;
    }
    let mut masks = Vec::with_capacity(pieces.len());
    let mut end = all;
    for (i, piece) in pieces.iter().enumerate().rev() {
        while end > 0 && best[i + 1][end - 1] == best[i + 1][end] {
            end -= 1;
        }
        let mask = at(piece, end)?;
        end = usize::from(mask.first());
        masks.push(mask);
    }
    masks.reverse();
    Some((total, masks))
}

/// Arranges pieces in usable ways, with as few fresh ways as possible. Pieces with a previous mask preserve their
/// order. If that does not fit, one of them jumps over others. Returns `None` if that does not fit either.
pub fn arrange(usable: u32, pieces: &[Piece]) -> Option<Vec<WayMask>> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.retain(|&i| pieces[i].before.is_some());
    order.sort_by_key(|&i| pieces[i].before);
    let mut new: Vec<usize> = (0..pieces.len()).collect();
    new.retain(|&i| pieces[i].before.is_none());
    new.sort_by_key(|&i| std::cmp::Reverse(pieces[i].ways));
    let cost = |order: &[usize]| {
        let pieces: Vec<Piece> = order.iter().map(|&i| pieces[i]).collect();
        in_order(usable, &pieces)
    };
    // Each new piece goes where it causes the fewest moves.
    for &piece in &new {
        let places = (0..=order.len()).rev().filter_map(|place| {
            let mut order = order.clone();
            order.insert(place, piece);
            Some((cost(&order)?.0, order))
        });
        match places.min_by_key(|(cost, _)| *cost) {
            Some((_, best)) => order = best,
            None => order.push(piece),
        }
    }
    let found = cost(&order).map(|(_, masks)| (order.clone(), masks));
    let (order, masks) = found.or_else(|| {
        let jumps = (0..order.len()).flat_map(|from| {
            let order = &order;
            (0..order.len()).map(move |to| {
                let mut order = order.clone();
                let piece = order.remove(from);
                order.insert(to, piece);
                order
            })
        });
        let jumps = jumps.filter_map(|order| cost(&order).map(|(cost, masks)| (cost, order, masks)));
        let best = jumps.min_by_key(|(cost, ..)| *cost);
        best.map(|(_, order, masks)| (order, masks))
    })?;
    let mut placed: Vec<(usize, WayMask)> = order.into_iter().zip(masks).collect();
    placed.sort_by_key(|(i, _)| *i);
    Some(placed.into_iter().map(|(_, mask)| mask).collect())
}

/// Returns a mask for a class that will not move. It leaves the fewest gaps, and is as high as possible.
pub fn settle(usable: u32, ways: u16) -> Option<WayMask> {
    let places = (0..MAX_WAYS).filter_map(|first| WayMask::new(first, ways));
    let places = places.filter(|mask| mask.bits() & !usable == 0);
    places.min_by_key(|mask| {
        let left = usable & !mask.bits();
        let parts = (left & !(left << 1)).count_ones();
        (parts, std::cmp::Reverse(mask.first()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mask(first: u16, ways: u16) -> WayMask {
        WayMask::new(first, ways).expect("ways of a cache")
    }

    #[test]
    fn masks_are_contiguous_bits() {
        assert_eq!(mask(2, 3).bits(), 0b11100);
        assert_eq!(mask(0, 32).bits(), u32::MAX);
        assert_eq!(WayMask::from_bits(0b0110), Some(mask(1, 2)));
        for wrong in [0, 0b101, 0x8000_0001] {
            assert_eq!(WayMask::from_bits(wrong), None);
        }
        assert_eq!(WayMask::new(30, 3), None);
        assert_eq!(WayMask::new(u16::MAX, 3), None);
        assert_eq!(mask(2, 3).fresh(Some(mask(4, 3))), 2);
    }

    #[test]
    fn neighbours_shift_no_more_than_they_must() {
        let piece = |first, ways, now| Piece {
            before: Some(mask(first, ways)),
            ways: now,
        };
        // The first gives a way to the last: the middle one shifts by one.
        let pieces = [piece(0, 4, 3), piece(4, 2, 2), piece(6, 4, 5)];
        let found = arrange(0x3ff, &pieces).expect("room");
        assert_eq!(found, [mask(0, 3), mask(3, 2), mask(5, 5)]);
        // A way next to the last one is free: no piece shifts.
        let found = arrange(0x7ff, &[piece(0, 4, 4), piece(4, 2, 2), piece(6, 4, 5)]);
        assert_eq!(found, Some(vec![mask(0, 4), mask(4, 2), mask(6, 5)]));
        // The ways in the middle are not usable: the larger piece jumps over them.
        let found = arrange(0b1110_0011, &[piece(0, 2, 3), piece(5, 2, 2)]);
        assert_eq!(found, Some(vec![mask(5, 3), mask(0, 2)]));
        assert_eq!(arrange(0b1011, &[piece(0, 2, 3)]), None);
    }

    #[test]
    fn what_stays_is_put_where_the_rest_stays_whole() {
        assert_eq!(settle(0x3ff, 3), Some(mask(7, 3)));
        // The mask fills a gap instead of making another.
        assert_eq!(settle(0b1111_0011, 2), Some(mask(0, 2)));
        assert_eq!(settle(0b1011, 3), None);
    }

    proptest! {
        /// Pieces that fit in one contiguous range are placed side by side, in the old order.
        #[test]
        fn one_stretch_takes_all_that_it_has_room_for(
            before in prop::collection::vec(1u16..5, 1..9),
            now in prop::collection::vec(1u16..5, 1..12),
            all in 1u16..=32,
        ) {
            let usable = mask(0, all).bits();
            let mut next = 0;
            let pieces: Vec<Piece> = now.iter().enumerate().map(|(i, &ways)| {
                let place = before.get(i).and_then(|&ways| WayMask::new(next, ways));
                next += place.map_or(0, WayMask::ways);
                Piece { before: place, ways }
            }).collect();
            let fits = now.iter().sum::<u16>() <= all;
            let found = arrange(usable, &pieces);
            prop_assert_eq!(found.is_some(), fits);
            let Some(masks) = found else { return Ok(()) };
            for (i, piece) in pieces.iter().enumerate() {
                prop_assert_eq!(masks[i].ways(), piece.ways);
                prop_assert_eq!(masks[i].bits() & !usable, 0);
                for j in 0..i {
                    prop_assert!(!masks[i].overlaps(masks[j]));
                    if piece.before.is_some() && pieces[j].before.is_some() {
                        prop_assert!(masks[j] < masks[i]);
                    }
                }
            }
        }
    }
}
