//! Any bytes as DNS messages to and from a server, whole and in fragments, through a guard with every limit. There is
//! never a panic, all buffers return to the pool, every packet is sent or counted, and sent packets have correct
//! headers. Names are compared with a plain reader.
//!
//! ```text
//! cargo +nightly fuzz run dns_guard
//! ```
//!
//! The input is cut into messages: a byte for direction, fragmentation and delay, one for the length in units of 2
//! bytes, then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use tailwater_fuzz::{FuzzedChain, check_headers, steps};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, sum, verify_network, verify_transport};
use tailwater_net::dns::{HEADER, Name};
use tailwater_net::parse::{Fragment, parse};
use tailwater_net::{FlowKey, Nanos, protocol};

const SPEC: &str = "
  functions:
    - dnsGuard:
        limits: {responses: 2, nodata: 2, referrals: 2, nxdomains: 2, errors: 2, all: 20, queries: 50}
        amplification: {ratio: 3, burst: 512}
        window: 1s
        slip: 1
        leak: 3
        MODE
  slo: {latency: 200us}
";

struct Rig {
    chain: FuzzedChain,
    now: Nanos,
}

impl Rig {
    fn new(mode: &str) -> Rig {
        Rig {
            chain: FuzzedChain::new(&SPEC.replace("MODE", mode), 1),
            now: Nanos::from_secs(1),
        }
    }

    fn run(&mut self, bytes: &[u8]) {
        for (kind, payload) in steps(bytes, 2) {
            same_name(payload);
            let frame = frame(kind, payload);
            self.now += Nanos::from_millis(u64::from(kind >> 5) * 30);
            self.chain.add(&frame, self.now);
            self.chain.process(self.now, |batch, place| {
                check_headers(batch, place);
                let sent = batch.frame(place);
                if sent != frame {
                    let headers = parse(sent).expect("a well-formed packet");
                    assert_eq!(headers.fragment, Fragment::Whole);
                    assert_ne!(verify_network(sent, &headers), Checksum::Wrong);
                    assert_eq!(verify_transport(sent, &headers), Checksum::Correct);
                    assert!(sent.len() <= frame.len());
                }
            });
        }
        self.chain.check_counts();
    }
}

/// Compares the first name of a message with one read label by label.
fn same_name(message: &[u8]) {
    let mut name = Name::default();
    let read = name.read(message, HEADER);
    let (mut plain, mut at, mut steps) = (Vec::new(), HEADER, 0);
    let sound = loop {
        steps += 1;
        match message.get(at) {
            Some(0) => break true,
            Some(length @ 1..=63) => {
                let end = at + 1 + usize::from(*length);
                let Some(label) = message.get(at..end) else {
                    break false;
                };
                plain.extend(label.iter().map(u8::to_ascii_lowercase));
                at = end;
            }
            // No name precedes the first one, so a pointer in it is invalid.
            _ => break false,
        }
    };
    assert!(steps <= message.len() + 1);
    assert_eq!(read.is_some(), sound && plain.len() < 255);
    if read.is_some() {
        plain.push(0);
        assert_eq!(name.as_bytes(), plain);
    }
}

/// Builds a frame between a client and a server with this payload.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let (client, server) = ([10, 0, 0, 1].into(), [192, 0, 2, 53].into());
    let key = FlowKey::v4(client, server, protocol::UDP, 4000, 53);
    let v6 = |text: &str| text.parse().expect("an address");
    let over_v6 = FlowKey::v6(v6("2001:db8::1"), v6("2001:db8::53"), protocol::UDP, 4000, 53);
    let key = if kind & 2 == 0 { key } else { over_v6 };
    let key = if kind & 1 == 0 { key } else { key.reversed() };
    let mut frame = FrameBuilder::new(&key)
        .payload(payload)
        .to_vec()
        .expect("a short packet");
    // The first fragment, or a later one.
    if kind & 2 == 0 && kind & 4 != 0 && payload.len() >= 8 {
        frame[20..22].copy_from_slice(&if kind & 8 == 0 { [0x20, 0] } else { [0, 9] });
        let length = 20 + (frame.len() - 34) / 8 * 8;
        frame.truncate(14 + length);
        frame[16..18].copy_from_slice(&(length as u16).to_be_bytes());
        frame[24..26].fill(0);
        let checksum = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    frame
}

thread_local! {
    static RIGS: RefCell<[Rig; 2]> = RefCell::new([Rig::new("mode: limit"), Rig::new("mode: strict")]);
}

fuzz_target!(|bytes: &[u8]| RIGS.with_borrow_mut(|rigs| {
    rigs.iter_mut().for_each(|rig| rig.run(bytes));
}));
