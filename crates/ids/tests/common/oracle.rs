//! Reference evaluator: keeps every byte, parses every message from the start each time, and tries every position, at
//! any cost. It finds the rules that match packets of one connection. Flowbits and thresholds are ignored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use tailwater_ids::buffer::{Buffer, BufferKey};
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

/// HTTP message: its buffers, and whether its body is complete.
struct Message {
    buffers: HashMap<Buffer, Vec<u8>>,
    whole: bool,
}

/// Connection, fed packet by packet.
#[derive(Default)]
pub struct Oracle {
    client: Option<FlowKey>,
    handshake: [bool; 3],
    sides: [Side; 2],
    http: bool,
}

type Buffers = HashMap<Buffer, Vec<u8>>;

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

fn has_messages(rule: &Rule) -> bool {
    rule.parts.iter().any(|part| part.buffer.buffer != Buffer::Payload)
}

/// Returns `true` if a rule has positions relative to the start or end of the bytes.
fn anchored(rule: &Rule) -> bool {
    rule.parts.iter().flat_map(|part| &part.tests).any(|test| match test {
        Test::Content(content) => {
            let place = &content.position;
            let relative = place.distance.is_some() || place.within.is_some();
            !relative && (place.offset > 0 || place.depth.is_some() || place.at_end)
        }
        Test::Size(_) => true,
        Test::DataAt { relative, .. } => !relative,
        Test::Compare { number, .. } | Test::Jump { number, .. } => !number.relative,
        Test::Pattern { .. } => false,
    })
}

fn packet_tests(rule: &Rule, frame: &[u8], headers: &Headers) -> bool {
    rule.packet.iter().all(|test| match test {
        PacketTest::Number {
            field: Field::PayloadSize,
            range,
            negated,
        } => range.contains(&(headers.payload(frame).len() as u64)) != *negated,
        PacketTest::Number {
            field: Field::TimeToLive,
            range,
            negated,
        } => range.contains(&u64::from(headers.datagram(frame)[8])) != *negated,
        // Other fields are not implemented here.
        _ => false,
    })
}

fn holds(rule: &Rule, buffers: &Buffers) -> bool {
    rule.parts.iter().all(|part| {
        let BufferKey { buffer, dotted } = part.buffer;
        buffers.get(&buffer).is_some_and(|bytes| match dotted {
            true => tests(&part.tests, &[b".", &bytes[..]].concat(), 0),
            false => tests(&part.tests, bytes, 0),
        })
    })
}

/// Tries every position of a test, one by one.
pub fn tests(all: &[Test], bytes: &[u8], at: i64) -> bool {
    let Some((test, rest)) = all.split_first() else {
        return true;
    };
    let length = bytes.len() as i64;
    match test {
        Test::Content(content) => {
            let place = &content.position;
            let size = content.bytes.len() as i64;
            let fits = |start: i64| {
                let end = start + size;
                let relative = place.distance.is_some() || place.within.is_some();
                let distance = i64::from(place.distance.unwrap_or(0));
                let from = if relative { at } else { i64::from(place.offset) };
                let there = &bytes[start as usize..end as usize];
                start >= i64::from(place.offset)
                    && (!relative || start >= at + distance)
                    && place
                        .within
                        .is_none_or(|within| end <= at + distance + i64::from(within))
                    && place.depth.is_none_or(|depth| end <= from + i64::from(depth))
                    && (!place.at_end || end == length)
                    && if content.nocase {
                        there.eq_ignore_ascii_case(&content.bytes)
                    } else {
                        there == content.bytes
                    }
            };
            let mut starts = (0..=length - size).filter(|start| fits(*start));
            match content.negated {
                true => starts.next().is_none() && tests(rest, bytes, at),
                false => starts.any(|start| tests(rest, bytes, start + size)),
            }
        }
        Test::Pattern {
            expression,
            relative,
            negated,
        } => {
            let start = if *relative { at } else { 0 };
            let Some(text) = bytes.get(start as usize..) else {
                return *negated && tests(rest, bytes, at);
            };
            if *negated {
                return expression.find(text, 0).is_none() && tests(rest, bytes, at);
            }
            (0..=text.len())
                .filter_map(|from| expression.find(text, from))
                .any(|(_, end)| tests(rest, bytes, start + end as i64))
        }
        Test::DataAt {
            bytes: wanted,
            relative,
            negated,
        } => {
            let wanted = i64::from(*wanted);
            let there = if *relative {
                at + wanted <= length
            } else {
                wanted < length
            };
            there != *negated && tests(rest, bytes, at)
        }
        Test::Size(range) => range.contains(&(bytes.len() as u64)) && tests(rest, bytes, at),
        Test::Compare {
            number,
            comparison,
            value,
            negated,
        } if number.text.is_none() => {
            let Some(found) = number_at(number, bytes, at) else {
                return false;
            };
            let compares = match comparison {
                Comparison::Less => found < *value,
                Comparison::AtMost => found <= *value,
                Comparison::Equal => found == *value,
                Comparison::Greater => found > *value,
                Comparison::AtLeast => found >= *value,
                Comparison::And => found & value != 0,
                Comparison::Or => found != *value,
            };
            compares != *negated && tests(rest, bytes, at)
        }
        // Not implemented here.
        _ => false,
    }
}

