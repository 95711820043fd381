//! From objects to the view by which the rack's policy decides.

use super::chains::{ChainFacts, Chains, ReadChain};
use super::demand::Demands;
use super::objects::{Objects, full_name};
use super::pools::Pools;
use super::seen::Servers;
use crate::resources::{ChainInstance, InstancePhase, RackServer};
use kube::ResourceExt;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tailwater_net::Nanos;
use tailwater_placement::rack::{
    self, ChainView, InstanceLoad, InstanceView, RackPromise, RackThroughput, RackView, ServerState, ServerView,
};

/// Packets per second below which an instance that the ingress does not tell about has no flows left.
const QUIET: f64 = 1.0;
/// Time for which an instance must have failed until it counts as lost: one that a server refuses for a passing reason
/// is tried again by its agent meanwhile.
const FAILED: Nanos = Nanos::from_secs(10);

/// Makes views. Between them it holds demand, and times since when instances drain or have failed.
#[derive(Debug)]
pub struct Views {
    demands: Demands,
    drain: Nanos,
    /// Instances that drain or have failed, and since when, as far as this controller has seen it.
    since: HashMap<String, Nanos>,
}

impl Views {
    /// Instances that drain count as drained after `drain`, whatever they do. The highest demand within `peak` is the
    /// peak.
    pub fn new(drain: Duration, peak: Duration) -> Views {
        Views {
            demands: Demands::new(Nanos(peak.as_nanos() as u64)),
            drain: Nanos(drain.as_nanos() as u64),
            since: HashMap::new(),
        }
    }

    /// Makes the view of a round.
    pub fn view(
        &mut self,
        objects: &Objects,
        chains: &Chains,
        (servers, pools): (&Servers, &Pools),
        now: Nanos,
    ) -> RackView {
        let mut instances = Vec::with_capacity(objects.instances.len());
        let mut offered: HashMap<String, f64> = HashMap::new();
        let mut since = HashMap::new();
        let mut bound: HashSet<String> = HashSet::new();
        for object in &objects.instances {
            let instance = self.instance(object, now, &mut since);
            *offered.entry(instance.chain.clone()).or_default() += instance.load.offered;
            if bound_state(object).is_some() {
                bound.insert(instance.chain.clone());
            }
            instances.push(instance);
        }
        self.since = since;
        let views: Vec<ChainView> = objects
            .chains
            .iter()
            .filter_map(|object| {
                let name = full_name(&**object);
                let (facts, read) = chains.enforced(&name)?;
                let demand = self
                    .demands
                    .note(&name, offered.get(&name).copied().unwrap_or_default(), now);
                let is_bound = bound.contains(&name);
                // Flows that went to another instance would begin anew there.
                let limited = |number: u32| {
                    if is_bound {
                        1
                    } else {
                        number.min(u16::MAX.into()) as u16
                    }
                };
                Some(ChainView {
                    promise: promise(facts, read),
                    objective: Some(facts.objective),
                    cores: facts.cores.max(1),
                    least: limited(read.scale.min),
                    most: limited(read.scale.max),
                    redundancy: limited(read.scale.servers),
                    is_bound,
                    pool: read.pool.clone(),
                    demand,
                    name,
                })
            })
            .collect();
        let known: HashSet<&str> = views.iter().map(|view| &*view.name).collect();
        self.demands.retain(|chain| known.contains(chain));
        RackView {
            now,
            servers: objects
                .servers
                .iter()
                .map(|server| server_view(server, servers, pools))
                .collect(),
            chains: views,
            instances,
        }
    }

    fn instance(&self, object: &ChainInstance, now: Nanos, since: &mut HashMap<String, Nanos>) -> InstanceView {
        let name = full_name(object);
        let status = object.status.clone().unwrap_or_default();
        let mut lasting = |name: &str| {
            let begun = self.since.get(name).copied().unwrap_or(now);
            since.insert(name.to_owned(), begun);
            now.saturating_sub(begun)
        };
        let figures = status.figures.unwrap_or_default();
        let is_leaving = object.spec.draining || object.metadata.deletion_timestamp.is_some();
        let phase = match status.phase {
            _ if is_leaving => {
                let lasted = lasting(&name);
                let is_empty = match status.steered {
                    Some(steered) => !steered,
                    None => figures.offered < QUIET,
                };
                // The object goes when the agent is done with it.
                let may_go = object.metadata.deletion_timestamp.is_none();
                match may_go && (is_empty || lasted >= self.drain) {
                    true => rack::InstancePhase::Drained,
                    false => rack::InstancePhase::Draining,
                }
            }
            InstancePhase::Pending => rack::InstancePhase::Starting,
            InstancePhase::Running => rack::InstancePhase::Ready,
            InstancePhase::Draining => rack::InstancePhase::Draining,
            InstancePhase::Failed => match lasting(&name) >= FAILED {
                true => rack::InstancePhase::Lost,
                false => rack::InstancePhase::Starting,
            },
        };
        let latency = Some(Nanos(figures.latency_nanos)).filter(|latency| *latency > Nanos::ZERO);
        InstanceView {
            chain: format!("{}/{}", object.namespace().unwrap_or_default(), object.spec.chain),
            server: object.spec.server.clone(),
            phase,
            cores: status.cores.split(',').filter_map(|core| core.parse().ok()).collect(),
            promised: object.spec.promised,
            exclusive: object.spec.exclusive,
            replaces: object.spec.replaces.as_ref().map(|replaced| {
                let namespace = object.namespace().unwrap_or_default();
                format!("{namespace}/{replaced}")
            }),
            load: InstanceLoad {
                offered: figures.offered,
                p99: latency,
                batch_p99: Nanos::ZERO,
                busy: figures.busy,
            },
            name,
        }
    }
}

/// Reason why the flows of an instance cannot go to another one with all of their state, as its server has it.
pub(super) fn bound_state(instance: &ChainInstance) -> Option<&str> {
    let is_leaving = instance.spec.draining || instance.metadata.deletion_timestamp.is_some();
    let status = instance.status.as_ref().filter(|_| !is_leaving)?;
    status.bound_state.as_deref()
}

/// Promise of a chain. Without a profile there is none.
fn promise(facts: &ChainFacts, read: &ReadChain) -> Option<RackPromise> {
    if read.curves.is_empty() {
        return None;
    }
    Some(RackPromise {
        throughput: facts
            .throughput
            .map_or(RackThroughput::OnDemand, RackThroughput::Reserved),
        latency: facts.objective,
        curves: read.curves.clone(),
    })
}

fn server_view(server: &RackServer, servers: &Servers, pools: &Pools) -> ServerView {
    let name = server.name_any();
    let status = server.status.clone().unwrap_or_default();
    let state = match servers.last_seen(&name) {
        // Its agent has not reported yet.
        None => ServerState::Cordoned,
        Some(_) if status.core_numbers.is_empty() => ServerState::Cordoned,
        Some(since) => match (servers.is_lost(&name), server.spec.unschedulable) {
            (true, _) => ServerState::Lost { since },
            (false, true) => ServerState::Draining,
            (false, false) => ServerState::Ready,
        },
    };
    ServerView {
        pools: pools.of(&name),
        name,
        machine: status.machine,
        state,
        cores: status.core_numbers,
        cache_bytes: match status.cache_bytes {
            0 => u64::MAX,
            bytes => bytes,
        },
        headroom: status.headroom,
    }
}
