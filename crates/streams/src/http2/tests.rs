use super::*;
use proptest::prelude::*;

/// Returns a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the meaning of a stream that comes in pieces of this size; neighbouring pieces of a text are joined.
fn read(client: bool, bytes: &[u8], piece: usize) -> (Vec<String>, Option<Unreadable>) {
    let mut reader = FrameReader::new(client);
    let (mut found, mut data): (Vec<String>, Vec<u8>) = (Vec::new(), Vec::new());
    let (mut at, mut end) = (0, 0);
    loop {
        let (used, event) = match reader.next(&bytes[at..end]) {
            Ok(next) => next,
            Err(unreadable) => return (found, Some(unreadable)),
        };
        at += used;
        match event {
            Event::More if end == bytes.len() => return (found, None),
            Event::More => end = (end + piece).min(bytes.len()),
            Event::Skipped => {}
            Event::Block(bytes) | Event::Data { bytes, .. } => data.extend(bytes),
            event => {
                found.push(format!("{data:?} {event:?}"));
                data.clear();
            }
        }
    }
}

#[test]
fn frames_are_read_in_pieces_of_any_size() {
    let bytes = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[0, 1, 0, 0, 0, 0]),
        // Padding and priority.
        frame(HEADERS, PADDED | PRIORITY, 1, &[2, 0, 0, 0, 0, 9, b'a', b'b', 0, 0]),
        frame(CONTINUATION, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 1, b"c"),
        frame(DATA, PADDED, 1, b"\x03xyz\0\0\0"),
        frame(DATA, PADDED | END_STREAM, 1, b"\x00w"),
        frame(99, 0xff, 7, b"unknown"),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, b"d"),
        frame(PUSH_PROMISE, END_HEADERS, 3, b"\0\0\0\x02e"),
        frame(RST_STREAM, 0, 5, &[0; 4]),
    ];
    let bytes = bytes.concat();
    let expected = [
        "[97, 98, 99] BlockEnd { stream: 1, ends_message: false, is_promise: false }",
        "[120, 121, 122, 119] End(1)",
        "[100] BlockEnd { stream: 3, ends_message: true, is_promise: false }",
        "[101] BlockEnd { stream: 3, ends_message: false, is_promise: true }",
        "[] Reset(5)",
    ];
    for piece in 1..=bytes.len() {
        assert_eq!(read(true, &bytes, piece), (expected.map(str::to_owned).to_vec(), None));
    }
}

#[test]
fn frames_that_violate_the_protocol_are_refused() {
    let flood: Vec<u8> = (0..=MAX_CONTINUATIONS)
        .flat_map(|_| frame(CONTINUATION, 0, 1, b""))
        .collect();
    for (bytes, expected) in [
        (frame(HEADERS, PADDED, 1, &[9, 1, 2]), Unreadable::Malformed),
        (frame(HEADERS, PRIORITY, 1, &[9, 1, 2]), Unreadable::Malformed),
        (frame(DATA, PADDED, 1, b""), Unreadable::Malformed),
        (frame(DATA, 0, 0, b"a"), Unreadable::Malformed),
        (frame(CONTINUATION, 0, 1, b"a"), Unreadable::Malformed),
        (
            [frame(HEADERS, 0, 1, b"a"), frame(DATA, 0, 1, b"a")].concat(),
            Unreadable::Malformed,
        ),
        (
            [frame(HEADERS, 0, 1, b"a"), frame(CONTINUATION, 0, 3, b"a")].concat(),
            Unreadable::Malformed,
        ),
        ([frame(HEADERS, 0, 1, b"a"), flood].concat(), Unreadable::TooMuch),
    ] {
        assert_eq!(read(false, &bytes, 5).1, Some(expected), "{bytes:?}");
    }
    assert_eq!(read(true, b"PRI * HTTP/2.1", 5).1, Some(Unreadable::Malformed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes mean the same in pieces of any size.
    #[test]
    fn pieces_do_not_matter(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..4, prop::collection::vec(any::<u8>(), 0..12)),
            0..8,
        ),
        piece in 1usize..9,
    ) {
        let frames = frames.iter();
        let bytes: Vec<u8> = frames.flat_map(|(kind, flags, stream, text)| frame(*kind, *flags, *stream, text)).collect();
        prop_assert_eq!(read(false, &bytes, piece), read(false, &bytes, bytes.len().max(1)));
    }
}
