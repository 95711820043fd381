//! Any bytes as segments of TCP streams through the URL filter: never a panic, and every packet passes unchanged or is
//! counted.
//!
//! ```text
//! cargo +nightly fuzz run url_filter
//! ```
//!
//! The input is cut into segments: a byte for flags and connection, two for the sequence number, one for the length,
//! then that many bytes. Put a failing input into a test of `crates/functions/src/url_filter/tests/evasions.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use tailwater_fuzz::FuzzedChain;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};

const SPEC: &str = "
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
    chain: FuzzedChain,
    now: Nanos,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            chain: FuzzedChain::new(SPEC, 1),
            now: Nanos::from_secs(1),
        }
    }

    fn run(&mut self, mut bytes: &[u8]) {
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
            self.now += Nanos::from_millis(100);
            self.chain.add(&frame, self.now);
            self.chain
                .process(self.now, |batch, place| assert_eq!(batch.frame(place), frame));
        }
        self.chain.check_counts();
    }
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

fuzz_target!(|bytes: &[u8]| {
    RIG.with_borrow_mut(|rig| rig.run(bytes));
});
