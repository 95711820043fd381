//! Better plans for a running rack: their evaluation, and a greedy one.
//!
//! A plan is computed in the background, by [`consolidated`] or as a [`Plan`] such as that of `milp`, and applied only
//! if it saves enough servers ([`Saving`]).

use super::options::RackOptions;
use super::round::Round;
use super::view::{InstancePhase, InstanceView, RackView, ServerState, ServerView};
use crate::improve::Saving;
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of servers that [`consolidated`] tries to empty.
const MOST_SERVERS: usize = 64;

/// A better plan: instances, and the servers on which it has them. Others stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rearrangement {
    /// Names of servers by names of instances.
    pub servers: BTreeMap<String, String>,
}

/// Evaluation of a [`Rearrangement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rearranged {
    /// The plan is taken.
    Taken {
        /// Servers that become free.
        saved: usize,
        /// Instances that move.
        moves: usize,
    },
    /// The plan saves too little.
    TooLittle {
        /// Servers that would become free.
        saved: usize,
    },
}

impl Rearrangement {
    /// Returns the number of servers that become free.
    pub fn saved(&self, view: &RackView) -> usize {
        match evaluated(view, self, Saving::Servers(0)).0 {
            Rearranged::Taken { saved, .. } | Rearranged::TooLittle { saved } => saved,
        }
    }

    /// Returns the plan by which the chains named like the SLOs of `plan` have their ready instances on its servers. As
    /// many as possible stay.
    pub fn from_plan(view: &RackView, plan: &Plan) -> Self {
        let mut servers = BTreeMap::new();
        for placed in plan.placed() {
            let names = placed.instances.iter();
            let name = |server: usize| plan.cluster().servers()[server].name.clone();
            let mut wanted: Vec<String> = names.map(|instance| name(instance.server)).collect();
            let is_its = |one: &&InstanceView| one.chain == placed.slo.name && one.phase == InstancePhase::Ready;
            let mut moving: Vec<&InstanceView> = view.instances.iter().filter(is_its).collect();
            moving.sort_by(|one, two| one.name.cmp(&two.name));
            moving.retain(|one| match wanted.iter().position(|server| *server == one.server) {
                Some(at) => {
                    wanted.remove(at);
                    false
                }
                None => true,
            });
            servers.extend(moving.iter().map(|one| one.name.clone()).zip(wanted));
        }
        Rearrangement { servers }
    }
}

/// Returns the evaluation, and the moves of the plan.
pub(super) fn evaluated(
    view: &RackView,
    plan: &Rearrangement,
    least: Saving,
) -> (Rearranged, BTreeMap<String, String>) {
    let ready = view.servers.iter().filter(|server| server.state == ServerState::Ready);
    let ready: BTreeMap<&str, &ServerView> = ready.map(|server| (&*server.name, server)).collect();
    let chains = view.chains.iter().map(|chain| (&*chain.name, chain.pool.as_deref()));
    let pools: BTreeMap<&str, Option<&str>> = chains.collect();
    let bound = view.chains.iter().filter(|chain| chain.is_bound);
    let bound: BTreeSet<&str> = bound.map(|chain| &*chain.name).collect();
    let mut moves = BTreeMap::new();
    let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
    for instance in &view.instances {
        before.insert(&*instance.server);
        let to = plan.servers.get(&instance.name);
        let pool = pools.get(&*instance.chain).copied().flatten();
        let takes = |to: &String| ready.get(&**to).is_some_and(|server| server.is_for(pool));
        let to = to.filter(|to| **to != instance.server && takes(to));
        let can_move = instance.phase == InstancePhase::Ready && !bound.contains(&*instance.chain);
        match to.filter(|_| can_move) {
            Some(to) => {
                moves.insert(instance.name.clone(), to.clone());
                after.insert(&**to);
            }
            None => _ = after.insert(&instance.server),
        }
    }
    let saved = before.len().saturating_sub(after.len());
    let result = match least.is_reached(saved, before.len()) {
        true => Rearranged::Taken {
            saved,
            moves: moves.len(),
        },
        false => Rearranged::TooLittle { saved },
    };
    (result, moves)
}

/// Returns a plan with fewer servers: one after the other, those with the least load are emptied into other used ones.
/// Limited to 64 servers, so that a call takes about as long as a round.
pub fn consolidated(view: &RackView, options: &RackOptions) -> Rearrangement {
    let (mut round, mut groups) = Round::new(options, view);
    let mut on: BTreeMap<usize, Vec<(usize, String)>> = BTreeMap::new();
    let mut stays = BTreeSet::new();
    for (at, group) in groups.iter().enumerate() {
        for slot in &group.slots {
            on.entry(slot.server).or_default().push((at, slot.name.clone()));
            if !(slot.settled && slot.ready) || group.chain.is_bound {
                stays.insert(slot.server);
            }
        }
    }
    let mut used: BTreeSet<usize> = on.keys().copied().collect();
    let by_load: Vec<usize> = round.fleet.roomiest().filter(|server| used.contains(server)).collect();
    let is_open = |server: &usize| !stays.contains(server);
    let mut servers = BTreeMap::new();
    let mut receiving = BTreeSet::new();
    for from in by_load.into_iter().filter(is_open).take(MOST_SERVERS) {
        // Another one's instances have been put here.
        if receiving.contains(&from) {
            continue;
        }
        used.remove(&from);
        let mut found: Vec<(String, usize)> = Vec::new();
        let mut undo = BTreeMap::new();
        let fits = on[&from].iter().all(|(at, name)| {
            let group = &mut groups[*at];
            let Some(slot) = group.slots.iter().find(|slot| slot.name == *name).cloned() else {
                return false;
            };
            let others = group.servers(Some(name));
            let redundancy = usize::from(group.chain.redundancy).min(group.servers(None).len());
            let allowed = |server: usize| {
                let servers = others.len() + usize::from(!others.contains(&server));
                used.contains(&server) && servers >= redundancy
            };
            let moved = format!("{name}+");
            let request = group.request(&moved, slot.rate, slot.exclusive);
            let Some((server, cores)) = round.fleet.find(&request, 8, &allowed) else {
                return false;
            };
            undo.entry(server).or_insert_with(|| round.fleet.occupants(server));
            round.fleet.put(&request, server, cores);
            found.push((name.clone(), server));
            true
        });
        if !fits {
            undo.into_iter()
                .for_each(|(server, before)| round.fleet.restore(server, before));
            used.insert(from);
            continue;
        }
        receiving.extend(found.iter().map(|(_, server)| *server));
        for ((at, name), (_, server)) in on[&from].iter().zip(&found) {
            let slots = &mut groups[*at].slots;
            slots
                .iter_mut()
                .filter(|slot| slot.name == *name)
                .for_each(|slot| slot.server = *server);
        }
        let name = |server: usize| round.fleet.servers[server].view.name.clone();
        servers.extend(found.into_iter().map(|(instance, server)| (instance, name(server))));
    }
    Rearrangement { servers }
}
