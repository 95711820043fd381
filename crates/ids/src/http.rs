//! HTTP/1.x messages of a stream: framing (RFC 9112), and the buffers that rules test.

pub(crate) mod body;
pub(crate) mod normalize;

use crate::buffer::Buffer;
use crate::rule::Direction;
use crate::stream::Side;
use crate::unit::Unit;
use memchr::memchr;
use normalize::{host_of, normalize};

/// Largest number of fields per message; further ones appear in no buffer.
const MAX_FIELDS: usize = 96;
/// Largest number of digits of a chunk's size.
const SIZE_DIGITS: usize = 15;

// Phases of a side.
/// First line and fields.
pub(crate) const HEAD: u8 = 16;
/// Body of known length.
const LENGTH: u8 = 17;
const CHUNK_SIZE: u8 = 18;
const CHUNK_DATA: u8 = 19;
/// Line end after a chunk.
const CHUNK_END: u8 = 20;
const TRAILER: u8 = 21;
/// Body that ends with the stream.
const UNTIL_CLOSE: u8 = 22;

// Flags of a side's message.
/// The body is chunked.
pub(crate) const CHUNKED: u8 = 1;
/// The rules were evaluated on the body.
pub(crate) const INSPECTED: u8 = 2;

/// Returns `true` if a side's phase belongs to HTTP.
#[inline]
pub(crate) fn is_phase(phase: u8) -> bool {
    (HEAD..=UNTIL_CLOSE).contains(&phase)
}

/// Result of following a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More bytes are needed.
    More,
    /// The head is complete.
    Head,
    /// The message is complete.
    End,
    /// The stream is not HTTP.
    Lost,
}

/// Framing of a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// Returns the next complete in-order line without its end, and the offset of the line after it.
fn line<'a>(side: &Side, window: &'a [u8]) -> Option<(&'a [u8], u64)> {
    let rest = window.get(side.at(side.parsed)..side.filled())?;
    let end = memchr(b'\n', rest)?;
    let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
    Some((line, side.parsed + end as u64 + 1))
}

/// Follows a message up to the next step, as far as bytes are available.
pub(crate) fn advance(side: &mut Side, window: &[u8], direction: Direction) -> Step {
    loop {
        match side.phase {
            HEAD => {
                let Some((line, next)) = line(side, window) else {
                    return Step::More;
                };
                let first = side.parsed == side.message;
                side.parsed = next;
                match (line.is_empty(), first) {
                    // Empty lines before a message are ignored.
                    (true, true) => side.message = next,
                    (true, false) => {
                        side.head_end = next;
                        return Step::Head;
                    }
                    (false, true) if !is_first_line(line, direction) => return Step::Lost,
                    (false, _) => {}
                }
            }
            LENGTH | CHUNK_DATA => {
                let there = (side.end() - side.parsed).min(side.left);
                side.parsed += there;
                side.left -= there;
                match (side.left, side.phase) {
                    (0, LENGTH) => return Step::End,
                    (0, _) => side.phase = CHUNK_END,
                    _ => return Step::More,
                }
            }
            CHUNK_SIZE => {
                let Some((line, next)) = line(side, window) else {
                    return Step::More;
                };
                let Some(size) = chunk_size(line) else {
                    return Step::Lost;
                };
                side.parsed = next;
                side.left = size;
                side.phase = if size == 0 { TRAILER } else { CHUNK_DATA };
            }
            CHUNK_END | TRAILER => {
                let Some((line, next)) = line(side, window) else {
                    return Step::More;
                };
                side.parsed = next;
                match (line.is_empty(), side.phase) {
                    (true, TRAILER) => return Step::End,
                    (true, _) => side.phase = CHUNK_SIZE,
                    (false, CHUNK_END) => return Step::Lost,
                    (false, _) => {}
                }
            }
            UNTIL_CLOSE => {
                side.parsed = side.end();
                return Step::More;
            }
            _ => return Step::Lost,
        }
    }
}

