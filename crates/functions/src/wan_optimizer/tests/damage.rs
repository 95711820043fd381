//! Tests with packets changed in flight, caches that disagree, and arbitrary bytes: wrong content is never delivered.

use super::super::header::{ENTRY, HEADER, MAX_RANGES, MAX_REGIONS, Unreadable, parse};
use super::*;
use proptest::prelude::*;

/// Returns both ends, a packet with a few regions between literals, and its content.
fn referring(chance: &mut Chance) -> (Near, Far, Vec<u8>, Vec<u8>) {
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let files = chance.files();
    for file in &files {
        let sent = near.encode(file);
        far.decode(&sent).unwrap();
    }
    loop {
        let content = chance.content(&files, 1200);
        let sent = near.encode(&content);
        if content_in(&sent).regions().len() > 1 {
            return (near, far, content, sent);
        }
        far.decode(&sent).unwrap();
    }
}

/// Decodes arbitrary bytes; returns the content, if any.
fn decode(far: &mut Far, bytes: &[u8]) -> Option<Vec<u8>> {
    match parse(bytes) {
        Ok(Message::Content(_)) => far.decode(bytes).ok(),
        _ => None,
    }
}

#[test]
fn no_changed_bit_gives_other_content() {
    let mut chance = Chance(20);
    let (_, mut far, content, sent) = referring(&mut chance);
    for bit in 0..sent.len() * 8 {
        let mut changed = sent.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(&mut far, &changed), None, "bit {bit}");
    }
    for length in 0..sent.len() {
        assert_eq!(decode(&mut far, &sent[..length]), None);
    }
    // The damaged packets left the state intact.
    assert_eq!(decode(&mut far, &sent), Some(content));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn changed_packets_give_no_other_content(
        seed in any::<u64>(), changes in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..20),
        from_front in any::<bool>(),
    ) {
        let (_, mut far, content, sent) = referring(&mut Chance(seed));
        let mut changed = sent.clone();
        for (at, value) in changes {
            let most = if from_front { HEADER + 4 * ENTRY } else { sent.len() };
            changed[at.index(most.min(sent.len()))] ^= value;
        }
        let restored = decode(&mut far, &changed);
        prop_assert!(restored.is_none_or(|restored| restored == content));
    }

    /// Arbitrary bytes are parsed and decoded without harm.
    #[test]
    fn any_bytes_are_taken(
        seed in any::<u64>(), head in prop::collection::vec(any::<u8>(), 0..40),
        kind in prop_oneof![Just(0x10u8), Just(0x11), any::<u8>()], length in 0usize..200,
    ) {
        let mut chance = Chance(seed);
        let (near, mut far, ..) = referring(&mut chance);
        let mut bytes = [&head[..], &chance.bytes(length)].concat();
        if let [first, entries, high, ..] = &mut bytes[..] {
            (*first, *entries, *high) = (kind, *entries % 4, 0);
        }
        match parse(&bytes) {
            Ok(Message::Content(_)) => {
                prop_assert!(far.decode(&bytes).is_err());
            }
            Ok(Message::Request(request)) => {
                near.outbound.apply_request(&request);
            }
            Err(_) => {}
        }
    }
}

/// A restarted encoder reuses the previous epoch by chance, so its references mean something else at the remote end.
/// Nothing wrong is delivered; the request starts another epoch, which works.
#[test]
fn an_epoch_that_comes_again_is_found_out() {
    let mut chance = Chance(21);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    for _ in 0..20 {
        let content = chance.bytes(1000);
        let sent = near.encode(&content);
        far.decode(&sent).unwrap();
    }
    let mut near = Near::new(LEAST_CACHE, PERIOD_32, 1);
    let contents: Vec<_> = (0..10).map(|_| chance.bytes(1000)).collect();
    for content in &contents {
        // The remote end has these lines, and takes the packets for duplicates; it delivers them all the same.
        let sent = near.encode(content);
        assert_eq!(far.decode(&sent).as_ref(), Ok(content));
    }
    let sent = near.encode(&contents[3]);
    assert_eq!(sent.len(), HEADER + ENTRY);
    let (lost, request) = far.decode(&sent).unwrap_err();
    assert_eq!(lost, Lost::Damaged);
    assert!(request_in(&request).reset && near.apply_request(&request));
    for content in contents.iter().chain(&contents) {
        let sent = near.encode(content);
        assert_eq!(content_in(&sent).epoch, 2);
        assert_eq!(far.decode(&sent).as_ref(), Ok(content));
    }
}

/// Late packets of a restarted encoder's old epoch are interleaved with the new one's. They are restored, and remove
/// nothing of the new epoch.
#[test]
fn late_packets_of_an_epoch_do_no_harm_to_the_next() {
    let mut chance = Chance(22);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let old: Vec<_> = (0..256).map(|_| chance.bytes(1000)).collect();
    let mut late = Vec::new();
    for content in &old {
        let sent = near.encode(content);
        far.decode(&sent).unwrap();
    }
    // Their lines share slots with the first lines of the next epoch. Half of them refer to old content, which is still
    // cached until overwritten; the others are new.
    for at in 0..10 {
        for content in [old[200 + at].clone(), chance.bytes(1000)] {
            late.push((near.encode(&content), content));
        }
    }
    let mut near = Near::new(LEAST_CACHE, PERIOD_32, 2);
    let contents: Vec<_> = (0..10).map(|_| chance.bytes(1000)).collect();
    let mut late = late.into_iter();
    for content in &contents {
        let sent = near.encode(content);
        assert_eq!(far.decode(&sent).as_ref(), Ok(content));
        for (sent, content) in late.by_ref().take(2) {
            assert_eq!(far.decode(&sent), Ok(content));
        }
    }
    // The encoder may refer to all of its epoch.
    assert_eq!(far.decoder.since(2), 1);
    for content in &contents {
        let sent = near.encode(content);
        assert_eq!(sent.len(), HEADER + ENTRY);
        assert_eq!(far.decode(&sent).as_ref(), Ok(content));
    }
}

