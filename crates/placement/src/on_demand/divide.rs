//! From shares to masks: a bounded step towards each class's target.

use super::mask::{Piece, WayMask, arrange};

/// Class and its target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Current mask, or `None` for a new class.
    pub before: Option<WayMask>,
    /// Initial number of ways, before any moves.
    pub has: u16,
    /// Target number of ways.
    pub target: u16,
}

/// Returns masks for classes that are closer to their targets, in `usable` ways and at most `most` of them. At most
/// `moves` ways change their class, or as many as one way more or less requires. Classes that must shrink (for a new
/// class, or when a lease ends) do so at once. Returns `None` if there are fewer than `least` ways for each.
pub(super) fn approach(usable: u32, most: u16, least: u16, moves: u16, classes: &[Wanted]) -> Option<Vec<WayMask>> {
    let mut sizes: Vec<u16> = classes.iter().map(|class| class.has.max(least)).collect();
    let sum = |sizes: &[u16]| sizes.iter().map(|&w| u32::from(w)).sum::<u32>();
    let place = |sizes: &[u16]| {
        let pieces = sizes.iter().zip(classes);
        let pieces: Vec<Piece> = pieces.map(|(&ways, c)| Piece { before: c.before, ways }).collect();
        match sum(sizes) <= u32::from(most) {
            true => arrange(usable, &pieces),
            false => None,
        }
    };
    // The class furthest above its target gives first, then the largest.
    let give = |sizes: &[u16]| {
        let above = |i: usize| i32::from(sizes[i]) - i32::from(classes[i].target);
        let givers = (0..sizes.len()).filter(|&i| sizes[i] > least);
        givers.max_by_key(|&i| (above(i).max(0), sizes[i], i))
    };
    let mut masks = loop {
        if let Some(masks) = place(&sizes) {
            break masks;
        }
        let giver = give(&sizes)?;
        sizes[giver] -= 1;
    };
    let fresh = |masks: &[WayMask]| -> u32 {
        let olds = masks.iter().zip(classes).filter(|(_, class)| class.before.is_some());
        olds.map(|(mask, class)| u32::from(mask.fresh(class.before))).sum()
    };
    let forced = fresh(&masks);
    let mut moved = false;
    loop {
        let below = |i: usize| classes[i].target.saturating_sub(sizes[i]);
        let Some(taker) = (0..sizes.len())
            .filter(|&i| below(i) > 0)
            .max_by_key(|&i| (below(i), usize::MAX - i))
        else {
            break;
        };
        // Among possible givers, the one that requires the fewest shifts.
        let mut givers: Vec<Option<usize>> = (0..sizes.len())
            .filter(|&i| sizes[i] > classes[i].target)
            .map(Some)
            .collect();
        if sum(&sizes) < u32::from(most) {
            givers.push(None);
        }
        let tries = givers.into_iter().filter_map(|giver| {
            let mut sizes = sizes.clone();
            sizes[taker] += 1;
            if let Some(giver) = giver {
                sizes[giver] -= 1;
            }
            let masks = place(&sizes)?;
            Some((fresh(&masks), sizes, masks))
        });
        let Some((cost, next, found)) = tries.min_by_key(|(cost, ..)| *cost) else {
            break;
        };
        if moved && cost > forced + u32::from(moves) {
            break;
        }
        (sizes, masks, moved) = (next, found, true);
    }
    // Ways without a taker become free for later classes.
    let takers = (0..sizes.len()).any(|i| sizes[i] < classes[i].target);
    if !takers && (0..sizes.len()).any(|i| sizes[i] > classes[i].target) {
        for (size, class) in sizes.iter_mut().zip(classes) {
            *size = (*size).min(class.target.max(least));
        }
        masks = place(&sizes).unwrap_or(masks);
    }
    Some(masks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(first: u16, has: u16, target: u16) -> Wanted {
        Wanted {
            before: WayMask::new(first, has),
            has,
            target,
        }
    }

    fn ways(masks: &[WayMask]) -> Vec<u16> {
        masks.iter().map(|mask| mask.ways()).collect()
    }

    #[test]
    fn few_ways_change_hands_at_once() {
        let classes = [wanted(0, 8, 4), wanted(8, 4, 8)];
        let masks = approach(0xfff, 12, 1, 2, &classes).expect("room");
        assert_eq!(ways(&masks), [6, 6]);
        let all = approach(0xfff, 12, 1, 9, &classes).expect("room");
        assert_eq!(ways(&all), [4, 8]);
        // One way can pass any number of neighbours, even with `moves` at zero.
        let far = [wanted(0, 4, 3), wanted(4, 4, 4), wanted(8, 4, 5)];
        let masks = approach(0xfff, 12, 1, 0, &far).expect("room");
        assert_eq!(ways(&masks), [3, 4, 5]);
    }

    #[test]
    fn what_is_not_there_any_more_is_given_at_once() {
        let classes = [wanted(0, 8, 3), wanted(8, 4, 3)];
        let masks = approach(0x3ff, 6, 1, 0, &classes).expect("room");
        assert_eq!(ways(&masks), [3, 3]);
        assert_eq!(approach(0x3ff, 1, 1, 0, &classes), None);
        // Ways without a taker become free.
        let masks = approach(0xfff, 12, 1, 0, &[wanted(0, 8, 3), wanted(8, 4, 4)]);
        assert_eq!(masks.map(|masks| ways(&masks)), Some(vec![3, 4]));
    }
}
