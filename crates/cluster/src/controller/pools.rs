//! Pools of servers: which servers belong to which, and their statuses.

use super::devices;
use super::objects::Objects;
use super::seen::Servers;
use super::write::Write;
use crate::resources::{PoolStatus, RackServer, ServerPool, set_condition};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Pools at one time.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// Servers of each pool.
    servers: BTreeMap<String, Vec<String>>,
    /// Pools of each server that is in any, sorted.
    of_server: HashMap<String, Vec<String>>,
    /// There are servers, and each is in a pool.
    all_are_in_pools: bool,
}

impl Pools {
    /// Returns the pools of the objects.
    pub fn new(objects: &Objects) -> Pools {
        let mut pools = Pools::default();
        for pool in &objects.pools {
            let of_pool = objects.servers.iter().filter(|server| pool.spec.has(server));
            let names: Vec<String> = of_pool.map(|server| server.name_any()).collect();
            for name in &names {
                let of_server = pools.of_server.entry(name.clone()).or_default();
                of_server.push(pool.name_any());
            }
            pools.servers.insert(pool.name_any(), names);
        }
        // Pools are sorted by their names.
        pools.all_are_in_pools = !objects.servers.is_empty() && pools.of_server.len() == objects.servers.len();
        pools
    }

    /// Names of the pools of a server.
    pub fn of(&self, server: &str) -> Vec<String> {
        self.of_server.get(server).cloned().unwrap_or_default()
    }

    /// Returns `true` if chains of a pool, or those without one, may use a server.
    pub(super) fn has(&self, pool: Option<&str>, server: &str) -> bool {
        let pools = self.of_server.get(server);
        match pool {
            Some(pool) => pools.is_some_and(|pools| pools.iter().any(|name| name == pool)),
            None => pools.is_none(),
        }
    }

    /// Returns the reason, one word and one line, why chains of a pool, or those without one, can have no server.
    pub(super) fn problem(&self, pool: Option<&str>) -> Option<(&'static str, String)> {
        let Some(pool) = pool else {
            let message = "each server is in a ServerPool, and spec.pool names none: expected the name of one, or a \
                           server that is in none";
            return self.all_are_in_pools.then(|| ("EmptyPool", message.to_owned()));
        };
        match self.servers.get(pool) {
            None => {
                let message = format!(
                    "there is no ServerPool {pool}: create it, or change spec.pool; instances stay where they are, \
                     and none is created"
                );
                Some(("NoPool", message))
            }
            Some(servers) if servers.is_empty() => {
                let message = format!(
                    "no server belongs to ServerPool {pool}: name servers in its spec.servers, or label RackServers \
                     as its spec.selector expects; instances stay where they are, and none is created"
                );
                Some(("EmptyPool", message))
            }
            Some(_) => None,
        }
    }

    /// Returns the statuses of pools that have changed.
    pub(super) fn writes(&self, objects: &Objects, servers: &Servers, now: Timestamp) -> Vec<Write> {
        if objects.pools.is_empty() {
            return Vec::new();
        }
        let by_name: HashMap<String, &RackServer> = objects
            .servers
            .iter()
            .map(|server| (server.name_any(), &**server))
            .collect();
        let mut loads: HashMap<&str, Load> = HashMap::new();
        for instance in &objects.instances {
            let load = loads.entry(&instance.spec.server).or_default();
            load.instances += 1;
            let cores = instance.status.as_ref().map(|status| &*status.cores);
            let cores = cores.unwrap_or_default().split(',');
            load.cores.extend(cores.filter_map(|core| core.parse::<u32>().ok()));
        }
        let write = |pool: &std::sync::Arc<ServerPool>| {
            let members = self
                .servers
                .get(&pool.name_any())
                .map(Vec::as_slice)
                .unwrap_or_default();
            let mut status = status(pool, members, &by_name, &loads, servers, now);
            devices::tell(pool, objects, &mut status.conditions, now);
            (pool.status.as_ref() != Some(&status)).then(|| Write::PoolStatus {
                name: pool.name_any(),
                status: Box::new(status),
            })
        };
        objects.pools.iter().filter_map(write).collect()
    }
}

/// Instances on a server, and their cores.
#[derive(Default)]
struct Load {
    instances: u32,
    cores: BTreeSet<u32>,
}

fn status(
    pool: &ServerPool,
    members: &[String],
    by_name: &HashMap<String, &RackServer>,
    loads: &HashMap<&str, Load>,
    servers: &Servers,
    now: Timestamp,
) -> PoolStatus {
    let mut status = PoolStatus {
        observed_generation: pool.metadata.generation.unwrap_or_default(),
        conditions: pool.status.clone().unwrap_or_default().conditions,
        servers: members.len() as u32,
        ..PoolStatus::default()
    };
    for name in members {
        let Some(server) = by_name.get(name) else { continue };
        let cores = server.status.as_ref().map(|status| &*status.core_numbers);
        let cores = cores.unwrap_or_default();
        let load = loads.get(&**name);
        let is_used = |core: &&u32| load.is_some_and(|load| load.cores.contains(core));
        status.cores += cores.len() as u32;
        status.cores_used += cores.iter().filter(is_used).count() as u32;
        status.instances += load.map_or(0, |load| load.instances);
        let is_seen = servers.last_seen(name).is_some() && !servers.is_lost(name);
        status.ready_servers += u32::from(is_seen && !server.spec.unschedulable && !cores.is_empty());
    }
    status.cores_free = status.cores - status.cores_used;
    let unknown: Vec<&str> = pool
        .spec
        .servers
        .iter()
        .filter(|name| !by_name.contains_key(*name))
        .map(|name| &**name)
        .collect();
    let unknown = match unknown.first() {
        None => String::new(),
        Some(first) => format!("{} of spec.servers have no RackServer: {first}", unknown.len()),
    };
    let empty = "no server belongs to it: expected RackServers with the labels of spec.selector, or the names of some \
                 in spec.servers";
    let new = match (members.len(), status.ready_servers) {
        (0, _) => ("Ready", false, "Empty", empty),
        (_, 0) => (
            "Ready",
            false,
            "NoServerReady",
            "none of its servers takes new instances",
        ),
        _ => ("Ready", true, "Ready", &*unknown),
    };
    set_condition(&mut status.conditions, now, new, pool.metadata.generation);
    status
}
