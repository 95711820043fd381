//! Regular expressions: PCRE syntax translated for a linear-time engine.
//!
//! The engine is the `regex` crate, on bytes and without Unicode. Features without a linear-time algorithm
//! (backreferences, lookaround, atomic groups, possessive quantifiers, recursion) are rejected by name.

use regex::bytes::{Regex, RegexBuilder};

/// Largest memory of a compiled expression, in bytes.
const MOST_COMPILED: usize = 1 << 20;
/// Largest memory of its lazily built automaton, per thread, in bytes.
const MOST_LAZY: usize = 1 << 18;

/// Compiled expression.
#[derive(Debug)]
pub struct Expression {
    /// Source text in the rule.
    pub source: String,
    regex: Regex,
}

/// Reasons an expression is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// It needs more than linear time, or too much memory.
    Unsupported(&'static str),
    /// It is malformed.
    Wrong(String),
}

/// Flags that affect the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `i`: case-insensitive.
    pub nocase: bool,
    /// `s`: a dot matches any byte.
    pub dot_all: bool,
    /// `m`: `^` and `$` match at every line.
    pub multi_line: bool,
    /// `x`: white space and comments are ignored.
    pub extended: bool,
    /// `A`: matches at the start only.
    pub anchored: bool,
    /// `E`: `$` matches at the very end only.
    pub dollar_end: bool,
    /// `G`: quantifiers are lazy by default.
    pub ungreedy: bool,
}

impl Expression {
    /// Translates and compiles an expression.
    ///
    /// # Errors
    /// The expression is malformed, or uses an unsupported feature or too much memory.
    pub fn new(source: &str, flags: Flags) -> Result<Expression, ExpressionError> {
        let translated = translate(source, flags)?;
        let regex = RegexBuilder::new(&translated)
            .unicode(false)
            .case_insensitive(flags.nocase)
            .dot_matches_new_line(flags.dot_all)
            .multi_line(flags.multi_line)
            .ignore_whitespace(flags.extended)
            .swap_greed(flags.ungreedy)
            .size_limit(MOST_COMPILED)
            .dfa_size_limit(MOST_LAZY)
            .build();
        match regex {
            Ok(regex) => Ok(Expression {
                source: source.to_owned(),
                regex,
            }),
            Err(regex::Error::CompiledTooBig(_)) => Err(ExpressionError::Unsupported("pcre: more than 1 MiB compiled")),
            Err(error) => {
                let text = error.to_string();
                let last = text.lines().last().unwrap_or_default();
                let last = last.strip_prefix("error: ").unwrap_or(last);
                Err(ExpressionError::Wrong(last.to_owned()))
            }
        }
    }

    /// Returns the first match at or after `from`. Bytes before `from` count as context of the match's start.
    #[inline]
    pub fn find(&self, bytes: &[u8], from: usize) -> Option<(usize, usize)> {
        if from > bytes.len() {
            return None;
        }
        let found = self.regex.find_at(bytes, from)?;
        Some((found.start(), found.end()))
    }
}

/// Translates PCRE syntax to that of the `regex` crate.
fn translate(source: &str, flags: Flags) -> Result<String, ExpressionError> {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len() + 16);
    if flags.anchored {
        out.push_str("\\A(?:");
    }
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        at += match rest[0] {
            b'\\' => escape(rest, false, &mut out)?,
            b'[' => class(rest, &mut out)?,
            b'(' => group(rest, &mut out)?,
            b'{' => match quantifier(rest) {
                Some(length) => {
                    out.push_str(&source[at..at + length]);
                    possessive(&rest[length..])?;
                    length
                }
                None => {
                    out.push_str("\\{");
                    1
                }
            },
            b'}' => {
                out.push_str("\\}");
                1
            }
            b']' => {
                out.push_str("\\]");
                1
            }
            // PCRE's `$` also matches before a final line end.
            b'$' if !flags.multi_line && !flags.dollar_end => {
                out.push_str("(?:\\n?\\z)");
                1
            }
            byte @ (b'*' | b'+' | b'?') => {
                out.push(byte.into());
                possessive(&rest[1..])?;
                1
            }
            byte => {
                literal(byte, &mut out);
                1
            }
        };
    }
    if flags.anchored {
        out.push(')');
    }
    Ok(out)
}

/// Writes a literal byte.
fn literal(byte: u8, out: &mut String) {
    match byte {
        0x20..=0x7e => out.push(byte.into()),
        _ => out.push_str(&format!("\\x{byte:02x}")),
    }
}

fn possessive(rest: &[u8]) -> Result<(), ExpressionError> {
    match rest.first() {
        Some(b'+') => Err(ExpressionError::Unsupported("pcre: possessive quantifier")),
        _ => Ok(()),
    }
}

/// Returns the length of a quantifier in braces, if it is one.
fn quantifier(rest: &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| *byte == b'}')?;
    let inside = &rest[1..end];
    let mut parts = inside.split(|byte| *byte == b',');
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let first = parts.next()?;
    let second = parts.next().unwrap_or_default();
    let right = !first.is_empty() && digits(first) && digits(second) && parts.next().is_none();
    right.then_some(end + 1)
}

