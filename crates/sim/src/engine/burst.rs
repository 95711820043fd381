//! The burst that the report shows: the busiest millisecond of a chain's traffic and what is around it, in
//! steps as long as the epochs that active cores are counted in.
//!
//! What is kept is bounded: the last steps, and those around the busiest millisecond so far. Which one that
//! is depends on the traffic alone, so that all policies are shown in the same burst.

use crate::chain::COUNTED;
use crate::report::{Burst, BurstStep};
use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Steps of the busiest millisecond.
const BUSIEST: usize = 10;
/// Steps in front of it that are kept, and steps from its start on.
const BEFORE: usize = 20;
const AFTER: usize = 60;

/// What a chain's burst is chosen from.
#[derive(Debug, Default)]
pub(crate) struct BurstRecorder {
    /// Counts up to the last step's end, and when nothing had been counted.
    before: BurstStep,
    from: u64,
    /// The last steps.
    recent: VecDeque<BurstStep>,
    /// The most packets of a millisecond so far, and the steps around it.
    most: u64,
    buffered: Burst,
    /// Steps to come that belong to it.
    wanted: usize,
}

impl BurstRecorder {
    /// A watch that begins at `from`, when this had been counted.
    pub fn begin(before: BurstStep, from: u64) -> BurstRecorder {
        BurstRecorder {
            before,
            from,
            ..BurstRecorder::default()
        }
    }

    /// Takes the counts up to `now`, of which those that grow are made into what the step added.
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

    /// The busiest burst, if there was a packet.
    pub fn finish(self) -> Option<Burst> {
        (self.most > 0).then_some(self.buffered)
    }
}
