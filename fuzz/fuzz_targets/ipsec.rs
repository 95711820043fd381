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
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Chain into a tunnel, or past it, and out of it.
const SPEC: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: fuzz}
spec:
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

struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
    offered: u64,
    sent: u64,
}

impl Rig {
    fn new() -> Rig {
        let spec = ChainSpec::parse(SPEC, "fuzz", Path::new(".")).expect("a right spec");
        let rss = RssHasher::default();
        let mut builder = ChainBuilder::new(&spec, &rss, 1).expect("enough memory");
        let pool = BufferPool::new(64, 2048).expect("enough memory");
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 32),
            pool,
            rss,
            offered: 0,
            sent: 0,
        }
    }

    fn run(&mut self, mut bytes: &[u8]) {
        while let [kind, length, rest @ ..] = bytes {
            let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length) * 4));
            bytes = rest;
            let frame = frame(*kind, payload);
            let hash = parse(&frame).map_or(0, |headers| self.rss.hash_headers(&headers));
            self.offered += 1;
            assert!(self.batch.push(&mut self.pool, &frame, Nanos::ZERO, hash));
            if self.batch.room() == 0 || bytes.len() < 2 {
                self.chain.process(&mut self.batch, Nanos::ZERO);
                for i in 0..self.batch.len() {
                    assert!(parse(self.batch.frame(i)).is_ok());
                }
                self.sent += self.batch.len() as u64;
                self.batch.release(&mut self.pool);
            }
        }
        assert_eq!(self.pool.available(), self.pool.capacity());
        let reasons = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        let gone: u64 = reasons
            .filter(|(reason, _)| reason.outcome != Outcome::Passed)
            .map(|(_, count)| count)
            .sum();
        assert_eq!(self.offered, self.sent + gone);
    }
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
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

fuzz_target!(|bytes: &[u8]| RIG.with_borrow_mut(|rig| rig.run(bytes)));
