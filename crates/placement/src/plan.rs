//! Plan: the placement of instances with their cache, and the free resources.

use crate::bound::{MinimumCost, separate_servers, whole};
use crate::cluster::Cluster;
use crate::request::Request;
use crate::slo::Slo;
use std::collections::{BTreeMap, HashMap};

/// Placement of an instance: a NUMA node, cores (as many as in the chain's curves), and cache ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Instance {
    /// Index of the server.
    pub server: usize,
    /// NUMA node.
    pub node: u16,
    /// Exclusive cache ways.
    pub ways: u16,
}

/// Admitted SLO, and its instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The SLO.
    pub slo: Slo,
    /// Its instances, sorted by server.
    pub instances: Vec<Instance>,
    /// Its minimum cost on this cluster.
    pub cheapest: MinimumCost,
}

/// Free resources of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Index of the server.
    pub server: u32,
    /// Index of its kind.
    pub kind: u16,
    /// NUMA node.
    pub node: u16,
    /// Free cores.
    pub cores: u16,
    /// Free ways.
    pub ways: u16,
    /// Free classes.
    pub classes: u16,
}

impl Room {
    /// Returns `true` if an instance fits.
    pub fn holds(&self, cores: u16, ways: u16) -> bool {
        self.cores >= cores && self.ways >= ways && self.classes > 0
    }

    /// Subtracts the resources of an instance, which must fit.
    pub fn take(&mut self, cores: u16, ways: u16) {
        self.cores -= cores;
        self.ways -= ways;
        self.classes -= 1;
    }

    /// Adds the resources of an instance.
    pub fn give(&mut self, cores: u16, ways: u16) {
        self.cores += cores;
        self.ways += ways;
        self.classes += 1;
    }
}

/// Reason why instances cannot be placed as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Another SLO has the same name.
    #[error("expected a different name for each SLO, found \"{0}\" twice")]
    Twice(String),
    /// The server or node does not exist, or the chain was not measured on its machine.
    #[error("instance {0} is on a server on which its chain was not measured")]
    Nowhere(usize),
    /// The node has no room.
    #[error("instance {0} does not fit on its server")]
    Full(usize),
    /// Anti-affinity: the server already has instances of the SLO, or of its group.
    #[error("instance {0} shares a server with one that it must be apart from")]
    Together(usize),
}

/// Resource of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Cores.
    Cores,
    /// Cache ways.
    Cache,
    /// Classes of a cache.
    Classes,
    /// Servers permitted by an SLO's anti-affinity rules.
    Servers,
    /// Nodes on which others leave enough of what is not partitioned.
    Quiet,
}

/// Plan of a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    cluster: Cluster,
    /// Nodes of all servers, sorted by server.
    rooms: Vec<Room>,
    /// Index of each server's first room.
    first: Vec<usize>,
    /// Number of instances on each server.
    instances: Vec<u32>,
    placed: BTreeMap<String, Placed>,
    /// Number of instances of each group, by server.
    groups: HashMap<String, HashMap<usize, u32>>,
    /// Minimum cost of all SLOs.
    cheapest: MinimumCost,
}

impl Plan {
    /// Creates an empty plan.
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
            cheapest: MinimumCost::default(),
        }
    }

    /// Returns an empty plan on the servers that this plan does not use. The others have no free resources.
    pub fn without_active(&self) -> Self {
        let mut plan = Plan::new(self.cluster.clone());
        for room in &mut plan.rooms {
            if self.is_active(room.server as usize) {
                (room.cores, room.ways, room.classes) = (0, 0, 0);
            }
        }
        plan
    }

    /// Closes a server without instances to further ones, or opens it again.
    pub(crate) fn set_closed(&mut self, server: usize, closed: bool) {
        debug_assert!(!self.is_active(server), "server {server} has instances");
        let kind = self.cluster.kind_of(server);
        let free = match closed {
            true => (0, 0, 0),
            false => (kind.cores, kind.ways, kind.classes),
        };
        let first = self.first[server];
        for room in &mut self.rooms[first..first + usize::from(kind.nodes)] {
            (room.cores, room.ways, room.classes) = free;
        }
    }

    /// Returns the same plan with a very large amount of a resource on every node, to test if an SLO lacks that
    /// resource.
    pub(crate) fn with_plenty(&self, resource: Resource) -> Self {
        let mut plan = self.clone();
        for room in &mut plan.rooms {
            match resource {
                Resource::Cores => room.cores = u16::MAX,
                Resource::Cache => room.ways = u16::MAX,
                Resource::Classes => room.classes = u16::MAX,
                Resource::Servers | Resource::Quiet => {}
            }
        }
        plan
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the free resources of all nodes, sorted by server.
    pub fn rooms(&self) -> &[Room] {
        &self.rooms
    }

    /// Returns the index of a node in [`rooms`](Self::rooms).
    pub fn room(&self, server: usize, node: u16) -> Option<usize> {
        let kind = self.cluster.servers().get(server)?.kind;
        (node < self.cluster.kinds()[kind].nodes).then(|| self.first[server] + usize::from(node))
    }

    /// Returns `true` if a server has any instance.
    pub fn is_active(&self, server: usize) -> bool {
        self.instances[server] > 0
    }

    /// Returns the number of servers with instances.
    pub fn active(&self) -> usize {
        self.instances.iter().filter(|&&n| n > 0).count()
    }

    /// Returns the admitted SLOs, sorted by name.
    pub fn placed(&self) -> impl ExactSizeIterator<Item = &Placed> {
        self.placed.values()
    }

    /// Returns an admitted SLO.
    pub fn get(&self, name: &str) -> Option<&Placed> {
        self.placed.get(name)
    }

    /// Returns `true` if a server has instances of a group.
    pub fn has_group(&self, group: &str, server: usize) -> bool {
        self.groups
            .get(group)
            .is_some_and(|servers| servers.contains_key(&server))
    }

    /// Returns `true` if a server has instances of a group that belong to other SLOs.
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

    /// Returns the minimum cost of all SLOs together, which also gives the shadow prices of cores and cache.
    pub fn cheapest(&self) -> &MinimumCost {
        &self.cheapest
    }

    /// Returns a lower bound on the servers for all SLOs: by cores, cache and classes, and by anti-affinity.
    pub fn least_servers(&self) -> usize {
        let placed = self.placed().map(|placed| (&placed.slo, &placed.cheapest));
        whole(self.cheapest.servers()).max(separate_servers(&self.cluster, placed))
    }

    /// Places an SLO's instances on their servers, all or none. [`check`](crate::check::check) verifies that the SLO is
    /// met; this function does not.
    ///
    /// # Errors
    /// The name is in use, or an instance does not fit. The plan is then unchanged.
    pub fn put(&mut self, request: &Request, instances: Vec<Instance>) -> Result<(), PlanError> {
        self.restore(Placed {
            slo: request.slo.clone(),
            cheapest: request.cheapest.clone(),
            instances,
        })
    }

    /// Places an SLO that was [removed](Self::remove), at its previous places or elsewhere.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn restore(&mut self, placed: Placed) -> Result<(), PlanError> {
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

    /// Removes an SLO and its instances, and returns them.
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

    /// Returns the cores of an instance on a server.
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
    /// Compares the SLOs and their placements. All other fields follow from these.
    fn eq(&self, other: &Self) -> bool {
        self.placed == other.placed && self.cluster == other.cluster && self.rooms == other.rooms
    }
}
