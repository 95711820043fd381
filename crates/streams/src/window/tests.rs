//! Tests of streams against a reference that keeps every byte in a map.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const WINDOW: usize = 64;

/// Reference stream: the first byte for each position counts.
#[derive(Default)]
struct Plain {
    bytes: BTreeMap<i64, u8>,
}

impl Plain {
    /// Returns the bytes up to the first gap.
    fn in_order(&self) -> Vec<u8> {
        (0..).map_while(|i| self.bytes.get(&i).copied()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Segments at any position around received bytes, each with different bytes, and a window that slides at random.
    #[test]
    fn bytes_are_those_that_came_first(
        first in any::<u32>(),
        segments in prop::collection::vec((-10i64..30, 0usize..20, any::<u8>(), any::<bool>()), 1..40),
    ) {
        let mut side = WindowState::zeroed();
        side.start(first);
        let (mut window, mut plain, mut seen) = ([0; WINDOW], Plain::default(), Vec::new());
        for (place, length, seed, slide) in segments {
            let at = side.end() as i64 + place;
            let data: Vec<u8> = (0..length).map(|i| seed.wrapping_add(i as u8)).collect();
            let sequence = first.wrapping_add(at as u32);
            let inserted = side.insert(&mut window, sequence, &data);
            prop_assert!(inserted.taken <= length);
            let differs = (0..inserted.taken).any(|i| {
                let place = at + i as i64;
                // Bytes shifted out of the window are not compared.
                place >= side.base as i64 && plain.bytes.get(&place).is_some_and(|there| *there != data[i])
            });
            prop_assert_eq!(inserted.conflict, differs);
            for (i, byte) in data[..inserted.taken].iter().enumerate() {
                if at + i as i64 >= 0 {
                    plain.bytes.entry(at + i as i64).or_insert(*byte);
                }
            }
            seen.extend_from_slice(&window[side.take_fresh()]);
            prop_assert_eq!(&seen, &plain.in_order());
            let base = side.base as usize;
            prop_assert_eq!(&window[..side.filled()], &seen[base..]);
            if slide {
                let half = side.filled() / 2;
                side.slide(&mut window, half);
            }
        }
    }

    /// After a gap that the receiver has acknowledged, the stream continues with the bytes after it.
    #[test]
    fn a_gap_is_passed_when_the_receiver_has_acknowledged_it(before in 0usize..20, gap in 1usize..10, behind in 1usize..20, extra in 0usize..10) {
        let (mut side, mut window) = (WindowState::zeroed(), [0; WINDOW]);
        side.start(7);
        side.insert(&mut window, 7, &vec![b'a'; before]);
        let start = before + gap;
        side.insert(&mut window, 7 + start as u32, &vec![b'b'; behind]);
        prop_assert_eq!(side.end(), before as u64);
        // Not before the gap is acknowledged entirely.
        prop_assert!(!side.skip_to(&mut window, 7 + before as u32));
        prop_assert!(side.skip_to(&mut window, 7 + (start + extra) as u32));
        prop_assert_eq!(side.base, start as u64);
        prop_assert_eq!(side.end(), (start + behind) as u64);
        prop_assert_eq!(&window[..side.filled()], &vec![b'b'; behind][..]);
        prop_assert!(!side.is_waiting());
    }
}

#[test]
fn what_does_not_fit_is_not_taken() {
    let (mut side, mut window) = (WindowState::zeroed(), [0; WINDOW]);
    side.start(0);
    let refused = Inserted {
        taken: 0,
        conflict: false,
    };
    assert_eq!(side.insert(&mut window, WINDOW as u32, b"x"), refused);
    assert!(side.is_waiting());
    // Separate ranges, one more than the limit.
    for i in 0..MAX_RANGES as u32 {
        assert_eq!(side.insert(&mut window, 2 + 2 * i, b"x").taken, 1);
    }
    assert_eq!(side.insert(&mut window, 60, b"x"), refused);
    assert_eq!(side.insert(&mut window, 0, &[b'y'; WINDOW + 1]).taken, WINDOW);
    assert_eq!(side.filled(), WINDOW);
    assert_eq!(&window[..4], b"yyxy");
    side.slide(&mut window, 10);
    assert_eq!(side.insert(&mut window, WINDOW as u32, b"zz").taken, 2);
    assert_eq!(side.end(), WINDOW as u64 + 2);
}
