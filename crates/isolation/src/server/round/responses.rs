//! Responses of the processes: validation, verdicts and counters.

use super::Round;
use crate::layout::{MASKS, Masks, PacketMasks, PacketResponse, all_of, slots};
use crate::server::area::Area;
use tailwater_chain::batch::{Batch, Verdict};

impl Round {
    /// Reads the verdicts of the first `functions` functions. Returns the first one whose response is invalid.
    pub(super) fn read_verdicts(&mut self, count: usize, functions: usize) -> Option<usize> {
        self.through[0] = std::array::from_fn(|word| all_of(count, word));
        (self.moved, self.turned) = (Masks::default(), Masks::default());
        for k in 0..functions {
            if !self.read_response(k, count) {
                return Some(k);
            }
        }
        for k in functions..self.peers.len() {
            self.through[k + 1] = self.through[k];
        }
        None
    }

    /// Reads function `k`'s verdicts on the packets that reached it. Returns `true` if the response is valid.
    fn read_response(&mut self, k: usize, count: usize) -> bool {
        if self.is_bypassed(k) {
            self.through[k + 1] = self.through[k];
            return true;
        }
        let Area {
            response_areas: slates,
            buffer_bytes,
            ..
        } = &*self.area;
        let (slate, round, reasons) = (&slates[k], self.round, self.peers[k].reasons);
        if slate.masks_round() != round {
            return false;
        }
        self.through[k + 1] = Masks::default();
        for word in 0..count.div_ceil(64) {
            let PacketMasks { left, moved } = slate.masks(word);
            let before = self.through[k][word];
            if left & !before != 0 || moved & !left != 0 {
                return false;
            }
            for i in slots(word, before & !left) {
                let Some(PacketResponse::Dropped(reason)) = PacketResponse::decode(slate.response_word(i), round)
                else {
                    return false;
                };
                // An unknown reason must not be confused with the server's own.
                self.reasons[i] = match reason < reasons {
                    true => reason,
                    false => u8::MAX,
                };
                // It may have been written to anywhere before it was dropped. What the first function wrote is behind
                // nobody's turn.
                if k > 0 {
                    self.written[i] = [0, *buffer_bytes as u32];
                }
            }
            let mut all_turned = 0;
            for i in slots(word, moved) {
                match PacketResponse::decode(slate.response_word(i), round) {
                    Some(
                        place @ PacketResponse::Forwarded {
                            start, length, turned, ..
                        },
                    ) if place.fits(*buffer_bytes) => {
                        self.frames[i] = [start, length];
                        all_turned |= u64::from(turned) << (i % 64);
                        let [from, to] = self.written[i];
                        let (start, end) = (u32::from(start), u32::from(start) + u32::from(length));
                        self.written[i] = [from.min(start), to.max(end)];
                    }
                    _ => return false,
                }
            }
            (self.through[k + 1][word], self.moved[word], self.turned[word]) = (left, moved, all_turned);
        }
        true
    }

    /// Marks the packets that a failed process held as lost by its function.
    #[cold]
    pub(super) fn lose(&mut self, failed: usize) {
        let lost = self.peers[failed].reasons;
        for word in 0..MASKS {
            for i in slots(word, self.through[failed][word]) {
                self.reasons[i] = lost;
            }
        }
        self.through[failed + 1..].fill(Masks::default());
    }

    /// Sets the verdicts of the remaining packets that function `k` dropped.
    pub(in crate::server) fn tell(&mut self, k: usize, batch: &mut Batch) {
        if self.through[k] == self.through[k + 1] {
            return;
        }
        let dropped: Masks = std::array::from_fn(|word| self.through[k][word] & !self.through[k + 1][word]);
        let reasons = &self.reasons;
        let is_gone = |at: u16| dropped[usize::from(at) / 64] >> (at % 64) & 1 != 0;
        for (packet, &at) in batch.iter_mut().zip(&self.left) {
            if is_gone(at) {
                packet.verdict = Verdict::Drop(reasons[usize::from(at)]);
            }
        }
        self.left.retain(|&at| !is_gone(at));
    }

    /// Reads function `k`'s counters, and behind them that of its outages, if it has one.
    pub(in crate::server) fn read_notes(&mut self, k: usize, counts: &mut [u64]) {
        if let Some(outage) = counts.get_mut(self.notes[k].len()) {
            *outage = self.outage_packets(k);
        }
        let slate = &self.area.response_areas[k];
        // The area does not yet hold the counters of a process that has not begun, nor still those of one whose
        // successor is being attached.
        let number = self.peers[k].number;
        let present = number != 0 && self.status.up(k) == number;
        for (i, (note, count)) in self.notes[k].iter_mut().zip(counts).enumerate() {
            if present {
                note[1] = slate.counter(i);
            }
            *count = note[0].wrapping_add(note[1]);
        }
    }
}
