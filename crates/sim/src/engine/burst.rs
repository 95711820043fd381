//! Burst for the report: the busiest millisecond of a chain's traffic and its surroundings, in steps of the epoch in
//! which active cores are counted.
//!
//! Memory is bounded: only the last steps and those around the busiest millisecond so far are stored. The choice
//! depends on the traffic alone, so all policies show the same burst.

use super::run::inside;
use super::{Control, Engine};
use crate::chain::COUNTED;
use crate::report::{Burst, BurstStep};
use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Number of steps of the busiest millisecond.
const BUSIEST: usize = 10;
/// Steps stored before it. [`AFTER`] counts the steps from its start on.
const BEFORE: usize = 20;
const AFTER: usize = 60;

/// Data that a chain's burst is chosen from.
#[derive(Debug, Default)]
pub(crate) struct BurstRecorder {
    /// Counts up to the last step's end, and the start of counting.
    before: BurstStep,
    from: u64,
    /// Most recent steps.
    recent: VecDeque<BurstStep>,
    /// Maximum packets of a millisecond so far, and the steps around it.
    most: u64,
    busiest: Burst,
    /// Number of later steps that still belong to it.
    wanted: usize,
}

impl BurstRecorder {
    /// Records the counts up to `now`. Cumulative counts are converted to differences per step.
    fn step(&mut self, counts: BurstStep, now: u64) {
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
            self.busiest = Burst {
                start_s: self.recent[first].start_s,
                steps: self.recent.iter().copied().collect(),
            };
            self.wanted = AFTER - BUSIEST;
        } else if self.wanted > 0 {
            self.wanted -= 1;
            self.busiest.steps.push(step);
        }
    }

    /// Returns the busiest burst, if there was a packet.
    pub fn finish(self) -> Option<Burst> {
        (self.most > 0).then_some(self.busiest)
    }
}

impl Engine<'_> {
    /// Starts sampling of the chains that have core mappers.
    pub fn watch(&mut self) {
        let watch = |chain: &super::ChainState| chain.make.is_some().then(BurstRecorder::default);
        self.watches = self.chains.iter().map(watch).collect();
        if self.watches.iter().any(Option::is_some) {
            self.at(COUNTED.0, Control::Watch);
        }
    }

    /// Samples all chains at the end of a step.
    pub(super) fn sample(&mut self, now: u64) {
        let counts = self.counts();
        for (watch, counts) in self.watches.iter_mut().zip(counts) {
            if let Some(watch) = watch {
                watch.step(counts, now);
            }
        }
        self.at(now + COUNTED.0, Control::Watch);
    }

    /// Restarts sampling at the end of the warm-up.
    pub(super) fn restart_sampling(&mut self, now: u64) {
        let counts = self.counts();
        for (watch, before) in self.watches.iter_mut().zip(counts) {
            if let Some(watch) = watch {
                *watch = BurstRecorder {
                    before,
                    from: now,
                    ..BurstRecorder::default()
                };
            }
        }
    }

    /// Returns the current counts of each chain.
    fn counts(&self) -> Vec<BurstStep> {
        let mut counts = vec![BurstStep::default(); self.chains.len()];
        for (counts, chain) in counts.iter_mut().zip(&self.chains) {
            let (window, total) = (&chain.meter.window, &chain.meter.total);
            counts.offered = window.offered + total.offered;
            counts.delivered = window.delivered + total.delivered;
            counts.lost = window.total_lost() + total.total_lost();
            counts.late = window.late.iter().chain(&total.late).sum();
            counts.waiting = inside(&chain.meter);
            counts.dedicated = chain.cores;
            counts.decisions = chain.decisions.decisions;
            counts.flows_moved = chain.decisions.flows_moved;
            counts.packets_handed = chain.decisions.packets_handed;
        }
        for core in &self.cores {
            if let Some((chain, _)) = core.dedicated {
                let counts = &mut counts[usize::from(chain)];
                let in_hands = core.dispatch.as_ref().map_or(0, |d| d.used());
                let buffered = core.transit.buffered.len() + core.transit.next.len();
                let waiting = (core.fifo.len() + in_hands + buffered) as u64;
                counts.longest_queue = counts.longest_queue.max(waiting);
            }
            if let Some(claim) = core.activation
                && let Some((chain, _)) = self.cores[usize::from(claim.dispatcher)].dedicated
            {
                counts[usize::from(chain)].auxiliaries += 1;
            }
        }
        counts
    }
}
