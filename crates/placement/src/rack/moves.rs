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
        for slot in leaving {
            if self.moves >= self.options.moves {
                break;
            }
            let others = group.servers(Some(&slot.name));
            let redundancy = usize::from(group.chain.redundancy).min(group.servers(None).len());
            let keeps_apart = |server: usize| others.len() + usize::from(!others.contains(&server)) >= redundancy;
            let why = match slot.outside {
                true => CreateReason::Pool,
                false => CreateReason::ServerDrain,
            };
            let reason = (why, Some(&*slot.name));
            match self.create(group, (slot.rate, slot.exclusive), reason, (usize::MAX, &keeps_apart)) {
                true => self.moves += 1,
                false => {
                    risk = risk.or(Some(Risk::CannotMove {
                        instance: slot.name,
                        reason: Reason::Room(vec![Resource::Servers]),
                    }));
                }
            }
        }
        risk
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
