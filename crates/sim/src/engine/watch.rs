//! Burst for the report: the busiest millisecond of a chain's traffic and its surroundings, in steps of the epoch in
//! which active cores are counted.
//!
//! Memory is bounded: only the last steps and those around the busiest millisecond so far are stored. The choice
//! depends on the traffic alone, so all policies show the same burst.

use super::burst::Watch;
use super::{Control, Engine};
use crate::chain::COUNTED;
use crate::report::BurstStep;

impl Engine<'_> {
    /// Starts sampling of the chains that have core mappers.
    pub fn watch(&mut self) {
        let watch = |tenant: &super::Tenant| tenant.make.is_some().then(Watch::default);
        self.watches = self.tenants.iter().map(watch).collect();
        if self.watches.iter().any(Option::is_some) {
            self.at(COUNTED.0, Control::Watch);
        }
    }

    /// Samples all chains at the end of a step.
    pub(super) fn look(&mut self, now: u64) {
        let counts = self.counts();
        for (watch, counts) in self.watches.iter_mut().zip(counts) {
            if let Some(watch) = watch {
                watch.step(counts, now);
            }
        }
        self.at(now + COUNTED.0, Control::Watch);
    }

    /// Restarts sampling at the end of the warm-up.
    pub(super) fn watch_anew(&mut self, now: u64) {
        let counts = self.counts();
        for (watch, before) in self.watches.iter_mut().zip(counts) {
            if let Some(watch) = watch {
                *watch = Watch::begin(before, now);
            }
        }
    }

    /// Returns the current counts of each chain.
    fn counts(&self) -> Vec<BurstStep> {
        let mut counts = vec![BurstStep::default(); self.tenants.len()];
        for (counts, tenant) in counts.iter_mut().zip(&self.tenants) {
            let (window, total) = (&tenant.meter.window, &tenant.meter.total);
            counts.offered = window.offered + total.offered;
            counts.delivered = window.delivered + total.delivered;
            counts.lost = window.lost_in_all() + total.lost_in_all();
            counts.late = window.late.iter().chain(&total.late).sum();
            counts.waiting = tenant.meter.inside();
            counts.dedicated = tenant.cores;
            counts.decisions = tenant.decisions.decisions;
            counts.flows_moved = tenant.decisions.flows_moved;
            counts.packets_handed = tenant.decisions.packets_handed;
        }
        for core in &self.cores {
            if let Some((tenant, _)) = core.dedicated {
                let counts = &mut counts[usize::from(tenant)];
                let in_hands = core.dispatch.as_ref().map_or(0, |d| d.used());
                let kept = core.transit.kept.len() + core.transit.next.len();
                let waiting = (core.fifo.len() + in_hands + kept) as u64;
                counts.longest_queue = counts.longest_queue.max(waiting);
            }
            if let Some(claim) = core.claim
                && let Some((tenant, _)) = self.cores[usize::from(claim.dispatcher)].dedicated
            {
                counts[usize::from(tenant)].helpers += 1;
            }
        }
        counts
    }
}
