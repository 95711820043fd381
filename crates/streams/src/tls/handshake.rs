//! Handshakes in a window: the client's server name and the server's certificates.

use super::{
    ALERT, CERTIFICATE, CLIENT_HELLO, FIXED, HANDSHAKE, MAJOR_VERSION, MAX_RECORD, RECORD_HEADER, SERVER_NAME, VECTORS,
};

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes at which parsing can continue.
    pub needed: usize,
    /// `true` if no unencrypted data follows.
    pub ended: bool,
}

/// Concatenates the handshake messages of the records available.
pub fn handshake(bytes: &[u8], out: &mut Vec<u8>) -> Progress {
    let mut at = 0;
    loop {
        let rest = &bytes[at.min(bytes.len())..];
        let ended = Progress {
            needed: at,
            ended: true,
        };
        let [kind, major, _, high, low, content @ ..] = rest else {
            return Progress {
                needed: at + RECORD_HEADER,
                ended: false,
            };
        };
        let length = u16::from_be_bytes([*high, *low]);
        if *major != MAJOR_VERSION || length > MAX_RECORD || length == 0 {
            return ended;
        }
        let length = usize::from(length);
        match *kind {
            HANDSHAKE => out.extend_from_slice(&content[..content.len().min(length)]),
            ALERT => {}
            // From a change of the cipher on, records are encrypted.
            _ => return ended,
        }
        at += RECORD_HEADER + length;
        if at > bytes.len() {
            return Progress {
                needed: at,
                ended: false,
            };
        }
    }
}

/// Cursor over bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.take(bytes)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Reads a vector with a length prefix of this many bytes.
    fn vector(&mut self, length: usize) -> Option<&'a [u8]> {
        let length = self.number(length)?;
        self.take(length)
    }
}

/// Returns the first complete message of a type.
fn message(handshake: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = Cursor(handshake);
    loop {
        let kind = rest.number(1)?;
        let message = rest.vector(3)?;
        if kind == usize::from(wanted) {
            return Some(message);
        }
    }
}

/// Returns the server name in a ClientHello; empty if it has none, `None` while the message is incomplete.
pub fn server_name(handshake: &[u8]) -> Option<&[u8]> {
    let hello = message(handshake, CLIENT_HELLO)?;
    Some(name_in(hello).unwrap_or_default())
}

fn name_in(hello: &[u8]) -> Option<&[u8]> {
    let mut rest = Cursor(hello);
    // Skips version and random.
    rest.take(FIXED)?;
    for width in VECTORS {
        rest.vector(width.into())?;
    }
    let mut extensions = Cursor(rest.vector(2)?);
    loop {
        let kind = extensions.number(2)?;
        let extension = extensions.vector(2)?;
        if kind == usize::from(SERVER_NAME) {
            let mut list = Cursor(Cursor(extension).vector(2)?);
            list.number(1)?;
            return list.vector(2);
        }
    }
}

/// Returns the certificates of a server up to TLS 1.2, its own first; `None` while they are incomplete.
pub fn certificates(handshake: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let message = message(handshake, CERTIFICATE)?;
    let mut list = Cursor(Cursor(message).vector(3).unwrap_or_default());
    Some(std::iter::from_fn(move || list.vector(3)))
}
