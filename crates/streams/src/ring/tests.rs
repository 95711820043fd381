//! Tests of rings against a reference that keeps every byte in a map.

use super::*;
use bytemuck::Zeroable;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: usize = 64;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Segments behind the next byte, each with different bytes, and a next byte that advances at random.
    #[test]
    fn bytes_are_those_that_came_first(
        first in any::<u32>(),
        segments in prop::collection::vec((1usize..70, 1usize..20, any::<u8>(), 0u32..12), 1..40),
    ) {
        let (mut state, mut ring, mut next) = (RingState::zeroed(), [0; SIZE], first);
        let mut plain: BTreeMap<i64, u8> = BTreeMap::new();
        for (ahead, length, seed, step) in segments {
            let at = i64::from(distance(next, first)) + ahead as i64;
            let data: Vec<u8> = (0..length).map(|i| seed.wrapping_add(i as u8)).collect();
            let sequence = next.wrapping_add(ahead as u32);
            let differs = (at..).zip(&data).any(|(at, byte)| plain.get(&at).is_some_and(|there| there != byte));
            prop_assert_eq!(state.conflicts(&ring, sequence, &data), differs);
            let inserted = state.insert(&mut ring, next, sequence, &data);
            let full = state.ranges().len() == MAX_RANGES;
            prop_assert!(inserted.is_ok() || full || ahead + length > SIZE);
            prop_assert!(inserted.is_err() || ahead + length <= SIZE);
            if inserted.is_ok() {
                for (at, byte) in (at..).zip(&data) {
                    plain.entry(at).or_insert(*byte);
                }
            }
            next = next.wrapping_add(step);
            state.discard_before(next);
            plain = plain.split_off(&i64::from(distance(next, first)));
            let mut found = Vec::new();
            for range in state.ranges() {
                let start = i64::from(distance(range.start, first));
                let bytes = (0..range.length()).map(|i| ring[range.start.wrapping_add(i as u32) as usize % SIZE]);
                found.extend((start..).zip(bytes));
            }
            prop_assert_eq!(found, plain.clone().into_iter().collect::<Vec<_>>());
            if let (Some(bytes), Some((_, byte))) = (state.first(&ring), plain.first_key_value()) {
                prop_assert_eq!(bytes[0], *byte);
            }
        }
    }
}

#[test]
fn ranges_are_limited() {
    let (mut state, mut ring) = (RingState::zeroed(), [0; SIZE]);
    for i in 0..MAX_RANGES as u32 {
        assert_eq!(state.insert(&mut ring, 0, 1 + 2 * i, b"x"), Ok(()));
    }
    assert_eq!(state.insert(&mut ring, 0, 40, b"x"), Err(NoRoom));
    assert_eq!(state.insert(&mut ring, 0, 2, b"y"), Ok(()));
    assert_eq!(state.insert(&mut ring, 0, 40, b"x"), Ok(()));
    assert_eq!(&ring[..5], b"\0xyx\0");
}
