//! Complete heads of messages, as ranges of their bytes.

use super::anomalies::Anomalies;
use super::{is_token, lines};
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

/// Bytes that may occur in a field's name.
const TOKEN: [bool; 256] = {
    let mut token = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        token[byte] = is_token(byte as u8);
        byte += 1;
    }
    token
};

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
    anomalies: Anomalies,
    /// `true` if a line ends with CRLF, and with LF alone.
    line_feeds: [bool; 2],
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
            anomalies: Anomalies::NONE,
            line_feeds: [false; 2],
        }
    }

    /// Parses a head of up to 65,535 bytes that ends with a blank line.
    pub fn read(&mut self, bytes: &[u8], direction: Direction) {
        let bytes = &bytes[..bytes.len().min(u16::MAX.into())];
        (self.count, self.anomalies, self.line_feeds) = (0, Anomalies::NONE, [false; 2]);
        let mut at = 0;
        let first = self.line_at(bytes, &mut at);
        self.line = trimmed(bytes, first);
        self.fields_from = at;
        self.read_line(bytes, direction);
        while at < bytes.len() {
            let mut line = self.line_at(bytes, &mut at);
            if line[0] == line[1] {
                continue;
            }
            // Lines that start with white space continue a field (RFC 9112 §5.2). One with a colon is read as a field
            // of its own, as Suricata does.
            while matches!(bytes.get(at), Some(b' ' | b'\t')) {
                let mut next = at;
                let [from, to] = self.line_at(bytes, &mut next);
                if memchr(b':', &bytes[from..to]).is_some() {
                    break;
                }
                self.anomalies |= Anomalies::FOLDED;
                (line[1], at) = (to, next);
            }
            self.read_field(bytes, line);
        }
    }

    /// Returns the range of the line at a position, and moves the position behind its end.
    #[inline]
    fn line_at(&mut self, bytes: &[u8], at: &mut usize) -> [usize; 2] {
        let from = *at;
        let rest = &bytes[from..];
        match lines::line(rest) {
            Some(line) => {
                self.anomalies.add_if(line.odd, Anomalies::LINE_END);
                // LF alone is usual only if all lines end with it.
                let alone = line.next == line.length + 1;
                self.line_feeds[usize::from(alone)] = true;
                self.anomalies.add_if(self.line_feeds == [true; 2], Anomalies::LINE_END);
                *at = from + line.next;
                [from, from + line.length]
            }
            // The head ends with CRs alone, or in the middle of a line.
            None => {
                *at = bytes.len();
                let length = rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len());
                self.anomalies.add_if(!rest.is_empty(), Anomalies::LINE_END);
                [from, from + length]
            }
        }
    }

    fn read_field(&mut self, bytes: &[u8], [from, to]: [usize; 2]) {
        let colon = memchr(b':', &bytes[from..to]);
        let (Some(colon), Some(field)) = (colon, self.fields.get_mut(self.count)) else {
            self.anomalies |= Anomalies::FIELD;
            return;
        };
        *field = [
            trimmed(bytes, [from, from + colon]),
            trimmed(bytes, [from + colon + 1, to]),
        ];
        self.count += 1;
        let name = &bytes[from..from + colon];
        let right = !name.is_empty() && name.iter().all(|byte| TOKEN[usize::from(*byte)]);
        self.anomalies.add_if(!right, Anomalies::FIELD);
    }

    fn read_line(&mut self, bytes: &[u8], direction: Direction) {
        let [from, to] = self.line;
        let line = slice(bytes, self.line);
        let place = |at: usize| from + at as u16;
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c);
        let spaces = |at: usize| at + line[at..].iter().take_while(|byte| is_space(byte)).count();
        let first = line.iter().position(is_space).unwrap_or(line.len());
        let behind = spaces(first);
        // A target may contain spaces, a status does not.
        let second = match direction {
            Direction::ToServer => line.iter().rposition(|byte| *byte == b' '),
            Direction::ToClient => line[behind..].iter().position(is_space).map(|at| behind + at),
        };
        let second = second.filter(|at| *at >= behind).unwrap_or(line.len());
        let third = match direction {
            Direction::ToServer => (second + 1).min(line.len()),
            Direction::ToClient => spaces(second),
        };
        self.parts = [[from, place(first)], [place(behind), place(second)], [place(third), to]];
        let [one, two, three] = self.parts.map(|part| slice(bytes, part));
        let right = match direction {
            Direction::ToServer => matches!(three, b"HTTP/1.1" | b"HTTP/1.0"),
            Direction::ToClient => {
                matches!(one, b"HTTP/1.1" | b"HTTP/1.0") && two.len() == 3 && two.iter().all(u8::is_ascii_digit)
            }
        };
        self.anomalies.add_if(!right, Anomalies::FIRST_LINE);
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

    /// Returns the position behind a second head at the start of a body: a receiver may not take an odd blank line as
    /// the first one's end.
    pub fn behind_second(bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(line) = lines::line(&bytes[at..]) {
            at += line.next;
            let is_first = at == line.next;
            if line.is_blank() && !is_first {
                return Some(at);
            }
        }
        None
    }

    /// Returns the anomalies found so far.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// Returns the values of all fields with a name.
    pub fn values<'a>(&'a self, bytes: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.fields(bytes);
        let wanted = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        wanted.map(|(_, value)| value)
    }

    /// Returns the body's framing (RFC 9112 §6.3), read leniently, or `None` if a request's end is ambiguous. Adds the
    /// anomalies of the fields it depends on.
    pub fn framing(&mut self, bytes: &[u8], direction: Direction, answers_head: bool) -> Option<Framing> {
        let mut anomalies = self.anomalies;
        let [protocol, status, version] = self.parts.map(|part| slice(bytes, part));
        let to_client = direction == Direction::ToClient;
        let (mut coded, mut chunked) = (false, false);
        for value in self.values(bytes, "transfer-encoding") {
            anomalies.add_if(
                coded || !value.eq_ignore_ascii_case(b"chunked"),
                Anomalies::TRANSFER_CODING,
            );
            coded = true;
            chunked |= contains(value, b"chunked");
        }
        let (mut length, mut wrong) = (None, false);
        for value in self.values(bytes, "content-length") {
            let (number, right) = first_number(value);
            anomalies.add_if(!right, Anomalies::LENGTH);
            wrong |= number.is_none();
            anomalies.add_if(length.is_some() && length != number, Anomalies::LENGTHS_DIFFER);
            length = length.or(number);
        }
        anomalies.add_if(chunked && (length.is_some() || wrong), Anomalies::LENGTH_AND_CHUNKED);
        let version = if to_client { protocol } else { version };
        anomalies.add_if(chunked && version == b"HTTP/1.0", Anomalies::CHUNKED_OLD);
        self.anomalies = anomalies;
        let bare = status.starts_with(b"1") || matches!(status, b"204" | b"304");
        if to_client && status == b"101" {
            // The rest is another protocol, inspected as a body.
            return Some(Framing::UntilClose);
        }
        if to_client && (answers_head || bare) {
            return Some(Framing::None);
        }
        match (chunked, length) {
            (true, _) => Some(Framing::Chunked),
            (false, Some(length)) if to_client || !coded => Some(Framing::Length(length)),
            (false, _) if to_client => Some(Framing::UntilClose),
            (false, _) if coded || wrong => None,
            _ => Some(Framing::None),
        }
    }
}

/// Returns `true` if a text contains a word, in any case.
fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

/// Returns the first decimal number of a text, and `true` if there is nothing else.
fn first_number(text: &[u8]) -> (Option<u64>, bool) {
    let start = text.iter().position(u8::is_ascii_digit).unwrap_or(text.len());
    let digits = text[start..].iter().take_while(|byte| byte.is_ascii_digit());
    let mut count = 0;
    let number = digits.fold(0u64, |number, digit| {
        count += 1;
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    ((count > 0).then_some(number), count > 0 && count == text.len())
}
