//! Any bytes as a stream through the parser in pieces: never a panic, and the same requests and server names in any
//! segmentation. The same bytes as heads and handshakes in a window: never a panic.
//!
//! ```text
//! cargo +nightly fuzz run streams
//! ```
//!
//! The first byte is the size of the pieces. Put a failing input into a test of `crates/streams/src/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_streams::direction::Direction;
use tailwater_streams::http::chunks::unchunk;
use tailwater_streams::http::head::{Framing, Head};
use tailwater_streams::http::host::{Host, MAX_HOST};
use tailwater_streams::http::messages::{Cursor, HEAD, Step};
use tailwater_streams::state::{Event, MessageHandler, Parser, Text};
use tailwater_streams::tls::handshake::{certificates, handshake, server_name};
use tailwater_streams::window::InOrder;

/// Texts the handler received, in order.
#[derive(Default, PartialEq, Eq, Debug)]
struct Recorder(Vec<Vec<u8>>);

impl MessageHandler for Recorder {
    fn inspects_http(&self) -> bool {
        true
    }

    fn inspects_tls(&self) -> bool {
        true
    }

    fn on_begin(&mut self) {
        self.0.push(Vec::new());
    }

    fn on_path(&mut self, path: &[u8]) -> bool {
        self.0.push(path.to_vec());
        false
    }

    fn on_host(&mut self, host: &Host, _path: Option<&[u8]>) -> bool {
        self.0.push(host.name().to_vec());
        false
    }

    fn on_server_name(&mut self, name: &[u8]) -> bool {
        self.0.push(name.to_vec());
        false
    }
}

/// Parses a stream in pieces of `size` bytes.
fn in_pieces(bytes: &[u8], size: usize) -> Recorder {
    let (mut parser, mut recorder) = (Parser::default(), Recorder::default());
    let (mut target, mut host) = (vec![0; 1024], [0; MAX_HOST]);
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at.saturating_add(size));
        let mut text = Text {
            target: &mut target,
            host: &mut host,
        };
        let (used, event) = parser.feed(&bytes[at..end], &mut text, &mut recorder);
        at += used;
        match event {
            Event::More => assert_eq!(at, end),
            Event::Skip(length) => at = at.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)),
            Event::Finished | Event::Unclear => break,
            Event::Url | Event::ServerName => unreachable!("the handler never stops"),
        }
    }
    recorder
}

/// Parses messages of a direction by their complete heads.
fn by_heads(bytes: &[u8], direction: Direction) {
    let (mut cursor, mut head) = (Cursor::default(), Head::new());
    cursor.begin(0, HEAD);
    let stream = InOrder { base: 0, bytes };
    loop {
        match cursor.advance(stream, direction) {
            Step::More | Step::Lost => return,
            Step::Headless => {}
            Step::End => cursor.next_message(),
            Step::Head => {
                let text = &bytes[cursor.start as usize..cursor.head_end as usize];
                head.read(text, direction);
                cursor.begin_body(head.framing(text, direction, false).unwrap_or(Framing::UntilClose));
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, stream)) = bytes.split_first() else {
        return;
    };
    assert_eq!(
        in_pieces(stream, usize::from(*size).max(1)),
        in_pieces(stream, usize::MAX)
    );
    let mut plain = Vec::new();
    unchunk(stream, &mut plain);
    assert!(plain.len() <= stream.len());
    by_heads(stream, Direction::ToServer);
    by_heads(stream, Direction::ToClient);
    let mut messages = Vec::new();
    handshake(stream, &mut messages);
    server_name(&messages);
    certificates(&messages).into_iter().flatten().for_each(drop);
});