/// An epoch number is reused after another epoch: its packets are taken for late ones, but not forever.
#[test]
fn an_epoch_that_comes_again_after_another_is_taken_up() {
    let mut chance = Chance(23);
    let mut far = Far::new(LEAST_CACHE);
    for epoch in [1, 2] {
        let mut near = Near::new(LEAST_CACHE, PERIOD_32, epoch);
        for _ in 0..500 {
            let sent = near.encode(&chance.bytes(1000));
            far.decode(&sent).unwrap();
        }
    }
    let mut near = Near::new(LEAST_CACHE, PERIOD_32, 1);
    for _ in 0..1100 {
        let content = chance.bytes(1000);
        let sent = near.encode(&content);
        assert_eq!(far.decode(&sent), Ok(content));
    }
    let content = chance.bytes(1000);
    for coded in [false, true] {
        let sent = near.encode(&content);
        assert_eq!(sent.len() == HEADER + ENTRY, coded);
        assert_eq!(far.decode(&sent).as_ref(), Ok(&content));
    }
}

/// Inconsistent messages of every kind are rejected.
#[test]
fn wrong_headers_are_refused() {
    let content = |regions: &[[u8; 8]], length: u16, line: u32, literals: usize| {
        let mut bytes = vec![0x10, regions.len() as u8];
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(line.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(regions.concat());
        bytes.extend(vec![0; literals]);
        bytes
    };
    let region = |at: u16, length: u16| {
        let ([a, b], [c, d]) = (at.to_be_bytes(), length.to_be_bytes());
        [a, b, c, d, 0, 0, 1, 0]
    };
    let sound = content(&[region(2, 32), region(34, 32)], 68, 9, 4);
    assert!(matches!(parse(&sound), Ok(Message::Content(_))));
    assert!(parse(&content(&[region(0, 1)], 1, 1, 0)).is_ok());
    for (wrong, bytes) in [
        ("nothing", vec![]),
        ("short", sound[..HEADER - 1].to_vec()),
        ("regions cut", sound[..HEADER + 12].to_vec()),
        (
            "regions in disorder",
            content(&[region(34, 32), region(2, 32)], 68, 9, 4),
        ),
        (
            "regions over each other",
            content(&[region(2, 32), region(33, 32)], 68, 9, 4),
        ),
        (
            "a region beyond the end",
            content(&[region(2, 32), region(40, 32)], 68, 9, 4),
        ),
        ("an empty region", content(&[region(2, 32), region(34, 0)], 68, 9, 36)),
        ("too few literals", content(&[region(2, 32)], 68, 9, 35)),
        ("too many literals", content(&[region(2, 32)], 68, 9, 37)),
        ("no content", content(&[], 0, 9, 0)),
        ("no line", content(&[], 4, 0, 4)),
        ("lines beyond the last", content(&[], 65, u32::MAX, 65)),
        (
            "too many regions",
            content(
                &(0..=MAX_REGIONS as u16).map(|at| region(at, 1)).collect::<Vec<_>>(),
                MAX_RANGES as u16,
                9,
                0,
            ),
        ),
    ] {
        assert_eq!(parse(&bytes).err(), Some(Unreadable::Malformed), "{wrong}");
    }
    let mut request = vec![0; 100];
    let length = header::write_request(&mut request, [1, 2, 3], false, &[[5, 6], [9, 1]]).unwrap();
    request.truncate(length);
    let read = request_in(&request);
    assert_eq!((read.epoch, read.since, read.lines, read.reset), (1, 2, 3, false));
    assert_eq!(read.ranges().collect::<Vec<_>>(), [[5, 6], [9, 1]]);
    let with = |at: usize, bytes: &[u8]| {
        let mut request = request.clone();
        request[at..at + bytes.len()].copy_from_slice(bytes);
        request
    };
    for (wrong, bytes) in [
        ("behind its end", [&request[..], &[0]].concat()),
        ("cut", request[..length - 1].to_vec()),
        ("another flag", with(3, &[2])),
        ("lines beyond the last", with(HEADER, &[0xff; 4])),
        ("more lines than content has", with(HEADER + 4, &[0, 0, 0x10, 0])),
    ] {
        assert_eq!(parse(&bytes).err(), Some(Unreadable::Malformed), "{wrong}");
    }
    for first in (0..=u8::MAX).filter(|first| ![0x10, 0x11].contains(first)) {
        let other = with(0, &[first]);
        assert_eq!(parse(&other).err(), Some(Unreadable::Version));
    }
}

/// References before the stream's first byte, which no encoder writes, are rejected.
#[test]
fn references_before_the_beginning_are_refused() {
    let mut far = Far::new(LEAST_CACHE);
    let mut bytes = vec![0x10, 1, 0, 32, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    bytes.extend([0, 0, 0, 32, 0, 0, 0, 65]);
    assert_eq!(far.decode(&bytes).unwrap_err().0, Lost::Damaged);
    // A reference to the content itself, which is not yet in the cache.
    bytes[23] = 10;
    assert_eq!(far.decode(&bytes).unwrap_err().0, Lost::Missing);
}
