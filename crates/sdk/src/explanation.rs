//! Explanations of a function's decisions, as it writes them.

use crate::abi;
use std::fmt::{self, Write};
use std::os::raw::c_char;

/// Bytes of an explanation without its terminating zero byte.
const ROOM: usize = abi::MAX_EXPLANATION - 1;

/// Text in which a function [explains](crate::Function::explain) its decision on a packet: a line of at most 191 bytes,
/// the rest of which is cut off. It needs no memory of its own.
#[derive(Debug)]
pub struct Explanation<'a> {
    to: &'a mut [c_char; abi::MAX_EXPLANATION],
    length: usize,
}

impl<'a> Explanation<'a> {
    /// Begins an empty text.
    pub(crate) fn new(to: &'a mut abi::Explanation) -> Explanation<'a> {
        to.text[0] = 0;
        Explanation {
            to: &mut to.text,
            length: 0,
        }
    }

    /// Appends text, such as `format_args!("rule {number}")`.
    pub fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing never fails: the rest is cut off.
        let _ = self.write_fmt(text);
    }
}

impl Write for Explanation<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (ROOM - self.length).min(text.len());
        let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        for byte in &text.as_bytes()[..end] {
            self.to[self.length] = *byte as c_char;
            self.length += 1;
        }
        self.to[self.length] = 0;
        if end < text.len() {
            // Text behind a cut is not appended to it.
            self.to[self.length..].fill(0);
            self.length = ROOM;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_cut_between_characters() {
        let mut raw = abi::Explanation {
            text: [1; abi::MAX_EXPLANATION],
        };
        let mut text = Explanation::new(&mut raw);
        text.add(format_args!("rule {}, ", 7));
        for _ in 0..100 {
            text.add(format_args!("\u{20ac}\u{e4}"));
        }
        text.add(format_args!("x"));
        let bytes = raw.text.map(|byte| byte as u8);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap();
        let text = std::str::from_utf8(&bytes[..end]).unwrap();
        assert!(text.starts_with("rule 7, \u{20ac}\u{e4}"), "{text}");
        assert!(text.len() < abi::MAX_EXPLANATION && text.len() > ROOM - 4, "{text}");
        assert!(!text.contains('x'), "{text}");
    }
}
