//! Chunked transfer coding (RFC 9112 §7.1), read as leniently as receivers do.

use super::lines::line;
use super::target::hex;
use memchr::memchr;

/// Longest line with a chunk's size, in bytes.
const LONGEST_LINE: usize = 4096;
/// Bytes in front of a size that some receiver ignores.
const LONGEST_JUNK: usize = 2;

/// Line with a chunk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeLine {
    /// It is not complete.
    More,
    /// Size, position after the line, and `true` if it is malformed.
    Size(u64, usize, bool),
    /// There is no size: the body is not chunked from here on.
    Wrong,
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | b' ' | b'\t' | 0x0b | 0x0c)
}

/// Parses a line with a chunk's size. Ignores blanks and blank lines before it, up to two other bytes (a sign, a
/// comma), and everything after the digits.
pub(crate) fn size_line(bytes: &[u8]) -> SizeLine {
    let blanks = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    let text = &bytes[blanks..];
    let junk = text.iter().take_while(|byte| hex(**byte).is_none()).count();
    let mut at = match (junk, text.get(junk)) {
        (0, Some(_)) => 0,
        (junk, _) if junk > LONGEST_JUNK => return SizeLine::Wrong,
        (_, None) => return SizeLine::More,
        // A line end or a letter in front of the digits is no sign.
        (junk, _) if text[..junk].iter().any(|byte| matches!(byte, b'\r' | b'\n' | b'<')) => return SizeLine::Wrong,
        (junk, _) => junk,
    };
    let negative = text[..at].contains(&b'-');
    match &text[at..] {
        [b'0', b'x' | b'X', digit, ..] if hex(*digit).is_some() => at += 2,
        [b'0'] | [b'0', b'x' | b'X'] => return SizeLine::More,
        _ => {}
    }
    let digits = text[at..].iter().take_while(|byte| hex(**byte).is_some()).count();
    let number = &text[at..at + digits];
    let behind = &text[at + digits..];
    let Some(end) = line(behind) else {
        return if text.len() > LONGEST_LINE {
            SizeLine::Wrong
        } else {
            SizeLine::More
        };
    };
    let mut next = blanks + at + digits + end.next;
    if behind[end.length..end.next] == *b"\r" {
        // CRs alone are one line end.
        next += bytes[next..].iter().take_while(|byte| **byte == b'\r').count();
    }
    let odd = blanks + at > 0 || end.odd || !matches!(behind.first(), Some(b'\r' | b'\n' | b';'));
    SizeLine::Size(value(number, negative), next, odd)
}

/// Returns the number of hexadecimal digits, at most 2⁶⁰. A negative one counts from 2³² or 2⁶⁴.
fn value(digits: &[u8], negative: bool) -> u64 {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let digits = &digits[zeros..];
    if digits.len() > 16 {
        return 1 << 60;
    }
    let digit = |number: u64, digit: &u8| number << 4 | u64::from(hex(*digit).unwrap_or(0));
    let number = digits.iter().fold(0u64, digit);
    match (negative, digits.len()) {
        (false, _) => number.min(1 << 60),
        (true, 9..) => number.wrapping_neg().min(1 << 60),
        (true, _) => u64::from((number as u32).wrapping_neg()),
    }
}

/// Returns the position after the line end behind a chunk's data, and `true` if it is malformed; `None` if more bytes
/// are needed. Other bytes up to the line end are ignored.
pub(crate) fn data_end(bytes: &[u8]) -> Option<(usize, bool)> {
    let returns = bytes.iter().take_while(|byte| **byte == b'\r').count();
    match bytes.get(returns)? {
        b'\n' => Some((returns + 1, returns != 1)),
        _ if returns > 0 => Some((returns, true)),
        _ => memchr(b'\n', bytes).map(|end| (end + 1, true)),
    }
}

/// Concatenates the data of chunks, as far as available. Bytes from a line without a size on are copied as they are.
pub fn unchunk(mut bytes: &[u8], out: &mut Vec<u8>) {
    loop {
        match size_line(bytes) {
            SizeLine::More | SizeLine::Size(0, ..) => return,
            SizeLine::Wrong => return out.extend_from_slice(bytes),
            SizeLine::Size(size, next, _) => {
                let data = &bytes[next..];
                let there = data.len().min(usize::try_from(size).unwrap_or(usize::MAX));
                out.extend_from_slice(&data[..there]);
                bytes = &data[there..];
            }
        }
        match data_end(bytes) {
            Some((next, _)) => bytes = &bytes[next..],
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        unchunk(bytes, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn sizes_are_read_as_receivers_read_them() {
        for size in [
            "5",
            "05",
            "00000000000000000000005",
            "5 ",
            "5\t",
            "5\r",
            "5;a=b",
            "5x",
            "5,",
            "5\0",
            " 5",
            "\r\n5",
            "\n5",
            "x5",
            "+5",
            ",5",
            "0x5",
            "-fffffffb",
            "-fffffffffffffffb",
        ] {
            let body = format!("{size}\r\nhello\r\n{size}\r\nworld\r\n0\r\n\r\n");
            assert_eq!(plain(body.as_bytes()), "helloworld", "{size:?}");
        }
        assert_eq!(plain(b"5\rhello\r5\rworld\r0\r\r"), "helloworld");
        assert_eq!(plain(b"5\r\rhello\r\r5\r\rworld\r\r0\r\r"), "helloworld");
        assert_eq!(plain(b"5\nhello\n5\nworld\n0\n\n"), "helloworld");
        assert_eq!(plain(b"5\r\nhello junk\r\n5\r\nworld"), "helloworld");
        // Not chunked at all, or from some byte on.
        assert_eq!(plain(b"<html>\r\n5\r\n"), "<html>\r\n5\r\n");
        assert_eq!(plain(b"5\r\nhello\r\n<p>world"), "hello<p>world");
        assert_eq!(plain(b"ffffffffffffffffff\r\nhello"), "hello");
    }
}
