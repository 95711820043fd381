//! Any bytes from a switch: messages are read or refused, what is read is written and read the same, and a connection
//! stays within its bounds.
//!
//! ```text
//! cargo +nightly fuzz run openflow
//! ```
//!
//! The first byte is the size of the pieces in which the bytes reach the connection; its highest bit says that a hello
//! goes before them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailwater_cluster::ingress::openflow::{MAX_MESSAGE, Message, length_of};
use tailwater_cluster::ingress::{Session, SessionConfig};
use tailwater_net::Nanos;

fuzz_target!(|bytes: &[u8]| {
    let [first, rest @ ..] = bytes else {
        return;
    };
    let mut at = 0;
    while let Ok(Some(length)) = length_of(&rest[at..]) {
        let Some(message) = rest.get(at..at + length) else {
            break;
        };
        if let Ok((transaction, message)) = Message::decode(message) {
            let mut written = Vec::new();
            message.encode(transaction, &mut written);
            // Names of ports are cut, and actions of others' rules are not kept: after one round nothing changes.
            if written.len() <= MAX_MESSAGE
                && let Ok((_, once)) = Message::decode(&written)
            {
                let mut again = Vec::new();
                once.encode(transaction, &mut again);
                assert_eq!(Message::decode(&again).ok(), Some((transaction, once)));
            }
        }
        at += length;
    }
    let config = SessionConfig {
        max_rules: 64,
        max_ports: 16,
        ..SessionConfig::default()
    };
    let mut session = Session::new(config, Nanos::ZERO);
    if first & 0x80 != 0 {
        let mut hello = Vec::new();
        Message::Hello(true).encode(1, &mut hello);
        session.receive(&hello, Nanos::ZERO).expect("a hello of OpenFlow 1.3");
    }
    for piece in rest.chunks(usize::from(first & 0x7f).max(1)) {
        if session.receive(piece, Nanos::ZERO).is_err() {
            break;
        }
        while session.event().is_some() {}
        assert!(session.output().len() <= 2 << 20);
    }
});
