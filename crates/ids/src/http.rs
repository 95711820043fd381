//! Buffers of HTTP messages that rules test.

pub(crate) mod body;

use crate::buffer::Buffer;
use crate::unit::Unit;
use memchr::memchr;
use tailwater_streams::direction::Direction;
use tailwater_streams::http::Reading;
use tailwater_streams::http::head::{Head, MAX_FIELDS};
use tailwater_streams::http::host::split_authority;
use tailwater_streams::http::target::{authority, decoded, normalize_path};

/// Adds the buffers of the head to a unit.
pub(crate) fn fill<'a>(
    head: &'a Head,
    bytes: &'a [u8],
    direction: Direction,
    made: &'a mut DerivedBuffers,
    unit: &mut Unit<'a>,
) {
    fill_with_pseudo(head, [bytes, b""], direction, made, unit);
}

/// Adds the buffers of a head of HTTP/2 to a unit: in the form of HTTP/1, with the pseudo-header fields.
pub(crate) fn fill_with_pseudo<'a>(
    head: &'a Head,
    [bytes, pseudo]: [&'a [u8]; 2],
    direction: Direction,
    made: &'a mut DerivedBuffers,
    unit: &mut Unit<'a>,
) {
    made.read(head, bytes, direction);
    made.header.splice(0..0, pseudo.iter().copied());
    let made = &*made;
    let [first, second, third] = head.parts(bytes);
    let mut field = |buffer: Buffer, name: &str| {
        if let Some(value) = head.field(bytes, name) {
            unit.set(buffer, value);
        }
    };
    field(Buffer::ContentType, "content-type");
    field(Buffer::ContentLength, "content-length");
    field(Buffer::Connection, "connection");
    match direction {
        Direction::ToServer => {
            field(Buffer::UserAgent, "user-agent");
            field(Buffer::Referer, "referer");
            field(Buffer::Accept, "accept");
            field(Buffer::AcceptEncoding, "accept-encoding");
            field(Buffer::AcceptLanguage, "accept-language");
            field(Buffer::Cookie, "cookie");
            field(Buffer::RawHost, "host");
            unit.set(Buffer::Method, first);
            unit.set(Buffer::RawUri, second);
            unit.set(Buffer::Uri, &made.uri);
            unit.set(Buffer::ProtocolLine, third);
            unit.set(Buffer::RequestLine, head.line(bytes));
            if made.host.len() > 1 {
                unit.set_dotted(Buffer::Host, &made.host);
            }
        }
        Direction::ToClient => {
            field(Buffer::Server, "server");
            field(Buffer::Location, "location");
            field(Buffer::Cookie, "set-cookie");
            unit.set(Buffer::ProtocolLine, first);
            unit.set(Buffer::StatusCode, second);
            unit.set(Buffer::StatusMessage, third);
            unit.set(Buffer::ResponseLine, head.line(bytes));
        }
    }
    unit.set(Buffer::Header, &made.header);
    unit.set(Buffer::HeaderNames, &made.names);
    unit.set(Buffer::Start, &made.start);
    unit.set(Buffer::RawHeader, head.raw_fields(bytes));
}

/// Appends a target's path, normalised, its query, percent-decoded once, and its fragment, unmodified.
fn normalize(target: &[u8], out: &mut Vec<u8>) {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let (path, rest) = target.split_at(end.unwrap_or(target.len()));
    let start = out.len();
    out.extend_from_slice(path);
    let length = normalize_path(&mut out[start..], Reading::Suricata);
    out.truncate(start + length);
    let fragment = memchr(b'#', rest).unwrap_or(rest.len());
    let (mut query, fragment) = rest.split_at(fragment);
    while let Some((byte, behind)) = decoded(query) {
        out.push(byte);
        query = behind;
    }
    out.extend_from_slice(fragment);
}

/// Buffers derived from a message.
#[derive(Debug)]
pub(crate) struct DerivedBuffers {
    uri: Vec<u8>,
    /// Host with a leading dot.
    host: Vec<u8>,
    header: Vec<u8>,
    names: Vec<u8>,
    start: Vec<u8>,
}

impl DerivedBuffers {
    /// Allocates room for the buffers of a head of this many bytes.
    pub(crate) fn with_room(bytes: usize) -> DerivedBuffers {
        // Each field may gain a missing space and carriage return.
        let room = || Vec::with_capacity(bytes + 4 * MAX_FIELDS + 16);
        DerivedBuffers {
            uri: room(),
            host: room(),
            header: room(),
            names: room(),
            start: room(),
        }
    }

    fn read(&mut self, head: &Head, bytes: &[u8], direction: Direction) {
        let made = [
            &mut self.uri,
            &mut self.host,
            &mut self.header,
            &mut self.names,
            &mut self.start,
        ];
        made.into_iter().for_each(Vec::clear);
        if direction == Direction::ToServer {
            let target = head.target(bytes);
            let authority = authority(target, Reading::Suricata);
            normalize(
                &target[authority.as_ref().map_or(0, |range| range.end)..],
                &mut self.uri,
            );
            self.host.push(b'.');
            let authority = authority.map(|range| &target[range]);
            if let Some(authority) = authority.or_else(|| head.field(bytes, "host")) {
                let (host, _) = split_authority(authority, Reading::Suricata);
                self.host.extend(host.iter().map(u8::to_ascii_lowercase));
            }
        }
        let cookie: &[u8] = match direction {
            Direction::ToServer => b"cookie",
            Direction::ToClient => b"set-cookie",
        };
        self.start.extend_from_slice(head.line(bytes));
        self.start.extend_from_slice(b"\r\n");
        self.names.extend_from_slice(b"\r\n");
        for (name, value) in head.fields(bytes) {
            let parts = [name, b": ", value, b"\r\n"];
            for part in parts {
                self.start.extend_from_slice(part);
                if !name.eq_ignore_ascii_case(cookie) {
                    self.header.extend_from_slice(part);
                }
            }
            self.names.extend_from_slice(name);
            self.names.extend_from_slice(b"\r\n");
        }
        self.names.extend_from_slice(b"\r\n");
        self.start.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
