//! Burst in the report: the busiest millisecond of a chain's traffic and the time around it. Its steps are as long as
//! the epochs in which active cores are counted.
//!
//! Memory is bounded: the last steps are stored, and those around the busiest millisecond so far. That millisecond
//! depends on the traffic alone, so all policies report the same burst.

use crate::chain::COUNTED;
use crate::report::{Burst, BurstStep};
use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Number of steps in the busiest millisecond.
const BUSIEST: usize = 10;
/// Number of steps recorded before it, and from its start.
const BEFORE: usize = 20;
const AFTER: usize = 60;

/// Recorder of a chain's busiest burst.
#[derive(Debug, Default)]
pub(crate) struct BurstRecorder {
    /// Counts at the end of the last step, and the start of the recording.
    before: BurstStep,
    from: u64,
    /// The last steps.
    recent: VecDeque<BurstStep>,
    /// Maximum packets in a millisecond so far, and the steps around it.
    most: u64,
    buffered: Burst,
    /// Number of further steps that belong to it.
    wanted: usize,
}

impl BurstRecorder {
    /// Starts a recording at `from`, with the counts at that time.
    pub fn begin(before: BurstStep, from: u64) -> BurstRecorder {
        BurstRecorder {
            before,
            from,
            ..BurstRecorder::default()
        }
    }

    /// Records the step that ends at `now`. Cumulative counts are stored as their increase in the step.
    pub fn step(&mut self, counts: BurstStep, now: u64) {
        let before = std::mem::replace(&mut self.before, counts);
        let start = now - COUNTED.0;
        if start < self.from {
            return;
        }
        let step = BurstStep {
            start_s: Nanos(start).as_secs_f64(),
            offered: counts.offered - before.offered,
            delivered: counts.delivered - before.delivered,
            lost: counts.lost - before.lost,
            late: counts.late - before.late,
            decisions: counts.decisions - before.decisions,
            flows_moved: counts.flows_moved - before.flows_moved,
            packets_handed: counts.packets_handed - before.packets_handed,
            ..counts
        };
        if self.recent.len() == BEFORE + BUSIEST {
            self.recent.pop_front();
        }
        self.recent.push_back(step);
        let first = self.recent.len().saturating_sub(BUSIEST);
        let offered = self.recent.range(first..).map(|step| step.offered).sum();
        if offered > self.most {
            self.most = offered;
            self.buffered = Burst {
                start_s: self.recent[first].start_s,
                steps: self.recent.iter().copied().collect(),
            };
            self.wanted = AFTER - BUSIEST;
        } else if self.wanted > 0 {
            self.wanted -= 1;
            self.buffered.steps.push(step);
        }
    }

    /// Returns the busiest burst, if any packet arrived.
    pub fn finish(self) -> Option<Burst> {
        (self.most > 0).then_some(self.buffered)
    }
}