fn number_at(number: &NumberAt, bytes: &[u8], at: i64) -> Option<u64> {
    let start = number.offset + if number.relative { at } else { 0 };
    let end = start + i64::from(number.bytes);
    let mut digits = bytes
        .get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?
        .to_vec();
    if number.little {
        digits.reverse();
    }
    Some(digits.iter().fold(0, |number, byte| number * 256 + u64::from(*byte)))
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

/// Returns all messages of a stream whose heads are complete; `None` if it is not HTTP.
fn messages(mut bytes: &[u8], direction: Direction, ended: bool) -> Option<Vec<Message>> {
    let mut messages = Vec::new();
    loop {
        while let Some(rest) = bytes.strip_prefix(b"\r\n") {
            bytes = rest;
        }
        let Some(end) = find(bytes, b"\r\n\r\n") else {
            return Some(messages);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let raw = &bytes[..end + 4];
        bytes = &bytes[end + 4..];
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let fields: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .collect();
        let field = |name: &str| {
            fields
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.clone())
        };
        // A target may contain spaces, a status does not.
        let (first, rest) = line.split_once(' ')?;
        let (second, third) = match direction {
            Direction::ToServer => rest.rsplit_once(' ')?,
            Direction::ToClient => rest.split_once(' ').unwrap_or((rest, "")),
        };
        let mut buffers: Buffers = HashMap::new();
        let mut put = |buffer, text: &str| drop(buffers.insert(buffer, text.as_bytes().to_vec()));
        let cookie = match direction {
            Direction::ToServer => {
                if !third.starts_with("HTTP/") {
                    return None;
                }
                put(Buffer::Method, first);
                put(Buffer::RawUri, second);
                put(Buffer::Uri, &normal(second));
                put(Buffer::ProtocolLine, third);
                put(Buffer::RequestLine, &line);
                if let Some(host) = field("host").filter(|host| !host.is_empty()) {
                    put(Buffer::RawHost, &host);
                    put(
                        Buffer::Host,
                        &host.split(':').next().unwrap_or_default().to_ascii_lowercase(),
                    );
                }
                for (buffer, name) in [
                    (Buffer::UserAgent, "user-agent"),
                    (Buffer::Referer, "referer"),
                    (Buffer::Accept, "accept"),
                    (Buffer::AcceptEncoding, "accept-encoding"),
                    (Buffer::AcceptLanguage, "accept-language"),
                ] {
                    field(name).iter().for_each(|value| put(buffer, value));
                }
                "cookie"
            }
            Direction::ToClient => {
                if !first.starts_with("HTTP/") {
                    return None;
                }
                put(Buffer::ProtocolLine, first);
                put(Buffer::StatusCode, second);
                put(Buffer::StatusMessage, third);
                put(Buffer::ResponseLine, &line);
                for (buffer, name) in [(Buffer::Server, "server"), (Buffer::Location, "location")] {
                    field(name).iter().for_each(|value| put(buffer, value));
                }
                "set-cookie"
            }
        };
        for (buffer, name) in [
            (Buffer::ContentType, "content-type"),
            (Buffer::ContentLength, "content-length"),
            (Buffer::Connection, "connection"),
            (Buffer::Cookie, cookie),
        ] {
            field(name).iter().for_each(|value| put(buffer, value));
        }
        let text = |fields: &[&(String, String)]| {
            fields
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect::<String>()
        };
        let others: Vec<_> = fields
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case(cookie))
            .collect();
        put(Buffer::Header, &text(&others));
        put(
            Buffer::Start,
            &format!("{line}\r\n{}\r\n", text(&fields.iter().collect::<Vec<_>>())),
        );
        put(
            Buffer::HeaderNames,
            &format!(
                "\r\n{}\r\n",
                fields.iter().map(|(name, _)| format!("{name}\r\n")).collect::<String>()
            ),
        );
        put(Buffer::RawHeader, head.split_once("\r\n").map_or("", |(_, rest)| rest));
        // Line ends of the last field and of the head.
        if let Some(header) = buffers.get_mut(&Buffer::RawHeader) {
            header.extend(b"\r\n\r\n");
        }
        let mut whole = true;
        let mut body = Vec::new();
        if direction == Direction::ToClient && second == "101" {
            body.extend(bytes);
            bytes = b"";
            whole = ended;
        } else if field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            loop {
                let Some(end) = find(bytes, b"\r\n") else {
                    whole = false;
                    break;
                };
                let size = usize::from_str_radix(&String::from_utf8_lossy(&bytes[..end]), 16).ok()?;
                if bytes.len() < end + 2 + size + 2 {
                    whole = false;
                    break;
                }
                body.extend(&bytes[end + 2..end + 2 + size]);
                bytes = &bytes[end + 2 + size + 2..];
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = field("content-length") {
            let length = length.parse().ok()?;
            whole = bytes.len() >= length;
            body.extend(&bytes[..length.min(bytes.len())]);
            bytes = &bytes[length.min(bytes.len())..];
        } else if direction == Direction::ToClient {
            body.extend(bytes);
            bytes = b"";
            whole = ended;
        }
        let mut all = raw.to_vec();
        all.extend(&body);
        buffers.insert(Buffer::Payload, raw.to_vec());
        if !body.is_empty() {
            let buffer = if direction == Direction::ToServer {
                Buffer::RequestBody
            } else {
                Buffer::ResponseBody
            };
            buffers.insert(buffer, body.clone());
            buffers.insert(Buffer::FileData, body);
        } else {
            // Rules are not evaluated on a missing body.
            whole = false;
        }
        let stops = !whole && bytes.is_empty();
        messages.push(Message { buffers, whole });
        if stops && direction == Direction::ToClient {
            return Some(messages);
        }
    }
}

/// Normalises a target by lists of segments.
fn normal(target: &str) -> String {
    let at = target.find(['?', '#']).unwrap_or(target.len());
    let (path, rest) = target.split_at(at);
    let mut decoded: Vec<u8> = Vec::new();
    let mut bytes = path.bytes().collect::<Vec<_>>().into_iter().peekable();
    while let Some(byte) = bytes.next() {
        let ahead: Vec<u8> = bytes.clone().take(2).collect();
        let digits = std::str::from_utf8(&ahead)
            .ok()
            .filter(|text| text.len() == 2 && text.bytes().all(|b| b.is_ascii_hexdigit()));
        match (byte, digits) {
            (b'%', Some(digits)) => {
                decoded.push(u8::from_str_radix(digits, 16).unwrap());
                bytes.nth(1);
            }
            _ => decoded.push(byte),
        }
    }
    let path = String::from_utf8_lossy(&decoded).replace('\\', "/");
    if !path.starts_with('/') {
        return format!("{path}{rest}");
    }
    let mut stack: Vec<&str> = Vec::new();
    let mut folder = true;
    for segment in path.split('/').skip(1) {
        folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(stack.pop()),
            other => stack.push(other),
        }
    }
    let end = if folder && !stack.is_empty() { "/" } else { "" };
    format!("/{}{end}{rest}", stack.join("/"))
}

/// Returns the names a DNS request queries.
fn dns_names(payload: &[u8], port: u16) -> Vec<Vec<u8>> {
    if port != 53 || payload.len() < 17 || payload[2] & 0x80 != 0 {
        return Vec::new();
    }
    let mut name = Vec::new();
    let mut at = 12;
    while let Some(&length) = payload.get(at).filter(|length| **length > 0) {
        if !name.is_empty() {
            name.push(b'.');
        }
        let Some(label) = payload.get(at + 1..at + 1 + usize::from(length)) else {
            return Vec::new();
        };
        name.extend(label);
        at += 1 + usize::from(length);
    }
    vec![name]
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
