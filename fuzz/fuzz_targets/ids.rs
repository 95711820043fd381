//! Any bytes as segments and datagrams through detection: never a panic, every packet passes unchanged or is counted,
//! and all buffers return to the pool.
//!
//! ```text
//! cargo +nightly fuzz run ids
//! ```
//!
//! The input is cut into packets: a byte for flags and connection, two for the sequence number, one for the length,
//! then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use tailwater_fuzz::FuzzedChain;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos};

const SPEC: &str = r#"
  functions:
    - ids:
        mode: drop
        onOverflow: drop
        streams: 3
        windowBytes: 2048
        rules:
          - 'drop tcp any any -> any any (content:"ab"; content:"c"; distance:1; within:4; sid:1;)'
          - 'alert http any any -> any any (http.uri; content:"/a"; http.host; content:!"b"; sid:2;)'
          - 'alert http any any -> any any (file.data; content:"x"; nocase; pcre:"/x+y/R"; sid:3;)'
          - 'alert tls any any -> any any (tls.sni; dotprefix; content:".a"; endswith; sid:4;)'
          - 'alert tls any any -> any any (tls.cert_subject; content:"CN="; tls.certs; content:"a"; sid:5;)'
          - 'alert dns any any -> any any (dns.query; content:"a"; sid:6;)'
          - 'alert smb any any -> any any (content:"|ff|SMB"; offset:4; depth:4; content:"a"; sid:9;)'
          - 'alert ftp any any -> any any (content:"SITE"; depth:4; sid:10;)'
          - 'alert http any any -> any any (app-layer-event:http.invalid_response_chunk_len; sid:11;)'
          - 'alert http2 any any -> any any (http.method; content:"P"; http.request_body; content:"a"; sid:13;)'
          - 'alert smtp any any -> any any (sid:12;)'
          - 'reject tcp any any -> any any (flags:S; dsize:>3; byte_test:2,>,9,0; byte_jump:1,0; sid:7;)'
          - 'alert tcp any any -> any any (flowbits:set,a; content:"q"; threshold:type both, track by_src, count 2, seconds 9; sid:8;)'
  slo: {latency: 200us}
  flows: {capacity: 512}
"#;

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
        const PORTS: [u16; 4] = [80, 443, 53, 21];
        while let [flags, high, low, length, rest @ ..] = bytes {
            let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            let fields = TcpFields {
                sequence: u32::from(u16::from_be_bytes([*high, *low])).wrapping_sub(100),
                acknowledgment: u32::from(*high) * 7,
                flags: TcpFlags(*flags & 0x17),
                ..TcpFields::default()
            };
            let ends = ([10, 0, 0, 1].into(), [198, 51, 100, 2].into());
            let port = PORTS[usize::from(*flags >> 6)];
            let number = if *flags & 0x08 != 0 { 17 } else { 6 };
            let mut key = FlowKey::v4(ends.0, ends.1, number, 9000, port);
            if *flags & 0x20 != 0 {
                key = key.reversed();
            }
            let mut frame = FrameBuilder::new(&key).payload(payload);
            if number == 6 {
                frame = frame.tcp(fields);
            }
            let mut frame = frame.to_vec().expect("a right frame");
            if *flags & 0x28 == 0x28 {
                // In a tunnel, under an MPLS label or in a PPPoE session.
                let outer = FlowKey::v4(ends.0, ends.1, 47, 0, 0);
                let inner = [&[0, 0, 8, 0][..], &frame[14..]].concat();
                frame = match *low & 3 {
                    0 => [&frame[..12], &[0x88, 0x47, 0, 1, *high | 1, 64], &frame[14..]].concat(),
                    1 => [&frame[..12], &[0x88, 0x48], payload].concat(),
                    2 => [&frame[..12], &[0x88, 0x64, 0x11, 0, 0, 7, 0, 9, 0, 0x21], &frame[14..]].concat(),
                    _ => {
                        let frame = FrameBuilder::new(&outer).payload(&inner);
                        frame.to_vec().expect("a right frame")
                    }
                };
            }
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
