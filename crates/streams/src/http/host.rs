//! Hosts of requests and their normal form.

use super::Reading;
use super::target::decoded;

/// Longest host inspected, in bytes: a name has at most 253 (RFC 1035 §2.3.4), the rest is for user information, a port
/// and percent-encoding.
pub const MAX_HOST: usize = 512;

/// Normalised host.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    bytes: [u8; MAX_HOST],
    length: usize,
    /// Port given with the host.
    pub port: Option<u16>,
}

impl Host {
    /// Parses an authority (RFC 3986 §3.2) leniently. Drops user information, decodes percent-encoding, lowers case,
    /// and trims trailing dots and surrounding white space. Returns `None` if it exceeds [`MAX_HOST`].
    pub fn new(authority: &[u8]) -> Option<Host> {
        let authority = authority.trim_ascii();
        if authority.len() > MAX_HOST {
            return None;
        }
        let (name, port) = split_authority(authority, Reading::Lenient);
        let mut host = Host {
            bytes: [0; MAX_HOST],
            length: 0,
            port,
        };
        let mut rest = name;
        while let Some((byte, after)) = decoded(rest) {
            rest = after;
            host.bytes[host.length] = byte.to_ascii_lowercase();
            host.length += 1;
        }
        while host.name().last() == Some(&b'.') {
            host.length -= 1;
        }
        Some(host)
    }

    /// Returns the name, or an address as text; an IPv6 address keeps its brackets.
    pub fn name(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Splits `user@name:8080` into `name` and 8080. Colons within brackets belong to an IPv6 address.
pub fn split_authority(authority: &[u8], reading: Reading) -> (&[u8], Option<u16>) {
    let user = authority.iter().rposition(|&b| b == b'@');
    let host = &authority[user.map_or(0, |at| at + 1)..];
    let end = match (host.first(), reading) {
        (Some(b'['), _) => host.iter().position(|&b| b == b']').map(|end| end + 1),
        (_, Reading::Lenient) => host.iter().rposition(|&b| b == b':'),
        (_, Reading::Suricata) => host.iter().position(|&b| b == b':'),
    };
    let (name, rest) = host.split_at(end.unwrap_or(host.len()));
    let digits = rest.strip_prefix(b":");
    let port = digits.filter(|digits| digits.iter().all(u8::is_ascii_digit));
    match reading {
        // Anything else behind the name is part of it.
        Reading::Lenient if port.is_none() => (host, None),
        _ => (name, port.and_then(number)),
    }
}

/// Parses digits as a port; `None` for no digits or too many.
fn number(digits: &[u8]) -> Option<u16> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
