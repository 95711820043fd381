//! Explanations of traced packets: the functions write them in their turns, the worker reads them for the trace.

use super::Round;
use crate::layout::{MAX_TRACED, TRACED, slots};
use tailwater_chain::batch::Batch;
use tailwater_chain::function::{Explanation, MAX_EXPLANATION};
use tailwater_sdk::host::Printable;

const _: () = assert!(MAX_EXPLANATION == tailwater_sdk::abi::MAX_EXPLANATION);

impl Round {
    /// Names the batch's traced packets in the request area. Returns the flag of the round.
    #[cold]
    pub(super) fn name_traced(&mut self, batch: &Batch) -> u64 {
        let traced = (0..batch.len()).filter(|at| batch.packet(*at).is_traced());
        self.traced.extend(traced.take(MAX_TRACED).map(|at| at as u16));
        self.area.request_area.set_traced(&self.traced);
        match self.traced.is_empty() {
            true => 0,
            false => TRACED,
        }
    }

    /// Adds function `k`'s explanation of the packet that is at index `at` of the packets that reached it. The text is
    /// from outside: it is bounded and made printable.
    pub(in crate::server) fn explain(&self, k: usize, at: usize, text: &mut Explanation) {
        // The functions did not run: a process failed before.
        if self.traced.is_empty() {
            return;
        }
        let masks = self.through[k].iter().enumerate();
        let slot = masks.flat_map(|(word, bits)| slots(word, *bits)).nth(at);
        let number = slot.and_then(|slot| self.traced.iter().position(|traced| usize::from(*traced) == slot));
        let Some(number) = number else {
            text.add(format_args!(
                "not explained: isolated functions explain {MAX_TRACED} packets of a batch"
            ));
            return;
        };
        if let Some(bytes) = self.area.response_areas[k].explanation(number, self.traced_round) {
            text.add(format_args!("{}", Printable(&bytes)));
        }
    }
}
