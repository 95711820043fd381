//! Long queues: selection of queued flows to offload, when they will not be done in time, and of auxiliary cores to
//! relieve.

use super::TailwaterMapper;
use crate::core::{Destination, Notice, Plan, View};

/// Wait of an auxiliary core that takes no more flows.
pub(super) const FULL: u64 = u64::MAX / 2;

impl TailwaterMapper {
    /// Moves flows away from a queue of `wait` nanoseconds. Returns the auxiliary cores that got flows, as a bit map.
    pub(super) fn shorten(&mut self, view: &View<'_>, plan: &mut Plan, wait: u64) -> u64 {
        let limit = match (self.boosting, self.working > 0) {
            (true, _) => 0,
            (false, true) => self.share,
            (false, false) => self.activation_limit(),
        };
        if wait <= limit {
            return 0;
        }
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            self.waits[i] = match auxiliary.taken {
                true => FULL,
                false => self.wait(i, auxiliary, view.now),
            };
        }
        let mut left = wait;
        let (mut used, largest) = self.move_whales(view, plan, &mut left);
        let age = view.now.saturating_sub(view.oldest).0 / u64::from(view.packets.max(1));
        // Dedicated cores take flows before an auxiliary core is activated.
        let is_helped = view
            .auxiliaries
            .iter()
            .any(|auxiliary| auxiliary.dedicated && !auxiliary.taken);
        for activate in [false, true] {
            if !activate && self.working == 0 && !is_helped {
                continue;
            }
            let enough = match (self.boosting, activate) {
                (true, _) => 0,
                (false, false) => self.share,
                (false, true) => self.activation_limit(),
            };
            // Large flows first, so that few move.
            for part in [8, u64::MAX] {
                // Skips the pass over all flows if none is large enough.
                let least = left.saturating_sub(enough) / part;
                if left > enough && least <= largest {
                    used |= self.move_tail(view, plan, &mut left, age, activate, least);
                }
            }
        }
        if self.boosting {
            used |= self.move_rest(view, plan);
            return used;
        }
        if left > self.budget && plan.notice.is_none() {
            let packets = (left - self.budget) / self.costs.packet(false);
            plan.notice = Some(Notice::OutOfCores {
                packets: packets as u32,
            });
        }
        used
    }

    /// Returns the auxiliary cores whose wait is too long, as a bit map, if another core would be sooner. This core
    /// takes `wait` nanoseconds for its queue. Those of the bit map `split_on` have parts of split flows.
    pub(super) fn overloaded(&self, view: &View<'_>, wait: u64, split_on: u64) -> u64 {
        let activate = self.activation_limit();
        let (mut overloaded, mut room) = (0, wait <= activate);
        for (i, auxiliary) in view.auxiliaries.iter().enumerate() {
            if auxiliary.taken || auxiliary.dedicated {
                continue;
            }
            let wait = self.wait(i, auxiliary, view.now);
            // A single flow would take as long on another core, unless it can be split.
            let is_whole = auxiliary.load.flows == 1 && split_on >> i & 1 == 0;
            let can_shed = auxiliary.load.flows > 1 || is_whole && self.can_split();
            overloaded |= u64::from(wait > self.relieve && can_shed) << i;
            room |= wait <= activate;
        }
        if room { overloaded } else { 0 }
    }

    /// Moves all remaining flows to the auxiliary cores that are done first, in time or not.
    fn move_rest(&mut self, view: &View<'_>, plan: &mut Plan) -> u64 {
        let mut used = 0;
        for (flow, queued) in view.queued.iter().enumerate() {
            if queued.bound || plan.destinations[flow] != Destination::OWN_CORE {
                continue;
            }
            let waits = self.waits[..view.auxiliaries.len()].iter().enumerate();
            let usable = waits.filter(|(i, _)| !view.auxiliaries[*i].taken && !view.auxiliaries[*i].dedicated);
            let Some((i, _)) = usable.min_by_key(|(_, wait)| **wait) else {
                return used;
            };
            self.use_auxiliary(i, &view.auxiliaries[i], view.now);
            plan.destinations[flow] = Destination::auxiliary(i);
            self.waits[i] = self.waits[i].saturating_add(self.cost(queued.packets));
            used |= 1 << i;
        }
        used
    }

    /// Moves flows of at least `least` nanoseconds, latest first, until the rest is shared with the active auxiliary
    /// cores or nothing helps. `age` is the difference in waiting time between consecutive packets. Idle auxiliary
    /// cores are used only if `activate`.
    fn move_tail(
        &mut self,
        view: &View<'_>,
        plan: &mut Plan,
        left: &mut u64,
        age: u64,
        activate: bool,
        least: u64,
    ) -> u64 {
        let mut used = 0;
        let mut behind = 0;
        let enough = self.share;
        for (flow, queued) in view.queued.iter().enumerate().rev() {
            if *left <= enough && !self.boosting {
                break;
            }
            behind += u64::from(queued.packets);
            let cost = self.cost(queued.packets);
            let split = plan.splits.iter().any(|split| split.flow == flow);
            let placed = split || plan.destinations[flow] != Destination::OWN_CORE;
            if queued.bound || cost < least || placed {
                continue;
            }
            let budget = self.budget.saturating_sub(age * behind);
            let fits = |i: &usize| {
                let end = self.waits[*i].saturating_add(cost);
                let auxiliary = &view.auxiliaries[*i];
                let open = activate || auxiliary.active || auxiliary.dedicated;
                let most = if auxiliary.dedicated {
                    self.share.min(budget)
                } else {
                    budget
                };
                open && end <= most && (end < *left || self.boosting)
            };
            let all = 0..view.auxiliaries.len();
            let dedicated = all.clone().find(|i| view.auxiliaries[*i].dedicated && fits(i));
            let found = dedicated.or_else(|| all.clone().find(fits));
            let Some(i) = found else { continue };
            self.use_auxiliary(i, &view.auxiliaries[i], view.now);
            plan.destinations[flow] = Destination::auxiliary(i);
            self.waits[i] += cost;
            *left = left.saturating_sub(cost);
            used |= 1 << i;
        }
        used
    }
}
