//! Messages between program and server before the first packet.
//!
//! A program has a socket of type `SOCK_SEQPACKET` as its standard input. Each message is one packet of at most
//! [`MOST_BYTES`]. Numbers are little-endian. A string is its length in 16 bits (a configuration's: 32) and UTF-8.
//!
//! | from | message | kind | contents |
//! |---|---|---|---|
//! | program | [`Hello`](FromProgram::Hello) | 1 | `TWNF`, highest supported version: u16 |
//! | server | [`Configure`](FromServer::Configure) | 2 | version: u16, part: u16, of: u16, configuration as JSON |
//! | program | [`Describe`](FromProgram::Describe) | 3 | see [`Description`] |
//! | | or [`Refuse`](FromProgram::Refuse) | 4 | field, error in it; then the program ends |
//! | | or [`Unfit`](FromProgram::Unfit) | 8 | error in the program; then it ends |
//! | server | [`Attach`](FromServer::Attach) | 5 | buffer size in bytes: u32, flows: u32, round: u64, whether state is stored externally: u8, origin: u64, files: u8; with the files |
//! | program | [`Ready`](FromProgram::Ready) | 6 | nothing |
//! | program | [`Failed`](FromProgram::Failed) | 7 | work that failed at the end; then the program ends |
//!
//! Any time may pass between `Describe` and `Attach`: the program waits, detached, until its chain needs it. `Attach`
//! carries these files, in this order:
//! 1. the request area (read-only);
//! 2. the packets;
//! 3. the function's own response area;
//! 4. the response area of the function in front (read-only; not for the first function);
//! 5. its flows, if it is stateful;
//! 6. the snapshots of its flows ([`snapshots`](super::snapshots)), if their state is also stored externally.
//!
//! Both sides validate all data before use. An invalid message ends the connection.

use std::fmt;

/// Maximum size of a message in bytes.
pub const MOST_BYTES: usize = 64 << 10;

/// Maximum length of a name in bytes.
const MOST_NAME: usize = 63;
/// Maximum length of an error text in bytes.
const MOST_TEXT: usize = 4096;
/// Maximum size of a flow's state in bytes: that of a [function's own](crate::abi::MAX_STATE_BYTES), and its host's
/// data.
pub const MOST_STATE: u32 = crate::abi::MAX_STATE_BYTES as u32 + 64;

const MAGIC: &[u8; 4] = b"TWNF";

/// Description of a function.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Description {
    /// Name of the function: letters, digits and dashes.
    pub name: String,
    /// Memory per flow in bytes, the program's own data included; 0 for none. u32, at most [`MOST_STATE`].
    pub state_bytes: u32,
    /// `true`: the function is notified of flows that end. Bit 0 of a u8.
    pub wants_flow_ends: bool,
    /// `true`: the function opens companions of flows. Bit 1.
    pub opens_companions: bool,
    /// Version of the state's format, if the state can be stored externally. Bit 2 is set if a u32 follows.
    pub durable: Option<u32>,
    /// `true`: nothing is lost when another process goes on, since the function keeps nothing but decisions that it
    /// makes again. Bit 3.
    pub can_restart: bool,
    /// Size of that state in bytes. u32, at most [`MOST_STATE`].
    pub piece_bytes: u32,
    /// Drop reasons, each with a u8 that is 1 if packets are lost rather than dropped. Count: u8.
    pub drop_reasons: Vec<(String, bool)>,
    /// Additional counters. Count: u8.
    pub counters: Vec<String>,
}

/// Maximum number of drop reasons.
pub const MOST_REASONS: usize = 17;

/// Message of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromProgram {
    /// The program has started.
    Hello {
        /// Highest supported version.
        version: u16,
    },
    /// The program has read its configuration.
    Describe(Description),
    /// The program rejects its configuration.
    Refuse {
        /// Field of the configuration; empty for the whole.
        field: String,
        /// Description of the error.
        message: String,
    },
    /// The program cannot be run with any configuration.
    Unfit {
        /// Description of the error.
        message: String,
    },
    /// The program has mapped its memory.
    Ready,
    /// The program ends with work left undone.
    Failed {
        /// Description of the failed work.
        message: String,
    },
}

