use super::*;
use crate::abi::MAX_EXPLANATION;
use crate::protocol::memory::tests::file;
use proptest::prelude::*;

fn any_place() -> impl Strategy<Value = PacketResponse> {
    prop_oneof![
        (any::<[u16; 2]>(), any::<[bool; 2]>()).prop_map(|([start, length], [rekeyed, turned])| {
            PacketResponse::Forwarded {
                start,
                length,
                rekeyed,
                turned,
            }
        }),
        any::<u8>().prop_map(PacketResponse::Dropped),
    ]
}

proptest! {
    #[test]
    fn places_are_read_as_they_were_written(place in any_place(), round: u64) {
        prop_assert_eq!(PacketResponse::decode(place.encode(round), round), Some(place));
        // The response of an earlier round is not accepted.
        prop_assert_eq!(PacketResponse::decode(place.encode(round), round.wrapping_add(1)), None);
    }

    #[test]
    fn any_word_is_a_place_or_none(word: u64, round: u64) {
        if let Some(place) = PacketResponse::decode(word, round) {
            prop_assert_eq!(place.encode(round), word);
        }
    }

    #[test]
    fn no_frame_reaches_beyond_its_buffer(start: u16, length: u16, bytes in 0usize..70_000) {
        let place = PacketResponse::Forwarded { start, length, rekeyed: false, turned: false };
        let inside = length > 0 && usize::from(start) + usize::from(length) <= bytes;
        prop_assert_eq!(place.fits(bytes), inside);
    }

    #[test]
    fn areas_return_what_was_written(
        words: [u64; 5], numbers: (u64, u32, u32, u64), i in 0..MAX_BATCH, at: u16, number: u64,
    ) {
        let (arrival, rss_hash, flow, generation) = numbers;
        let requests = file(REQUEST_AREA_BYTES as u64);
        let requests = RequestArea(Memory::map(&requests, REQUEST_AREA_BYTES, true).unwrap());
        let key = FlowKey::from_words(words);
        let [a, b, c, d] = [0, 16, 32, 48].map(|by| (arrival >> by) as u16);
        let known = PacketMetadata { frame_range: [at, !at], arrival, rss_hash, entry: at as u8 & 1, flow, generation };
        for (network, fragment) in [
            (Network::V6, Fragment::Whole),
            (Network::V6, Fragment::Later),
            (Network::V4, Fragment::First),
            (Network::NotIp, Fragment::Whole),
        ] {
            let headers = Headers {
                network,
                fragment,
                network_offset: a,
                transport_offset: b,
                payload_offset: c,
                end: d,
                key: match network {
                    Network::V6 => key,
                    // The other words of these keys are zero.
                    Network::V4 | Network::NotIp => FlowKey::from_words([words[0], 0, 0, 0, words[4]]),
                },
            };
            requests.set_metadata(i, &known, &headers);
            let mut read = Headers::default();
            requests.headers(i, &mut read);
            prop_assert_eq!((requests.metadata(i), read), (known, headers));
            prop_assert_eq!(requests.prefetch_hint(i), (flow, known.frame_range[0]));
            prop_assert_eq!(requests.frame_range(i), known.frame_range);
        }

        let responses = file(RESPONSE_AREA_BYTES as u64);
        let responses = ResponseArea(Memory::map(&responses, RESPONSE_AREA_BYTES, true).unwrap());
        for kind in [CompanionRequestKind::Open, CompanionRequestKind::Rejoin, CompanionRequestKind::Free] {
            let request = CompanionRequest { number, kind, at, rss_hash, key };
            responses.set_companion_request(&request);
            prop_assert_eq!(responses.companion_request(), request);
        }
        let list = [(3, key), (0, FlowKey::default()), (255, key)];
        responses.set_candidates(number as u8, &list);
        prop_assert_eq!(responses.candidates_attempt(), number as u8);
        prop_assert_eq!(responses.candidates().collect::<Vec<_>>(), list);
        for answer in [
            Ok(FlowSlot { flow, generation }),
            Err(CompanionRefusal::Taken),
            Err(CompanionRefusal::OtherBucket),
            Err(CompanionRefusal::HasOne),
            Err(CompanionRefusal::TableFull),
        ] {
            responses.set_companion_response(number, answer);
            prop_assert_eq!(responses.companion_response(number), Some(answer));
            prop_assert_eq!(responses.companion_response(number.wrapping_add(1)), None);
        }
        responses.set_counter(MAX_FUNCTION_COUNTERS - 1, number);
        responses.set_response_word(MAX_BATCH - 1, generation);
        prop_assert_eq!((responses.counter(MAX_FUNCTION_COUNTERS - 1), responses.response_word(MAX_BATCH - 1)), (number, generation));
        responses.set_masks_round(arrival);
        let masks = PacketMasks { left: generation, moved: number };
        responses.set_masks(MASKS - 1, masks);
        prop_assert_eq!((responses.masks_round(), responses.masks(MASKS - 1)), (arrival, masks));
        prop_assert_eq!((responses.counter(MAX_FUNCTION_COUNTERS - 1), responses.response_word(0)), (number, 0));
        responses.reset(arrival, generation);
        prop_assert_eq!((responses.done(), responses.handled_ended(), responses.companion_requests()), (arrival, generation, 0));
    }
}

