//! From objects to inputs of the ingress: chains and their instances. Decides only.

use crate::controller::Objects;
use crate::controller::chains::{Chains, read_match};
use crate::controller::full_name;
use crate::figures::class_load;
use crate::ingress::{ChainReport, ChainRoute, Input, PortReference, Readiness, Server, ServerReport};
use crate::reports::AgentReport;
use crate::resources::{ChainInstance, InstancePhase};
use kube::ResourceExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tailwater_api::chain::Match;
use tailwater_net::Nanos;
use tailwater_net::ethernet::MacAddress;
use tailwater_policy::server::{IngressConfig, ServerCounters, ServerNumber};

/// Instances that one process can know in its life.
const MOST_NUMBERS: ServerNumber = 4096;

/// Instance with its number. One that gets the name of an earlier one is another instance.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) number: ServerNumber,
    pub(super) uid: String,
    /// Namespace and name of its chain.
    pub(super) chain: String,
}

/// Instances as the ingress knows them: to it each is a server of its own.
#[derive(Debug)]
pub struct Feed {
    mapping: IngressConfig,
    /// By namespace and name.
    numbers: BTreeMap<String, Numbered>,
    next: ServerNumber,
    is_exhausted: bool,
    sent: BTreeMap<ServerNumber, Server>,
    routes: BTreeMap<String, ChainRoute>,
    /// Matches that instances run, by their text.
    matches: HashMap<String, Option<Match>>,
    /// Instances of each server, with the names of their chains.
    on: HashMap<String, Vec<(String, String)>>,
}

impl Feed {
    /// Nothing is known yet.
    pub fn new(mapping: IngressConfig) -> Feed {
        Feed {
            mapping,
            numbers: BTreeMap::new(),
            next: 0,
            is_exhausted: false,
            sent: BTreeMap::new(),
            routes: BTreeMap::new(),
            matches: HashMap::new(),
            on: HashMap::new(),
        }
    }

    /// Returns the name of an instance by its number.
    pub fn name_of(&self, number: ServerNumber) -> Option<&str> {
        self.numbers
            .iter()
            .find(|(_, of)| of.number == number)
            .map(|(name, _)| &**name)
    }

    /// All instances, with their names.
    pub(super) fn instances(&self) -> impl Iterator<Item = (&str, &Numbered)> {
        self.numbers.iter().map(|(name, instance)| (&**name, instance))
    }

    /// Returns `true` if a chain is steered, or is to be.
    pub(super) fn has_chain(&self, name: &str) -> bool {
        self.routes.contains_key(name)
    }

