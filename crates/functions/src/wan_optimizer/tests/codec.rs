//! Tests of encoder and decoder: content is restored whatever the link does, and requests are applied.

use super::super::Sampling;
use super::super::encoder::MOST_OF_BATCH;
use super::*;
use proptest::prelude::*;
use tailwater_chain::batch::MAX_BATCH;

/// Treatment of a packet by the link.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// Arrives after this many others.
    Late(usize),
    /// The encoder (or the decoder) restarts before the packet.
    NearRestarts,
    FarRestarts,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        2 => (1usize..40).prop_map(Fate::Late),
        1 => Just(Fate::NearRestarts),
        1 => Just(Fate::FarRestarts),
    ]
}

fn fingerprints() -> impl Strategy<Value = Fingerprints> {
    let sampling = prop_oneof![Just(Sampling::SampleByte), Just(Sampling::MaxP)];
    (sampling, 16u16..=128).prop_map(|(sampling, period)| Fingerprints { sampling, period })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Restored content always equals the original. Once the link is good for two packets of the same content, the
    /// second arrives, since the first one's request was applied.
    #[test]
    fn a_bad_link_changes_nothing_but_what_is_lost(
        seed in any::<u64>(), fingerprints in fingerprints(), requests_lost in 0u64..4,
        fates in prop::collection::vec((fate(), 1usize..1500), 1..300),
    ) {
        let mut chance = Chance(seed);
        let files = chance.files();
        let (mut near, mut far) = (Near::new(LEAST_CACHE, fingerprints, 1), Far::new(LEAST_CACHE));
        let mut epoch = 1;
        // Packets in flight: number of others in front, content, and encoded bytes.
        let mut late: Vec<(usize, Vec<u8>, Vec<u8>)> = Vec::new();
        for (fate, length) in fates {
            match fate {
                Fate::NearRestarts => {
                    epoch += 1000;
                    near = Near::new(LEAST_CACHE, fingerprints, epoch);
                }
                Fate::FarRestarts => far = Far::new(LEAST_CACHE),
                _ => {}
            }
            let content = chance.content(&files, length);
            let sent = near.encode(&content);
            late.iter_mut().for_each(|(others, ..)| *others -= 1);
            let copies = match fate {
                Fate::Lost => 0,
                Fate::Twice => 2,
                Fate::Late(others) => {
                    late.push((others, content.clone(), sent.clone()));
                    0
                }
                _ => 1,
            };
            let mut arriving = vec![(content, sent); copies];
            late.retain(|(others, content, sent)| {
                let now = *others == 0;
                if now {
                    arriving.push((content.clone(), sent.clone()));
                }
                !now
            });
            for (content, sent) in arriving {
                match far.decode(&sent) {
                    Ok(restored) => prop_assert_eq!(restored, content),
                    Err((lost, request)) => {
                        // These links do not damage packets.
                        prop_assert_eq!(lost, Lost::Missing);
                        prop_assert!(request.len() <= sent.len() + header::ENTRY);
                        if requests_lost == 0 || chance.next() % 4 >= requests_lost {
                            near.apply_request(&request);
                        }
                    }
                }
            }
        }
        for _ in 0..20 {
            let content = chance.content(&files, 1000);
            let sent = near.encode(&content);
            if let Err((_, request)) = far.decode(&sent) {
                prop_assert!(near.apply_request(&request));
                let again = near.encode(&content);
                prop_assert_eq!(far.decode(&again).ok(), Some(content));
            }
        }
    }
}

/// Repeated content costs a header and a region, at any offset in a packet.
#[test]
fn repeated_content_is_sent_once() {
    let mut chance = Chance(5);
    for sampling in [Sampling::SampleByte, Sampling::MaxP] {
        let fingerprints = Fingerprints { sampling, period: 32 };
        let (mut near, mut far) = (Near::new(LEAST_CACHE, fingerprints, 1), Far::new(LEAST_CACHE));
        let content = chance.bytes(1400);
        let first = near.encode(&content);
        assert_eq!(first.len(), header::HEADER + 1400);
        assert_eq!(far.decode(&first).unwrap(), content);
        let second = near.encode(&content);
        assert_eq!(second.len(), header::HEADER + header::ENTRY);
        assert_eq!(far.decode(&second).unwrap(), content);
        // Within other content, at an odd offset, it is found to its first and last byte.
        let other = [&chance.bytes(33)[..], &content[100..1300], &chance.bytes(77)].concat();
        let third = near.encode(&other);
        assert_eq!(third.len(), header::HEADER + header::ENTRY + 33 + 77);
        assert_eq!(far.decode(&third).unwrap(), other);
    }
}

/// Lost content is referred to once per packet in flight, and then no more. A retransmitted segment arrives with the
/// third attempt at the latest.
#[test]
fn what_was_lost_is_not_referred_to_for_long() {
    let mut chance = Chance(6);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let opening = chance.bytes(500);
    let sent = near.encode(&opening);
    far.decode(&sent).unwrap();
    let segment = chance.bytes(1400);
    near.encode(&segment);
    let second = near.encode(&segment);
    let (lost, request) = far.decode(&second).unwrap_err();
    assert_eq!(lost, Lost::Missing);
    let asked: Vec<_> = request_in(&request).ranges().collect();
    // After the opening's eight lines follow those of the first attempt, then those of the second.
    assert_eq!(asked, [[9, 22], [31, 22]]);
    assert!(near.apply_request(&request));
    let third = near.encode(&segment);
    assert_eq!(third.len(), header::HEADER + segment.len());
    assert_eq!(far.decode(&third).unwrap(), segment);
    // Earlier content is still referred to.
    assert_eq!(near.encode(&opening).len(), header::HEADER + header::ENTRY);
}

