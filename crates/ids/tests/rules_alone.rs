//! Tests with packets generated for single rules of a published set, with all other rules loaded. Each rule alerts on
//! its own packets and not on a near miss; the reference evaluator agrees.

mod common;

use common::oracle::Oracle;
use common::rig::{Rig, Tcp};
use std::collections::BTreeMap;
use tailwater_ids::buffer::Buffer;
use tailwater_ids::inspector::Settings;
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::rule::*;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Returns bytes that satisfy the tests, in simple cases.
fn bytes_for(tests: &[Test], start: &[u8]) -> Vec<u8> {
    let mut bytes = start.to_vec();
    let mut at = 0;
    let mut last = Vec::new();
    for test in tests {
        let Test::Content(content) = test else {
            continue;
        };
        if content.negated {
            continue;
        }
        if content.position.at_end {
            last = content.bytes.clone();
            continue;
        }
        let place = &content.position;
        let from = match place.is_relative() {
            true => (at + i64::from(place.distance.unwrap_or(0))).max(0) as usize,
            false if place.offset > 0 || place.depth.is_some() => place.offset as usize,
            false => bytes.len(),
        };
        let end = from + content.bytes.len();
        if bytes.len() < end {
            bytes.resize(end, b'~');
        }
        bytes[from..end].copy_from_slice(&content.bytes);
        at = end as i64;
    }
    bytes.extend(last);
    for test in tests {
        if let Test::Size(range) = test {
            let wanted = (*range.start() as usize).max(bytes.len().min(*range.end() as usize));
            if bytes.len() < wanted && wanted < 4000 {
                let missing = wanted - bytes.len();
                bytes.splice(0..0, std::iter::repeat_n(b'w', missing));
            }
        }
    }
    bytes
}

/// Returns an address and a port that a rule allows.
fn end(
    addresses: &tailwater_ids::address::AddressSet,
    ports: &tailwater_ids::address::PortSet,
    own: [u8; 4],
    port: u16,
) -> Option<([u8; 4], u16)> {
    let address = match addresses.contains(own.into()) {
        true => own,
        false => {
            let other = if own[0] == 10 { [198, 51, 100, 7] } else { [10, 0, 0, 7] };
            let some = addresses.v4.intervals().first()?.0.to_be_bytes();
            if addresses.contains(other.into()) { other } else { some }
        }
    };
    let port = if ports.contains(port) {
        port
    } else {
        ports.intervals().first()?.0.max(1)
    };
    Some((address, port))
}

fn key_for(rule: &Rule, number: u8, port: u16) -> Option<FlowKey> {
    let header = &rule.header;
    let (source, source_port) = end(&header.source, &header.source_ports, [10, 0, 0, 1], 40_000)?;
    let (destination, destination_port) = end(&header.destination, &header.destination_ports, [198, 51, 100, 1], port)?;
    let key = FlowKey::v4(source.into(), destination.into(), number, source_port, destination_port);
    // The header describes the packet, which may go to the client.
    match rule.flow.direction {
        Some(Direction::ToClient) => Some(key.reversed()),
        _ => Some(key),
    }
}

