//! Messages of a stream, one after the other: where a head, its body and the message end.

use super::anomalies::Anomalies;
use super::chunks::{SizeLine, data_end, size_line};
use super::head::Framing;
use super::lines::line;
use crate::direction::Direction;
use crate::window::InOrder;
use bytemuck::{Pod, Zeroable};

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
/// Flag: the body continues behind its end, since no response follows.
const EXTRA: u8 = 128;

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
    /// Flags of the current message: [`CHUNKED`], and others of the caller (2 to 64).
    pub flags: u8,
    /// Anomalies of the current message.
    pub anomalies: Anomalies,
    /// Anomalies that the caller has counted.
    pub counted: Anomalies,
    /// Padding: the structure must have no implicit padding bytes.
    unused: [u8; 2],
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
    /// There is no head: a response does not begin with a status line. All bytes are its body.
    Headless,
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
            let rest = match stream.from(self.parsed) {
                Some(rest) => rest,
                None => return Step::More,
            };
            match self.phase {
                HEAD => {
                    let first = self.parsed == self.start;
                    if first && direction == Direction::ToClient && starts_response(rest) == Some(false) {
                        return self.headless();
                    }
                    let Some(line) = line(rest) else {
                        return Step::More;
                    };
                    self.parsed += line.next as u64;
                    if first && line.length == 0 {
                        // Empty lines before a message are ignored.
                        self.start = self.parsed;
                    } else if first && direction == Direction::ToServer && !is_request(&rest[..line.length]) {
                        return Step::Lost;
                    } else if !first && line.is_blank() {
                        self.head_end = self.parsed;
                        return Step::Head;
                    }
                }
                LENGTH | CHUNK_DATA => {
                    let there = (rest.len() as u64).min(self.left);
                    self.parsed += there;
                    self.left -= there;
                    match (self.left, self.phase) {
                        (0, LENGTH) => {
                            let behind = &rest[there as usize..];
                            if direction == Direction::ToServer || starts_response(behind) != Some(false) {
                                return Step::End;
                            }
                            // No response follows: receivers may show the bytes as part of this body.
                            self.anomalies |= Anomalies::EXTRA_BODY;
                            self.flags |= EXTRA;
                            self.phase = UNTIL_CLOSE;
                        }
                        (0, _) => self.phase = CHUNK_END,
                        _ => return Step::More,
                    }
                }
                CHUNK_SIZE => match size_line(rest) {
                    SizeLine::More => return Step::More,
                    SizeLine::Wrong => {
                        self.anomalies |= Anomalies::CHUNK;
                        self.phase = UNTIL_CLOSE;
                    }
                    SizeLine::Size(size, next, odd) => {
                        self.anomalies.add_if(odd, Anomalies::CHUNK);
                        self.parsed += next as u64;
                        self.left = size;
                        self.phase = if size == 0 { TRAILER } else { CHUNK_DATA };
                    }
                },
                CHUNK_END => {
                    let Some((next, odd)) = data_end(rest) else {
                        return Step::More;
                    };
                    self.anomalies.add_if(odd, Anomalies::CHUNK);
                    self.parsed += next as u64;
                    self.phase = CHUNK_SIZE;
                }
                TRAILER => {
                    let Some(line) = line(rest) else {
                        return Step::More;
                    };
                    self.parsed += line.next as u64;
                    self.anomalies.add_if(line.odd, Anomalies::CHUNK);
                    if line.is_blank() {
                        return Step::End;
                    }
                }
                UNTIL_CLOSE => {
                    // A response behind extra bytes begins with a segment.
                    if self.flags & EXTRA != 0 && rest.starts_with(b"HTTP/1.") {
                        return Step::End;
                    }
                    self.parsed = stream.end();
                    return Step::More;
                }
                _ => return Step::Lost,
            }
        }
    }

    /// Takes all bytes from the message's start on as its body.
    fn headless(&mut self) -> Step {
        self.anomalies |= Anomalies::EXTRA_BODY;
        (self.head_end, self.phase) = (self.start, UNTIL_CLOSE);
        self.flags |= EXTRA;
        Step::Headless
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

    /// Returns `true` if the body has a known end, which was not reached.
    pub fn is_within_body(&self) -> bool {
        matches!(self.phase, CHUNK_SIZE | CHUNK_DATA | CHUNK_END | TRAILER) || self.phase == LENGTH && self.left > 0
    }

    /// Starts the next message at the current position.
    pub fn next_message(&mut self) {
        self.phase = HEAD;
        self.start = self.parsed;
        self.flags = 0;
        (self.anomalies, self.counted) = (Anomalies::NONE, Anomalies::NONE);
    }
}

/// Returns `true` if bytes begin like a response, after white space and zeros, as Suricata requires; `None` if there
/// are too few.
fn starts_response(bytes: &[u8]) -> Option<bool> {
    let blanks = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace() || matches!(byte, 0 | 0x0b));
    let text = &bytes[blanks.count()..];
    let known = text.len().min(4);
    match text[..known].eq_ignore_ascii_case(&b"HTTP"[..known]) {
        true if known < 4 => None,
        like => Some(like),
    }
}

/// Returns `true` if a line may start a request.
fn is_request(line: &[u8]) -> bool {
    let last = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
    let version = |last: &[u8]| last.len() > 5 && last[..5].eq_ignore_ascii_case(b"HTTP/");
    line.contains(&b' ') && last.is_some_and(version)
}

#[cfg(test)]
mod tests;
