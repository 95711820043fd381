//! HTTP/2 (RFC 9113): the frames of a stream, in pieces of any size. Header blocks are decoded by [`hpack`].

pub mod hpack;
pub mod huffman;

/// First bytes of a client.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest number of CONTINUATION frames of one header block.
pub const MAX_CONTINUATIONS: u8 = 32;

/// Bytes of a frame's header.
const HEADER: usize = 9;

// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

// Flags of frames.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// Reason the rest of a stream cannot be interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The bytes violate the protocol.
    Malformed,
    /// A limit is exceeded.
    TooMuch,
}

/// Next part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed.
    More,
    /// Bytes without meaning for messages.
    Skipped,
    /// Part of the current header block.
    Block(&'a [u8]),
    /// The header block is complete.
    BlockEnd {
        /// Stream it was sent on.
        stream: u32,
        /// `true` if the message ends with it.
        ends_message: bool,
        /// `true` if it announces a request that the server answers unasked (PUSH_PROMISE).
        is_promise: bool,
    },
    /// Part of a message's body.
    Data {
        /// Stream.
        stream: u32,
        /// Bytes.
        bytes: &'a [u8],
    },
    /// The stream's message is complete.
    End(u32),
    /// The stream is aborted, in both directions.
    Reset(u32),
}

/// Part of a frame that is read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Header.
    #[default]
    Header,
    /// Fields in front of the content: length of the padding, priority, promised stream.
    Prefix,
    /// Content and padding.
    Content,
}

/// Reader of one direction's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameReader {
    /// Bytes left of the client's preface.
    preface: u8,
    part: Part,
    kind: u8,
    flags: u8,
    stream: u32,
    /// Bytes left of the frame, with its padding.
    left: u32,
    padding: u32,
    /// Frame whose header block continues in the next one: its type, flags and stream.
    block: Option<(u8, u8, u32)>,
    continuations: u8,
}

impl FrameReader {
    /// Creates a reader for the start of a direction; a client's begins with the preface.
    pub fn new(client: bool) -> FrameReader {
        FrameReader {
            preface: if client { PREFACE.len() as u8 } else { 0 },
            ..FrameReader::default()
        }
    }

    /// Reads the next part at the start of some bytes. Returns how many of them it used.
    ///
    /// # Errors
    /// The rest of the stream cannot be interpreted.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Event<'a>), Unreadable> {
        if self.preface > 0 {
            let expected = &PREFACE[PREFACE.len() - usize::from(self.preface)..];
            let there = expected.len().min(bytes.len());
            if bytes[..there] != expected[..there] {
                return Err(Unreadable::Malformed);
            }
            self.preface -= there as u8;
            let event = if self.preface > 0 { Event::More } else { Event::Skipped };
            return Ok((there, event));
        }
        match self.part {
            Part::Header => {
                let Some(header) = bytes.first_chunk::<HEADER>() else {
                    return Ok((0, Event::More));
                };
                self.header(header)?;
                Ok((HEADER, Event::Skipped))
            }
            Part::Prefix => {
                let length = self.prefix();
                let Some(prefix) = bytes.get(..length) else {
                    return Ok((0, Event::More));
                };
                self.left -= length as u32;
                self.padding = match (self.has(PADDED), prefix.first()) {
                    (true, Some(padding)) if self.kind != CONTINUATION => (*padding).into(),
                    _ => 0,
                };
                if self.padding > self.left {
                    return Err(Unreadable::Malformed);
                }
                self.part = Part::Content;
                Ok((length, Event::Skipped))
            }
            Part::Content => Ok(self.content(bytes)),
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn header(&mut self, header: &[u8; HEADER]) -> Result<(), Unreadable> {
        let [high, middle, low, kind, flags, stream @ ..] = *header;
        self.left = u32::from_be_bytes([0, high, middle, low]);
        (self.kind, self.flags) = (kind, flags);
        self.stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        self.part = Part::Prefix;
        let continues = kind == CONTINUATION;
        let expected = match self.block {
            // Nothing may come between the frames of a header block.
            Some((_, _, stream)) => continues && stream == self.stream,
            None => !continues,
        };
        let is_message = matches!(kind, DATA | HEADERS | RST_STREAM | PUSH_PROMISE | CONTINUATION);
        if !expected || is_message && self.stream == 0 || self.left < self.prefix() as u32 {
            return Err(Unreadable::Malformed);
        }
        if continues {
            self.continuations += 1;
            if self.continuations > MAX_CONTINUATIONS {
                return Err(Unreadable::TooMuch);
            }
        }
        Ok(())
    }

    /// Returns the bytes in front of the frame's content.
    fn prefix(&self) -> usize {
        let padding = usize::from(self.has(PADDED));
        match self.kind {
            DATA => padding,
            HEADERS => padding + if self.has(PRIORITY) { 5 } else { 0 },
            PUSH_PROMISE => padding + 4,
            _ => 0,
        }
    }

    fn content<'a>(&mut self, bytes: &'a [u8]) -> (usize, Event<'a>) {
        let content = self.left - self.padding;
        if self.left > 0 {
            // Padding follows the content.
            let wanted = if content > 0 { content } else { self.left };
            let there = (wanted as usize).min(bytes.len());
            if there == 0 {
                return (0, Event::More);
            }
            self.left -= there as u32;
            let bytes = &bytes[..there];
            if content == 0 {
                self.padding = self.left;
                return (there, Event::Skipped);
            }
            let event = match self.kind {
                HEADERS | PUSH_PROMISE | CONTINUATION => Event::Block(bytes),
                DATA => Event::Data {
                    stream: self.stream,
                    bytes,
                },
                _ => Event::Skipped,
            };
            return (there, event);
        }
        self.part = Part::Header;
        let event = match self.kind {
            HEADERS | PUSH_PROMISE | CONTINUATION => self.block_end(),
            DATA if self.has(END_STREAM) => Event::End(self.stream),
            RST_STREAM => Event::Reset(self.stream),
            _ => Event::Skipped,
        };
        (0, event)
    }

    /// Handles the end of a frame of a header block.
    fn block_end<'a>(&mut self) -> Event<'a> {
        let (kind, flags, stream) = self.block.unwrap_or((self.kind, self.flags, self.stream));
        if !self.has(END_HEADERS) {
            self.block = Some((kind, flags, stream));
            return Event::Skipped;
        }
        (self.block, self.continuations) = (None, 0);
        Event::BlockEnd {
            stream,
            ends_message: kind == HEADERS && flags & END_STREAM != 0,
            is_promise: kind == PUSH_PROMISE,
        }
    }
}

#[cfg(test)]
mod tests;