/// Message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromServer {
    /// Configuration of the program.
    Configure {
        /// Version that both support.
        version: u16,
        /// Index of this process among the `of` processes of this function, which share nothing.
        part: u16,
        /// Number of processes of this function.
        of: u16,
        /// Configuration from the chain's spec, as JSON.
        config: String,
    },
    /// Memory in which the program runs.
    Attach {
        /// Size of a packet buffer in bytes.
        buffer_bytes: u32,
        /// Capacity of the flow table; 0 without one.
        flows: u32,
        /// Last round before this process.
        round: u64,
        /// Wall-clock time of the run's start in nanoseconds, if flow state is stored externally.
        origin: Option<u64>,
        /// Number of files that come with the message.
        files: u8,
    },
}

/// Error of a message that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    expected: &'static str,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found something else", self.expected)
    }
}

impl std::error::Error for DecodeError {}

impl FromProgram {
    /// Encodes the message. Strings that are too long are cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            FromProgram::Hello { version } => {
                to.push(1);
                to.extend(MAGIC);
                to.extend(version.to_le_bytes());
            }
            FromProgram::Describe(what) => {
                to.push(3);
                put(&mut to, &what.name, MOST_NAME);
                to.extend(what.state_bytes.to_le_bytes());
                let durable = u8::from(what.durable.is_some());
                let companions = u8::from(what.opens_companions);
                let restarts = u8::from(what.can_restart);
                to.push(u8::from(what.wants_flow_ends) | companions << 1 | durable << 2 | restarts << 3);
                if let Some(version) = what.durable {
                    to.extend(version.to_le_bytes());
                }
                to.extend(what.piece_bytes.to_le_bytes());
                to.push(what.drop_reasons.len().min(255) as u8);
                for (name, lost) in what.drop_reasons.iter().take(255) {
                    put(&mut to, name, MOST_NAME);
                    to.push(u8::from(*lost));
                }
                to.push(what.counters.len().min(255) as u8);
                for name in what.counters.iter().take(255) {
                    put(&mut to, name, MOST_NAME);
                }
            }
            FromProgram::Refuse { field, message } => {
                to.push(4);
                put(&mut to, field, MOST_TEXT);
                put(&mut to, message, MOST_TEXT);
            }
            FromProgram::Unfit { message } => {
                to.push(8);
                put(&mut to, message, MOST_TEXT);
            }
            FromProgram::Ready => to.push(6),
            FromProgram::Failed { message } => {
                to.push(7);
                put(&mut to, message, MOST_TEXT);
            }
        }
        to
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not a valid message.
    pub fn decode(bytes: &[u8]) -> Result<FromProgram, DecodeError> {
        let mut rest = Rest(bytes);
        let message = match rest.u8()? {
            1 => {
                if rest.take(4)? != MAGIC {
                    return Err(expected("TWNF"));
                }
                FromProgram::Hello { version: rest.u16()? }
            }
            3 => FromProgram::Describe(rest.description()?),
            4 => FromProgram::Refuse {
                field: rest.text(MOST_TEXT)?,
                message: rest.text(MOST_TEXT)?,
            },
            6 => FromProgram::Ready,
            8 => FromProgram::Unfit {
                message: rest.text(MOST_TEXT)?,
            },
            7 => FromProgram::Failed {
                message: rest.text(MOST_TEXT)?,
            },
            _ => return Err(expected("a message type of a program")),
        };
        rest.end().map(|()| message)
    }
}

