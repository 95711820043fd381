//! Moves: instances leave servers that are being drained or are not of their pool any more, and follow a better plan, a
//! few at a time.

use super::actions::{CreateReason, Risk};
use super::round::{Group, Round, Slot};
use super::view::ServerState;
use crate::admit::Reason;
use crate::plan::Resource;
use std::collections::BTreeMap;

impl Round<'_, '_> {
    /// Replaces instances on servers that are being drained, or are not of the chain's pool. Returns the risk if one
    /// cannot move.
    pub fn leave_servers(&mut self, group: &mut Group<'_>) -> Option<Risk> {
        let is_leaving = |slot: &&Slot| {
            let state = self.fleet.servers[slot.server].view.state;
            slot.settled && (slot.outside || state == ServerState::Draining)
        };
        let leaving: Vec<Slot> = group.slots.iter().filter(is_leaving).cloned().collect();
        let mut risk = None;
        if let Some(slot) = leaving.first().filter(|_| group.chain.is_bound) {
            let instance = slot.name.clone();
            return Some(Risk::Bound { instance });
        }
        for slot in leaving {
            if self.moves >= self.options.moves {
                break;
            }
            let why = match slot.outside {
                true => CreateReason::Pool,
                false => CreateReason::ServerDrain,
            };
            if !self.replace(group, &slot, slot.rate, why, usize::MAX) {
                risk = risk.or(Some(Risk::CannotMove {
                    instance: slot.name,
                    reason: Reason::Room(vec![Resource::Servers]),
                }));
            }
        }
        risk
    }

    /// Begins a move of an instance to another server, where it has a rate, within the limit of moves. Up to `most` of
    /// the used servers are asked. Returns `false` if it stays.
    pub fn replace(&mut self, group: &mut Group<'_>, slot: &Slot, rate: f64, why: CreateReason, most: usize) -> bool {
        if self.moves >= self.options.moves || group.chain.is_bound {
            return false;
        }
        let others = group.servers(Some(&slot.name));
        let redundancy = usize::from(group.chain.redundancy).min(group.servers(None).len());
        let from = slot.server;
        let is_allowed =
            |server: usize| server != from && others.len() + usize::from(!others.contains(&server)) >= redundancy;
        let reason = (why, Some(&*slot.name));
        let is_begun = self.create(group, (rate, slot.exclusive), reason, (most, &is_allowed));
        self.moves += usize::from(is_begun);
        is_begun
    }

    /// Starts moves of a better plan as far as the limit permits, and removes from `pending` what has moved or cannot.
    /// `groups` are sorted in the order of chains, `chain_of` finds the chain of an instance.
    pub fn follow(
        &mut self,
        groups: &mut [Group<'_>],
        chain_of: &BTreeMap<String, usize>,
        pending: &mut BTreeMap<String, String>,
    ) {
        let was_idle = self.moves == 0;
        pending.retain(|instance, server| {
            let Some(group) = chain_of.get(instance).map(|at| &mut groups[*at]) else {
                return false;
            };
            let target = self
                .fleet
                .named(server)
                .filter(|server| self.fleet.servers[*server].takes)
                .filter(|server| self.fleet.servers[*server].view.is_for(group.chain.pool.as_deref()));
            let slot = group.slots.iter().find(|slot| slot.name == *instance).cloned();
            let Some((slot, target)) = slot.zip(target).filter(|(slot, target)| slot.server != *target) else {
                return false;
            };
            if self.moves >= self.options.moves || !(slot.settled && slot.ready) {
                return true;
            }
            let others = group.servers(Some(instance));
            let redundancy = usize::from(group.chain.redundancy).min(group.servers(None).len());
            if others.len() + usize::from(!others.contains(&target)) < redundancy {
                return false;
            }
            let reason = (CreateReason::Plan, Some(&**instance));
            let is_started = self.create(
                group,
                (slot.rate, slot.exclusive),
                reason,
                (1, &|server| server == target),
            );
            self.moves += usize::from(is_started);
            !is_started
        });
        // Nothing is under way that could make room for the rest.
        if was_idle && self.moves == 0 {
            pending.clear();
        }
    }
}
