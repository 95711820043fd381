//! DNS messages (RFC 1035): header, question, names with compression pointers, the first authority.
//!
//! Nothing is allocated, and whatever the bytes are, a name is read in at most [`MAX_NAME`] + 2 × [`MAX_POINTERS`] bytes
//! and of a message's records the first few are passed over: pointers only ever lead to where nothing was read yet of a
//! name, and records are not entered.

use std::fmt;

/// Bytes of the header.
pub const HEADER: usize = 12;
/// Most bytes of a name in its plain form, with its length bytes and the empty label at the end.
pub const MAX_NAME: usize = 255;
/// Most pointers of a name that are followed. A name has at most 127 labels, and no writer has use for a pointer to a pointer.
pub const MAX_POINTERS: usize = 127;

/// Most answers that are passed over to find the authority section: an answer that there is nothing has no more than the aliases
/// that led there.
pub const MAX_ANSWERS: u16 = 32;

/// Types of records and questions.
pub mod kind {
    /// A name server of a zone: in an answer's authority section, a referral to that zone.
    pub const NS: u16 = 2;
    /// The start of a zone: in an answer's authority section, which zone it is that has nothing of the name.
    pub const SOA: u16 = 6;
}

/// Response codes.
pub mod rcode {
    /// No error.
    pub const NO_ERROR: u8 = 0;
    /// There is no such name.
    pub const NX_DOMAIN: u8 = 3;
}

/// A name in its plain form, in lower case: labels, each behind its length, up to the empty one.
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
    /// Reads the name at `at` of a message. Returns where what follows it begins; `None`, with any part of the name read,
    /// if it leaves the message, is too long, or a pointer of it leads anywhere but to earlier bytes of the message.
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
                    // Lengths, up to 63, are no letters.
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
                    // In front of everything that was read: it cannot lead in circles.
                    if target >= limit || target < HEADER || pointers > MAX_POINTERS {
                        return None;
                    }
                    (at, limit) = (target, target);
                }
                // Two kinds of labels that RFC 6891 has given up.
                _ => return None,
            }
        }
    }

    /// The plain form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Where what follows the name at `at` begins. Pointers are not followed.
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

/// A message: its header, and where its question lies.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    header: &'a [u8; HEADER],
}

/// The question of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The type of records that it asks for.
    pub kind: u16,
    /// The class, nearly always 1.
    pub class: u16,
    /// Where in the message what follows it begins.
    pub end: usize,
}

impl<'a> Message<'a> {
    /// A view of a message; `None` if it is shorter than a header.
    pub fn new(bytes: &'a [u8]) -> Option<Message<'a>> {
        let header = bytes.first_chunk()?;
        Some(Message { bytes, header })
    }

    /// The number that the client gave its query.
    pub fn id(&self) -> u16 {
        self.word(0)
    }

    /// Whether it is a response.
    pub fn is_response(&self) -> bool {
        self.header[2] & 0x80 != 0
    }

    /// Whether who responds has authority over the name.
    pub fn is_authoritative(&self) -> bool {
        self.header[2] & 0x04 != 0
    }

    /// The response code in the header (four bits of it).
    pub fn rcode(&self) -> u8 {
        self.header[3] & 0x0f
    }

    /// How many questions the header says that there are.
    pub fn questions(&self) -> u16 {
        self.word(4)
    }

    /// How many records the header says that its answer section has.
    pub fn answers(&self) -> u16 {
        self.word(6)
    }

    /// How many records the header says that its authority section has.
    pub fn authorities(&self) -> u16 {
        self.word(8)
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    /// The question, and its name; `None` if there is not exactly one, or it cannot be read.
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

    /// The type of the first record of the authority section, and its owner's name: which zone a negative answer or a referral
    /// is about. `None` if there is none, it cannot be read, or more than [`MAX_ANSWERS`] are in front. `question` is the message's.
    pub fn authority(&self, question: &Question, name: &mut Name) -> Option<u16> {
        if self.authorities() == 0 || self.answers() > MAX_ANSWERS {
            return None;
        }
        let mut at = question.end;
        for _ in 0..self.answers() {
            at = pass_name(self.bytes, at)?;
            // Type, class, time to live, and the length of the data.
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
