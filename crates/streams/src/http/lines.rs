//! Lines of heads, with the line ends that receivers accept: CRLF, LF, LFCR, and CR alone.

use memchr::memchr2;

/// Line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Length without the line end.
    pub(crate) length: usize,
    /// Position after the line end.
    pub(crate) next: usize,
    /// `true` if the line end is neither CRLF nor LF.
    pub(crate) odd: bool,
}

impl Line {
    /// Returns `true` for a blank line, which ends a head. A line of several CRs before an LF does not.
    #[inline]
    pub(crate) fn is_blank(&self) -> bool {
        self.length == 0 && self.next <= 2
    }
}

/// Returns the first line; `None` if its end may lie beyond the available bytes.
#[inline]
pub(crate) fn line(bytes: &[u8]) -> Option<Line> {
    let length = memchr2(b'\r', b'\n', bytes)?;
    if let [b'\r', b'\n', ..] = bytes[length..] {
        return Some(Line {
            length,
            next: length + 2,
            odd: false,
        });
    }
    odd_line(bytes, length)
}

/// Returns a line whose end is not CRLF.
#[cold]
fn odd_line(bytes: &[u8], length: usize) -> Option<Line> {
    let end = &bytes[length..];
    let (ends, odd) = match end {
        // The CR belongs to this line end, unless it begins the next one.
        [b'\n', b'\r', third, ..] if !matches!(third, b'\r' | b'\n') => (2, true),
        [b'\n', ..] => (1, false),
        _ => {
            let returns = end.iter().take_while(|byte| **byte == b'\r').count();
            match end.get(returns)? {
                b'\n' => (returns + 1, true),
                _ => (1, true),
            }
        }
    };
    Some(Line {
        length,
        next: length + ends,
        odd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mut bytes: &[u8]) -> Vec<(String, bool, bool)> {
        let mut found = Vec::new();
        while let Some(line) = line(bytes) {
            let text = String::from_utf8_lossy(&bytes[..line.length]).into_owned();
            found.push((text, line.odd, line.is_blank()));
            bytes = &bytes[line.next..];
        }
        found
    }

    #[test]
    fn all_line_ends_that_receivers_accept() {
        let of = |text: &str, odd, blank| (text.to_owned(), odd, blank);
        assert_eq!(
            lines(b"a\r\nb\n\r\nc"),
            [of("a", false, false), of("b", false, false), of("", false, true)]
        );
        assert_eq!(
            lines(b"a\rb\r\rc"),
            [of("a", true, false), of("b", true, false), of("", true, true)]
        );
        assert_eq!(
            lines(b"a\n\rb\n\r\nc"),
            [of("a", true, false), of("b", false, false), of("", false, true)]
        );
        // CRs before CRLF are part of one line end, and do not end the head.
        assert_eq!(
            lines(b"a\r\n\r\r\nb\r\n"),
            [of("a", false, false), of("", true, false), of("b", false, false)]
        );
        // The byte after a CR is needed.
        assert_eq!(lines(b"a\r"), []);
        assert_eq!(lines(b"a"), []);
    }
}
