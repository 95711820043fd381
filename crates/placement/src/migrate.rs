//! Migration from one plan to another while all SLOs are met.
//!
//! An instance moves in two steps: its successor starts where there is room, and only then the old one is drained. An
//! instance whose cache changes in place shrinks only if its SLO tolerates that, and grows only where ways are free. If
//! instances wait for each other's room, some move to temporary places.

use crate::demand::Demand;
use crate::plan::{Instance, Plan, Room};
use crate::slo::{Slo, Target};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Step of a migration. All SLOs are met after each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    /// An instance starts, and gets its part of the traffic.
    Start {
        /// Name of the SLO.
        slo: String,
        /// Its placement.
        #[serde(flatten)]
        at: Instance,
    },
    /// An instance's cache partition grows or shrinks.
    Resize {
        /// Name of the SLO.
        slo: String,
        /// Its placement, with the ways before.
        #[serde(flatten)]
        at: Instance,
        /// Its ways afterwards.
        to: u16,
    },
    /// An instance gets no new flows, and ends with its last flow.
    Drain {
        /// Name of the SLO.
        slo: String,
        /// Its placement.
        #[serde(flatten)]
        at: Instance,
    },
}

/// Sequence of steps from one plan to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Number of instances that start elsewhere in place of one that ends.
    pub moved: usize,
}

/// Reason why a plan cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrationError {
    /// The plans have different clusters or SLOs.
    #[error("the plans have different servers or SLOs")]
    Different,
    /// Instances of this number of SLOs wait for each other's room, and there are no temporary places.
    #[error("{0} SLOs wait for resources that other SLOs still use")]
    Stuck(usize),
}

/// Returns the plan `to` with servers of the same kind exchanged, so that as many instances as possible stay where they
/// are in `from`. Pairs of servers with the most instances of the same SLOs are matched first.
pub fn aligned(from: &Plan, to: &Plan) -> Plan {
    let cluster = to.cluster();
    let mut common: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for new in to.placed() {
        let old = from.get(&new.slo.name).map(|old| &old.instances[..]);
        for instance in &new.instances {
            for other in old.unwrap_or_default() {
                let kind = |server: usize| cluster.servers()[server].kind;
                if kind(instance.server) == kind(other.server) {
                    let same = (other.node, other.ways) == (instance.node, instance.ways);
                    let weight = 2 + usize::from(same);
                    *common.entry((instance.server, other.server)).or_default() += weight;
                }
            }
        }
    }
    let mut pairs: Vec<((usize, usize), usize)> = common.into_iter().collect();
    pairs.sort_by_key(|&(pair, weight)| (std::cmp::Reverse(weight), pair));
    let servers = cluster.servers().len();
    let (mut place, mut taken) = (vec![None; servers], vec![false; servers]);
    for ((new, old), _) in pairs {
        if place[new].is_none() && !taken[old] {
            place[new] = Some(old);
            taken[old] = true;
        }
    }
    // The rest, in order, kind by kind.
    for (kind, _) in cluster.kinds().iter().enumerate() {
        let of_kind = |i: &usize| cluster.servers()[*i].kind == kind;
        let free: Vec<usize> = (0..servers).filter(of_kind).filter(|&i| !taken[i]).collect();
        let mut free = free.into_iter();
        for i in (0..servers).filter(of_kind) {
            if place[i].is_none() {
                place[i] = free.next();
            }
        }
    }
    let mut plan = Plan::new(cluster.clone());
    for placed in to.placed() {
        let mut placed = placed.clone();
        for instance in &mut placed.instances {
            instance.server = place[instance.server].unwrap_or(instance.server);
        }
        // The same instances fit on servers of the same kind.
        if plan.restore(placed).is_err() {
            return to.clone();
        }
    }
    plan
}

/// Remaining work for an SLO.
struct Open<'a> {
    slo: &'a Slo,
    demand: Demand,
    starts: Vec<Instance>,
    /// Instances that end, with `true` for temporary ones.
    drains: Vec<(Instance, bool)>,
    /// Instances that change their size, with their final ways.
    resizes: Vec<(Instance, u16)>,
    running: Vec<Instance>,
}

impl Open<'_> {
    fn is_done(&self) -> bool {
        self.starts.is_empty() && self.drains.is_empty() && self.resizes.is_empty()
    }
}

