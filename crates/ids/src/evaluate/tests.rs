//! Tests of buffer evaluation against a reference evaluator that tries every position.

use super::*;
use crate::buffer::Buffer;
use crate::rule::Content;
use proptest::prelude::*;

fn checks(tests: Vec<Test>) -> Checks {
    Checks::new(&BufferTests {
        buffer: Buffer::Payload.into(),
        tests,
    })
}

fn holds(tests: &[Test], bytes: &[u8], units: u32) -> (bool, Budget) {
    let lower = bytes.to_ascii_lowercase();
    let bytes = Bytes {
        plain: bytes,
        lower: &lower,
    };
    let mut budget = Budget::new(units);
    (checks(tests.to_vec()).all_match(bytes, &mut budget), budget)
}

/// Tries every position of a content, one by one, at any cost.
fn plainly(tests: &[Test], bytes: &[u8], at: i64) -> bool {
    let Some((test, rest)) = tests.split_first() else {
        return true;
    };
    let length = bytes.len() as i64;
    match test {
        Test::Content(content) => {
            let place = &content.position;
            let fits = |start: i64| {
                let end = start + content.bytes.len() as i64;
                let relative = place.distance.is_some() || place.within.is_some();
                let distance = i64::from(place.distance.unwrap_or(0));
                let mut fits = start >= 0 && end <= length && start >= i64::from(place.offset);
                if relative {
                    fits &= start >= at + distance;
                    fits &= place
                        .within
                        .is_none_or(|within| end <= at + distance + i64::from(within));
                    fits &= place.depth.is_none_or(|depth| end <= at + i64::from(depth));
                } else {
                    let offset = i64::from(place.offset);
                    fits &= place.depth.is_none_or(|depth| end <= offset + i64::from(depth));
                }
                fits &= !place.at_end || end == length;
                fits && {
                    let there = &bytes[start as usize..end as usize];
                    match content.nocase {
                        true => there.eq_ignore_ascii_case(&content.bytes),
                        false => there == content.bytes,
                    }
                }
            };
            let mut starts = (0..=length).filter(|start| fits(*start));
            match content.negated {
                true => starts.next().is_none() && plainly(rest, bytes, at),
                false => starts.any(|start| plainly(rest, bytes, start + content.bytes.len() as i64)),
            }
        }
        Test::DataAt {
            bytes: wanted,
            relative,
            negated,
        } => {
            let wanted = i64::from(*wanted);
            let there = if *relative {
                at + wanted <= length
            } else {
                wanted < length
            };
            there != *negated && plainly(rest, bytes, at)
        }
        Test::Size(range) => range.contains(&(length as u64)) && plainly(rest, bytes, at),
        Test::Compare {
            number,
            comparison,
            value,
            negated,
        } => {
            let start = number.offset + if number.relative { at } else { 0 };
            if start < 0 || start + i64::from(number.bytes) > length {
                return false;
            }
            let mut found = 0u64;
            for i in 0..number.bytes as usize {
                let i = if number.little {
                    number.bytes as usize - 1 - i
                } else {
                    i
                };
                found = found * 256 + u64::from(bytes[start as usize + i]);
            }
            compares(*comparison, found, *value) != *negated && plainly(rest, bytes, at)
        }
        Test::Jump {
            number,
            from_start,
            more,
            ..
        } => {
            let start = number.offset + if number.relative { at } else { 0 };
            if start < 0 || start + 1 > length {
                return false;
            }
            let by = i64::from(bytes[start as usize]);
            let to = more + by + if *from_start { 0 } else { start + 1 };
            (0..=length).contains(&to) && plainly(rest, bytes, to)
        }
        Test::Pattern { .. } => unreachable!("not made here"),
    }
}

/// Strategy for bytes of few letters, so that matches occur at several positions.
fn letters() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(
        prop_oneof![Just(b'a'), Just(b'b'), Just(b'A'), Just(1u8), Just(3u8)],
        1..3,
    )
}

