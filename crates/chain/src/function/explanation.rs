//! Explanations of functions' decisions, for traces.

use crate::batch::{Batch, Packet};
use std::fmt;
use tailwater_net::FlowKey;

/// Packet of a batch whose treatment is to be [explained](super::NetworkFunction::explain).
#[derive(Clone, Copy, Debug)]
pub struct TracedPacket<'b> {
    /// Batch, as the function left it.
    pub batch: &'b Batch,
    /// Index of the packet in the batch.
    pub at: usize,
    /// Addresses, ports and protocol of the packet in front of the function.
    pub key: FlowKey,
}

impl<'b> TracedPacket<'b> {
    /// The packet, as the function left it.
    pub fn packet(&self) -> &'b Packet {
        self.batch.packet(self.at)
    }

    /// Frame, as the function left it.
    pub fn frame(&self) -> &'b [u8] {
        self.batch.frame(self.at)
    }
}

/// Longest explanation in bytes.
pub const MAX_EXPLANATION: usize = 192;

/// Text with which a function [explains](super::NetworkFunction::explain) its decision on a packet. It needs no memory
/// of its own: text beyond [`MAX_EXPLANATION`] bytes is cut off, and ends with three dots.
#[derive(Clone, Copy)]
pub struct Explanation {
    length: u8,
    is_cut: bool,
    bytes: [u8; MAX_EXPLANATION],
}

const DOTS: &str = "...";

impl Explanation {
    /// Empty explanation.
    pub const EMPTY: Explanation = Explanation {
        length: 0,
        is_cut: false,
        bytes: [0; MAX_EXPLANATION],
    };

    /// Text so far; empty if the function has nothing to say.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Appends text.
    pub fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing never fails: the rest is cut off.
        let _ = fmt::Write::write_fmt(self, text);
    }

    /// Appends text after a comma, or at the start.
    pub fn add_part(&mut self, text: fmt::Arguments<'_>) {
        if self.length > 0 {
            self.add(format_args!(", "));
        }
        self.add(text);
    }

    /// Copies as much of `text` as fits `room` bytes, whole characters only. Returns `true` if that is all.
    fn copy(&mut self, text: &str, room: usize) -> bool {
        let room = room.min(text.len());
        let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let start = usize::from(self.length);
        self.bytes[start..start + end].copy_from_slice(&text.as_bytes()[..end]);
        self.length += end as u8;
        end == text.len()
    }
}

impl fmt::Write for Explanation {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const { assert!(MAX_EXPLANATION <= u8::MAX as usize) };
        let room = MAX_EXPLANATION - DOTS.len() - usize::from(self.length).min(MAX_EXPLANATION - DOTS.len());
        if !self.is_cut && !self.copy(text, room) {
            self.is_cut = true;
            self.copy(DOTS, DOTS.len());
        }
        Ok(())
    }
}

impl Default for Explanation {
    fn default() -> Explanation {
        Explanation::EMPTY
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_does_not_fit_is_cut_between_characters() {
        let mut text = Explanation::EMPTY;
        text.add_part(format_args!("rule {}", 7));
        text.add_part(format_args!("deny"));
        assert_eq!(text.as_str(), "rule 7, deny");
        for _ in 0..100 {
            text.add(format_args!("\u{e4}\u{20ac}"));
        }
        let text = text.as_str();
        assert!(
            text.len() <= MAX_EXPLANATION && text.len() > MAX_EXPLANATION - 6,
            "{}",
            text.len()
        );
        assert!(text.starts_with("rule 7, deny\u{e4}") && text.ends_with(DOTS));
    }
}