/// Translates the start of a group. Returns the number of bytes read.
fn group(rest: &[u8], out: &mut String) -> Result<usize, ExpressionError> {
    let unsupported = |what| Err(ExpressionError::Unsupported(what));
    if rest.get(1) == Some(&b'*') {
        return unsupported("pcre: verb");
    }
    if rest.get(1) != Some(&b'?') {
        out.push('(');
        return Ok(1);
    }
    match &rest[2..] {
        [b'=' | b'!', ..] | [b'<', b'=' | b'!', ..] => {
            return unsupported("pcre: lookahead or lookbehind");
        }
        [b'>', ..] => return unsupported("pcre: atomic group"),
        [b'(', ..] => return unsupported("pcre: condition"),
        [b'R' | b'&' | b'0'..=b'9' | b'+', ..] | [b'P', b'>' | b'=', ..] => {
            return unsupported("pcre: recursion or reference");
        }
        [b'#', ..] => {
            let end = rest.iter().position(|byte| *byte == b')');
            let end = end.ok_or_else(|| {
                ExpressionError::Wrong("expected \")\" at the end of the comment, found none".to_owned())
            })?;
            return Ok(end + 1);
        }
        _ => {}
    }
    out.push_str("(?");
    Ok(2)
}

/// Translates an escape. Returns the number of bytes read.
fn escape(rest: &[u8], in_class: bool, out: &mut String) -> Result<usize, ExpressionError> {
    let Some(&byte) = rest.get(1) else {
        return Err(ExpressionError::Wrong(
            "expected a character after the backslash, found the end".to_owned(),
        ));
    };
    let push = |out: &mut String, text: &str| {
        out.push_str(text);
        Ok(2)
    };
    match byte {
        b'd' | b'D' | b's' | b'S' | b'w' | b'W' | b'n' | b'r' | b't' | b'f' | b'v' | b'a' => {
            out.push('\\');
            out.push(byte.into());
            Ok(2)
        }
        b'b' if in_class => push(out, "\\x08"),
        b'b' | b'B' | b'A' | b'z' => {
            out.push('\\');
            out.push(byte.into());
            Ok(2)
        }
        b'Z' => push(out, "(?:\\n?\\z)"),
        b'e' => push(out, "\\x1b"),
        b'h' if in_class => push(out, "\\t\\x20"),
        b'h' => push(out, "[\\t\\x20]"),
        b'R' if !in_class => push(out, "(?:\\r\\n|[\\n\\r\\f\\v])"),
        b'N' if !in_class => push(out, "[^\\n]"),
        b'x' => {
            let (digits, length) = match rest.get(2) {
                Some(b'{') => {
                    let end = rest.iter().position(|byte| *byte == b'}').unwrap_or(2);
                    (&rest[3..end.max(3)], end + 1)
                }
                _ => {
                    let digits = rest[2..].iter().take(2).take_while(|b| b.is_ascii_hexdigit());
                    let count = digits.count();
                    (&rest[2..2 + count], 2 + count)
                }
            };
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            let digits = if digits.is_empty() { "0" } else { digits };
            match u8::from_str_radix(digits, 16) {
                Ok(value) => {
                    out.push_str(&format!("\\x{value:02x}"));
                    Ok(length)
                }
                Err(_) => Err(ExpressionError::Wrong(format!(
                    "expected a hexadecimal byte, found \\x{digits}"
                ))),
            }
        }
        b'0' => {
            let digits = rest[1..].iter().take(3).take_while(|b| matches!(b, b'0'..=b'7'));
            let (count, value) = digits.fold((0, 0u32), |(count, value), digit| {
                (count + 1, value * 8 + u32::from(digit - b'0'))
            });
            out.push_str(&format!("\\x{:02x}", value & 0xff));
            Ok(1 + count)
        }
        b'1'..=b'9' if !in_class => Err(ExpressionError::Unsupported("pcre: backreference")),
        b'k' | b'g' => Err(ExpressionError::Unsupported("pcre: backreference")),
        b'K' => Err(ExpressionError::Unsupported("pcre: \\K")),
        b'p' | b'P' | b'X' | b'C' | b'G' | b'Q' | b'E' | b'H' | b'V' | b'c' => {
            Err(ExpressionError::Unsupported("pcre: escape sequence"))
        }
        _ if byte.is_ascii_alphanumeric() => {
            // Literal byte.
            literal(byte, out);
            Ok(2)
        }
        b'<' | b'>' | 0..0x20 | 0x7f.. => {
            literal(byte, out);
            Ok(2)
        }
        _ => {
            out.push('\\');
            out.push(byte.into());
            Ok(2)
        }
    }
}