/// Returns the steps from one plan to another for the same SLOs on the same servers.
///
/// # Errors
/// The plans have different clusters or SLOs, or no sequence of steps exists.
pub fn migration(from: &Plan, to: &Plan) -> Result<Migration, MigrationError> {
    if from.cluster() != to.cluster() || !from.placed().map(|p| &p.slo).eq(to.placed().map(|p| &p.slo)) {
        return Err(MigrationError::Different);
    }
    let mut open = Vec::new();
    let mut moved = 0;
    for (old, new) in from.placed().zip(to.placed()) {
        let demand = Demand::new(&old.slo, from.cluster()).map_err(|_| MigrationError::Different)?;
        let mut starts = new.instances.clone();
        let mut drains = old.instances.clone();
        starts.retain(|new| match drains.iter().position(|old| old == new) {
            Some(same) => {
                drains.swap_remove(same);
                false
            }
            None => true,
        });
        let mut resizes = Vec::new();
        starts.retain(|new| {
            let same = |old: &Instance| (old.server, old.node) == (new.server, new.node);
            match drains.iter().position(same) {
                Some(same) => {
                    resizes.push((drains.swap_remove(same), new.ways));
                    false
                }
                None => true,
            }
        });
        moved += starts.len().min(drains.len());
        open.push(Open {
            slo: &old.slo,
            demand,
            starts,
            drains: drains.into_iter().map(|i| (i, false)).collect(),
            resizes,
            running: old.instances.clone(),
        });
    }
    let mut state = State {
        plan: from,
        rooms: from.rooms().to_vec(),
        steps: Vec::new(),
        groups: HashMap::new(),
    };
    for open in &open {
        open.running.iter().for_each(|i| state.join(open.slo, i));
    }
    loop {
        // Drains make room, so they come first.
        let mut progress = false;
        for open in open.iter_mut().filter(|open| !open.is_done()) {
            while state.drain(open) || state.resize(open) {
                progress = true;
            }
        }
        for open in open.iter_mut().filter(|open| !open.is_done()) {
            progress |= state.start(open);
        }
        open.retain(|open| !open.is_done());
        if open.is_empty() {
            let steps = state.steps;
            return Ok(Migration { steps, moved });
        }
        if !progress && !open.iter_mut().any(|open| state.move_to_temporary(open)) {
            return Err(MigrationError::Stuck(open.len()));
        }
    }
}

/// Returns `true` if an SLO may have one more instance than are running. An on-demand SLO never exceeds its maximum,
/// not even during a move: with a maximum of one it stays where it is.
fn may_have_more(open: &Open<'_>) -> bool {
    match open.slo.target {
        Target::Reserved { .. } => true,
        Target::OnDemand { most } => open.running.len() < usize::from(most),
    }
}

/// Running instances during the migration.
struct State<'a> {
    plan: &'a Plan,
    rooms: Vec<Room>,
    steps: Vec<Step>,
    /// By group and server, the SLOs, once per instance.
    groups: HashMap<(&'a str, usize), Vec<&'a str>>,
}

impl<'a> State<'a> {
    fn rate(&self, demand: &Demand, instance: &Instance) -> f64 {
        let kind = self.plan.cluster().servers()[instance.server].kind;
        demand.rate(kind, instance.ways)
    }

    /// Returns `true` if the SLO is met with `new` in place of a running instance, or without a replacement.
    fn bears(&self, open: &Open<'_>, old: &Instance, new: Option<Instance>) -> bool {
        let rates = |some: &[Instance]| some.iter().map(|i| self.rate(&open.demand, i)).sum::<f64>();
        let less = rates(&open.running) - self.rate(&open.demand, old);
        let left = open.running.len() - usize::from(new.is_none());
        left > 0 && open.demand.is_met(less + rates(new.as_slice()))
    }

    /// Drains an instance that its SLO can do without.
    fn drain(&mut self, open: &mut Open<'a>) -> bool {
        let can = |(i, _): &(Instance, bool)| self.bears(open, i, None);
        let Some(number) = open.drains.iter().position(can) else {
            return false;
        };
        let (at, _) = open.drains.remove(number);
        self.give(open, at);
        true
    }

