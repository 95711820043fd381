//! Any bytes as content, requests and corruption between the two ends of a tunnel: never a panic, all buffers return to
//! the pool, every packet is sent or counted, and the tunnel's output equals its input.
//!
//! ```text
//! cargo +nightly fuzz run wan_optimizer
//! ```
//!
//! The input is cut into steps: a byte for the action, one for the length in units of 4 bytes, then that many bytes.
//! Actions are a packet through the tunnel, a lost packet, a corrupted packet, or these bytes as a message to either
//! end.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::net::Ipv4Addr;
use tailwater_fuzz::{FuzzedChain, steps};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Port of the tunnel, and of its first stream.
const PORT: u16 = 49_664;
/// Bytes of Ethernet, IPv4 and UDP headers in front of a message.
const FRONT: usize = 14 + 20 + 8;

struct End(FuzzedChain);

impl End {
    fn new([local, remote]: [u8; 2], more: &str) -> End {
        let fields = format!(
            "  slo: {{latency: 200us}}\n  functions: [{{wanOptimizer: {{local: 192.0.2.{local}, remote: 192.0.2.{remote}, \
             streams: 1, cache: 256KiB, minimum: 0, mtu: 2000{more}}}}}]\n"
        );
        End(FuzzedChain::new(&fields, 1))
    }

    /// Processes a frame. Returns the frame that leaves, and `true` if it goes back.
    fn run(&mut self, frame: &[u8]) -> Option<(Vec<u8>, bool)> {
        self.0.add(frame, Nanos::ZERO);
        let mut left = None;
        self.0.process(Nanos::ZERO, |batch, place| {
            let (packet, frame) = (batch.packet(place), batch.frame(place));
            assert_eq!(parse(frame).expect("a well-formed packet"), packet.headers);
            left = Some((frame.to_vec(), packet.turns_back()));
        });
        self.0.check_counts();
        left
    }
}

struct Rig {
    near: End,
    far: End,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            near: End::new([1, 2], ", destinations: [10.0.0.0/8]"),
            far: End::new([2, 1], ""),
        }
    }

    fn run(&mut self, bytes: &[u8]) {
        let mut messages = false;
        for (kind, payload) in steps(bytes, 4) {
            match kind % 8 {
                // Forged messages to either end. Requests only cost savings. Content with a correct checksum is
                // accepted like the encoder's, so from then on the output is not checked.
                0 => drop(self.far.run(&message([1, 2], payload))),
                1 => drop(self.near.run(&message([2, 1], payload))),
                kind => self.pass(kind, payload, messages),
            }
            messages |= kind % 8 == 0;
        }
    }

    fn pass(&mut self, kind: u8, payload: &[u8], messages: bool) {
        // Content repeats often, so that there are matches to refer to.
        let content = match kind {
            2 => payload.to_vec(),
            _ => payload.iter().cycle().take(payload.len() * 8 % 1400).copied().collect(),
        };
        let frame = udp([10, 1, 0, 5], [10, 2, 0, 9], [4000, 80], &content);
        let (mut sent, _) = self.near.run(&frame).expect("the tunnel takes everything");
        if kind == 3 {
            return;
        }
        let changed = kind == 4 && !payload.is_empty() && sent.len() > FRONT;
        if changed {
            for (at, change) in payload.iter().enumerate().take(4) {
                let place = FRONT + (usize::from(*change) + at * 7) % (sent.len() - FRONT);
                sent[place] ^= change | 1;
            }
        }
        match self.far.run(&sent) {
            Some((request, true)) => assert!(self.near.run(&request).is_none()),
            // A forged message may be content of an epoch that a corrupted packet names.
            Some((left, false)) => assert!(left == frame || changed && messages),
            None => assert!(changed),
        }
    }
}

fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let [from, to] = [source, destination].map(Ipv4Addr::from);
    let key = FlowKey::v4(from, to, protocol::UDP, ports[0], ports[1]);
    let frame = FrameBuilder::new(&key).payload(payload).to_vec();
    frame.expect("a short packet")
}

fn message([from, to]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    udp([192, 0, 2, from], [192, 0, 2, to], [PORT; 2], payload)
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

fuzz_target!(|bytes: &[u8]| RIG.with_borrow_mut(|rig| rig.run(bytes)));
