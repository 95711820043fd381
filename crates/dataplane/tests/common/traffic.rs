//! Traffic in which every packet carries its flow and number.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::impair::{Impaired, Impairments};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Advances a stream of random numbers (xorshift). The state must not be 0.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Packets of some flows, each with its number within the flow: in trains, as of whales, and single ones. Many arrive
/// at a time, so there are always packets to offload.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub seed: u64,
    pub flows: u32,
    pub packets: u32,
    /// Mean time between packets: sustainable by two cores that other programs use, too.
    pub spacing: Nanos,
    /// Mean number of packets per burst.
    pub burst: u32,
    /// Impairments of the link.
    pub impairments: Impairments,
    /// Every second flow consists of answers to the one before, which begins.
    pub answers: bool,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic {
            seed: 88172645463325252,
            flows: 300,
            packets: PACKETS,
            spacing: Nanos(if cfg!(debug_assertions) { 10_000 } else { 2_000 }),
            burst: 128,
            impairments: Impairments::NONE,
            answers: false,
        }
    }
}

pub const PACKETS: u32 = if cfg!(debug_assertions) { 30_000 } else { 250_000 };

impl Traffic {
    /// A quarter of the packets, at a quarter of the rate: dedicated cores help each other only while their queues are
    /// short.
    pub fn sparse() -> Traffic {
        let traffic = Traffic::default();
        Traffic {
            packets: traffic.packets / 4,
            spacing: Nanos(4 * traffic.spacing.0),
            ..traffic
        }
    }

    pub fn trace(self) -> Trace {
        let mut source = Impaired::new(Numbered::new(self), self.impairments).unwrap();
        Trace::load(&mut source, &LoadOptions::default()).unwrap()
    }
}

struct Numbered {
    traffic: Traffic,
    state: u64,
    /// Number of packets of each flow so far.
    numbers: Vec<u32>,
    packets: u32,
    /// Current train: its flow, and its remaining packets.
    train: (u32, u32),
    /// Current burst: its arrival, and its remaining packets.
    burst: (Nanos, u32),
    frame: Vec<u8>,
}

impl Numbered {
    fn new(traffic: Traffic) -> Numbered {
        Numbered {
            state: traffic.seed,
            numbers: vec![0; traffic.flows as usize],
            packets: 0,
            train: (0, 0),
            burst: (Nanos::ZERO, 0),
            frame: Vec::new(),
            traffic,
        }
    }

    fn advance(&mut self) {
        let Traffic {
            flows, spacing, burst, ..
        } = self.traffic;
        if self.burst.1 == 0 {
            let length = 1 + random(&mut self.state) as u32 % (2 * burst);
            self.burst = (Nanos(u64::from(self.packets) * spacing.0), length);
        }
        if self.train.1 == 0 {
            let draw = random(&mut self.state);
            let length = match draw >> 60 {
                0 => 200,
                _ => 1 + (draw >> 40) as u32 % 4,
            };
            let mut flow = (draw % u64::from(flows)) as u32;
            if self.traffic.answers && self.numbers[flow as usize & !1] == 0 {
                flow &= !1;
            }
            self.train = (flow, length);
        }
        self.burst.1 -= 1;
        self.train.1 -= 1;
        self.packets += 1;
    }
}

impl PacketSource for Numbered {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.packets == self.traffic.packets {
            return Ok(None);
        }
        self.advance();
        let flow = self.train.0;
        let number = &mut self.numbers[flow as usize];
        *number += 1;
        let answers = self.traffic.answers && flow % 2 == 1;
        let client = flow - u32::from(answers);
        let asked = FlowKey::v4(
            Ipv4Addr::from_bits(0x0a00_0000 + client),
            Ipv4Addr::new(198, 51, 100, 1),
            protocol::UDP,
            1000 + client as u16,
            53,
        );
        let key = if answers { asked.reversed() } else { asked };
        let mut payload = [flow.to_be_bytes(), number.to_be_bytes()].concat();
        // Some are so long that the core that processes them copies their end.
        payload.extend((0..flow % 3 * 120).map(|i| (i + *number) as u8));
        let frame = FrameBuilder::new(&key).payload(&payload).to_vec();
        self.frame = frame.expect("a short frame");
        Ok(Some(Packet {
            timestamp: self.burst.0,
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "numbered"
    }
}

/// Numbers of each flow's packets in the order in which they were sent.
pub fn order(frames: &[Vec<u8>]) -> BTreeMap<u32, Vec<u32>> {
    let mut order: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for frame in frames {
        let word = |at| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        order.entry(word(42)).or_default().push(word(46));
    }
    order
}
