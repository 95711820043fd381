//! Explanations that functions wrote, made printable.

use std::fmt::{self, Write};

/// Printable form of the explanation that a function wrote, which may be any bytes: the text up to the first zero byte,
/// on one line. U+FFFD stands for bytes that are no UTF-8, control characters, and characters that change how the
/// others are shown. Formatting it allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        for chunk in self.0[..end].utf8_chunks() {
            for c in chunk.valid().chars() {
                f.write_char(if is_printable(c) {
                    c
                } else {
                    char::REPLACEMENT_CHARACTER
                })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

fn is_printable(c: char) -> bool {
    // Line and paragraph separators, and marks that reverse, join or hide the characters behind them.
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_made_printable() {
        for (bytes, expected) in [
            (&b"rule 7\0rest"[..], "rule 7"),
            (b"", ""),
            (b"no end", "no end"),
            (b"a\nb\x1b[31m", "a\u{fffd}b\u{fffd}[31m"),
            (b"a\xffb\xe2\x82", "a\u{fffd}b\u{fffd}"),
            ("\u{202e}live\u{2028}\u{e4}".as_bytes(), "\u{fffd}live\u{fffd}\u{e4}"),
        ] {
            assert_eq!(Printable(bytes).to_string(), expected);
        }
    }
}
