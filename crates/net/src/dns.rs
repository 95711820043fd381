//! DNS messages (RFC 1035): header, question, names with compression pointers, first authority record.
//!
//! Nothing is allocated, and the work is bounded for any bytes. Reading a name takes at most [`MAX_NAME`] + 2 ×
//! [`MAX_POINTERS`] bytes, because pointers may only lead to bytes that the name has not used. Of a message's records,
//! only the first few are skipped, without reading their data.

use std::fmt;

/// Size of the header in bytes.
pub const HEADER: usize = 12;
/// Maximum length of a name in its plain form in bytes, length bytes and the final empty label included.
pub const MAX_NAME: usize = 255;
/// Maximum number of pointers followed in a name. A name has at most 127 labels, and encoders never write a pointer to
/// a pointer.
pub const MAX_POINTERS: usize = 127;

/// Maximum number of answers skipped to reach the authority section. A negative answer has only the aliases that led to
/// it.
pub const MAX_ANSWERS: u16 = 32;

/// Types of records and questions.
pub mod kind {
    /// Name server of a zone. In the authority section, a referral to that zone.
    pub const NS: u16 = 2;
    /// Start of authority. In the authority section, the zone of a negative answer.
    pub const SOA: u16 = 6;
}

/// Response codes.
pub mod rcode {
    /// No error.
    pub const NO_ERROR: u8 = 0;
    /// The name does not exist.
    pub const NX_DOMAIN: u8 = 3;
}

/// Name in its plain form, in lower case: labels, each after its length, and the empty label.
#[derive(Clone)]
pub struct Name {
    bytes: [u8; MAX_NAME],
    length: u8,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl Default for Name {
    fn default() -> Name {
        Name {
            bytes: [0; MAX_NAME],
            length: 0,
        }
    }
}

impl Name {
    /// Reads the name at `at` of a message, and returns the offset after it. Returns `None`, with part of the name
    /// read, if the name leaves the message, is too long, or has a pointer that does not lead to earlier bytes of the
    /// message.
    pub fn read(&mut self, message: &[u8], mut at: usize) -> Option<usize> {
        self.length = 0;
        let (mut after, mut pointers, mut limit) = (None, 0, at);
        loop {
            let length = usize::from(*message.get(at)?);
            match length >> 6 {
                0 => {
                    let label = message.get(at..at + 1 + length)?;
                    let start = self.as_bytes().len();
                    let room = self.bytes.get_mut(start..start + label.len())?;
                    // Length bytes, up to 63, are not letters, so they are unchanged.
                    room.iter_mut()
                        .zip(label)
                        .for_each(|(to, from)| *to = from.to_ascii_lowercase());
                    self.length += label.len() as u8;
                    at += label.len();
                    if length == 0 {
                        return Some(after.unwrap_or(at));
                    }
                }
                3 => {
                    let low = usize::from(*message.get(at + 1)?);
                    let target = (length & 0x3f) << 8 | low;
                    after.get_or_insert(at + 2);
                    pointers += 1;
                    // The target must precede everything read so far, so pointers cannot form a loop.
                    if target >= limit || target < HEADER || pointers > MAX_POINTERS {
                        return None;
                    }
                    (at, limit) = (target, target);
                }
                // Two label types that RFC 6891 made obsolete.
                _ => return None,
            }
        }
    }

    /// Returns the plain form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Returns the offset after the name at `at`, without following pointers.
fn pass_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = usize::from(*message.get(at)?);
        match length >> 6 {
            0 if length == 0 => return Some(at + 1),
            0 => at += 1 + length,
            3 => return (at + 2 <= message.len()).then_some(at + 2),
            _ => return None,
        }
    }
}

/// Message: its header, and the offset of its question.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER],
}

/// Question of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Requested record type.
    pub kind: u16,
    /// Class, nearly always 1.
    pub class: u16,
    /// Offset in the message after the question.
    pub end: usize,
}

impl<'a> Message<'a> {
    /// Creates a view of a message; `None` if it is shorter than a header.
    pub fn new(bytes: &'a [u8]) -> Option<Message<'a>> {
        let header = bytes.first_chunk()?;
        Some(Message { bytes, header })
    }

    /// Returns the client's query identifier.
    pub fn id(&self) -> u16 {
        self.word(0)
    }

    /// Returns `true` for a response.
    pub fn is_response(&self) -> bool {
        self.header[2] & 0x80 != 0
    }

    /// Returns `true` if the responding server is authoritative for the name.
    pub fn is_authoritative(&self) -> bool {
        self.header[2] & 0x04 != 0
    }

    /// Returns the response code of the header (four bits).
    pub fn rcode(&self) -> u8 {
        self.header[3] & 0x0f
    }

    /// Returns the number of questions stated in the header.
    pub fn questions(&self) -> u16 {
        self.word(4)
    }

    /// Returns the number of answer records stated in the header.
    pub fn answers(&self) -> u16 {
        self.word(6)
    }

    /// Returns the number of authority records stated in the header.
    pub fn authorities(&self) -> u16 {
        self.word(8)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    /// Reads the question and its name; `None` if there is not exactly one, or it cannot be read.
    pub fn question(&self, name: &mut Name) -> Option<Question> {
        if self.questions() != 1 {
            return None;
        }
        let at = name.read(self.bytes, HEADER)?;
        let tail = self.bytes.get(at..at + 4)?;
        Some(Question {
            kind: u16::from_be_bytes([tail[0], tail[1]]),
            class: u16::from_be_bytes([tail[2], tail[3]]),
            end: at + 4,
        })
    }

    /// Returns the type of the first authority record, and reads its owner's name, the zone of a negative answer or a
    /// referral. `None` if there is none, it cannot be read, or more than [`MAX_ANSWERS`] answers precede it.
    /// `question` is the message's.
    pub fn authority(&self, question: &Question, name: &mut Name) -> Option<u16> {
        if self.authorities() == 0 || self.answers() > MAX_ANSWERS {
            return None;
        }
        let mut at = question.end;
        for _ in 0..self.answers() {
            at = pass_name(self.bytes, at)?;
            // Type, class, time to live and data length.
            let length = self.bytes.get(at + 8..at + 10)?;
            at += 10 + usize::from(u16::from_be_bytes([length[0], length[1]]));
        }
        at = name.read(self.bytes, at)?;
        let kind = self.bytes.get(at..at + 2)?;
        Some(u16::from_be_bytes([kind[0], kind[1]]))
    }
}

#[cfg(test)]
mod tests;