    /// Resizes an instance, if there is room and its SLO tolerates it.
    fn resize(&mut self, open: &mut Open<'a>) -> bool {
        let can = |&(old, to): &(Instance, u16)| {
            let room = self.plan.room(old.server, old.node);
            let free = room.map_or(0, |room| self.rooms[room].ways);
            to <= old.ways + free && self.bears(open, &old, Some(Instance { ways: to, ..old }))
        };
        let Some(number) = open.resizes.iter().position(can) else {
            return false;
        };
        let (at, to) = open.resizes.remove(number);
        if let Some(room) = self.plan.room(at.server, at.node) {
            let room = &mut self.rooms[room];
            room.ways = room.ways + at.ways - to;
        }
        if let Some(running) = open.running.iter_mut().find(|i| **i == at) {
            running.ways = to;
        }
        let slo = open.slo.name.clone();
        self.steps.push(Step::Resize { slo, at, to });
        true
    }

    /// Starts an instance for which there is room, where its rules permit it.
    fn start(&mut self, open: &mut Open<'a>) -> bool {
        let fits = |i: &Instance| {
            let cores = self.plan.cores(open.slo, i.server);
            let room = self.plan.room(i.server, i.node);
            let held = cores.zip(room);
            may_have_more(open)
                && held.is_some_and(|(cores, room)| self.rooms[room].holds(cores, i.ways))
                && !(open.slo.spread && open.running.iter().any(|r| r.server == i.server))
                && !self.has_others(open.slo, i.server)
        };
        let Some(number) = open.starts.iter().position(fits) else {
            return false;
        };
        let at = open.starts.remove(number);
        self.take(open, at);
        true
    }

    /// Moves an instance that is to end to a temporary place. The temporary instance ends once there is room for the
    /// final one. Each instance moves aside at most once, so this terminates.
    fn move_to_temporary(&mut self, open: &mut Open<'a>) -> bool {
        let Some(number) = open.drains.iter().position(|(_, aside)| !aside) else {
            return false;
        };
        if !may_have_more(open) {
            return false;
        }
        let (old, _) = open.drains[number];
        let kind = self.plan.cluster().servers()[old.server].kind;
        let cores = self.plan.cores(open.slo, old.server).unwrap_or(0);
        let fits = |room: &&Room| {
            let server = room.server as usize;
            usize::from(room.kind) == kind
                && server != old.server
                && room.holds(cores, old.ways)
                && !(open.slo.spread && open.running.iter().any(|r| r.server == server))
                && !self.has_others(open.slo, server)
        };
        // The emptiest node, where the instance blocks the fewest others.
        let rooms = self.rooms.iter().filter(fits);
        let Some(room) = rooms.max_by_key(|room| (room.cores, room.ways)) else {
            return false;
        };
        let at = Instance {
            server: room.server as usize,
            node: room.node,
            ways: old.ways,
        };
        open.drains.remove(number);
        self.take(open, at);
        self.give(open, old);
        open.drains.push((at, true));
        true
    }

    fn take(&mut self, open: &mut Open<'a>, at: Instance) {
        let cores = self.plan.cores(open.slo, at.server).unwrap_or(0);
        if let Some(room) = self.plan.room(at.server, at.node) {
            self.rooms[room].take(cores, at.ways);
        }
        open.running.push(at);
        self.join(open.slo, &at);
        let slo = open.slo.name.clone();
        self.steps.push(Step::Start { slo, at });
    }

    fn give(&mut self, open: &mut Open<'a>, at: Instance) {
        let cores = self.plan.cores(open.slo, at.server).unwrap_or(0);
        if let Some(room) = self.plan.room(at.server, at.node) {
            self.rooms[room].give(cores, at.ways);
        }
        if let Some(number) = open.running.iter().position(|i| *i == at) {
            open.running.swap_remove(number);
        }
        if let Some(group) = &open.slo.apart
            && let Some(names) = self.groups.get_mut(&(&**group, at.server))
            && let Some(number) = names.iter().position(|name| *name == open.slo.name)
        {
            names.swap_remove(number);
        }
        let slo = open.slo.name.clone();
        self.steps.push(Step::Drain { slo, at });
    }

    fn join(&mut self, slo: &'a Slo, at: &Instance) {
        if let Some(group) = &slo.apart {
            let names = self.groups.entry((group, at.server)).or_default();
            names.push(&slo.name);
        }
    }

    /// Returns `true` if other SLOs of its group run on a server.
    fn has_others(&self, slo: &Slo, server: usize) -> bool {
        let names = slo.apart.as_deref();
        let names = names.and_then(|group| self.groups.get(&(group, server)));
        names.is_some_and(|names| names.iter().any(|name| *name != slo.name))
    }
}
