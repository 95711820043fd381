//! Steps of traced packets, with the functions' explanations.

use super::{Chain, NO_STATE};
use crate::batch::{Batch, Packet, Verdict};
use crate::function::{Explanation, FlowStates, TracedPacket};
use tailwater_net::Nanos;

impl Chain {
    /// Sends a step for each traced packet that function `i` has processed. The batch was taken at `now`.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_stage(&mut self, i: usize, batch: &Batch, now: Nanos) {
        self.trace_packets(i, batch, now, |_| true);
    }

    /// Sends a step for each traced packet that function `i` drops on its flow's first packet.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_refused(&mut self, i: usize, batch: &Batch, now: Nanos) {
        if self.stopwatch.as_ref().is_some_and(|watch| watch.has_traced()) {
            self.trace_packets(i, batch, now, |packet| matches!(packet.verdict, Verdict::Drop(_)));
        }
    }

    fn trace_packets(&mut self, i: usize, batch: &Batch, now: Nanos, tells: impl Fn(&Packet) -> bool) {
        let Some(watch) = &self.stopwatch else {
            return;
        };
        let (began, ended) = (watch.began(), watch.read());
        let stage = &self.stages[i];
        for at in 0..batch.len() {
            let packet = batch.packet(at);
            if !packet.is_traced() || !tells(packet) {
                continue;
            }
            let mut text = Explanation::EMPTY;
            let mut flows = FlowStates {
                ends: &mut self.ends,
                now,
                version: stage.function.version(),
                table: stage.slot.as_ref().and(self.table.as_mut()),
                slot: stage.slot.as_ref().unwrap_or(NO_STATE),
            };
            let traced = TracedPacket {
                batch,
                at,
                key: watch.key_before(at),
            };
            stage.function.explain(&traced, &mut flows, &mut text);
            watch.send_step((batch, at), self.table.as_ref(), Some(i), (text, [began, ended]));
        }
    }
}