/// Returns `true` if a line may start a message.
fn is_first_line(line: &[u8], direction: Direction) -> bool {
    match direction {
        Direction::ToClient => line.starts_with(b"HTTP/"),
        Direction::ToServer => {
            let last = line.rsplit(|byte| *byte == b' ').next();
            line.contains(&b' ') && last.is_some_and(|last| last.starts_with(b"HTTP/"))
        }
    }
}

/// Parses the size of a chunk; extensions are ignored.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next()?;
    let digits = (!digits.is_empty() && digits.len() <= SIZE_DIGITS).then_some(digits)?;
    digits.iter().try_fold(0, |size, digit| {
        Some(size << 4 | u64::from(char::from(*digit).to_digit(16)?))
    })
}

/// Starts the body after its head.
pub(crate) fn begin_body(side: &mut Side, framing: Framing) {
    side.message_flags = 0;
    side.left = 0;
    side.phase = match framing {
        Framing::None => LENGTH,
        Framing::Length(length) => {
            side.left = length;
            LENGTH
        }
        Framing::Chunked => {
            side.message_flags = CHUNKED;
            CHUNK_SIZE
        }
        Framing::UntilClose => UNTIL_CLOSE,
    };
}

/// Starts the next message at the current position.
pub(crate) fn next_message(side: &mut Side) {
    side.phase = HEAD;
    side.message = side.parsed;
    side.message_flags = 0;
}

/// Range of a head: start and end.
type ByteRange = [u16; 2];

/// Parsed head of a message, as ranges.
#[derive(Debug)]
pub(crate) struct Head {
    line: ByteRange,
    /// Method, target and protocol, or protocol, status and reason phrase.
    parts: [ByteRange; 3],
    fields: [[ByteRange; 2]; MAX_FIELDS],
    count: usize,
    fields_from: usize,
}

fn slice(bytes: &[u8], [from, to]: ByteRange) -> &[u8] {
    bytes.get(from.into()..to.into()).unwrap_or_default()
}

fn trimmed(bytes: &[u8], [from, to]: [usize; 2]) -> ByteRange {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let text = &bytes[from..to];
    let front = text.iter().take_while(|byte| is_blank(byte)).count();
    let back = text[front..].iter().rev().take_while(|byte| is_blank(byte)).count();
    [(from + front) as u16, (to - back) as u16]
}

impl Head {
    pub(crate) fn new() -> Head {
        Head {
            line: [0; 2],
            parts: [[0; 2]; 3],
            fields: [[[0; 2]; 2]; MAX_FIELDS],
            count: 0,
            fields_from: 0,
        }
    }