fn content() -> impl Strategy<Value = Test> {
    let place = (
        0..4u32,
        prop::option::of(1..8u32),
        prop::option::of(-3..4i32),
        prop::option::of(1..7i32),
        prop::bool::weighted(0.1),
    );
    (letters(), any::<bool>(), prop::bool::weighted(0.2), place).prop_map(
        |(mut bytes, nocase, negated, (offset, depth, distance, within, at_end))| {
            if nocase {
                bytes.make_ascii_lowercase();
            }
            let place = PositionConstraint {
                offset,
                depth,
                distance,
                within,
                at_end,
            };
            Test::Content(Content {
                bytes,
                nocase,
                negated,
                position: place,
                fast: false,
            })
        },
    )
}

fn test() -> impl Strategy<Value = Test> {
    let number =
        (1..3u32, -2..3i64, any::<bool>(), any::<bool>()).prop_map(|(bytes, offset, relative, little)| NumberAt {
            bytes,
            offset,
            relative,
            little,
            text: None,
        });
    let compare = (
        number.clone(),
        prop_oneof![
            Just(Comparison::Less),
            Just(Comparison::Equal),
            Just(Comparison::And),
            Just(Comparison::Greater)
        ],
        0..100u64,
        any::<bool>(),
    )
        .prop_map(|(number, comparison, value, negated)| Test::Compare {
            number,
            comparison,
            value,
            negated,
        });
    let jump = (number, any::<bool>(), -2..3i64).prop_map(|(number, from_start, more)| Test::Jump {
        number: NumberAt { bytes: 1, ..number },
        multiplier: 1,
        align: false,
        from_start,
        more,
    });
    let data_at = (0..6u32, any::<bool>(), any::<bool>()).prop_map(|(bytes, relative, negated)| Test::DataAt {
        bytes,
        relative,
        negated,
    });
    prop_oneof![
        6 => content(),
        1 => data_at,
        1 => compare,
        1 => jump,
        1 => (0..20u64).prop_map(|most| Test::Size(0..=most)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn tests_hold_as_a_plain_evaluator_says(
        tests in prop::collection::vec(test(), 1..5),
        bytes in prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'A'), Just(1u8), Just(3u8)], 0..24),
    ) {
        let (holds, budget) = holds(&tests, &bytes, 1 << 20);
        prop_assert!(!budget.is_spent());
        prop_assert_eq!(holds, plainly(&tests, &bytes, 0));
    }
}

#[test]
fn numbers_in_digits() {
    let number = |text, bytes, offset| NumberAt {
        bytes,
        offset,
        relative: false,
        little: false,
        text: Some(text),
    };
    assert_eq!(read(&number(10, 0, 0), b" 4001x", 0), Some((4001, 6)));
    assert_eq!(read(&number(10, 2, 1), b"x4001", 0), Some((40, 3)));
    assert_eq!(read(&number(16, 0, 0), b"0xfFg", 0), Some((255, 5)));
    assert_eq!(read(&number(8, 0, 0), b"9", 0), None);
    assert_eq!(read(&number(10, 0, 2), b"1", 0), None);
    let many = [b'9'; 23];
    assert_eq!(read(&number(10, 0, 0), &many, 0), Some((u64::MAX, 23)));
}

#[test]
fn what_could_go_on_for_long_ends_with_the_budget() {
    let content = |bytes: &[u8], distance| {
        Test::Content(Content {
            bytes: bytes.to_vec(),
            nocase: false,
            negated: false,
            position: PositionConstraint {
                distance,
                ..PositionConstraint::default()
            },
            fast: false,
        })
    };
    // Each "a" after every other "a", and no "b": exponential in the number of tests without a budget.
    let mut tests = vec![content(b"a", None)];
    tests.extend((0..8).map(|_| content(b"a", Some(0))));
    tests.push(content(b"b", Some(0)));
    let (found, budget) = holds(&tests, &[b'a'; 1000], 2048);
    assert!(!found && budget.is_spent());
}
