//! Messages of HTTP streams and of DNS datagrams, parsed from their start.

use super::evaluate::Buffers;
use std::collections::HashMap;
use tailwater_ids::buffer::Buffer;
use tailwater_ids::rule::Direction;

/// HTTP message: its buffers, and whether its body is complete.
pub(super) struct Message {
    pub(super) buffers: HashMap<Buffer, Vec<u8>>,
    pub(super) whole: bool,
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

/// Returns all messages of a stream whose heads are complete; `None` if it is not HTTP.
pub(super) fn messages(mut bytes: &[u8], direction: Direction, ended: bool) -> Option<Vec<Message>> {
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
    let (query, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
    let rest = format!("{}{fragment}", String::from_utf8_lossy(&plain(query)));
    let path = String::from_utf8_lossy(&plain(path)).replace('\\', "/");
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

/// Percent-decodes a text.
fn plain(text: &str) -> Vec<u8> {
    let mut decoded: Vec<u8> = Vec::new();
    let mut bytes = text.bytes().collect::<Vec<_>>().into_iter().peekable();
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
    decoded
}

/// Returns the names a DNS request queries.
pub(super) fn dns_names(payload: &[u8], port: u16) -> Vec<Vec<u8>> {
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