/// Returns packets that are likely to match a rule.
fn packets_for(rule: &Rule) -> Option<Vec<Vec<u8>>> {
    let tests = |buffer: Buffer| {
        let part = rule.parts.iter().find(|part| part.buffer.buffer == buffer);
        part.map_or(&[][..], |part| &part.tests)
    };
    let has = |buffer: Buffer| !tests(buffer).is_empty();
    let to_server = rule.flow.direction != Some(Direction::ToClient);
    let app = rule.parts.iter().find_map(|part| part.buffer.buffer.app());
    if rule.header.protocol == Protocol::Udp && app.is_none() {
        let key = key_for(rule, protocol::UDP, 9999)?;
        let mut payload = bytes_for(tests(Buffer::Payload), b"");
        for test in &rule.packet {
            if let PacketTest::Number {
                field: Field::PayloadSize,
                range,
                negated: false,
            } = test
            {
                payload.resize(
                    payload
                        .len()
                        .clamp(*range.start() as usize, (*range.end() as usize).min(1400)),
                    b'~',
                );
            }
        }
        let frame = |key: &FlowKey, bytes: &[u8]| FrameBuilder::new(key).payload(bytes).to_vec().ok();
        let mut frames = Vec::new();
        if !to_server || rule.flow.established.is_some() {
            frames.push(frame(&key, b"hello")?);
            frames.push(frame(&key.reversed(), b"hello")?);
        }
        let key = if to_server { key } else { key.reversed() };
        frames.push(frame(&key, &payload)?);
        return Some(frames);
    }
    match app {
        Some(App::Dns) => {
            let name = bytes_for(tests(Buffer::DnsQuery), b"");
            let name = name.strip_prefix(b".").unwrap_or(&name);
            let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
            for label in name.split(|byte| *byte == b'.') {
                if label.is_empty() || label.len() > 63 {
                    return None;
                }
                message.push(label.len() as u8);
                message.extend(label);
            }
            message.extend(b"\0\0\x01\0\x01");
            let key = key_for(rule, protocol::UDP, 53)?;
            Some(vec![FrameBuilder::new(&key).payload(&message).to_vec().ok()?])
        }
        Some(App::Http) => http_for(rule, &tests, &has, to_server),
        Some(_) => None,
        None => {
            let number = matches!(rule.header.protocol, Protocol::Tcp | Protocol::TcpPacket);
            let mut payload = bytes_for(tests(Buffer::Payload), b"");
            for test in &rule.packet {
                if let PacketTest::Number {
                    field: Field::PayloadSize,
                    range,
                    negated: false,
                } = test
                {
                    payload.resize(
                        payload
                            .len()
                            .clamp(*range.start() as usize, (*range.end() as usize).min(1400)),
                        b'~',
                    );
                }
            }
            let mut tcp = Tcp::open(key_for(rule, protocol::TCP, 9999).filter(|_| number)?);
            if payload.is_empty() || payload.len() > 1400 {
                return None;
            }
            tcp.send(usize::from(!to_server), TcpFlags::ACK, &payload);
            Some(tcp.frames)
        }
    }
}

fn http_for<'a>(
    rule: &Rule,
    tests: &impl Fn(Buffer) -> &'a [Test],
    has: &impl Fn(Buffer) -> bool,
    to_server: bool,
) -> Option<Vec<Vec<u8>>> {
    let text = |buffer: Buffer, start: &[u8], default: &str| match has(buffer) {
        true => bytes_for(tests(buffer), start),
        false => default.as_bytes().to_vec(),
    };
    let mut head = Vec::new();
    let mut fields: Vec<(&str, Buffer)> = vec![
        ("Content-Type", Buffer::ContentType),
        ("Connection", Buffer::Connection),
    ];
    if to_server {
        let anchored = |buffer: Buffer| matches!(tests(buffer).first(), Some(Test::Content(content)) if content.bytes.starts_with(b"/"));
        let uri = if has(Buffer::RawUri) {
            Buffer::RawUri
        } else {
            Buffer::Uri
        };
        let start: &[u8] = if anchored(uri) { b"" } else { b"/" };
        head.extend(text(Buffer::Method, b"", "GET"));
        head.push(b' ');
        head.extend(text(uri, start, "/"));
        head.extend(b" HTTP/1.1\r\n");
        fields.extend([
            ("Host", Buffer::Host),
            ("User-Agent", Buffer::UserAgent),
            ("Referer", Buffer::Referer),
            ("Accept", Buffer::Accept),
            ("Cookie", Buffer::Cookie),
        ]);
    } else {
        head.extend(b"HTTP/1.1 ");
        head.extend(text(Buffer::StatusCode, b"", "200"));
        head.push(b' ');
        head.extend(text(Buffer::StatusMessage, b"", "OK"));
        head.extend(b"\r\n");
        fields.extend([
            ("Server", Buffer::Server),
            ("Location", Buffer::Location),
            ("Set-Cookie", Buffer::Cookie),
        ]);
    }
    for (name, buffer) in fields {
        if has(buffer) {
            let mut value = bytes_for(tests(buffer), b"");
            if value.is_empty() {
                // The rule has only negated tests of this field.
                value.extend(b"a.example");
            }
            head.extend(name.as_bytes());
            head.extend(b": ");
            head.extend(value.strip_prefix(b".").unwrap_or(&value));
            head.extend(b"\r\n");
        }
    }
    if has(Buffer::Header) {
        let value = bytes_for(tests(Buffer::Header), b"");
        head.extend(&value);
        if !value.ends_with(b"\r\n") {
            head.extend(b"\r\n");
        }
    }
    let body = [Buffer::RequestBody, Buffer::ResponseBody, Buffer::FileData]
        .into_iter()
        .find(|buffer| has(*buffer));
    let body = body.map_or(Vec::new(), |buffer| bytes_for(tests(buffer), b""));
    if !body.is_empty() || !to_server {
        head.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
    }
    head.extend(b"\r\n");
    head.extend(body);
    if head.len() > 6000 {
        return None;
    }
    let tcp = Tcp::open(key_for(rule, protocol::TCP, 80)?);
    Some(match to_server {
        true => tcp.client(&head).frames,
        false => tcp.server(&head).frames,
    })
}

