//! Interface and common parts of schedulers that give each instance its own cache.

use crate::demand::Slot;
use crate::plan::{Instance, Plan, Room};
use crate::slo::Slo;

pub use crate::request::{MAX_INSTANCES, Request};

/// Scheduler: places an SLO's instances while all others stay where they are.
pub trait Scheduler {
    /// Returns its name.
    fn name(&self) -> &'static str;

    /// Returns `true` if SLOs that come together are [placed again](crate::consolidate) where that saves servers. By
    /// default `false`: each one stays where it was placed first.
    fn consolidates(&self) -> bool {
        false
    }

    /// Returns `true` if an SLO of a plan, and all that share nodes with it, are met by what the scheduler knows beyond
    /// the curves. By default it knows nothing.
    fn is_met(&self, _plan: &Plan, _slo: &str) -> bool {
        true
    }

    /// Returns the SLOs of a plan that are not [met](Self::is_met), sorted by name.
    fn unmet(&self, _plan: &Plan) -> Vec<String> {
        Vec::new()
    }

    /// Returns a scheduler that ignores contention, to find out if contention binds.
    fn without_contention(&self) -> Option<&dyn Scheduler> {
        None
    }

    /// Returns the instances, if there is room for them.
    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>>;
}

/// Places SLOs in a plan, one after the other.
///
/// # Errors
/// Returns the first SLO without room. Its predecessors are in the plan.
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
        // Remaining instances of an SLO that has lost some.
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

    /// Returns the rooms that an instance of a size fits into, with their indices, in the order of servers.
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

    /// Adds an instance to a room, given by its index.
    pub fn take(&mut self, room: usize, slot: Slot) {
        self.rooms[room].take(slot.cores, slot.ways);
        self.taken.push((room, slot));
    }

    /// Removes all tentative instances.
    pub fn clear(&mut self) {
        for (room, slot) in self.taken.drain(..) {
            self.rooms[room].give(slot.cores, slot.ways);
        }
    }

    /// Returns the tentative instances.
    pub fn instances(&self) -> Vec<Instance> {
        let instances = self.taken.iter().map(|&(room, slot)| Instance {
            server: self.rooms[room].server as usize,
            node: self.rooms[room].node,
            ways: slot.ways,
        });
        instances.collect()
    }
}
