//! The controller: a round from a view to a plan, and what it remembers in between.

use super::actions::RackPlan;
use super::options::RackOptions;
use super::rearrange::{Rearranged, Rearrangement, evaluated};
use super::resize::ChainMemory;
use super::round::{Group, Round};
use super::scaling::{ChainLoad, ScalingPolicy};
use super::view::{RackThroughput, RackView};
use crate::improve::Saving;
use std::collections::BTreeMap;

/// Controller of a rack. Its state is times for hysteresis and the rest of a better plan: a new controller goes on from
/// the same view where another one stopped, only later.
#[derive(Debug)]
pub struct RackController<P> {
    options: RackOptions,
    policy: P,
    chains: BTreeMap<String, ChainMemory>,
    /// Moves of a better plan that have not started: servers by instances.
    pending: BTreeMap<String, String>,
    round: u64,
}

impl<P: ScalingPolicy> RackController<P> {
    /// Creates a controller without any observation.
    pub fn new(options: RackOptions, policy: P) -> Self {
        RackController {
            options,
            policy,
            chains: BTreeMap::new(),
            pending: BTreeMap::new(),
            round: 0,
        }
    }

    /// Returns the next actions, and a verdict on each chain.
    pub fn decide(&mut self, view: &RackView) -> RackPlan {
        self.round += 1;
        let options = self.options;
        let (mut round, mut groups) = Round::new(&options, view);
        self.remember(&round, &mut groups);
        let mut shortages = Vec::with_capacity(groups.len());
        for group in &mut groups {
            let memory = self.chains.entry(group.chain.name.clone()).or_default();
            let instance_rate = round.fleet.whole_rate(group.chain);
            let capacity = self.policy.capacity(&ChainLoad {
                now: view.now,
                chain: group.chain,
                instances: &group.observed,
                instance_rate,
            });
            shortages.push(round.scale(group, &capacity, memory));
        }
        // Moves take the room that scaling leaves.
        let risks: Vec<_> = groups.iter_mut().map(|group| round.leave_servers(group)).collect();
        if !self.pending.is_empty() {
            let mut chain_of = BTreeMap::new();
            for (at, group) in groups.iter().enumerate() {
                chain_of.extend(group.slots.iter().map(|slot| (slot.name.clone(), at)));
            }
            round.follow(&mut groups, &chain_of, &mut self.pending);
        }
        let mut verdicts = BTreeMap::new();
        for ((group, shortage), risk) in groups.iter().zip(&shortages).zip(risks) {
            let memory = self.chains.entry(group.chain.name.clone()).or_default();
            let verdict = round.verdict(group, (shortage.as_ref(), risk), memory, self.round);
            verdicts.insert(group.chain.name.clone(), verdict);
        }
        RackPlan {
            actions: round.actions,
            verdicts,
            work: round.fleet.work,
        }
    }

    /// Takes a better plan if it saves enough servers. Following rounds move its instances, within the limit of moves.
    pub fn rearrange(&mut self, view: &RackView, plan: &Rearrangement, least: Saving) -> Rearranged {
        let (result, moves) = evaluated(view, plan, least);
        if matches!(result, Rearranged::Taken { .. }) {
            self.pending = moves;
        }
        result
    }

    /// Returns `true` while moves of a better plan wait for their turn.
    pub fn is_rearranging(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Updates the state of chains, and sorts them: those that have lost instances first, then by their promise.
    fn remember(&mut self, round: &Round<'_, '_>, groups: &mut [Group<'_>]) {
        let mut before = std::mem::take(&mut self.chains);
        for group in &mut *groups {
            let mut memory = before.remove(&group.chain.name).unwrap_or_default();
            memory.recovering |= group.has_lost;
            memory
                .failed
                .retain(|_, at| round.now.saturating_sub(*at) < self.options.retry);
            let failed = group.failed_on.iter();
            memory
                .failed
                .extend(failed.map(|&server| (round.fleet.servers[server].view.name.clone(), round.now)));
            group.avoided = memory
                .failed
                .keys()
                .filter_map(|name| round.fleet.named(name))
                .collect();
            self.chains.insert(group.chain.name.clone(), memory);
        }
        let is_recovering = |group: &Group<'_>| self.chains.get(&group.chain.name).is_some_and(|one| one.recovering);
        let class = |group: &Group<'_>| match group.chain.promise.as_ref().map(|promise| promise.throughput) {
            Some(RackThroughput::Reserved(_)) => 0,
            Some(RackThroughput::OnDemand) => 1,
            None => 2,
        };
        groups.sort_by_cached_key(|group| (!is_recovering(group), class(group), group.chain.name.clone()));
    }
}