    /// Parses a head of up to 65,535 bytes that ends with an empty line.
    pub(crate) fn read(&mut self, bytes: &[u8], direction: Direction) {
        let bytes = &bytes[..bytes.len().min(u16::MAX.into())];
        self.count = 0;
        let mut at = memchr(b'\n', bytes).map_or(bytes.len(), |end| end + 1);
        self.line = trimmed(bytes, [0, at]);
        self.fields_from = at;
        self.read_line(bytes, direction);
        while at < bytes.len() {
            let mut end = memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end + 1);
            // Lines that start with white space continue a field (RFC 9112 §5.2).
            while matches!(bytes.get(end), Some(b' ' | b'\t')) {
                end = memchr(b'\n', &bytes[end..]).map_or(bytes.len(), |more| end + more + 1);
            }
            if let Some(colon) = memchr(b':', &bytes[at..end])
                && let Some(field) = self.fields.get_mut(self.count)
            {
                *field = [trimmed(bytes, [at, at + colon]), trimmed(bytes, [at + colon + 1, end])];
                self.count += 1;
            }
            at = end;
        }
    }

    fn read_line(&mut self, bytes: &[u8], direction: Direction) {
        let [from, to] = self.line;
        let line = slice(bytes, self.line);
        let place = |at: usize| from + at as u16;
        let first = memchr(b' ', line).unwrap_or(line.len());
        let behind = (first + 1).min(line.len());
        // A target may contain spaces, a status does not.
        let second = match direction {
            Direction::ToServer => line.iter().rposition(|byte| *byte == b' '),
            Direction::ToClient => memchr(b' ', &line[behind..]).map(|at| behind + at),
        };
        let second = second.filter(|at| *at >= behind).unwrap_or(line.len());
        self.parts = [
            [from, place(first)],
            [place(behind), place(second)],
            [place((second + 1).min(line.len())), to],
        ];
    }

    fn fields<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let fields = self.fields[..self.count].iter();
        fields.map(|[name, value]| (slice(bytes, *name), slice(bytes, *value)))
    }

    /// Returns the value of the first field with a name.
    pub(crate) fn field<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let mut fields = self.fields(bytes);
        let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, value)| value)
    }

    /// Returns a request's method.
    pub(crate) fn method<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        slice(bytes, self.parts[0])
    }

    /// Returns a request's target.
    pub(crate) fn target<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        slice(bytes, self.parts[1])
    }

    /// Returns the body's framing (RFC 9112 §6.3), or `None` if it is ambiguous.
    pub(crate) fn framing(&self, bytes: &[u8], direction: Direction, answers_head: bool) -> Option<Framing> {
        let status = slice(bytes, self.parts[1]);
        if direction == Direction::ToClient && status == b"101" {
            // The rest is another protocol, inspected as a body.
            return Some(Framing::UntilClose);
        }
        if direction == Direction::ToClient
            && (answers_head || status.starts_with(b"1") || matches!(status, b"204" | b"304"))
        {
            return Some(Framing::None);
        }
        if let Some(coding) = self.field(bytes, "transfer-encoding") {
            let last = coding.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            return match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                true => Some(Framing::Chunked),
                false if direction == Direction::ToClient => Some(Framing::UntilClose),
                false => None,
            };
        }
        match self.field(bytes, "content-length") {
            Some(text) => {
                let length = std::str::from_utf8(text).ok()?.parse().ok()?;
                Some(Framing::Length(length))
            }
            None if direction == Direction::ToClient => Some(Framing::UntilClose),
            None => Some(Framing::None),
        }
    }

    /// Adds the buffers of the head to a unit.
    pub(crate) fn fill<'a>(
        &'a self,
        bytes: &'a [u8],
        direction: Direction,
        made: &'a mut DerivedBuffers,
        unit: &mut Unit<'a>,
    ) {
        made.read(self, bytes, direction);
        let made = &*made;
        let mut field = |buffer: Buffer, name: &str| {
            if let Some(value) = self.field(bytes, name) {
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
                unit.set(Buffer::Method, self.method(bytes));
                unit.set(Buffer::RawUri, self.target(bytes));
                unit.set(Buffer::Uri, &made.uri);
                unit.set(Buffer::ProtocolLine, slice(bytes, self.parts[2]));
                unit.set(Buffer::RequestLine, slice(bytes, self.line));
                if made.host.len() > 1 {
                    unit.set_dotted(Buffer::Host, &made.host);
                }
            }
            Direction::ToClient => {
                field(Buffer::Server, "server");
                field(Buffer::Location, "location");
                field(Buffer::Cookie, "set-cookie");
                unit.set(Buffer::ProtocolLine, slice(bytes, self.parts[0]));
                unit.set(Buffer::StatusCode, slice(bytes, self.parts[1]));
                unit.set(Buffer::StatusMessage, slice(bytes, self.parts[2]));
                unit.set(Buffer::ResponseLine, slice(bytes, self.line));
            }
        }
        unit.set(Buffer::Header, &made.header);
        unit.set(Buffer::HeaderNames, &made.names);
        unit.set(Buffer::Start, &made.start);
        unit.set(Buffer::RawHeader, bytes.get(self.fields_from..).unwrap_or_default());
    }
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
            let (authority, rest) = normalize::split_target(target);
            normalize(rest, &mut self.uri);
            self.host.push(b'.');
            if let Some(host) = authority.or_else(|| head.field(bytes, "host")) {
                self.host.extend(host_of(host).iter().map(u8::to_ascii_lowercase));
            }
        }
        let cookie: &[u8] = match direction {
            Direction::ToServer => b"cookie",
            Direction::ToClient => b"set-cookie",
        };
        self.start.extend_from_slice(slice(bytes, head.line));
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
