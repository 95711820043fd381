//! Inspector with its connections, and conversations to feed it.

use std::collections::HashMap;
use std::sync::Arc;
use tailwater_ids::connection::Connection;
use tailwater_ids::inspector::{COUNTERS, Inspector, Settings, Verdict};
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::packet::Input;
use tailwater_ids::rule::Rule;
use tailwater_ids::ruleset::{BitNames, RuleSet};
use tailwater_ids::slots::OwnSlots;
use tailwater_ids::threshold::Thresholds;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::{Network, parse};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Parses rules from a text without mistakes.
pub fn rules(text: &str) -> Vec<Rule> {
    let parsed = Reader::new(&Variables::default()).unwrap().read(text);
    assert_eq!((&parsed.mistakes, &parsed.skipped), (&vec![], &vec![]), "{text}");
    parsed.rules
}

/// Inspector with its connections.
pub struct Rig {
    pub inspector: Inspector,
    pub rules: Arc<RuleSet>,
    pub slots: OwnSlots,
    pub connections: HashMap<FlowKey, Connection>,
    pub now: Nanos,
}

impl Rig {
    pub fn new(rules: Vec<Rule>, settings: Settings) -> Rig {
        let rules = Arc::new(RuleSet::new(rules, &mut BitNames::default()).unwrap());
        let thresholds = Arc::new(Thresholds::new(1));
        Rig {
            inspector: Inspector::new((1, Arc::clone(&rules)), thresholds, settings),
            rules,
            slots: OwnSlots::new(SLOTS, settings.window),
            connections: HashMap::new(),
            now: Nanos::from_secs(100),
        }
    }

    pub fn of(text: &str) -> Rig {
        Rig::new(rules(text), Settings::default())
    }

    /// Inspects a packet, and returns the verdict and the rules that alert.
    pub fn packet(&mut self, frame: &[u8]) -> (Verdict, Vec<u32>) {
        let Ok(headers) = parse(frame) else {
            return (Verdict::Pass, Vec::new());
        };
        let (key, reversed) = headers.key.of_connection();
        let connection = self.connections.entry(key).or_default();
        let input = Input {
            frame,
            headers: &headers,
            arrival: self.now,
            reversed,
        };
        let verdict = match headers.network {
            Network::NotIp => self.inspector.non_ip(&input, &mut self.slots),
            _ => self.inspector.packet(&input, connection, &mut self.slots),
        };
        let alerts = self.inspector.alerts().iter();
        let sids = alerts.map(|alert| self.rules.rule(alert.rule).unwrap().about.sid);
        (verdict, sids.collect())
    }

    /// Inspects packets in sequence, and returns the rules that alert.
    pub fn packets(&mut self, frames: &[Vec<u8>]) -> Vec<u32> {
        frames.iter().flat_map(|frame| self.packet(frame).1).collect()
    }

    pub fn note(&self, name: &str) -> u64 {
        let at = COUNTERS.iter().position(|known| *known == name).unwrap();
        self.inspector.counters()[at]
    }
}

/// Number of concurrent connections with streams.
pub const SLOTS: u32 = 64;
pub const HOME: [u8; 4] = [10, 0, 0, 1];
pub const WORLD: [u8; 4] = [198, 51, 100, 1];

/// TCP connection whose packets are generated one by one.
pub struct Tcp {
    pub key: FlowKey,
    /// Next sequence numbers, the client's first.
    pub next: [u32; 2],
    pub frames: Vec<Vec<u8>>,
}

impl Tcp {
    /// Creates a connection with its handshake.
    pub fn open(key: FlowKey) -> Tcp {
        let mut tcp = Tcp {
            key,
            next: [1000, 5000],
            frames: Vec::new(),
        };
        tcp.send(0, TcpFlags::SYN, b"");
        tcp.send(1, TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0), b"");
        tcp.send(0, TcpFlags::ACK, b"");
        tcp
    }

    /// Creates a connection from the home network to an external host.
    pub fn outward(port: u16) -> Tcp {
        Tcp::open(FlowKey::v4(HOME.into(), WORLD.into(), protocol::TCP, 40_000, port))
    }

    /// Creates a connection from an external host to the home network.
    pub fn inward(port: u16) -> Tcp {
        Tcp::open(FlowKey::v4(WORLD.into(), HOME.into(), protocol::TCP, 40_000, port))
    }

    /// Creates a segment with a given sequence number.
    pub fn segment(&self, side: usize, sequence: u32, flags: TcpFlags, data: &[u8]) -> Vec<u8> {
        let key = if side == 0 { self.key } else { self.key.reversed() };
        let fields = TcpFields {
            sequence,
            acknowledgment: self.next[1 - side],
            flags,
            ..TcpFields::default()
        };
        FrameBuilder::new(&key).tcp(fields).payload(data).to_vec().unwrap()
    }

    pub fn send(&mut self, side: usize, flags: TcpFlags, data: &[u8]) {
        let frame = self.segment(side, self.next[side], flags, data);
        self.frames.push(frame);
        let ends = flags.intersects(TcpFlags(TcpFlags::SYN.0 | TcpFlags::FIN.0));
        self.next[side] = self.next[side].wrapping_add(data.len() as u32 + u32::from(ends));
    }

    pub fn client(mut self, data: &[u8]) -> Tcp {
        for piece in data.chunks(1400) {
            self.send(0, TcpFlags::ACK, piece);
        }
        self
    }

    pub fn server(mut self, data: &[u8]) -> Tcp {
        for piece in data.chunks(1400) {
            self.send(1, TcpFlags::ACK, piece);
        }
        self
    }

    /// Closes both directions with FINs.
    pub fn close(mut self) -> Tcp {
        let end = TcpFlags(TcpFlags::FIN.0 | TcpFlags::ACK.0);
        self.send(0, end, b"");
        self.send(1, end, b"");
        self
    }
}

/// Creates a UDP datagram from the home network to an external host.
pub fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4(HOME.into(), WORLD.into(), protocol::UDP, source, destination);
    FrameBuilder::new(&key).payload(data).to_vec().unwrap()
}
