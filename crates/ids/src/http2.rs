//! HTTP/2 connections: header tables, and the messages of their streams. The streams' windows do not suffice for them,
//! so each worker has a table: of fixed size, without allocation, the longest idle connection of a set evicted.

use crate::connection::Lease;
use tailwater_net::Nanos;
use tailwater_streams::direction::Direction;
use tailwater_streams::http2::FrameReader;
use tailwater_streams::http2::hpack::Decoder;

/// Largest size of a header block in bytes.
pub(crate) const MAX_BLOCK: usize = 16 * 1024;
/// Largest number of incomplete messages of a direction.
const MAX_MESSAGES: usize = 16;
/// Largest size of a body that is inspected.
const MAX_BODY: usize = 8 * 1024;
/// Connections per set.
const WAYS: usize = 8;
/// Number of sets, a power of two.
const SETS: usize = 8;
/// Room for names of pseudo-header fields and line ends.
const NAMES: usize = 128;

/// Message of a stream.
#[derive(Debug)]
pub(crate) struct Message {
    /// Number of the stream; 0 if there is none.
    pub(crate) stream: u32,
    /// Number of the message on its connection.
    order: u32,
    /// Head in the form of HTTP/1.
    pub(crate) head: Vec<u8>,
    /// Pseudo-header fields, one per line.
    pub(crate) pseudo: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// `true` if the rules were evaluated on the body.
    pub(crate) inspected: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Http2Side {
    /// `true` if the direction was followed from its start.
    pub(crate) begun: bool,
    pub(crate) frames: FrameReader,
    pub(crate) decoder: Decoder,
    /// Header block that is not complete.
    pub(crate) block: Vec<u8>,
    pub(crate) messages: Vec<Message>,
    count: u32,
}

impl Http2Side {
    fn new(window: usize) -> Http2Side {
        let message = |_| Message {
            stream: 0,
            order: 0,
            head: Vec::with_capacity(head_limit(window) + NAMES),
            pseudo: Vec::with_capacity(head_limit(window) + NAMES),
            body: Vec::with_capacity(window.min(MAX_BODY)),
            inspected: false,
        };
        Http2Side {
            begun: false,
            frames: FrameReader::default(),
            decoder: Decoder::new(),
            block: Vec::with_capacity(MAX_BLOCK),
            messages: (0..MAX_MESSAGES).map(message).collect(),
            count: 0,
        }
    }

    /// Forgets the connection.
    fn reset(&mut self) {
        self.begun = false;
        self.decoder.reset();
        self.block.clear();
        self.messages.iter_mut().for_each(|message| message.stream = 0);
        self.count = 0;
    }

    /// Starts following the direction.
    pub(crate) fn begin(&mut self, direction: Direction) {
        self.reset();
        self.begun = true;
        self.frames = FrameReader::new(direction == Direction::ToServer);
    }

    /// Returns the index of a stream's message.
    pub(crate) fn find(&self, stream: u32) -> Option<usize> {
        self.messages.iter().position(|message| message.stream == stream)
    }

    /// Returns the index of the message to use for a stream: its own, a free one, or the oldest.
    pub(crate) fn claim(&mut self, stream: u32) -> usize {
        self.count += 1;
        let oldest = || {
            self.messages
                .iter()
                .enumerate()
                .min_by_key(|(_, message)| message.order)
        };
        let index = self.find(stream).or_else(|| self.find(0));
        let index = index.or_else(|| oldest().map(|(index, _)| index)).unwrap_or(0);
        self.messages[index].order = self.count;
        index
    }
}

/// Largest size of a message's fields in bytes.
pub(crate) fn head_limit(window: usize) -> usize {
    window / 2
}

#[derive(Debug)]
struct Entry {
    lease: Option<Lease>,
    used: Nanos,
    sides: [Http2Side; 2],
}

/// Connections of HTTP/2.
#[derive(Debug)]
pub(crate) struct Http2Connections(Vec<Entry>);

impl Http2Connections {
    /// Allocates the table; its memory is used as connections need it.
    pub(crate) fn new(window: usize) -> Http2Connections {
        let entry = |_| Entry {
            lease: None,
            used: Nanos(0),
            sides: [Http2Side::new(window), Http2Side::new(window)],
        };
        Http2Connections((0..SETS * WAYS).map(entry).collect())
    }

    fn set(&mut self, lease: Lease) -> &mut [Entry] {
        let first = (lease.slot as usize & (SETS - 1)) * WAYS;
        &mut self.0[first..first + WAYS]
    }