#[test]
fn the_last_ended_flows_are_remembered() {
    let requests = file(REQUEST_AREA_BYTES as u64);
    let requests = RequestArea(Memory::map(&requests, REQUEST_AREA_BYTES, true).unwrap());
    for n in 0..ENDED + 3 {
        requests.add_ended(FlowSlot {
            flow: n as u32,
            generation: n + 1,
        });
    }
    assert_eq!(requests.ended(), ENDED + 3);
    for n in 3..ENDED + 3 {
        let ended = requests.ended_flow(n);
        assert_eq!((ended.flow, ended.generation), (n as u32, n + 1));
    }
}

#[test]
fn masks_have_a_bit_for_each_packet() {
    for count in [0, 1, 63, 64, 65, 128, MAX_BATCH - 1, MAX_BATCH] {
        let all = (0..MASKS).flat_map(|word| slots(word, all_of(count, word)));
        assert_eq!(all.collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn explanations_have_room_behind_areas_of_programs_before_them() {
    let text = [b'x'; MAX_EXPLANATION];
    let requests = file(REQUEST_AREA_BYTES as u64);
    let requests = RequestArea(Memory::map(&requests, REQUEST_AREA_BYTES, true).unwrap());
    let slots: Vec<u16> = (0..20).map(|i| 255 - 9 * i % 256).collect();
    requests.set_traced(&slots);
    let traced: Vec<(usize, u16)> = slots.iter().copied().enumerate().take(MAX_TRACED).collect();
    assert_eq!(requests.traced().collect::<Vec<_>>(), traced);
    requests.set_traced(&[0]);
    assert_eq!(requests.traced().collect::<Vec<_>>(), [(0, 0)]);
    // Both ends of a protocol that only one of them knows.
    for (bytes, expected) in [(RESPONSE_AREA_BYTES, Some(text)), (LEAST_RESPONSE_AREA_BYTES, None)] {
        let responses = file(RESPONSE_AREA_BYTES as u64);
        let responses = ResponseArea(Memory::map(&responses, bytes, true).unwrap());
        responses.set_candidates(1, &[(3, FlowKey::default()); MAX_CANDIDATES]);
        responses.set_explanation(MAX_TRACED - 1, 5, &text);
        responses.set_explanation(MAX_TRACED, 5, &text);
        assert_eq!(responses.explanation(MAX_TRACED - 1, 5), expected);
        assert_eq!(responses.explanation(MAX_TRACED - 1, 6), None);
        assert_eq!(responses.explanation(MAX_TRACED, 5), None);
        assert_eq!(responses.candidates().count(), MAX_CANDIDATES);
    }
}