/// Returns the rule with one content changed, so that its packets are a near miss.
fn missed(rule: &Rule) -> Option<Rule> {
    let mut rule = rule.clone();
    let mut contents = rule
        .parts
        .iter_mut()
        .flat_map(|part| &mut part.tests)
        .filter_map(|test| match test {
            Test::Content(content) if !content.negated => Some(content),
            _ => None,
        });
    let content = contents.next()?;
    let last = content.bytes.last_mut()?;
    *last = match *last {
        byte @ (b'a'..=b'y' | b'A'..=b'Y' | b'0'..=b'8') => byte + 1,
        b'z' => b'a',
        b'Z' => b'A',
        b'9' => b'0',
        _ => return None,
    };
    Some(rule)
}

fn oracle_finds(rule: &Rule, frames: &[Vec<u8>]) -> bool {
    let (mut oracle, rules) = (Oracle::default(), [rule.clone()]);
    frames.iter().any(|frame| !oracle.packet(&rules, frame).is_empty())
}

#[test]
fn rules_of_a_published_set_tell_of_packets_made_for_them() {
    let Some((files, _)) = common::et_open() else {
        return;
    };
    let mut reader = Reader::new(&Variables::default()).unwrap();
    let rules: Vec<_> = files.iter().flat_map(|(_, text)| reader.read(text).rules).collect();
    let mut rig = Rig::new(rules.clone(), Settings::default());
    let (mut tried, mut kinds, mut wrong) = (0, BTreeMap::<String, usize>::new(), Vec::new());
    for (i, rule) in rules.iter().enumerate() {
        // Rules that depend on others or on several matches do not alert alone. A third of the others is enough.
        let asks = rule
            .bits
            .iter()
            .any(|bit| matches!(bit.operation, Bit::IsSet | Bit::IsNotSet));
        let counted = rule
            .thresholds
            .iter()
            .any(|threshold| threshold.kind != ThresholdKind::Limit);
        if asks || counted || rule.silent || i % 3 != 0 {
            continue;
        }
        let (Some(frames), Some(near)) = (packets_for(rule), missed(rule).and_then(|rule| packets_for(&rule))) else {
            continue;
        };
        if !oracle_finds(rule, &frames) || oracle_finds(rule, &near) {
            continue;
        }
        let mut run = |frames: &[Vec<u8>]| {
            for connection in rig.connections.values_mut() {
                tailwater_ids::inspector::Inspector::ended(connection, &mut rig.slots);
            }
            rig.connections.clear();
            rig.packets(frames).contains(&rule.about.sid)
        };
        tried += 1;
        *kinds.entry(format!("{:?}", rule.header.protocol)).or_default() += 1;
        let found = (run(&frames), run(&near));
        if found != (true, false) {
            wrong.push((rule.about.sid, found));
        }
    }
    eprintln!("{tried} rules: {kinds:?}");
    assert_eq!(wrong, []);
    assert!(tried >= 100, "{tried}");
}
