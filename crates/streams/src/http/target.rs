//! Targets of requests (RFC 9112 §3.2): authority, path and query, and the normal form of paths.

use super::Reading;
use memchr::memchr;
use std::ops::Range;

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

/// Returns the first byte after percent-decoding (RFC 3986 §2.1), and the rest.
#[inline]
pub fn decoded(bytes: &[u8]) -> Option<(u8, &[u8])> {
    if let [b'%', high, low, rest @ ..] = bytes
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        return Some((high << 4 | low, rest));
    }
    bytes.split_first().map(|(byte, rest)| (*byte, rest))
}

/// Returns the range of the authority in an absolute URI (RFC 9112 §3.2.2); `None` if the target has none.
pub fn authority(target: &[u8], reading: Reading) -> Option<Range<usize>> {
    let is_scheme = |b: &u8| b.is_ascii_alphanumeric() || b"+-.".contains(b);
    let length = target.iter().position(|b| !is_scheme(b))?;
    let (scheme, rest) = target.split_at(length);
    let known = match reading {
        Reading::Lenient => length > 0,
        Reading::Suricata => [&b"http"[..], b"https"]
            .iter()
            .any(|name| scheme.eq_ignore_ascii_case(name)),
    };
    if !known || !rest.starts_with(b"://") {
        return None;
    }
    let start = length + 3;
    let ends = |b: &u8| matches!(b, b'/' | b'?' | b'#') || (*b == b'\\' && reading == Reading::Lenient);
    let end = target[start..].iter().position(ends);
    Some(start..end.map_or(target.len(), |end| start + end))
}

/// Normalises a path with its query in place, leniently, and returns its new length, which is never larger.
///
/// The path is [normalised](normalize_path), the query percent-decoded once. A fragment is cut off.
pub fn normalize(bytes: &mut [u8]) -> usize {
    let end = memchr(b'#', bytes).unwrap_or(bytes.len());
    let query = memchr(b'?', &bytes[..end]).unwrap_or(end);
    let path = normalize_path(&mut bytes[..query], Reading::Lenient);
    let decoded = decode(&mut bytes[query..end]);
    bytes.copy_within(query..query + decoded, path);
    path + decoded
}

/// Percent-decodes bytes in place and returns their new length.
fn decode(bytes: &mut [u8]) -> usize {
    let (mut next, mut kept) = (0, 0);
    while let Some((byte, rest)) = decoded(&bytes[next..]) {
        next = bytes.len() - rest.len();
        bytes[kept] = byte;
        kept += 1;
    }
    kept
}

/// Dot segments that are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DotSegments {
    All,
    /// All but the first segment of a path without a slash before it.
    BehindFirstSlash,
    None,
}

impl DotSegments {
    fn of(path: &[u8], reading: Reading) -> DotSegments {
        match (reading, path.first()) {
            (Reading::Lenient, _) => DotSegments::All,
            (Reading::Suricata, Some(b'/' | b'\\' | b'%')) => DotSegments::BehindFirstSlash,
            (Reading::Suricata, _) => DotSegments::None,
        }
    }
}

/// Normalises a path without query and fragment in place, and returns its new length, which is never larger.
///
/// Percent-encoding is decoded once. Then backslashes become slashes, repeated slashes become one, and the segments `.`
/// and `..` are resolved (RFC 3986 §5.2.4), as far as `reading` says.
pub fn normalize_path(bytes: &mut [u8], reading: Reading) -> usize {
    let dots = DotSegments::of(bytes, reading);
    let (mut next, mut kept) = (0, 0);
    // Start of the current segment in the output.
    let mut segment = 0;
    while let Some((byte, rest)) = decoded(&bytes[next..]) {
        next = bytes.len() - rest.len();
        if !matches!(byte, b'/' | b'\\') {
            bytes[kept] = byte;
            kept += 1;
            continue;
        }
        kept = close_segment(&bytes[..kept], segment, dots);
        if kept == 0 || bytes[kept - 1] != b'/' {
            bytes[kept] = b'/';
            kept += 1;
        }
        segment = kept;
    }
    close_segment(&bytes[..kept], segment, dots)
}

/// Returns the output's length after resolving the last segment, which starts at `segment`.
fn close_segment(output: &[u8], segment: usize, dots: DotSegments) -> usize {
    let last = &output[segment..];
    if dots == DotSegments::None || !matches!(last, b"." | b"..") {
        return output.len();
    }
    if segment == 0 {
        return if dots == DotSegments::All { 0 } else { output.len() };
    }
    if last == b"." {
        return segment;
    }
    // Removes the slash and the previous segment; the root stays.
    let before = output[..segment - 1].iter().rposition(|&b| b == b'/');
    match before {
        Some(slash) => slash + 1,
        None if dots == DotSegments::All && output[0] != b'/' => 0,
        None => segment,
    }
}

#[cfg(test)]
mod tests;
