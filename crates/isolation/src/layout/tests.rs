use super::*;
use crate::memory::file;
use proptest::prelude::*;

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        (any::<u16>(), any::<u16>(), any::<bool>()).prop_map(|(start, length, rekeyed)| {
            Place::Here {
                start,
                length,
                rekeyed,
            }
        }),
        any::<u8>().prop_map(Place::Dropped),
        Just(Place::Gone),
    ]
}

proptest! {
    #[test]
    fn places_are_read_as_they_were_written(place in places(), round: u64) {
        prop_assert_eq!(Place::decode(place.encode(round), round), Some(place));
        // What a function left from the round before is no answer.
        prop_assert_eq!(Place::decode(place.encode(round), round.wrapping_add(1)), None);
    }

    #[test]
    fn any_word_is_a_place_or_none(word: u64, round: u64) {
        if let Some(place) = Place::decode(word, round) {
            prop_assert_eq!(place.encode(round), word);
        }
    }

    #[test]
    fn no_frame_reaches_beyond_its_buffer(start: u16, length: u16, bytes in 0usize..70_000) {
        let place = Place::Here { start, length, rekeyed: false };
        let inside = length > 0 && usize::from(start) + usize::from(length) <= bytes;
        prop_assert_eq!(place.fits(bytes), inside);
    }

    #[test]
    fn boards_and_slates_say_what_was_written(
        words: [u64; 5], numbers: (u64, u32, u32, u64), i in 0..MAX_BATCH, at: u16, number: u64,
    ) {
        let (arrival, rss_hash, flow, birth) = numbers;
        let board = file("board", BOARD_BYTES).unwrap();
        let board = Board(Memory::map(&board, BOARD_BYTES, true).unwrap());
        let key = FlowKey::from_words(words);
        let known = Known { arrival, rss_hash, flow, birth, key };
        board.set_known(i, &known);
        prop_assert_eq!(board.known(i), known);

        let slate = file("slate", SLATE_BYTES).unwrap();
        let slate = Slate(Memory::map(&slate, SLATE_BYTES, true).unwrap());
        let wish = Wish { number, at, rss_hash, key };
        slate.set_wish(&wish);
        prop_assert_eq!(slate.wish(), wish);
        for answer in [Ok((flow, birth)), Err(1), Err(255)] {
            slate.set_answer(number, answer);
            prop_assert_eq!(slate.answer(number), Some(answer));
            prop_assert_eq!(slate.answer(number.wrapping_add(1)), None);
        }
        slate.set_note(MAX_NOTES - 1, number);
        slate.set_place(MAX_BATCH - 1, birth);
        prop_assert_eq!((slate.note(MAX_NOTES - 1), slate.place(MAX_BATCH - 1)), (number, birth));
        slate.reset(arrival, birth);
        prop_assert_eq!((slate.done(), slate.taken(), slate.wishes()), (arrival, birth, 0));
    }
}

#[test]
fn the_last_ended_flows_are_remembered() {
    let board = file("board", BOARD_BYTES).unwrap();
    let board = Board(Memory::map(&board, BOARD_BYTES, true).unwrap());
    for n in 0..ENDED + 3 {
        board.add_ended(Ended {
            flow: n as u32,
            birth: n + 1,
        });
    }
    assert_eq!(board.ended(), ENDED + 3);
    for n in 3..ENDED + 3 {
        let ended = board.ended_flow(n);
        assert_eq!((ended.flow, ended.birth), (n as u32, n + 1));
    }
}
