//! Complete heads of messages, as ranges of their bytes.

use crate::direction::Direction;
use memchr::memchr;

/// Largest number of fields per message; further ones are ignored.
pub const MAX_FIELDS: usize = 96;

/// Framing of a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// It has this many bytes.
    Length(u64),
    /// It is chunked.
    Chunked,
    /// It ends with the stream.
    UntilClose,
}

/// Range of a head: start and end.
type HeadRange = [u16; 2];

/// Parsed head of a message, as ranges.
#[derive(Debug)]
pub struct Head {
    line: HeadRange,
    /// Method, target and protocol, or protocol, status and reason phrase.
    parts: [HeadRange; 3],
    fields: [[HeadRange; 2]; MAX_FIELDS],
    count: usize,
    fields_from: usize,
}

fn slice(bytes: &[u8], [from, to]: HeadRange) -> &[u8] {
    bytes.get(from.into()..to.into()).unwrap_or_default()
}

fn trimmed(bytes: &[u8], [from, to]: [usize; 2]) -> HeadRange {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let text = &bytes[from..to];
    let front = text.iter().take_while(|byte| is_blank(byte)).count();
    let back = text[front..].iter().rev().take_while(|byte| is_blank(byte)).count();
    [(from + front) as u16, (to - back) as u16]
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

impl Head {
    /// Creates an empty head.
    pub fn new() -> Head {
        Head {
            line: [0; 2],
            parts: [[0; 2]; 3],
            fields: [[[0; 2]; 2]; MAX_FIELDS],
            count: 0,
            fields_from: 0,
        }
    }

    /// Parses a head of up to 65,535 bytes that ends with an empty line.
    pub fn read(&mut self, bytes: &[u8], direction: Direction) {
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

    /// Returns names and values of the fields, without surrounding white space.
    pub fn fields<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let fields = self.fields[..self.count].iter();
        fields.map(|[name, value]| (slice(bytes, *name), slice(bytes, *value)))
    }

    /// Returns the value of the first field with a name.
    pub fn field<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        let mut fields = self.fields(bytes);
        let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, value)| value)
    }

    /// Returns the first line.
    pub fn line<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        slice(bytes, self.line)
    }

    /// Returns the parts of the first line: method, target and protocol, or protocol, status and reason phrase.
    pub fn parts<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; 3] {
        self.parts.map(|part| slice(bytes, part))
    }

    /// Returns the bytes behind the first line.
    pub fn raw_fields<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.fields_from..).unwrap_or_default()
    }

    /// Returns a request's method.
    pub fn method<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        slice(bytes, self.parts[0])
    }

    /// Returns a request's target.
    pub fn target<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        slice(bytes, self.parts[1])
    }

    /// Returns the body's framing (RFC 9112 §6.3), or `None` if it is ambiguous.
    pub fn framing(&self, bytes: &[u8], direction: Direction, answers_head: bool) -> Option<Framing> {
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
}