    /// Returns the inputs by which the ingress learns what has changed. Instances come before the chains that have
    /// them, and leave after them; chains leave before others come, which may have their packets.
    pub fn update(&mut self, objects: &Objects, chains: &Chains) -> Vec<Input> {
        let ports: HashMap<String, (&str, bool)> = objects
            .servers
            .iter()
            .map(|server| {
                let status = server.status.as_ref();
                let is_lost = status.is_some_and(|status| status.conditions.iter().any(is_lost));
                let port = status.map(|status| &*status.switch_port).unwrap_or_default();
                (server.name_any(), (port, is_lost))
            })
            .collect();
        let mut inputs = Vec::new();
        let mut servers = BTreeMap::new();
        let mut of_chain: BTreeMap<String, Vec<(ServerNumber, u16)>> = BTreeMap::new();
        let mut running: BTreeMap<String, Vec<Option<Match>>> = BTreeMap::new();
        let known: HashMap<String, String> = objects
            .instances
            .iter()
            .map(|one| (full_name(&**one), one.uid().unwrap_or_default()))
            .collect();
        self.numbers.retain(|name, one| known.get(name) == Some(&one.uid));
        let mut before = std::mem::take(&mut self.matches);
        self.on.clear();
        for instance in &objects.instances {
            let Some((port, is_lost)) = ports.get(&instance.spec.server).filter(|(port, _)| !port.is_empty()) else {
                continue;
            };
            let Ok(mac) = instance.spec.mac.parse::<MacAddress>() else {
                continue;
            };
            let name = full_name(&**instance);
            let chain = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.spec.chain);
            let uid = instance.uid().unwrap_or_default();
            let Some(number) = self.number(&name, uid, &chain) else {
                continue;
            };
            let readiness = readiness(instance, *is_lost);
            let server = Server {
                number,
                mac: mac.0,
                port: PortReference::Name((*port).to_owned()),
                readiness,
            };
            let status = instance.status.as_ref();
            if status.is_some_and(|status| [InstancePhase::Running, InstancePhase::Draining].contains(&status.phase)) {
                let runs = status.and_then(|status| status.match_.as_ref()).and_then(|text| {
                    let read = || before.remove(text).unwrap_or_else(|| read_match(text));
                    self.matches.entry(text.clone()).or_insert_with(read).clone()
                });
                running.entry(chain.clone()).or_default().push(runs);
            }
            self.on
                .entry(instance.spec.server.clone())
                .or_default()
                .push((name, chain.clone()));
            of_chain.entry(chain).or_default().push((number, cores(instance)));
            if self.sent.get(&number) != Some(&server) {
                inputs.push(Input::Server(server.clone()));
            }
            servers.insert(number, server);
        }
        let mut routes = BTreeMap::new();
        let mut changed = Vec::new();
        let had_packets = had_packets(objects);
        for (name, servers) in of_chain {
            let Some((facts, _)) = chains.enforced(&name) else {
                continue;
            };
            let route = ChainRoute {
                name: name.clone(),
                matching: self.in_force(&name, &facts.match_, running.get(&name)),
                servers,
                mapping: self.mapping,
            };
            if self.routes.get(&name) != Some(&route) {
                changed.push(Input::Chain(route.clone()));
            }
            routes.insert(name, route);
        }
        let gone = self.routes.keys().filter(|name| !routes.contains_key(*name));
        inputs.extend(gone.map(|name| Input::ChainRemoved(name.clone())));
        // A new ingress: of two chains that exclude each other the one that had the packets keeps them.
        changed.sort_by_key(|input| matches!(input, Input::Chain(route) if !had_packets.contains(&route.name)));
        inputs.extend(changed);
        let gone = self.sent.keys().filter(|number| !servers.contains_key(number));
        inputs.extend(gone.map(|number| Input::ServerRemoved(*number)));
        self.routes = routes;
        self.sent = servers;
        inputs
    }

    /// Returns the match that a chain is steered by. The newest one is, once one instance runs it, or it is not known
    /// what one runs: packets that no instance expects would be lost.
    fn in_force(&self, chain: &str, newest: &Match, running: Option<&Vec<Option<Match>>>) -> Match {
        let before = self.routes.get(chain).map(|route| &route.matching);
        let Some(running) = running else {
            return before.unwrap_or(newest).clone();
        };
        let runs = |wanted: &Match| running.iter().any(|one| one.as_ref() == Some(wanted));
        if runs(newest) || running.contains(&None) {
            return newest.clone();
        }
        let before = before.filter(|before| runs(before));
        before.or(running[0].as_ref()).unwrap_or(newest).clone()
    }

    /// Returns what a report of a server's agent says of each of its instances.
    pub fn report(&self, report: &AgentReport) -> Vec<Input> {
        let on = self.on.get(&report.server).map(Vec::as_slice).unwrap_or_default();
        let inputs = on.iter().filter_map(|(instance, chain)| {
            let number = self.numbers.get(instance)?.number;
            let reported = report.instances.iter().find(|one| is_named(&one.name, instance));
            let chains = reported.map(|reported| ChainReport {
                chain: chain.clone(),
                counters: ServerCounters {
                    offered: reported.offered,
                    processed: reported.processed,
                    busy: Nanos(reported.busy_nanos),
                    late: reported.late,
                },
                measured: Some(reported.measured_nanos).filter(|at| *at > 0).map(Nanos),
                dedicated: 1,
                classes: reported
                    .classes
                    .iter()
                    .filter_map(|class| class_load(&class.destination, class.source_bits, class.packets))
                    .collect(),
            });
            Some(Input::Report(ServerReport {
                server: number,
                chains: chains.into_iter().collect(),
            }))
        });
        inputs.collect()
    }

    /// Number of an instance. Numbers are not used again: rows of an earlier instance could be taken for a new one's.
    fn number(&mut self, name: &str, uid: String, chain: &str) -> Option<ServerNumber> {
        if let Some(known) = self.numbers.get(name) {
            return Some(known.number);
        }
        if self.next == MOST_NUMBERS {
            self.is_exhausted = true;
            return None;
        }
        let number = self.next;
        self.next += 1;
        let chain = chain.to_owned();
        self.numbers.insert(name.to_owned(), Numbered { number, uid, chain });
        Some(number)
    }

    /// Returns `true` if there have been so many instances that a new one has no number. A new ingress has all of them.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }
}

/// Chains that were steered to some instance.
fn had_packets(objects: &Objects) -> HashSet<String> {
    let is_steered = |one: &&Arc<ChainInstance>| one.status.as_ref().is_some_and(|status| status.steered == Some(true));
    let steered = objects.instances.iter().filter(is_steered);
    let chain = |one: &Arc<ChainInstance>| format!("{}/{}", one.namespace().unwrap_or_default(), one.spec.chain);
    steered.map(chain).collect()
}

/// Compares the name of an instance on its server with its namespace and name.
fn is_named(local: &str, instance: &str) -> bool {
    let (namespace, name) = instance.split_once('/').unwrap_or_default();
    local.strip_prefix(namespace).and_then(|rest| rest.strip_prefix("--")) == Some(name)
}

fn is_lost(condition: &crate::resources::Condition) -> bool {
    condition.name == "Ready" && condition.reason == "Lost"
}

fn readiness(instance: &ChainInstance, is_lost: bool) -> Readiness {
    let phase = instance.status.as_ref().map(|status| status.phase).unwrap_or_default();
    let is_leaving = instance.spec.draining || instance.metadata.deletion_timestamp.is_some();
    match phase {
        _ if is_lost => Readiness::NotReady,
        InstancePhase::Running | InstancePhase::Draining if is_leaving => Readiness::Draining,
        InstancePhase::Running => Readiness::Ready,
        _ => Readiness::NotReady,
    }
}

fn cores(instance: &ChainInstance) -> u16 {
    let cores = instance
        .status
        .as_ref()
        .map(|status| &*status.cores)
        .unwrap_or_default();
    cores.split(',').filter(|core| !core.is_empty()).count().max(1) as u16
}

#[cfg(test)]
mod tests;
