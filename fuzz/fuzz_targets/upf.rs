//! Any bytes as packets to GTP-U tunnel endpoints, and inside valid GTP-U packets: never a panic, all buffers return to
//! the pool, and every packet is sent or counted, with correct headers.
//!
//! ```text
//! cargo +nightly fuzz run upf
//! ```
//!
//! The input is cut into packets: a byte for the encapsulation (UDP, a header of a session's tunnel, with or without
//! options, a user's address, or none), one for the length in units of 4 bytes, then that many bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use tailwater_functions::upf::gtp;
use tailwater_fuzz::{FuzzedChain, check_headers, steps};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};

const SPEC: &str = "
  functions:
    - upf:
        addresses: [192.0.2.1, '2001:db8::1']
        errorSources: [203.0.113.1, '2001:db8:f::1']
        errorsPerSecond: 1000000
        mtu: 576
        default: pass
        cache: flow
        profiles:
          all:
            qfi: 9
            sessionRates: {up: 1Gbps, down: 1Gbps}
            rules: [{flows: permit out udp from any 53 to assigned, rates: {down: 1Mbps}}]
        sessions:
          - 1 ue 10.60.0.1 ue6 2001:db8:60:1::/64 teid 1 peer 192.0.2.10 peerTeid 1 profile all
          - 2 ue 10.60.0.2 teid 2 peer 2001:db8::10 peerTeid 2 profile all
  slo: {latency: 200us}
";

struct Rig {
    chain: FuzzedChain,
    now: Nanos,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            chain: FuzzedChain::new(SPEC, 32),
            now: Nanos::ZERO,
        }
    }

    fn run(&mut self, bytes: &[u8]) {
        for (kind, payload) in steps(bytes, 4) {
            self.now += Nanos::from_secs(1);
            if self.chain.add(&frame(kind, payload), self.now) {
                self.chain.process(self.now, check_headers);
            }
        }
        self.chain.process(self.now, check_headers);
        self.chain.check_counts();
    }
}

/// Builds a frame to a tunnel endpoint with this payload, one with a valid GTP-U header, one to a user, or any bytes.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let headed = |qfi: Option<u8>| {
        let mut bytes = vec![0; gtp::length(qfi)];
        let teid = u32::from(kind >> 4 & 3);
        gtp::write(&mut bytes, teid, qfi, true, payload.len()).expect("a short packet");
        bytes.extend(payload);
        bytes
    };
    let (station, end) = ([192, 0, 2, 10].into(), [192, 0, 2, 1].into());
    let v4 = FlowKey::v4(station, end, protocol::UDP, 2152, gtp::PORT);
    let v6 = |text: &str| text.parse().expect("an address");
    let over_v6 = FlowKey::v6(v6("2001:db8::10"), v6("2001:db8::1"), protocol::UDP, 2152, gtp::PORT);
    let user = [10, 60, 0, 1 + (kind >> 4 & 3)].into();
    let (key, payload) = match kind % 8 {
        0 => (v4, payload.to_vec()),
        1 => (v4, headed(None)),
        2 => (v4, headed(Some(9))),
        3 => (over_v6, payload.to_vec()),
        4 => (over_v6, headed(Some(8))),
        5 => (
            FlowKey::v4([198, 51, 100, 1].into(), user, protocol::UDP, 53, 4000),
            payload.to_vec(),
        ),
        6 => (
            FlowKey::v6(v6("2001:db8:70::1"), v6("2001:db8:60:1::5"), protocol::TCP, 80, 4000),
            payload.to_vec(),
        ),
        _ => return payload.to_vec(),
    };
    let builder = FrameBuilder::new(&key).dont_fragment(kind & 0x80 != 0);
    builder.payload(&payload).to_vec().expect("a short packet")
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

fuzz_target!(|bytes: &[u8]| RIG.with_borrow_mut(|rig| rig.run(bytes)));
