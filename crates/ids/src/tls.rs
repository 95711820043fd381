//! TLS handshakes (RFC 8446, RFC 5246): the client's server name and the server's certificates.

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
/// Content type of handshake records, the first byte of a TLS stream.
pub(crate) const HANDSHAKE: u8 = 22;
/// Major version of all versions since SSL 3.0.
pub(crate) const MAJOR_VERSION: u8 = 3;
const RECORD_HEADER: usize = 5;
/// Longest record in bytes (RFC 8446 §5.1 with its allowance for encryption).
const MAX_RECORD: usize = 16_384 + 256;

const CLIENT_HELLO: u8 = 1;
const CERTIFICATE: u8 = 11;
const SERVER_NAME: u16 = 0;

/// Phase of a side: unencrypted TLS.
pub(crate) const TLS: u8 = 32;

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Number of bytes at which parsing can continue.
    pub(crate) needed: usize,
    /// `true` if no unencrypted data follows.
    pub(crate) ended: bool,
}

/// Concatenates the handshake messages of the records available.
pub(crate) fn handshake(bytes: &[u8], out: &mut Vec<u8>) -> Progress {
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
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *major != MAJOR_VERSION || length > MAX_RECORD || length == 0 {
            return ended;
        }
        match *kind {
            HANDSHAKE => out.extend_from_slice(&content[..content.len().min(length)]),
            ALERT => {}
            CHANGE_CIPHER_SPEC => return ended,
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
pub(crate) fn server_name(handshake: &[u8]) -> Option<&[u8]> {
    let hello = message(handshake, CLIENT_HELLO)?;
    Some(name_in(hello).unwrap_or_default())
}

fn name_in(hello: &[u8]) -> Option<&[u8]> {
    let mut rest = Cursor(hello);
    // Skips version and random.
    rest.take(34)?;
    for length in [1, 2, 1] {
        rest.vector(length)?;
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
pub(crate) fn certificates(handshake: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let message = message(handshake, CERTIFICATE)?;
    let mut list = Cursor(Cursor(message).vector(3).unwrap_or_default());
    Some(std::iter::from_fn(move || list.vector(3)))
}
