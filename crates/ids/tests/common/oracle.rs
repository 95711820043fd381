//! Reference evaluator: keeps every byte, parses every message from the start each time, and tries every position, at
//! any cost. It finds the rules that match packets of one connection. Flowbits and thresholds are ignored.

mod evaluate;
mod messages;

use evaluate::{Buffers, anchored, has_messages, holds, packet_tests};
use messages::{dns_names, messages};
use std::collections::{BTreeMap, BTreeSet};
use tailwater_ids::buffer::Buffer;
use tailwater_ids::rule::*;
use tailwater_net::parse::{Headers, parse};
use tailwater_net::{FlowKey, protocol};

/// One direction of a stream.
#[derive(Default)]
struct Side {
    first: Option<u32>,
    bytes: BTreeMap<i64, u8>,
    /// Number of messages whose head, and which as a whole, were complete before.
    seen: [usize; 2],
    ended: bool,
}

impl Side {
    fn in_order(&self) -> Vec<u8> {
        (0..).map_while(|i| self.bytes.get(&i).copied()).collect()
    }
}

/// Connection, fed packet by packet.
#[derive(Default)]
pub struct Oracle {
    client: Option<FlowKey>,
    handshake: [bool; 3],
    sides: [Side; 2],
    http: bool,
}

impl Oracle {
    /// Returns the rules that match with a packet.
    pub fn packet(&mut self, rules: &[Rule], frame: &[u8]) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let Ok(headers) = parse(frame) else {
            return found;
        };
        let key = headers.key;
        let client = *self.client.get_or_insert(key);
        let direction = if key == client {
            Direction::ToServer
        } else {
            Direction::ToClient
        };
        let payload = headers.payload(frame).to_vec();
        if key.protocol() == protocol::UDP {
            self.handshake[2] |= direction == Direction::ToClient;
            let buffers = Buffers::from([(Buffer::Payload, payload.clone())]);
            for rule in rules {
                if matches!(rule.header.protocol, Protocol::Udp | Protocol::Ip)
                    && !has_messages(rule)
                    && !payload.is_empty()
                    && self.applies(rule, &headers, direction)
                    && packet_tests(rule, frame, &headers)
                    && holds(rule, &buffers)
                {
                    found.insert(rule.about.sid);
                }
            }
            for name in dns_names(&payload, key.destination_port()) {
                let buffers = Buffers::from([(Buffer::Payload, payload.clone()), (Buffer::DnsQuery, name)]);
                self.messages(rules, &headers, direction, &buffers, Buffer::DnsQuery, &mut found);
            }
            return found;
        }
        if key.protocol() != protocol::TCP {
            return found;
        }
        let transport = headers.transport(frame);
        let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        let (syn, ack) = (transport[13] & 2 != 0, transport[13] & 16 != 0);
        let side = &mut self.sides[direction.index()];
        let first = *side.first.get_or_insert(sequence.wrapping_add(u32::from(syn)));
        match (syn, ack) {
            (true, false) => self.handshake[0] = true,
            (true, true) => self.handshake[1] = true,
            _ => self.handshake[2] |= direction == Direction::ToServer && self.handshake[1],
        }
        let before = side.in_order().len();
        let at = i64::from(sequence.wrapping_add(u32::from(syn)).wrapping_sub(first) as i32);
        for (i, byte) in payload.iter().enumerate() {
            side.bytes.entry(at + i as i64).or_insert(*byte);
        }
        side.ended |= transport[13] & 1 != 0;
        let stream = side.in_order();
        let ended = side.ended;
        let single = Buffers::from([(Buffer::Payload, payload.clone())]);
        let whole = Buffers::from([(Buffer::Payload, stream.clone())]);
        for rule in rules
            .iter()
            .filter(|rule| !has_messages(rule) && !rule.parts.is_empty())
        {
            let tcp = matches!(rule.header.protocol, Protocol::Tcp | Protocol::TcpPacket | Protocol::Ip);
            if !tcp || !self.applies(rule, &headers, direction) || !packet_tests(rule, frame, &headers) {
                continue;
            }
            let of_packet = !rule.packet.is_empty()
                || !matches!(rule.header.protocol, Protocol::Tcp)
                || rule.flow.stream == Some(false);
            let as_packet = of_packet || anchored(rule) && rule.flow.stream.is_none();
            let hit = !payload.is_empty() && as_packet && holds(rule, &single)
                || !of_packet && stream.len() > before && holds(rule, &whole);
            if hit {
                found.insert(rule.about.sid);
            }
        }
        let Some(messages) = messages(&stream, direction, ended) else {
            return found;
        };
        self.http |= !messages.is_empty();
        let mut heads = self.sides[direction.index()].seen[0];
        let mut bodies = self.sides[direction.index()].seen[1];
        for (i, message) in messages.iter().enumerate() {
            if i >= heads {
                self.messages(rules, &headers, direction, &message.buffers, Buffer::Method, &mut found);
                heads = i + 1;
            }
            if i >= bodies && message.whole {
                self.messages(
                    rules,
                    &headers,
                    direction,
                    &message.buffers,
                    Buffer::FileData,
                    &mut found,
                );
                bodies = i + 1;
            }
        }
        self.sides[direction.index()].seen = [heads, bodies];
        found
    }

    /// Evaluates rules on messages: heads, bodies or questions, by `kind`.
    fn messages(
        &self,
        rules: &[Rule],
        headers: &Headers,
        direction: Direction,
        buffers: &Buffers,
        kind: Buffer,
        found: &mut BTreeSet<u32>,
    ) {
        let body = |rule: &Rule| {
            rule.parts.iter().any(|part| {
                matches!(
                    part.buffer.buffer,
                    Buffer::RequestBody | Buffer::ResponseBody | Buffer::FileData
                )
            })
        };
        for rule in rules.iter().filter(|rule| has_messages(rule)) {
            let dns = rule.parts.iter().any(|part| part.buffer.buffer == Buffer::DnsQuery);
            let tls = rule.parts.iter().any(|part| part.buffer.buffer.app() == Some(App::Tls));
            let here = match kind {
                Buffer::DnsQuery => dns,
                Buffer::FileData => !dns && body(rule),
                _ => !dns && !body(rule),
            };
            if here && !tls && self.applies(rule, headers, direction) && holds(rule, buffers) {
                found.insert(rule.about.sid);
            }
        }
    }

    fn applies(&self, rule: &Rule, headers: &Headers, direction: Direction) -> bool {
        let established = self.handshake[2];
        let goes = |key: &FlowKey| {
            let header = &rule.header;
            header.source.contains(key.source())
                && header.destination.contains(key.destination())
                && header.source_ports.contains(key.source_port())
                && header.destination_ports.contains(key.destination_port())
        };
        rule.flow.direction.is_none_or(|wanted| wanted == direction)
            && rule.flow.established.is_none_or(|wanted| wanted == established)
            && (goes(&headers.key) || rule.header.both_ways && goes(&headers.key.reversed()))
    }
}

