//! Traced packets of a round, and the functions' explanations of them.
//!
//! A round that has some says so by a flag, and names at most [`MAX_TRACED`] slots. Programs that do not know the flag
//! ignore it. The texts lie behind everything else in the response area: a program maps them if the server's file has
//! them.

use super::{
    EXPLANATION_WORDS, EXPLANATIONS, LINE, MAX_TRACED, RESPONSE_AREA_BYTES, RequestArea, ResponseArea, TRACED_SLOTS,
};
use crate::abi::MAX_EXPLANATION;
use std::sync::atomic::Ordering::Relaxed;

/// `RequestArea::flags`: the round has packets that functions explain.
pub const TRACED: u64 = 16;

/// Slots in a word of the request area.
const SLOTS_PER_WORD: usize = 4;
const _: () = assert!(MAX_EXPLANATION.is_multiple_of(8) && MAX_TRACED == SLOTS_PER_WORD * (LINE - TRACED_SLOTS));

impl RequestArea {
    /// Names the slots of the next round's traced packets: the first [`MAX_TRACED`] of these.
    pub fn set_traced(&self, slots: &[u16]) {
        let mut words = [0; MAX_TRACED / SLOTS_PER_WORD];
        for (i, slot) in slots.iter().take(MAX_TRACED).enumerate() {
            words[i / SLOTS_PER_WORD] |= (u64::from(*slot) + 1) << (16 * (i % SLOTS_PER_WORD));
        }
        for (i, word) in words.into_iter().enumerate() {
            self.0.store(TRACED_SLOTS + i, word, Relaxed);
        }
    }

    /// Returns the slots of the round's traced packets, with their numbers. Valid only if the flags have [`TRACED`].
    pub fn traced(&self) -> impl Iterator<Item = (usize, u16)> {
        (0..MAX_TRACED).filter_map(|i| {
            let word = self.0.load(TRACED_SLOTS + i / SLOTS_PER_WORD, Relaxed);
            let slot = (word >> (16 * (i % SLOTS_PER_WORD))) as u16;
            slot.checked_sub(1).map(|slot| (i, slot))
        })
    }
}

impl ResponseArea {
    /// Writes the function's explanation of the round's traced packet `i`; the text ends at its first zero byte. Does
    /// nothing if the server has no room for it.
    pub fn set_explanation(&self, i: usize, round: u64, text: &[u8; MAX_EXPLANATION]) {
        if i >= MAX_TRACED || self.0.len() < RESPONSE_AREA_BYTES {
            return;
        }
        let at = EXPLANATIONS + i * EXPLANATION_WORDS;
        for (word, bytes) in text.as_chunks().0.iter().enumerate() {
            self.0.store(at + 1 + word, u64::from_le_bytes(*bytes), Relaxed);
        }
        self.0.store(at, round, Relaxed);
    }

    /// Returns the function's explanation of the round's traced packet `i`, if there is one. A hostile function may
    /// have written any bytes.
    pub fn explanation(&self, i: usize, round: u64) -> Option<[u8; MAX_EXPLANATION]> {
        let at = EXPLANATIONS + i * EXPLANATION_WORDS;
        if i >= MAX_TRACED || self.0.len() < RESPONSE_AREA_BYTES || self.0.load(at, Relaxed) != round {
            return None;
        }
        let mut text = [0; MAX_EXPLANATION];
        for (word, bytes) in text.as_chunks_mut().0.iter_mut().enumerate() {
            *bytes = self.0.load(at + 1 + word, Relaxed).to_le_bytes();
        }
        Some(text)
    }
}
