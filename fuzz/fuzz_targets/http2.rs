//! Any bytes as frames and header blocks of HTTP/2: never a panic, the same meaning in pieces of any size, and bounded
//! memory.
//!
//! ```text
//! cargo +nightly fuzz run http2
//! ```
//!
//! The first byte is the size of the pieces; its highest bit says that a client sends them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_streams::http2::hpack::{Decoder, MAX_TABLE, scratch_for};
use tailwater_streams::http2::{Event, FrameReader, Unreadable};

/// Returns the fields and the body bytes of a stream in pieces of this size, and why the rest cannot be read.
fn read(client: bool, bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<Unreadable>) {
    let mut reader = FrameReader::new(client);
    let (mut decoder, mut scratch) = (Decoder::new(), Vec::with_capacity(scratch_for(bytes.len())));
    let room = scratch.capacity();
    let (mut found, mut block, mut body) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at, mut end) = (0, 0);
    let unreadable = loop {
        let (used, event) = match reader.next(&bytes[at..end]) {
            Ok(next) => next,
            Err(unreadable) => break Some(unreadable),
        };
        at += used;
        match event {
            Event::More if end == bytes.len() => break None,
            Event::More => end = (end + piece).min(bytes.len()),
            Event::Block(bytes) => block.extend(bytes),
            Event::Data { bytes, .. } => body.extend(bytes),
            Event::BlockEnd { .. } => {
                let decoded = decoder.decode(&block, &mut scratch, |name, value| found.push([name, value].concat()));
                assert!(decoder.size() <= MAX_TABLE && scratch.capacity() == room);
                block.clear();
                if let Err(unreadable) = decoded {
                    break Some(unreadable);
                }
            }
            Event::Skipped | Event::End(_) | Event::Reset(_) => {}
        }
    };
    found.push(body);
    (found, unreadable)
}

fuzz_target!(|bytes: &[u8]| {
    let [first, rest @ ..] = bytes else {
        return;
    };
    let (client, piece) = (*first & 0x80 != 0, usize::from(*first & 0x7f).max(1));
    assert_eq!(read(client, rest, piece), read(client, rest, rest.len().max(1)));
});
