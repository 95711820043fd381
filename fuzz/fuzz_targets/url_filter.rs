//! Any bytes as segments of TCP streams through the URL filter: never a panic, and every packet passes unchanged or is
//! counted.
//!
//! ```text
//! cargo +nightly fuzz run url_filter
//! ```
//!
//! The input is cut into segments: a byte for flags and connection, two for the sequence number, one for the length,
//! then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::path::Path;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos};

const SPEC: &str = "
apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: fuzz}
spec:
  functions:
    - urlFilter:
        patterns: [bad.example, '=b.c', a.b/x, /evil, '*needle*']
        streams: 3
        bufferBytes: 1024
        onOverflow: drop
        restOfFlow: pass
  slo: {latency: 200us}
  flows: {capacity: 512}
";

struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    now: Nanos,
    offered: u64,
    sent: u64,
}

impl Rig {
    fn new() -> Rig {
        let spec = ChainSpec::parse(SPEC, "fuzz", Path::new(".")).expect("a right spec");
        let mut builder = ChainBuilder::new(&spec, &RssHasher::default(), 1).expect("enough memory");
        let pool = BufferPool::new(4, 2048).expect("enough memory");
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, 1),
            pool,
            now: Nanos::from_secs(1),
            offered: 0,
            sent: 0,
        }
    }

    fn run(&mut self, mut bytes: &[u8]) {
        let rss = RssHasher::default();
        while let [flags, high, low, length, rest @ ..] = bytes {
            let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            let fields = TcpFields {
                sequence: u32::from(u16::from_be_bytes([*high, *low])).wrapping_sub(100),
                flags: TcpFlags(*flags & 0x07),
                ..TcpFields::default()
            };
            let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let key = FlowKey::v4(ends.0, ends.1, 6, u16::from(*flags >> 4), 80);
            let frame = FrameBuilder::new(&key).tcp(fields).payload(payload);
            let frame = frame.to_vec().expect("a right frame");
            let hash = rss.hash_headers(&parse(&frame).expect("a right frame"));
            self.offered += 1;
            self.now += Nanos::from_millis(100);
            assert!(self.batch.push(&mut self.pool, &frame, self.now, hash));
            self.chain.process(&mut self.batch, self.now);
            if self.batch.len() == 1 {
                assert_eq!(self.batch.frame(0), frame);
            }
            self.sent += self.batch.len() as u64;
            self.batch.release(&mut self.pool);
        }
        let reasons = self.chain.reasons().into_iter();
        let counts = reasons.zip(self.chain.reason_counts());
        let gone: u64 = counts
            .filter(|(reason, _)| reason.outcome != Outcome::Passed)
            .map(|(_, count)| count)
            .sum();
        assert_eq!(self.offered, self.sent + gone);
        assert_eq!(self.pool.available(), self.pool.capacity());
    }
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

fuzz_target!(|bytes: &[u8]| {
    RIG.with_borrow_mut(|rig| rig.run(bytes));
});
