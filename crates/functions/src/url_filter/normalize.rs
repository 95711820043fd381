//! Normal form of hosts and paths with the same meaning, for patterns and requests alike.

/// Longest host inspected, in bytes: a name has at most 253 (RFC 1035 §2.3.4), the rest is for user information, a port
/// and percent-encoding.
pub(crate) const MAX_HOST: usize = 512;

/// Normalised host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    bytes: [u8; MAX_HOST],
    length: usize,
    /// Port given with the host.
    pub(crate) port: Option<u16>,
}

impl Host {
    /// Parses an authority (RFC 3986 §3.2). Drops user information, decodes percent-encoding, lowers case, and trims
    /// trailing dots and surrounding white space. Returns `None` if it exceeds [`MAX_HOST`].
    pub(crate) fn new(authority: &[u8]) -> Option<Host> {
        let mut authority = authority.trim_ascii();
        if authority.len() > MAX_HOST {
            return None;
        }
        if let Some(at) = authority.iter().rposition(|&b| b == b'@') {
            authority = &authority[at + 1..];
        }
        let (name, port) = split_port(authority);
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
    pub(crate) fn name(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Splits `name:8080` into `name` and 8080. Colons within brackets belong to an IPv6 address.
fn split_port(authority: &[u8]) -> (&[u8], Option<u16>) {
    let name_end = match authority.first() {
        Some(b'[') => authority.iter().position(|&b| b == b']').map(|end| end + 1),
        _ => authority.iter().rposition(|&b| b == b':'),
    };
    let Some(end) = name_end else {
        return (authority, None);
    };
    let (name, rest) = authority.split_at(end);
    match rest.strip_prefix(b":") {
        Some(digits) if digits.iter().all(u8::is_ascii_digit) => (name, number(digits)),
        _ => (authority, None),
    }
}

/// Parses digits as a port; `None` for no digits or too many.
pub(crate) fn number(digits: &[u8]) -> Option<u16> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the first byte after percent-decoding (RFC 3986 §2.1), and the rest.
#[inline]
fn decoded(bytes: &[u8]) -> Option<(u8, &[u8])> {
    if let [b'%', high, low, rest @ ..] = bytes
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, rest));
    }
    bytes.split_first().map(|(byte, rest)| (*byte, rest))
}

/// Returns the value of a hexadecimal digit.
#[inline]
pub(crate) fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Normalises a path with its query in place and returns its new length, which is never larger.
///
/// Percent-encoding is decoded once, in path and query. In the path backslashes become slashes, repeated slashes become
/// one, and the segments `.` and `..` are resolved (RFC 3986 §5.2.4). A fragment is cut off.
pub(crate) fn path(bytes: &mut [u8]) -> usize {
    let end = memchr::memchr(b'#', bytes).unwrap_or(bytes.len());
    let mut kept = 0;
    // Start of the current segment in the output.
    let mut segment = 0;
    let mut next = 0;
    let mut query = false;
    while next < end {
        let raw = bytes[next];
        let Some((byte, rest)) = decoded(&bytes[next..end]) else {
            break;
        };
        next = end - rest.len();
        if query {
            bytes[kept] = byte;
            kept += 1;
        } else if raw == b'?' {
            kept = close_segment(&bytes[..kept], segment);
            bytes[kept] = b'?';
            kept += 1;
            query = true;
        } else if matches!(byte, b'/' | b'\\') {
            kept = close_segment(&bytes[..kept], segment);
            if kept == 0 || bytes[kept - 1] != b'/' {
                bytes[kept] = b'/';
                kept += 1;
            }
            segment = kept;
        } else {
            bytes[kept] = byte;
            kept += 1;
        }
    }
    if !query {
        kept = close_segment(&bytes[..kept], segment);
    }
    kept
}

/// Returns the output length after resolving the last segment, which starts at `segment`.
fn close_segment(kept: &[u8], segment: usize) -> usize {
    match &kept[segment..] {
        b"." => segment,
        b".." if segment == 0 => 0,
        b".." => {
            // Removes the slash and the previous segment; the root stays.
            let before = &kept[..segment - 1];
            before
                .iter()
                .rposition(|&b| b == b'/')
                .map_or(if kept.first() == Some(&b'/') { 1 } else { 0 }, |slash| slash + 1)
        }
        _ => kept.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        let length = path(&mut bytes);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn paths() {
        for (given, expected) in [
            ("/", "/"),
            ("", ""),
            ("/a/b", "/a/b"),
            ("/a//b", "/a/b"),
            ("/%61/%2e%2E/b", "/b"),
            ("/a/./b/.", "/a/b/"),
            ("/../../a", "/a"),
            ("/a/../..", "/"),
            ("/a/..", "/"),
            ("/a/b/../c?x=/../%41#f", "/a/c?x=/../A"),
            ("/a%2fb%5c..\\c", "/a/c"),
            ("/a%3fb", "/a?b"),
            ("/%zz%4", "/%zz%4"),
            ("/%252e", "/%2e"),
            ("*", "*"),
            ("a/../b", "/b"),
            ("..", ""),
        ] {
            assert_eq!(normal(given), expected, "{given}");
        }
    }

    #[test]
    fn hosts() {
        for (given, name, port) in [
            ("Example.COM", "example.com", None),
            (" example.com.:8080\t", "example.com", Some(8080)),
            ("u:p@%65xample.com", "example.com", None),
            ("[2001:DB8::1]:443", "[2001:db8::1]", Some(443)),
            ("example.com:", "example.com", None),
            ("example.com:99999", "example.com", None),
            ("example.com:x", "example.com:x", None),
            ("...", "", None),
        ] {
            let host = Host::new(given.as_bytes()).unwrap();
            assert_eq!(std::str::from_utf8(host.name()).unwrap(), name, "{given}");
            assert_eq!(host.port, port, "{given}");
        }
        assert!(Host::new(&[b'a'; MAX_HOST + 1]).is_none());
    }

    /// Reference implementation of RFC 3986 §5.2.4 on whole segments.
    fn by_segments(path: &str) -> String {
        let mut kept: Vec<&str> = Vec::new();
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let last = segments.len() - 1;
        for (i, segment) in segments.iter().enumerate() {
            match *segment {
                "." => {}
                ".." => {
                    kept.pop();
                }
                "" if i < last => {}
                segment => {
                    kept.push(segment);
                    continue;
                }
            }
            if i == last {
                kept.push("");
            }
        }
        // An empty last segment stands for the trailing slash; two of them are one.
        format!("/{}", kept.join("/"))
    }

    proptest! {
        #[test]
        fn dot_segments_as_by_segments(path in "(/(a|b|\\.|\\.\\.|\\.a)?){1,8}") {
            prop_assert_eq!(normal(&path), by_segments(&path));
        }

        #[test]
        fn any_bytes_shrink_or_stay(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut copy = bytes.clone();
            prop_assert!(path(&mut copy) <= bytes.len());
            let _ = Host::new(&bytes);
        }
    }
}
