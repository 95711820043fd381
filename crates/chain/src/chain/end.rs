//! End of flows: by their idle timeouts, and at the end of the run.

use super::Chain;
use super::flow_callbacks::{EXPIRE_BUDGET, report_flow_ends, run_timers};
use crate::batch::MAX_BATCH;
use tailwater_net::Nanos;

impl Chain {
    /// Expires idle flows, up to a fixed budget for each call.
    #[inline]
    pub fn expire(&mut self, now: Nanos) {
        if self.predecessor.is_some() {
            self.claim_some(now);
        }
        if let Some(table) = &mut self.table
            && !self.flows_are_held
        {
            table.expire(now, EXPIRE_BUDGET, &mut self.ends);
            self.end_expired(now);
        }
    }

    /// Runs the timers that are due, and reports the flows that have expired.
    #[inline]
    pub(super) fn end_expired(&mut self, now: Nanos) {
        let Some(table) = &mut self.table else {
            return;
        };
        while let Some(flow) = table.take_due_flow() {
            run_timers(&mut self.stages, table, flow, now);
        }
        if let Some(keep) = &mut self.external_state {
            self.ends.each(|key, state| keep.record_ended(key, state));
        }
        report_flow_ends(&mut self.stages, &mut self.ends);
    }

    /// Ends the run after the last packet: ends every remaining flow, so that functions that report flows see all of
    /// them. Returns the packets counted during the call for each of the [`reasons`](Chain::reasons).
    pub fn drain(mut self) -> Vec<u64> {
        self.claim_all();
        let before: Vec<u64> = self.reason_counts().collect();
        self.end_flows();
        for stage in &mut self.stages {
            if let Some(run_end) = stage.function.run_end() {
                run_end.after_flow_ends();
            }
        }
        let counted = self.reason_counts().zip(before);
        counted.map(|(after, before)| after - before).collect()
    }

    fn end_flows(&mut self) {
        for stage in &mut self.stages {
            if let Some(run_end) = stage.function.run_end() {
                run_end.drain();
            }
        }
        let wanted = self.stages.iter_mut().any(|stage| stage.function.flow_ends().is_some());
        let Some(table) = self.table.as_mut().filter(|_| wanted) else {
            return;
        };
        loop {
            // At most the number of flows, with companions, that `ends` has room for.
            let more = table.end_some(MAX_BATCH, &mut self.ends);
            report_flow_ends(&mut self.stages, &mut self.ends);
            if !more {
                return;
            }
        }
    }
}
