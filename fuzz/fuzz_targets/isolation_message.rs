//! Any bytes as a message of a function's process, or of the server: reading never panics and stays within the message.
//! A message that was read is the same after writing and reading.
//!
//! ```text
//! cargo +nightly fuzz run isolation_message
//! ```
//!
//! Put a failing input into a test of `crates/sdk/src/protocol/message/tests.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_ids::alert::Alert;
use tailwater_sdk::host::Printable;
use tailwater_sdk::protocol::layout::PacketResponse;
use tailwater_sdk::protocol::message::{FromProgram, FromServer};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = FromProgram::decode(bytes) {
        assert_eq!(FromProgram::decode(&message.encode()), Ok(message));
    }
    if let Ok(message) = FromServer::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    // An alert of a detection function's process.
    if let Some((bytes, _)) = bytes.split_first_chunk::<{ 8 * Alert::WORDS }>() {
        let mut words = [0; Alert::WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if let Some(alert) = Alert::from_words(&words) {
            assert_eq!(alert.to_words(), words);
            let detail = &alert.detail;
            let _ = (detail.method(), detail.name(), detail.target());
        }
    }
    // A function's explanation of a packet.
    let text = Printable(bytes).to_string();
    assert!(text.chars().count() <= bytes.len() && !text.chars().any(char::is_control));
    // The response of a process for a packet.
    if let Some((word, rest)) = bytes.split_first_chunk::<8>() {
        let (word, round) = (u64::from_le_bytes(*word), rest.len() as u64);
        if let Some(place) = PacketResponse::decode(word, round) {
            assert_eq!(place.encode(round), word);
            if let PacketResponse::Forwarded { start, length, .. } = place
                && place.fits(2048)
            {
                assert!(length > 0 && usize::from(start) + usize::from(length) <= 2048);
            }
        }
    }
});
