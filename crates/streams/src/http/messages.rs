//! Messages of a stream, one after the other: where a head, its body and the message end.

use super::chunks::chunk_size;
use super::head::Framing;
use crate::direction::Direction;
use crate::window::InOrder;
use bytemuck::{Pod, Zeroable};
use memchr::memchr;

// Phases of a cursor.
/// First line and fields.
pub const HEAD: u8 = 16;
/// Body of known length.
const LENGTH: u8 = 17;
const CHUNK_SIZE: u8 = 18;
const CHUNK_DATA: u8 = 19;
/// Line end after a chunk.
const CHUNK_END: u8 = 20;
const TRAILER: u8 = 21;
/// Body that ends with the stream.
const UNTIL_CLOSE: u8 = 22;

/// Flag: the body is chunked.
pub const CHUNKED: u8 = 1;

/// Position in the messages of a stream. All zeros is a stream whose protocol is not yet known.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Cursor {
    /// Stream offset of the current message.
    pub start: u64,
    /// Stream offset up to which the message's framing was parsed.
    pub parsed: u64,
    /// Stream offset of the end of the message's head.
    pub head_end: u64,
    /// Bytes left of a body or chunk. The caller's phases may use it otherwise.
    pub left: u64,
    /// Phase of the protocol's parser: one [of HTTP](is_phase), or one of the caller.
    pub phase: u8,
    /// Flags of the current message: [`CHUNKED`], and others of the caller.
    pub flags: u8,
    /// Padding: the structure must have no implicit padding bytes.
    unused: [u8; 6],
}

/// Returns `true` if a phase belongs to HTTP.
#[inline]
pub fn is_phase(phase: u8) -> bool {
    (HEAD..=UNTIL_CLOSE).contains(&phase)
}

/// Result of following a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// The head is complete.
    Head,
    /// The message is complete.
    End,
    /// The stream is not HTTP.
    Lost,
}

impl Cursor {
    /// Starts the first message of a stream at an offset, in the phase of its protocol.
    pub fn begin(&mut self, offset: u64, phase: u8) {
        (self.start, self.parsed, self.phase) = (offset, offset, phase);
    }

    /// Follows a message up to the next step, as far as bytes are available.
    pub fn advance(&mut self, stream: InOrder<'_>, direction: Direction) -> Step {
        loop {
            match self.phase {
                HEAD => {
                    let Some((line, next)) = line(stream, self.parsed) else {
                        return Step::More;
                    };
                    let first = self.parsed == self.start;
                    self.parsed = next;
                    match (line.is_empty(), first) {
                        // Empty lines before a message are ignored.
                        (true, true) => self.start = next,
                        (true, false) => {
                            self.head_end = next;
                            return Step::Head;
                        }
                        (false, true) if !is_first_line(line, direction) => return Step::Lost,
                        (false, _) => {}
                    }
                }
                LENGTH | CHUNK_DATA => {
                    let there = (stream.end() - self.parsed).min(self.left);
                    self.parsed += there;
                    self.left -= there;
                    match (self.left, self.phase) {
                        (0, LENGTH) => return Step::End,
                        (0, _) => self.phase = CHUNK_END,
                        _ => return Step::More,
                    }
                }
                CHUNK_SIZE => {
                    let Some((line, next)) = line(stream, self.parsed) else {
                        return Step::More;
                    };
                    let Some(size) = chunk_size(line) else {
                        return Step::Lost;
                    };
                    self.parsed = next;
                    self.left = size;
                    self.phase = if size == 0 { TRAILER } else { CHUNK_DATA };
                }
                CHUNK_END | TRAILER => {
                    let Some((line, next)) = line(stream, self.parsed) else {
                        return Step::More;
                    };
                    self.parsed = next;
                    match (line.is_empty(), self.phase) {
                        (true, TRAILER) => return Step::End,
                        (true, _) => self.phase = CHUNK_SIZE,
                        (false, CHUNK_END) => return Step::Lost,
                        (false, _) => {}
                    }
                }
                UNTIL_CLOSE => {
                    self.parsed = stream.end();
                    return Step::More;
                }
                _ => return Step::Lost,
            }
        }
    }

    /// Starts the body after its head.
    pub fn begin_body(&mut self, framing: Framing) {
        self.flags = 0;
        self.left = 0;
        self.phase = match framing {
            Framing::None => LENGTH,
            Framing::Length(length) => {
                self.left = length;
                LENGTH
            }
            Framing::Chunked => {
                self.flags = CHUNKED;
                CHUNK_SIZE
            }
            Framing::UntilClose => UNTIL_CLOSE,
        };
    }

    /// Starts the next message at the current position.
    pub fn next_message(&mut self) {
        self.phase = HEAD;
        self.start = self.parsed;
        self.flags = 0;
    }
}

/// Returns the next complete in-order line without its end, and the offset of the line after it.
fn line(stream: InOrder<'_>, parsed: u64) -> Option<(&[u8], u64)> {
    let rest = stream.from(parsed)?;
    let end = memchr(b'\n', rest)?;
    let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
    Some((line, parsed + end as u64 + 1))
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

#[cfg(test)]
mod tests;
