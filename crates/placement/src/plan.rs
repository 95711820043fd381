//! A plan: which instances run where, with how much cache, and what room is left.

use crate::bound::Cheapest;
use crate::cluster::Cluster;
use crate::request::Request;
use crate::slo::Slo;
use std::collections::{BTreeMap, HashMap};

/// An instance of a chain: its cores (as many as the chain's curves say) and its ways on a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Instance {
    /// The server, by number.
    pub server: usize,
    /// Its NUMA node.
    pub node: u16,
    /// Ways of cache, for it alone.
    pub ways: u16,
}

/// An SLO that was admitted, and its instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The SLO.
    pub slo: Slo,
    /// Its instances, by server.
    pub instances: Vec<Instance>,
    /// What it costs at least, on this cluster.
    pub cheapest: Cheapest,
}

/// What is left of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// The server, by number.
    pub server: u32,
    /// Its kind, by number.
    pub kind: u16,
    /// The node.
    pub node: u16,
    /// Cores left.
    pub cores: u16,
    /// Ways left.
    pub ways: u16,
    /// Classes left.
    pub classes: u16,
}

impl Room {
    /// Whether an instance fits.
    pub fn holds(&self, cores: u16, ways: u16) -> bool {
        self.cores >= cores && self.ways >= ways && self.classes > 0
    }

    /// Takes an instance, which fits.
    pub fn take(&mut self, cores: u16, ways: u16) {
        self.cores -= cores;
        self.ways -= ways;
        self.classes -= 1;
    }

    /// Gives back what an instance had.
    pub fn give(&mut self, cores: u16, ways: u16) {
        self.cores += cores;
        self.ways += ways;
        self.classes += 1;
    }
}

/// Why instances cannot be put where they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Another SLO has the name.
    #[error("expected a different name for each SLO, found \"{0}\" twice")]
    Twice(String),
    /// The server or node does not exist, or nothing was measured on its machine.
    #[error("instance {0} is on no server that its chain was measured on")]
    Nowhere(usize),
    /// No room is left there.
    #[error("instance {0} does not fit on its server")]
    Full(usize),
    /// The SLO, or its group, has instances there already.
    #[error("instance {0} is on a server with another that it must be apart from")]
    Together(usize),
}

/// What instances take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Cores.
    Cores,
    /// Ways of cache.
    Cache,
    /// Parts that a cache is cut into.
    Classes,
    /// Servers without what an SLO must be apart from.
    Servers,
}

/// A plan for a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    cluster: Cluster,
    /// Nodes of all servers, by server.
    rooms: Vec<Room>,
    /// Each server's first room.
    first: Vec<usize>,
    /// How many instances each server has.
    instances: Vec<u32>,
    placed: BTreeMap<String, Placed>,
    /// How many instances each group has on which servers.
    groups: HashMap<String, HashMap<usize, u32>>,
    /// What all SLOs cost at least.
    cheapest: Cheapest,
}

impl Plan {
    /// An empty plan.
    pub fn new(cluster: Cluster) -> Self {
        let (mut rooms, mut first) = (Vec::new(), Vec::new());
        for (number, server) in cluster.servers().iter().enumerate() {
            let kind = &cluster.kinds()[server.kind];
            first.push(rooms.len());
            rooms.extend((0..kind.nodes).map(|node| Room {
                server: number as u32,
                kind: server.kind as u16,
                node,
                cores: kind.cores,
                ways: kind.ways,
                classes: kind.classes,
            }));
        }
        Plan {
            instances: vec![0; first.len()],
            cluster,
            rooms,
            first,
            placed: BTreeMap::new(),
            groups: HashMap::new(),
            cheapest: Cheapest::default(),
        }
    }

    /// An empty plan on the servers that this one does not use; the others are full.
    pub fn without_active(&self) -> Self {
        let mut plan = Plan::new(self.cluster.clone());
        for room in &mut plan.rooms {
            if self.is_active(room.server as usize) {
                (room.cores, room.ways, room.classes) = (0, 0, 0);
            }
        }
        plan
    }