/// A restarted decoder loses one packet, not one per cached content.
#[test]
fn a_decoder_that_begins_anew_says_what_it_cannot_have() {
    let mut chance = Chance(7);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let contents: Vec<_> = (0..50).map(|_| chance.bytes(1000)).collect();
    for content in &contents {
        let sent = near.encode(content);
        far.decode(&sent).unwrap();
    }
    far = Far::new(LEAST_CACHE);
    let sent = near.encode(&contents[0]);
    let (_, request) = far.decode(&sent).unwrap_err();
    assert!(near.apply_request(&request));
    for content in contents.iter().chain(&contents[1..]) {
        let sent = near.encode(content);
        assert_eq!(far.decode(&sent).as_ref(), Ok(content));
    }
}

/// A request for another epoch than the current one changes nothing.
#[test]
fn stale_requests_are_not_heeded() {
    let mut chance = Chance(8);
    let (mut near, content) = (Near::new(LEAST_CACHE, PERIOD_32, 5), chance.bytes(800));
    near.encode(&content);
    let mut request = [0; 24];
    header::write_request(&mut request, [4, 100, 1], true, &[[1, 13]]).unwrap();
    assert!(!near.apply_request(&request));
    assert_eq!(near.encode(&content).len(), header::HEADER + header::ENTRY);
    header::write_request(&mut request, [5, 1, 4096], false, &[[1, 26]]).unwrap();
    assert!(near.apply_request(&request));
    assert_eq!(near.encode(&content).len(), header::HEADER + content.len());
}

/// The encoder does not refer to lines beyond the capacity of a smaller remote cache.
#[test]
fn a_smaller_cache_at_the_other_end_is_heeded() {
    let mut chance = Chance(9);
    let (mut near, mut far) = (Near::new(4 * LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let contents: Vec<_> = (0..600).map(|_| chance.bytes(1280)).collect();
    let mut lost = 0;
    for content in contents.iter().chain(&contents).chain(&contents) {
        let sent = near.encode(content);
        match far.decode(&sent) {
            Ok(restored) => assert_eq!(&restored, content),
            Err((_, request)) => {
                lost += 1;
                assert!(near.apply_request(&request));
            }
        }
    }
    // Only the first reference to evicted lines fails.
    assert_eq!(lost, 1);
    // Everything within the decoder's capacity is still referred to.
    let latest = &contents[500];
    assert_eq!(near.encode(latest).len(), header::HEADER + header::ENTRY);
}

/// Content overwritten by wrap-around is not referred to, present content is, over many rounds.
#[test]
fn caches_go_round() {
    let mut chance = Chance(10);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let mut contents: Vec<Vec<u8>> = Vec::new();
    let (mut found, mut whole) = (0, 0);
    for i in 0..3000 {
        let length = 100 + chance.below(1300);
        let content = chance.bytes(length);
        contents.push(content);
        let again = i - chance.below(i + 1).min(400);
        for content in [&contents[i], &contents[again]] {
            let sent = near.encode(content);
            match sent.len() < content.len() {
                true => found += 1,
                false => whole += 1,
            }
            assert_eq!(far.decode(&sent).as_ref(), Ok(content));
        }
    }
    assert!(found > 500 && whole > 3000, "{found} {whole}");
}

/// Before its line numbers run out, an encoder starts a new epoch and continues.
#[test]
fn numbers_of_lines_do_not_run_out() {
    let mut chance = Chance(11);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    let content = chance.bytes(1400);
    let first = near.encode(&content);
    far.decode(&first).unwrap();
    // As after 256 GiB. The cache slot continues from there.
    near.encoder.skip_to(u32::MAX - MOST_OF_BATCH - 10_000);
    let (mut epochs, mut found) = (Vec::new(), 0);
    for _ in 0..800 {
        let content = chance.bytes(1400);
        for again in [false, true] {
            let sent = near.encode(&content);
            epochs.push(content_in(&sent).epoch);
            found += u32::from(again && sent.len() == header::HEADER + header::ENTRY);
            assert_eq!(far.decode(&sent).as_ref(), Ok(&content));
        }
    }
    epochs.dedup();
    assert_eq!(epochs, [1, 2]);
    // All but one at most: the new epoch does not refer to the old one.
    assert!(found >= 799, "{found}");
}

/// Line numbers suffice for a batch of the longest packets, between two checks.
#[test]
fn numbers_of_lines_last_for_a_batch() {
    let mut near = Near::new(LEAST_CACHE, PERIOD_32, 1);
    near.encoder.skip_to(u32::MAX - MOST_OF_BATCH);
    assert!(!near.encoder.refresh());
    let (content, mut out) = (vec![1; MAX_CONTENT], vec![0; header::HEADER + MAX_CONTENT]);
    for _ in 0..MAX_BATCH {
        near.encoder.plan(&content, 0);
        assert!(near.encoder.write(&content, &mut out).is_some());
    }
    assert!(near.encoder.refresh());
}

/// The longest and the shortest content, and content without any match.
#[test]
fn content_of_any_length() {
    let mut chance = Chance(12);
    let (mut near, mut far) = (Near::new(LEAST_CACHE, PERIOD_32, 1), Far::new(LEAST_CACHE));
    for length in [1, 31, 32, 33, 63, 64, 65, 20, 9000, MAX_CONTENT] {
        let content = chance.bytes(length);
        for _ in 0..2 {
            let sent = near.encode(&content);
            assert_eq!(far.decode(&sent).as_ref(), Ok(&content));
        }
    }
    // Zeros match at many offsets.
    for length in [1400, 9000, MAX_CONTENT] {
        let content = vec![0; length];
        for _ in 0..2 {
            let sent = near.encode(&content);
            assert_eq!(far.decode(&sent).as_ref(), Ok(&content));
        }
    }
}
