//! Burst for the report: the busiest millisecond of a chain's traffic and its surroundings, in steps of the epoch in
//! which active cores are counted.
//!
//! Memory is bounded: only the last steps and those around the busiest millisecond so far are stored. The choice
//! depends on the traffic alone, so all policies show the same burst.

use super::burst::BurstRecorder;
use super::{Control, Engine};
use crate::chain::COUNTED;
use crate::report::BurstStep;

impl Engine<'_> {
    /// Starts sampling of the chains that have core mappers.
    pub fn watch(&mut self) {
        let watch = |chain: &super::chain_state::ChainState| chain.make.is_some().then(BurstRecorder::default);
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
                *watch = BurstRecorder::begin(before, now);
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
            counts.waiting = chain.meter.inside();
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
            if let Some(activation) = core.activation
                && let Some((chain, _)) = self.cores[usize::from(activation.dispatcher)].dedicated
            {
                counts[usize::from(chain)].auxiliaries += 1;
            }
        }
        counts
    }
}