/// Returns `true` if a rule may match with the last packet of a conversation, given all bytes: those of the packet, of
/// the stream up to it, of a window within it, or of a message. Flowbits, thresholds and features not implemented here
/// are assumed to match. Returns `None` for a protocol not implemented here.
pub fn explains(rule: &Rule, frames: &[Vec<u8>], window: usize) -> Option<bool> {
    let last = frames.last()?;
    let headers = parse(last).ok()?;
    let key = headers.key;
    let known = |test: &PacketTest| {
        let number = matches!(
            test,
            PacketTest::Number {
                field: Field::PayloadSize | Field::TimeToLive,
                ..
            }
        );
        !number
            || packet_tests(
                &Rule {
                    packet: vec![test.clone()],
                    ..rule.clone()
                },
                last,
                &headers,
            )
    };
    let header = &rule.header;
    let ports = |key: &FlowKey| {
        let has = matches!(key.protocol(), protocol::TCP | protocol::UDP);
        !has || header.source_ports.contains(key.source_port())
            && header.destination_ports.contains(key.destination_port())
    };
    let goes = |key: &FlowKey| {
        header.source.contains(key.source()) && header.destination.contains(key.destination()) && ports(key)
    };
    // A reset also ends the messages of the other direction.
    let either = goes(&key) || goes(&key.reversed());
    if !either || !rule.packet.iter().all(known) {
        return Some(false);
    }
    if rule.parts.is_empty() {
        return Some(goes(&key));
    }
    let app = rule.parts.iter().find_map(|part| part.buffer.buffer.app());
    if matches!(app, Some(App::Tls))
        || rule
            .parts
            .iter()
            .flat_map(|part| &part.tests)
            .any(|test| matches!(test, Test::Jump { .. }))
    {
        return None;
    }
    let payload = headers.payload(last).to_vec();
    if holds(rule, &Buffers::from([(Buffer::Payload, payload.clone())])) {
        return Some(true);
    }
    if key.protocol() == protocol::UDP {
        let names = dns_names(&payload, key.destination_port()).into_iter();
        let mut units = names.map(|name| Buffers::from([(Buffer::Payload, payload.clone()), (Buffer::DnsQuery, name)]));
        return Some(units.any(|unit| holds(rule, &unit)));
    }
    // Reassembles both directions anew.
    for direction in [key, key.reversed()] {
        let (mut side, mut start) = (Side::default(), None);
        for frame in frames {
            let Ok(headers) = parse(frame) else { continue };
            let transport = headers.transport(frame);
            if headers.key != direction || transport.len() < 20 {
                continue;
            }
            let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let syn = transport[13] & 2 != 0;
            let data = headers.payload(frame);
            let first = match start {
                Some(first) if !syn => first,
                _ if syn || !data.is_empty() => {
                    side = Side::default();
                    *start.insert(sequence.wrapping_add(u32::from(syn)))
                }
                _ => continue,
            };
            let at = i64::from(sequence.wrapping_add(u32::from(syn)).wrapping_sub(first) as i32);
            for (i, byte) in data.iter().enumerate() {
                side.bytes.entry(at + i as i64).or_insert(*byte);
            }
        }
        let stream = side.in_order();
        let tail = stream[stream.len().saturating_sub(window)..].to_vec();
        for bytes in [stream.clone(), tail] {
            if holds(rule, &Buffers::from([(Buffer::Payload, bytes)])) {
                return Some(true);
            }
        }
        for way in [Direction::ToServer, Direction::ToClient] {
            let messages = messages(&stream, way, true).unwrap_or_default();
            if messages.iter().any(|message| holds(rule, &message.buffers)) {
                return Some(true);
            }
        }
    }
    Some(false)
}
