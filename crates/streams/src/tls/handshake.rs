//! Handshakes in a window: the client's server name and the server's certificates.

use super::{
    ALERT, CERTIFICATE, CLIENT_HELLO, FIXED, HANDSHAKE, MAJOR_VERSION, MAX_RECORD, RECORD_HEADER, SERVER_NAME, VECTORS,
};

/// Extensions that are part of a JA3 string.
const SUPPORTED_GROUPS: usize = 10;
const POINT_FORMATS: usize = 11;

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

/// Writes the JA3 string of a ClientHello: version, cipher suites, extensions, groups and point formats as decimal
/// numbers, without reserved values (RFC 8701). Returns `false` while the message is incomplete or if it is malformed.
pub fn ja3(handshake: &[u8], out: &mut Vec<u8>) -> bool {
    message(handshake, CLIENT_HELLO)
        .and_then(|hello| write_ja3(hello, out))
        .is_some()
}

fn write_ja3(hello: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    let mut rest = Cursor(hello);
    let version = rest.number(2)?;
    rest.take(FIXED - 2)?;
    let [session, suites, compression] = VECTORS;
    rest.vector(session.into())?;
    let suites = rest.vector(suites.into())?;
    rest.vector(compression.into())?;
    let extensions = rest.vector(2).unwrap_or_default();
    write_number(version, out);
    out.push(b',');
    let suites = suites.as_chunks::<2>().0.iter();
    write_numbers(suites.map(|pair| u16::from_be_bytes(*pair).into()), out);
    out.push(b',');
    write_numbers(each_extension(extensions).map(|(kind, _)| kind), out);
    out.push(b',');
    let content = |wanted| {
        each_extension(extensions)
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, content)| content)
    };
    let groups = content(SUPPORTED_GROUPS).and_then(|content| Cursor(content).vector(2));
    let groups = groups.unwrap_or_default().as_chunks::<2>().0.iter();
    write_numbers(groups.map(|pair| u16::from_be_bytes(*pair).into()), out);
    out.push(b',');
    let formats = content(POINT_FORMATS).and_then(|content| Cursor(content).vector(1));
    write_numbers(
        formats.unwrap_or_default().iter().map(|format| usize::from(*format)),
        out,
    );
    Some(())
}

/// Iterates over types and contents of extensions.
fn each_extension(extensions: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = Cursor(extensions);
    std::iter::from_fn(move || Some((rest.number(2)?, rest.vector(2)?)))
}

/// Writes numbers with hyphens between them, without those reserved against ossification (RFC 8701).
fn write_numbers(numbers: impl Iterator<Item = usize>, out: &mut Vec<u8>) {
    let start = out.len();
    for number in numbers.filter(|number| number & 0x0f0f != 0x0a0a) {
        if out.len() > start {
            out.push(b'-');
        }
        write_number(number, out);
    }
}

/// Writes a number of 16 bits in decimal.
fn write_number(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 5];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 || at == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with reserved values, and the published form of its JA3 string.
    #[test]
    fn ja3_strings_are_decimal_numbers_without_reserved_values() {
        let extensions = [
            &[0x0a, 0x0a, 0, 0][..],
            &[0, 10, 0, 8, 0, 6, 0x1a, 0x1a, 0, 29, 0, 23],
            &[0, 11, 0, 2, 1, 0],
            &[0, 23, 0, 0],
        ]
        .concat();
        let body = [
            &[3, 3][..],
            &[0; 32],
            &[0, 0, 6, 0x0a, 0x0a, 0xc0, 0x2b, 0, 0x2f, 1, 0],
            &(extensions.len() as u16).to_be_bytes(),
            &extensions,
        ]
        .concat();
        let mut message = vec![CLIENT_HELLO, 0, 0, body.len() as u8];
        message.extend(&body);
        let mut out = Vec::new();
        assert!(ja3(&message, &mut out));
        assert_eq!(String::from_utf8_lossy(&out), "771,49195-47,10-11-23,29-23,0");
        for length in 0..message.len() {
            assert!(!ja3(&message[..length], &mut out));
        }
    }
}
