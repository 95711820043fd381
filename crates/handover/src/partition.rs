//! Sorting of items into those that stay and those that leave.

/// Moves the items for which `stays` returns `true` to the end of `kept`, and the others to the end of `leaving`, both
/// in order. It executes no branch that depends on an item, so that an unpredictable order costs nothing. `items` is
/// empty afterwards.
///
/// Does not allocate if both lists have room for all items and one more.
#[inline]
pub fn partition<T>(items: &mut Vec<T>, kept: &mut Vec<T>, leaving: &mut Vec<T>, mut stays: impl FnMut(&T) -> bool) {
    let count = items.len();
    // Each item is written to both lists, to one of them for good.
    kept.reserve(count + 1);
    leaving.reserve(count + 1);
    let mut staying = 0;
    // SAFETY: the list's `count` items are initialized, and forgotten by the list, so that each has one owner: if
    // `stays` panics, they leak. Both lists have room for `count` items and one more after theirs. `staying` and
    // `i - staying` are at most `i`, which is less than `count`. The lists are separate, being borrowed mutably. All
    // items up to the new lengths have been written, each to one of the lists, as every write beyond a list's length is
    // overwritten or not counted.
    unsafe {
        items.set_len(0);
        let from = items.as_ptr();
        let (kept_end, leaving_end) = (
            kept.as_mut_ptr().add(kept.len()),
            leaving.as_mut_ptr().add(leaving.len()),
        );
        for i in 0..count {
            let item = from.add(i);
            let does_stay = stays(&*item);
            std::ptr::copy_nonoverlapping(item, kept_end.add(staying), 1);
            std::ptr::copy_nonoverlapping(item, leaving_end.add(i - staying), 1);
            staying += usize::from(does_stay);
        }
        kept.set_len(kept.len() + staying);
        leaving.set_len(leaving.len() + count - staying);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts, so that one with two owners, or none, is found.
    fn texts(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        numbers.into_iter().map(|number| number.to_string()).collect()
    }

    #[test]
    fn items_keep_their_order_in_both_lists() {
        for pattern in [0_u32, u32::MAX, 0b1011_0010, 0x9e37_79b9] {
            let stays = |item: u32| pattern >> item & 1 != 0;
            let (mut items, mut kept, mut leaving) = (texts(0..32), texts([100]), texts([200, 201]));
            partition(&mut items, &mut kept, &mut leaving, |item| stays(item.parse().unwrap()));
            assert!(items.is_empty());
            assert_eq!(kept[0], "100");
            assert_eq!(kept[1..], texts((0..32).filter(|item| stays(*item))));
            assert_eq!(leaving[..2], texts([200, 201]));
            assert_eq!(leaving[2..], texts((0..32).filter(|item| !stays(*item))));
        }
    }

    #[test]
    fn lists_with_room_do_not_grow() {
        let mut items: Vec<u64> = (0..10).collect();
        let (mut kept, mut leaving) = (Vec::with_capacity(11), Vec::with_capacity(11));
        partition(&mut items, &mut kept, &mut leaving, |_| true);
        assert_eq!((kept.len(), kept.capacity(), leaving.capacity()), (10, 11, 11));
    }

    #[test]
    fn a_panic_leaves_no_item_with_two_owners() {
        let (mut items, mut kept, mut leaving) = (texts(0..8), Vec::new(), Vec::new());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            partition(&mut items, &mut kept, &mut leaving, |item| {
                assert_ne!(item, "5");
                true
            });
        }));
        assert!(result.is_err());
        assert_eq!((items.len(), kept.len(), leaving.len()), (0, 0, 0));
    }
}