    /// The same plan with far more of a resource left on every node, to see what an SLO lacks.
    pub(crate) fn with_plenty(&self, resource: Resource) -> Self {
        let mut plan = self.clone();
        for room in &mut plan.rooms {
            match resource {
                Resource::Cores => room.cores = u16::MAX,
                Resource::Cache => room.ways = u16::MAX,
                Resource::Classes => room.classes = u16::MAX,
                Resource::Servers => {}
            }
        }
        plan
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What is left of all nodes, by server.
    pub fn rooms(&self) -> &[Room] {
        &self.rooms
    }

    /// Where a node stands among the rooms.
    pub fn room(&self, server: usize, node: u16) -> Option<usize> {
        let kind = self.cluster.servers().get(server)?.kind;
        (node < self.cluster.kinds()[kind].nodes).then(|| self.first[server] + usize::from(node))
    }

    /// Whether a server has any instance.
    pub fn is_active(&self, server: usize) -> bool {
        self.instances[server] > 0
    }

    /// How many servers have any instance.
    pub fn active(&self) -> usize {
        self.instances.iter().filter(|&&n| n > 0).count()
    }

    /// What was admitted, by name.
    pub fn placed(&self) -> impl ExactSizeIterator<Item = &Placed> {
        self.placed.values()
    }

    /// An SLO that was admitted.
    pub fn get(&self, name: &str) -> Option<&Placed> {
        self.placed.get(name)
    }

    /// Whether a server has instances of a group.
    pub fn has_group(&self, group: &str, server: usize) -> bool {
        self.groups
            .get(group)
            .is_some_and(|servers| servers.contains_key(&server))
    }

    /// Whether a server has instances of a group that are not this SLO's own.
    pub(crate) fn has_others(&self, group: &str, slo: &str, server: usize) -> bool {
        let there = self.groups.get(group).and_then(|g| g.get(&server)).copied();
        let own = self.get(slo).map_or(0, |placed| {
            let own = placed.instances.iter().filter(|i| i.server == server);
            match placed.slo.apart.as_deref() == Some(group) {
                true => own.count(),
                false => 0,
            }
        });
        there.unwrap_or(0) as usize > own
    }

    /// What all SLOs together cost at least, and what cores and cache are worth to them.
    pub fn cheapest(&self) -> &Cheapest {
        &self.cheapest
    }

    /// Puts an SLO's instances on their servers, all or none. Whether they keep it is not looked at:
    /// [`check`](crate::check::check) does.
    ///
    /// # Errors
    /// What does not fit, and the plan is as before.
    pub fn put(&mut self, request: &Request, instances: Vec<Instance>) -> Result<(), PlanError> {
        self.put_again(Placed {
            slo: request.slo.clone(),
            cheapest: request.cheapest.clone(),
            instances,
        })
    }

    /// Puts an SLO back as it was [removed](Self::remove), or elsewhere.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn put_again(&mut self, placed: Placed) -> Result<(), PlanError> {
        let Placed {
            slo,
            mut instances,
            cheapest,
        } = placed;
        if self.placed.contains_key(&slo.name) {
            return Err(PlanError::Twice(slo.name));
        }
        instances.sort_unstable();
        for (i, instance) in instances.iter().enumerate() {
            if let Err(error) = self.try_take(&slo, &instances[..i], *instance, i) {
                instances[..i].iter().for_each(|done| self.free(&slo, done));
                return Err(error);
            }
        }
        if let Some(group) = &slo.apart {
            let servers = self.groups.entry(group.clone()).or_default();
            for instance in &instances {
                *servers.entry(instance.server).or_default() += 1;
            }
        }
        self.cheapest.add(&cheapest);
        let placed = Placed {
            slo,
            instances,
            cheapest,
        };
        self.placed.insert(placed.slo.name.clone(), placed);
        Ok(())
    }

    /// Takes an SLO and its instances away.
    pub fn remove(&mut self, name: &str) -> Option<Placed> {
        let placed = self.placed.remove(name)?;
        self.cheapest.subtract(&placed.cheapest);
        for instance in &placed.instances {
            self.free(&placed.slo, instance);
        }
        if let Some(group) = &placed.slo.apart
            && let Some(servers) = self.groups.get_mut(group)
        {
            for instance in &placed.instances {
                if let Some(count) = servers.get_mut(&instance.server) {
                    *count -= 1;
                    if *count == 0 {
                        servers.remove(&instance.server);
                    }
                }
            }
            if servers.is_empty() {
                self.groups.remove(group);
            }
        }
        Some(placed)
    }

    /// Cores of an instance on a server.
    pub fn cores(&self, slo: &Slo, server: usize) -> Option<u16> {
        let kind = self.cluster.servers().get(server)?.kind;
        let machine = &self.cluster.kinds()[kind].machine;
        slo.chain.on(machine).map(|curves| curves.cores)
    }

    fn try_take(&mut self, slo: &Slo, before: &[Instance], instance: Instance, number: usize) -> Result<(), PlanError> {
        let cores = self.cores(slo, instance.server);
        let room = self.room(instance.server, instance.node);
        let (Some(cores), Some(room)) = (cores, room) else {
            return Err(PlanError::Nowhere(number));
        };
        let same = |other: &Instance| other.server == instance.server;
        let group = slo.apart.as_deref();
        if slo.spread && before.iter().any(same) || group.is_some_and(|group| self.has_group(group, instance.server)) {
            return Err(PlanError::Together(number));
        }
        if instance.ways == 0 || !self.rooms[room].holds(cores, instance.ways) {
            return Err(PlanError::Full(number));
        }
        self.rooms[room].take(cores, instance.ways);
        self.instances[instance.server] += 1;
        Ok(())
    }

    fn free(&mut self, slo: &Slo, instance: &Instance) {
        let cores = self.cores(slo, instance.server);
        let room = self.room(instance.server, instance.node);
        if let (Some(cores), Some(room)) = (cores, room) {
            self.rooms[room].give(cores, instance.ways);
            self.instances[instance.server] -= 1;
        }
    }
}

impl PartialEq for Plan {
    /// The same SLOs with the same instances on the same servers: the rest follows from it.
    fn eq(&self, other: &Self) -> bool {
        self.placed == other.placed && self.cluster == other.cluster && self.rooms == other.rooms
    }
}