/// Translates a class in brackets. Returns the number of bytes read.
fn class(rest: &[u8], out: &mut String) -> Result<usize, ExpressionError> {
    out.push('[');
    let mut at = 1;
    if rest.get(at) == Some(&b'^') {
        out.push('^');
        at += 1;
    }
    let first = at;
    loop {
        let Some(&byte) = rest.get(at) else {
            return Err(ExpressionError::Wrong(
                "expected \"]\" at the end of the class, found none".to_owned(),
            ));
        };
        match byte {
            b']' if at > first => {
                out.push(']');
                return Ok(at + 1);
            }
            b'\\' => at += escape(&rest[at..], true, out)?,
            b'[' if rest.get(at + 1) == Some(&b':') => {
                let end = rest[at..].windows(2).position(|pair| pair == b":]");
                match end {
                    Some(end) => {
                        let name = &rest[at..at + end + 2];
                        out.push_str(&String::from_utf8_lossy(name));
                        at += end + 2;
                    }
                    None => {
                        out.push_str("\\[");
                        at += 1;
                    }
                }
            }
            // An escape does not end a range: the dash is literal.
            b'-' if at > first
                && rest.get(at + 1).is_some_and(|next| *next != b']')
                && !is_set(&rest[..at], &rest[at + 1..]) =>
            {
                out.push('-');
                at += 1;
            }
            b'[' | b']' | b'&' | b'~' | b'-' | b'#' | b' ' => {
                out.push('\\');
                out.push(byte.into());
                at += 1;
            }
            _ => {
                literal(byte, out);
                at += 1;
            }
        }
    }
}

/// Returns `true` if either side of a dash is a set (`\d`), so that the dash is no range.
fn is_set(before: &[u8], after: &[u8]) -> bool {
    let set = |byte: u8| matches!(byte, b'd' | b'D' | b's' | b'S' | b'w' | b'W' | b'h');
    let behind = matches!(before, [.., b'\\', byte] if set(*byte));
    let ahead = matches!(after, [b'\\', byte, ..] if set(*byte));
    behind || ahead
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(source: &str, flags: Flags, bytes: &[u8]) -> Option<(usize, usize)> {
        Expression::new(source, flags).unwrap().find(bytes, 0)
    }

    #[test]
    fn pcre_is_understood() {
        let plain = Flags::default();
        let nocase = Flags { nocase: true, ..plain };
        // Expected results are PCRE's, from pcretest.
        assert_eq!(finds("^\\/a\\/[^\\/]{3}$", plain, b"/a/xyz"), Some((0, 6)));
        assert_eq!(finds("b$", plain, b"ab\n"), Some((1, 3)));
        assert_eq!(finds("b$", plain, b"ab\nc"), None);
        assert_eq!(finds("a{x", plain, b"a{x"), Some((0, 3)));
        assert_eq!(finds("a{,3}", plain, b"a{,3}"), Some((0, 5)));
        assert_eq!(finds("[\\d-x]+", plain, b"a1-x"), Some((1, 4)));
        assert_eq!(finds("[]a]+", plain, b"x]a"), Some((1, 3)));
        assert_eq!(finds("[a[b]+", plain, b"[ab"), Some((0, 3)));
        assert_eq!(finds("[a&&b]+", plain, b"&ab"), Some((0, 3)));
        assert_eq!(finds("[\\x00-\\x1f]", plain, b"a\x07"), Some((1, 2)));
        assert_eq!(finds("\\xe4", plain, b"\xe4"), Some((0, 1)));
        assert_eq!(finds("\\x5c\\0", plain, b"\\\0"), Some((0, 2)));
        assert_eq!(finds("h\\w+\\b", nocase, b"xHallo!"), Some((1, 6)));
        assert_eq!(finds("a.b", plain, b"a\nb"), None);
        assert_eq!(finds("a.b", Flags { dot_all: true, ..plain }, b"a\nb"), Some((0, 3)));
        assert_eq!(
            finds(
                "^b",
                Flags {
                    multi_line: true,
                    ..plain
                },
                b"a\nb"
            ),
            Some((2, 3))
        );
        assert_eq!(
            finds(
                "b|c",
                Flags {
                    anchored: true,
                    ..plain
                },
                b"ac"
            ),
            None
        );
    }

    #[test]
    fn what_takes_more_than_linear_time_is_named() {
        for (source, what) in [
            ("a(?!b)", "pcre: lookahead or lookbehind"),
            ("(?<=a)b", "pcre: lookahead or lookbehind"),
            ("(a)\\1", "pcre: backreference"),
            ("(?>a)b", "pcre: atomic group"),
            ("a++b", "pcre: possessive quantifier"),
            ("(((a{1,999}){1,999}){1,99})", "pcre: more than 1 MiB compiled"),
        ] {
            let refused = Expression::new(source, Flags::default()).unwrap_err();
            assert_eq!(refused, ExpressionError::Unsupported(what), "{source}");
        }
        for source in ["(a", "[a", "a\\", "*a", "\\x{123}"] {
            let wrong = Expression::new(source, Flags::default()).unwrap_err();
            assert!(matches!(wrong, ExpressionError::Wrong(_)), "{source}");
        }
    }
}