impl FromServer {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            FromServer::Configure {
                version,
                part,
                of,
                config,
            } => {
                to.push(2);
                for number in [version, part, of] {
                    to.extend(number.to_le_bytes());
                }
                to.extend((config.len() as u32).to_le_bytes());
                to.extend(config.as_bytes());
            }
            FromServer::Attach {
                buffer_bytes,
                flows,
                round,
                origin,
                files,
            } => {
                to.push(5);
                to.extend(buffer_bytes.to_le_bytes());
                to.extend(flows.to_le_bytes());
                to.extend(round.to_le_bytes());
                to.push(u8::from(origin.is_some()));
                to.extend(origin.unwrap_or_default().to_le_bytes());
                to.push(*files);
            }
        }
        to
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not a valid message.
    pub fn decode(bytes: &[u8]) -> Result<FromServer, DecodeError> {
        let mut rest = Rest(bytes);
        let message = match rest.u8()? {
            2 => {
                let (version, part, of) = (rest.u16()?, rest.u16()?, rest.u16()?);
                if part >= of {
                    return Err(expected("a part number below the number of parts"));
                }
                let length = rest.u32()? as usize;
                FromServer::Configure {
                    version,
                    part,
                    of,
                    config: text(rest.take(length)?)?,
                }
            }
            5 => FromServer::Attach {
                buffer_bytes: rest.u32()?,
                flows: rest.u32()?,
                round: rest.u64()?,
                origin: match (rest.u8()?, rest.u64()?) {
                    (0, 0) => None,
                    (1, origin) => Some(origin),
                    _ => return Err(expected("a valid origin of durable state")),
                },
                files: rest.u8()?,
            },
            _ => return Err(expected("a message type of the server")),
        };
        rest.end().map(|()| message)
    }
}

fn expected(expected: &'static str) -> DecodeError {
    DecodeError { expected }
}

/// Writes a string, cut between characters to at most `most` bytes.
fn put(to: &mut Vec<u8>, text: &str, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    to.extend((end as u16).to_le_bytes());
    to.extend(&text.as_bytes()[..end]);
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    let text = str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| expected("UTF-8"))
}

/// Unread bytes of a message.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let cut = self.0.split_at_checked(count);
        let (taken, rest) = cut.ok_or(expected("a longer message"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| expected("a longer message"))
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, most: usize) -> Result<String, DecodeError> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(expected("a shorter text"));
        }
        text(self.take(length)?)
    }

    /// Reads a name that is allowed in reports and metrics: letters, digits and dashes.
    fn name(&mut self) -> Result<String, DecodeError> {
        let name = self.text(MOST_NAME)?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        match !name.is_empty() && name.bytes().all(fits) {
            true => Ok(name),
            false => Err(expected("a name of letters, digits and dashes")),
        }
    }

    fn description(&mut self) -> Result<Description, DecodeError> {
        let (name, state_bytes, flags) = (self.name()?, self.u32()?, self.u8()?);
        if state_bytes > MOST_STATE {
            return Err(expected("less state per flow"));
        }
        if flags > 15 {
            return Err(expected("flags of this version"));
        }
        let durable = match flags & 4 {
            0 => None,
            _ => Some(self.u32()?),
        };
        let piece_bytes = self.u32()?;
        if piece_bytes > MOST_STATE {
            return Err(expected("less state per flow"));
        }
        let reasons = usize::from(self.u8()?);
        if reasons > MOST_REASONS {
            return Err(expected("fewer drop reasons"));
        }
        let mut drop_reasons = Vec::new();
        for _ in 0..reasons {
            let name = self.name()?;
            drop_reasons.push((name, self.u8()? != 0));
        }
        let notes = usize::from(self.u8()?);
        if notes > super::layout::MAX_FUNCTION_COUNTERS {
            return Err(expected("fewer counters"));
        }
        let notes = (0..notes).map(|_| self.name()).collect::<Result<_, _>>()?;
        Ok(Description {
            name,
            state_bytes,
            wants_flow_ends: flags & 1 != 0,
            opens_companions: flags & 2 != 0,
            durable,
            can_restart: flags & 8 != 0,
            piece_bytes,
            drop_reasons,
            counters: notes,
        })
    }

    fn end(&self) -> Result<(), DecodeError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(expected("a shorter message")),
        }
    }
}

#[cfg(test)]
mod tests;
