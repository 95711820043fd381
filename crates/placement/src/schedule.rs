//! What all schedulers that give each instance its own cache have in common.

use crate::bound::Cheapest;
use crate::choices::{Choices, choices};
use crate::cluster::Cluster;
use crate::demand::{Demand, Slot, Unfit};
use crate::plan::{Instance, Plan, Room};
use crate::slo::{Slo, Target};

/// The most instances of an SLO.
pub const MAX_INSTANCES: usize = 4096;

/// An SLO and what it takes on a cluster.
#[derive(Clone, Debug)]
pub struct Request {
    /// The SLO.
    pub slo: Slo,
    /// What it takes.
    pub demand: Demand,
    /// The ways to keep it.
    pub choices: Choices,
    /// What it costs at least.
    pub cheapest: Cheapest,
}

impl Request {
    /// What an SLO takes on a cluster.
    ///
    /// # Errors
    /// No server can hold an instance that counts.
    pub fn new(slo: Slo, cluster: &Cluster) -> Result<Self, Unfit> {
        let demand = Demand::new(&slo, cluster)?;
        let most = match slo.target {
            Target::Reserved { .. } => MAX_INSTANCES,
            // It begins with one.
            Target::OnDemand { .. } => 1,
        };
        let choices = choices(&demand, most);
        Ok(Request {
            cheapest: Cheapest::new(&demand, &choices, cluster),
            choices,
            slo,
            demand,
        })
    }
}

/// Where an SLO's instances go, while all others stay where they are.
pub trait Scheduler {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The instances, if there is room for them.
    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>>;
}

/// Puts SLOs into a plan, one after the other.
///
/// # Errors
/// The first that finds no room; those before it are in the plan.
pub fn place_all<'a>(
    scheduler: &dyn Scheduler,
    plan: &mut Plan,
    requests: impl IntoIterator<Item = &'a Request>,
) -> Result<(), &'a Request> {
    for request in requests {
        let instances = scheduler.place(plan, request).ok_or(request)?;
        plan.put(request, instances).map_err(|_| request)?;
    }
    Ok(())
}

/// The rooms of a plan while an SLO's instances are tried out in them.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    slo: &'a Slo,
    rooms: Vec<Room>,
    taken: Vec<(usize, Slot)>,
}

impl<'a> Trial<'a> {
    /// Rooms that instances of `slo` may go into: without servers that its spread or its group rules out.
    pub fn new(plan: &Plan, slo: &'a Slo) -> Self {
        let mut rooms = plan.rooms().to_vec();
        // What it has already, where instances were lost.
        if slo.spread
            && let Some(placed) = plan.get(&slo.name)
        {
            let has = |server| placed.instances.iter().any(|i| i.server == server);
            rooms.retain(|room| !has(room.server as usize));
        }
        if let Some(group) = &slo.apart {
            rooms.retain(|room| !plan.has_others(group, &slo.name, room.server as usize));
        }
        Trial {
            slo,
            rooms,
            taken: Vec::new(),
        }
    }

    /// The rooms that an instance of a size fits into, by number, in the servers' order.
    pub fn fitting(&self, slot: Slot) -> impl Iterator<Item = (usize, &Room)> {
        self.rooms.iter().enumerate().filter(move |(_, room)| {
            usize::from(room.kind) == slot.kind
                && room.holds(slot.cores, slot.ways)
                && !(self.slo.spread && self.is_taken(room.server))
        })
    }

    fn is_taken(&self, server: u32) -> bool {
        let mut taken = self.taken.iter();
        taken.any(|&(room, _)| self.rooms[room].server == server)
    }

    /// Puts an instance into a room, by its number.
    pub fn take(&mut self, room: usize, slot: Slot) {
        self.rooms[room].take(slot.cores, slot.ways);
        self.taken.push((room, slot));
    }

    /// All instances are taken out again.
    pub fn clear(&mut self) {
        for (room, slot) in self.taken.drain(..) {
            self.rooms[room].give(slot.cores, slot.ways);
        }
    }

    /// What was taken.
    pub fn instances(&self) -> Vec<Instance> {
        let instances = self.taken.iter().map(|&(room, slot)| Instance {
            server: self.rooms[room].server as usize,
            node: self.rooms[room].node,
            ways: slot.ways,
        });
        instances.collect()
    }
}
