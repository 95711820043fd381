use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Reference reader of a name: labels in a list, visited offsets in a set.
fn labels(message: &[u8], start: usize) -> Option<(Vec<Vec<u8>>, usize)> {
    let (mut labels, mut seen) = (Vec::new(), BTreeSet::new());
    let (mut at, mut after, mut lowest) = (start, None, start);
    loop {
        // No offset is the start of a label or pointer twice.
        if !seen.insert(at) {
            return None;
        }
        let first = *message.get(at)?;
        if first >= 0xc0 {
            let target = usize::from(first - 0xc0) * 256 + usize::from(*message.get(at + 1)?);
            after = after.or(Some(at + 2));
            if target >= lowest || target < 12 {
                return None;
            }
            lowest = target;
            at = target;
            continue;
        }
        if first > 63 {
            return None;
        }
        let label = message.get(at + 1..at + 1 + usize::from(first))?;
        at += 1 + label.len();
        if label.is_empty() {
            let bytes: usize = labels.iter().map(|label: &Vec<u8>| 1 + label.len()).sum();
            return (bytes < 255).then_some((labels, after.unwrap_or(at)));
        }
        labels.push(label.to_ascii_lowercase());
    }
}

fn plain(labels: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = labels
        .iter()
        .flat_map(|label| [&[label.len() as u8], &label[..]].concat())
        .collect();
    bytes.push(0);
    bytes
}

/// Part of a message, biased towards labels and pointers.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (1_u8..8, any::<[u8; 8]>()).prop_map(|(length, bytes)| { [&[length], &bytes[..usize::from(length)]].concat() }),
        (0_u8..80).prop_map(|target| vec![0xc0, target]),
        Just(vec![0]),
        prop::collection::vec(any::<u8>(), 0..4),
        Just([&[63], &[b'X'; 63][..]].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn names_are_those_of_a_plain_reader(
        pieces in prop::collection::vec(piece(), 0..30),
        start in 12_usize..160,
    ) {
        let message = [vec![0; 12], pieces.concat()].concat();
        let mut name = Name::default();
        let read = name.read(&message, start);
        let expected = labels(&message, start);
        prop_assert_eq!(read, expected.as_ref().map(|(_, after)| *after));
        if let Some((labels, _)) = expected {
            prop_assert_eq!(name.as_bytes(), plain(&labels));
        }
    }

    /// Random bytes cause no panic, and results lie inside the message.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut name = Name::default();
        if let Some(message) = Message::new(&bytes)
            && let Some(question) = message.question(&mut name)
        {
            prop_assert!(question.end <= bytes.len());
            message.authority(&question, &mut name);
        }
    }
}

/// Builds a response to `WWW.example.com` with `aliases` aliases, and a record of the zone.
fn negative(aliases: u16) -> Vec<u8> {
    let mut bytes = b"\x12\x34\x84\x03\0\x01\0\0\0\x01\0\0\x03WWW\x07example\x03com\0\0\x1c\0\x01".to_vec();
    bytes[6..8].copy_from_slice(&aliases.to_be_bytes());
    for _ in 0..aliases {
        bytes.extend(b"\xc0\x0c\0\x05\0\x01\0\0\x0e\x10\0\x02\xc0\x0c");
    }
    bytes.extend(b"\xc0\x10\0\x06\0\x01\0\0\x0e\x10\0\x00");
    bytes
}

#[test]
fn the_zone_of_a_negative_answer_is_found() {
    for aliases in [0, 1, 9, MAX_ANSWERS] {
        let bytes = negative(aliases);
        let message = Message::new(&bytes).unwrap();
        assert!(message.is_response() && message.is_authoritative());
        assert_eq!((message.id(), message.rcode()), (0x1234, rcode::NX_DOMAIN));
        let mut name = Name::default();
        let question = message.question(&mut name).unwrap();
        assert_eq!((question.kind, question.class), (28, 1));
        assert_eq!(name.as_bytes(), b"\x03www\x07example\x03com\0");
        assert_eq!(message.authority(&question, &mut name), Some(kind::SOA));
        assert_eq!(name.as_bytes(), b"\x07example\x03com\0");
    }
    let bytes = negative(MAX_ANSWERS + 1);
    let message = Message::new(&bytes).unwrap();
    let mut name = Name::default();
    let question = message.question(&mut name).unwrap();
    assert_eq!(message.authority(&question, &mut name), None);
    // A truncated message yields nothing that it does not contain.
    let bytes = negative(2);
    for length in 0..bytes.len() - 10 {
        let message = Message::new(&bytes[..length]);
        let question = message.and_then(|message| message.question(&mut name));
        let zone = message
            .zip(question)
            .and_then(|(message, question)| message.authority(&question, &mut name));
        assert_eq!(zone, None, "{length}");
    }
}

#[test]
fn names_have_bounds() {
    let mut name = Name::default();
    // A name may have 255 bytes, not 256.
    for (last, fits) in [(61, true), (62, false)] {
        let mut message = vec![0; HEADER];
        for length in [63, 63, 63, last] {
            message.push(length);
            message.extend(vec![b'a'; usize::from(length)]);
        }
        message.push(0);
        assert_eq!(name.read(&message, HEADER).is_some(), fits, "{last}");
    }
    // A pointer to itself, to later bytes, into the header; and a chain of pointers, each to the one before.
    for target in [12, 14, 11] {
        let message = [&[0; 12][..], &[0xc0, target, 0, 0, 0]].concat();
        assert_eq!(name.read(&message, HEADER), None);
    }
    let mut ladder = vec![0; HEADER + 2];
    for step in 0..MAX_POINTERS as u16 + 2 {
        let target = 0xc000 | (HEADER as u16 + 2 * step);
        ladder.extend(target.to_be_bytes());
    }
    let top = |steps: usize| HEADER + 2 * steps;
    assert!(name.read(&ladder, top(MAX_POINTERS)).is_some());
    assert_eq!(name.read(&ladder, top(MAX_POINTERS + 1)), None);
}