    /// Returns a connection's directions, if it is known.
    pub(crate) fn find(&mut self, lease: Lease, now: Nanos) -> Option<&mut [Http2Side; 2]> {
        let entry = self.set(lease).iter_mut().find(|entry| entry.lease == Some(lease))?;
        entry.used = now;
        Some(&mut entry.sides)
    }

    /// Adds a connection, unless it is known.
    pub(crate) fn open(&mut self, lease: Lease, now: Nanos) {
        let set = self.set(lease);
        if set.iter().any(|entry| entry.lease == Some(lease)) {
            return;
        }
        if let Some(entry) = set.iter_mut().min_by_key(|entry| entry.used) {
            (entry.lease, entry.used) = (Some(lease), now);
            entry.sides.iter_mut().for_each(Http2Side::reset);
        }
    }
}

/// Fields of a header block.
#[derive(Debug)]
pub(crate) struct HeadFields {
    method: Vec<u8>,
    path: Vec<u8>,
    scheme: Vec<u8>,
    authority: Vec<u8>,
    status: Vec<u8>,
    /// Other fields, one per line.
    fields: Vec<u8>,
    /// Cookies of a request, which may come in several fields (RFC 9113 §8.2.3).
    cookie: Vec<u8>,
    has_host: bool,
    left: usize,
    limit: usize,
    /// `true` if there was no room for all fields.
    pub(crate) truncated: bool,
}

impl HeadFields {
    pub(crate) fn new(window: usize) -> HeadFields {
        let limit = head_limit(window);
        let room = || Vec::with_capacity(limit);
        HeadFields {
            method: room(),
            path: room(),
            scheme: room(),
            authority: room(),
            status: room(),
            fields: room(),
            cookie: room(),
            has_host: false,
            left: limit,
            limit,
            truncated: false,
        }
    }

    pub(crate) fn clear(&mut self) {
        let texts = [
            &mut self.method,
            &mut self.path,
            &mut self.scheme,
            &mut self.authority,
            &mut self.status,
            &mut self.fields,
            &mut self.cookie,
        ];
        texts.into_iter().for_each(Vec::clear);
        (self.has_host, self.truncated, self.left) = (false, false, self.limit);
    }

    /// Returns `true` if the block begins a message, and does not end one with trailers.
    pub(crate) fn is_head(&self) -> bool {
        !self.method.is_empty() || !self.status.is_empty()
    }

    /// Adds a field.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8], direction: Direction) {
        let size = name.len() + value.len() + 4;
        let Some(left) = self.left.checked_sub(size) else {
            self.truncated = true;
            return;
        };
        self.left = left;
        let pseudo = match name {
            b":method" => &mut self.method,
            b":path" => &mut self.path,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":status" => &mut self.status,
            b"cookie" if direction == Direction::ToServer => {
                if !self.cookie.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                return push(value, &mut self.cookie);
            }
            _ => {
                self.has_host |= name.eq_ignore_ascii_case(b"host");
                push(name, &mut self.fields);
                self.fields.extend_from_slice(b": ");
                push(value, &mut self.fields);
                self.fields.extend_from_slice(b"\r\n");
                return;
            }
        };
        pseudo.clear();
        push(value, pseudo);
    }

    /// Writes the head in the form of HTTP/1, and the pseudo-header fields.
    pub(crate) fn write(&self, direction: Direction, message: &mut Message) {
        let (head, lines) = (&mut message.head, &mut message.pseudo);
        head.clear();
        lines.clear();
        let parts = match direction {
            Direction::ToServer => [&self.method[..], b" ", &self.path, b" HTTP/2\r\n"],
            Direction::ToClient => [&b"HTTP/2 "[..], &self.status, b"", b"\r\n"],
        };
        parts.into_iter().for_each(|part| head.extend_from_slice(part));
        let line = |name: &[u8], value: &[u8], out: &mut Vec<u8>| {
            if !value.is_empty() {
                let parts = [name, b": ", value, b"\r\n"];
                parts.into_iter().for_each(|part| out.extend_from_slice(part));
            }
        };
        line(b":method", &self.method, lines);
        line(b":scheme", &self.scheme, lines);
        line(b":authority", &self.authority, lines);
        line(b":path", &self.path, lines);
        line(b":status", &self.status, lines);
        if !self.has_host {
            line(b"host", &self.authority, head);
        }
        head.extend_from_slice(&self.fields);
        line(b"cookie", &self.cookie, head);
        head.extend_from_slice(b"\r\n");
    }
}

/// Appends a name or value. Line ends, which may not occur in one, become spaces.
fn push(text: &[u8], out: &mut Vec<u8>) {
    let is_end = |byte: u8| matches!(byte, b'\r' | b'\n');
    out.extend(text.iter().map(|byte| if is_end(*byte) { b' ' } else { *byte }));
}
