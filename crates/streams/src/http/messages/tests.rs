//! Tests of messages in a window.

use super::*;
use crate::http::chunks::unchunk;
use crate::http::head::Head;
use crate::window::WindowState;
use bytemuck::Zeroable;
use proptest::prelude::*;
use std::io::Write;

proptest! {
    /// Messages of all framings in sequence, cut at any byte: compares their heads and bodies.
    #[test]
    fn messages_end_where_they_should(
        messages in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..30), 1usize..9), 1..5),
        cuts in prop::collection::vec(1usize..12, 0..60),
    ) {
        let mut bytes = Vec::new();
        for (kind, body, chunk) in &messages {
            let _ = write!(bytes, "\r\nPOST /x HTTP/1.1\r\nHost: a\r\n");
            match kind {
                0 => { let _ = write!(bytes, "Content-Length: {}\r\n\r\n", body.len()); bytes.extend(body); }
                1 => {
                    let _ = write!(bytes, "Transfer-Encoding: gzip, Chunked\r\n\r\n");
                    for piece in body.chunks(*chunk) {
                        let _ = write!(bytes, "{:X};x=y\r\n", piece.len());
                        bytes.extend(piece);
                        bytes.extend(b"\r\n");
                    }
                    bytes.extend(b"0\r\nTrailer: x\r\n\r\n");
                }
                _ => bytes.extend(b"\r\n"),
            }
        }
        let (mut state, mut cursor) = (WindowState::zeroed(), Cursor::default());
        state.start(0);
        cursor.begin(0, HEAD);
        let mut window = vec![0; bytes.len()];
        let (mut head, mut found) = (Head::new(), Vec::new());
        let mut cuts = cuts.into_iter();
        let mut sent = 0;
        while sent < bytes.len() {
            let end = bytes.len().min(sent + cuts.next().unwrap_or(usize::MAX / 2));
            state.insert(&mut window, sent as u32, &bytes[sent..end]);
            sent = end;
            loop {
                match cursor.advance(state.in_order(&window), Direction::ToServer) {
                    Step::More => break,
                    Step::Lost | Step::Headless => prop_assert!(false, "lost"),
                    Step::Head => {
                        let text = &window[cursor.start as usize..cursor.head_end as usize];
                        head.read(text, Direction::ToServer);
                        prop_assert_eq!(head.method(text), b"POST");
                        let framing = head.framing(text, Direction::ToServer, false).unwrap();
                        cursor.begin_body(framing);
                    }
                    Step::End => {
                        let body = &window[cursor.head_end as usize..cursor.parsed as usize];
                        let mut plain = Vec::new();
                        match cursor.flags & CHUNKED {
                            0 => plain.extend_from_slice(body),
                            _ => unchunk(body, &mut plain),
                        }
                        found.push(plain);
                        cursor.next_message();
                    }
                }
            }
        }
        let expected: Vec<Vec<u8>> = messages.iter().map(|(kind, body, _)| if *kind == 2 { Vec::new() } else { body.clone() }).collect();
        prop_assert_eq!(found, expected);
    }
}
