//! Any bytes as packets to tunnel endpoints, and inside correctly encrypted packets: never a panic, all buffers return
//! to the pool, and every packet is sent or counted.
//!
//! ```text
//! cargo +nightly fuzz run ipsec
//! ```
//!
//! The input is cut into packets: a byte for the encapsulation (ESP, UDP, a known SPI, a tunnel's own encryption, or
//! none), one for the length in units of 4 bytes, then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::net::Ipv4Addr;
use tailwater_fuzz::{FuzzedChain, steps};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Chain into a tunnel, or past it, and out of it.
const SPEC: &str = "
  functions:
    - name: into
      ipsec:
        outbound:
          - {name: a, spi: 0x1001, cipher: aes-128-gcm, key: '000102030405060708090a0b0c0d0e0fa0a1a2a3',
             source: 192.0.2.1, destination: 192.0.2.2, udp: true, esn: true}
        policies: [{source: 10.0.0.0/8, protect: a}]
        default: pass
    - name: out-of
      ipsec:
        inbound:
          - {name: a, spi: 0x1001, cipher: aes-128-gcm, key: '000102030405060708090a0b0c0d0e0fa0a1a2a3',
             destination: 192.0.2.2, udp: true, esn: true, replayWindow: 64}
          - {name: b, spi: 0x1002, cipher: chacha20-poly1305, destination: 192.0.2.2, replayWindow: none,
             key: '000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa0a1a2a3'}
        keepAlives: pass
        default: pass
  slo: {latency: 200us}
";

fn run(chain: &mut FuzzedChain, bytes: &[u8]) {
    let process = |chain: &mut FuzzedChain| {
        chain.process(Nanos::ZERO, |batch, place| assert!(parse(batch.frame(place)).is_ok()));
    };
    for (kind, payload) in steps(bytes, 4) {
        if chain.add(&frame(kind, payload), Nanos::ZERO) {
            process(chain);
        }
    }
    process(chain);
    chain.check_counts();
}

/// Builds a frame to a tunnel endpoint with this payload, one to be encrypted, or any bytes.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let end = Ipv4Addr::new(192, 0, 2, 2);
    let known = |spi: u32| [&spi.to_be_bytes()[..], payload].concat();
    let (source, protocol, payload) = match kind % 6 {
        0 => ([192, 0, 2, 1], protocol::UDP, payload.to_vec()),
        1 => ([192, 0, 2, 1], protocol::ESP, payload.to_vec()),
        2 => ([192, 0, 2, 1], protocol::UDP, known(0x1001)),
        3 => ([192, 0, 2, 1], protocol::ESP, known(0x1002)),
        4 => ([10, 0, 0, 1], protocol::UDP, payload.to_vec()),
        _ => return payload.to_vec(),
    };
    let key = FlowKey::v4(source.into(), end, protocol, 4500, 4500);
    FrameBuilder::new(&key)
        .payload(&payload)
        .to_vec()
        .expect("a short packet")
}

thread_local! {
    static CHAIN: RefCell<FuzzedChain> = RefCell::new(FuzzedChain::new(SPEC, 32));
}

fuzz_target!(|bytes: &[u8]| CHAIN.with_borrow_mut(|chain| run(chain, bytes)));
