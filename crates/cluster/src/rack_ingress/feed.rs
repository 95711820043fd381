//! From objects to inputs of the ingress: chains and their instances. Decides only.

use crate::controller::Objects;
use crate::controller::chains::Chains;
use crate::controller::full_name;
use crate::figures::class_load;
use crate::ingress::{ChainReport, ChainRoute, Input, PortReference, Readiness, Server, ServerReport};
use crate::reports::AgentReport;
use crate::resources::{ChainInstance, InstancePhase};
use kube::ResourceExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use tailwater_net::Nanos;
use tailwater_net::ethernet::MacAddress;
use tailwater_policy::server::{IngressConfig, ServerCounters, ServerNumber};

/// Instances that one process can know in its life.
const MOST_NUMBERS: ServerNumber = 4096;

/// Instances as the ingress knows them: to it each is a server of its own.
#[derive(Debug)]
pub struct Feed {
    mapping: IngressConfig,
    /// Numbers of instances, by namespace and name.
    numbers: BTreeMap<String, ServerNumber>,
    next: ServerNumber,
    is_exhausted: bool,
    sent: BTreeMap<ServerNumber, Server>,
    routes: BTreeMap<String, ChainRoute>,
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
            on: HashMap::new(),
        }
    }

    /// Returns the name of an instance by its number.
    pub fn name_of(&self, number: ServerNumber) -> Option<&str> {
        self.numbers
            .iter()
            .find(|(_, of)| **of == number)
            .map(|(name, _)| &**name)
    }

    /// Names of all instances, with their numbers.
    pub fn instances(&self) -> impl Iterator<Item = (&str, ServerNumber)> {
        self.numbers.iter().map(|(name, number)| (&**name, *number))
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
        let known: HashSet<String> = objects.instances.iter().map(|one| full_name(&**one)).collect();
        self.numbers.retain(|name, _| known.contains(name));
        self.on.clear();
        for instance in &objects.instances {
            let Some((port, is_lost)) = ports.get(&instance.spec.server).filter(|(port, _)| !port.is_empty()) else {
                continue;
            };
            let Ok(mac) = instance.spec.mac.parse::<MacAddress>() else {
                continue;
            };
            let name = full_name(&**instance);
            let Some(number) = self.number(&name) else { continue };
            let readiness = readiness(instance, *is_lost);
            let server = Server {
                number,
                mac: mac.0,
                port: PortReference::Name((*port).to_owned()),
                readiness,
            };
            let chain = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.spec.chain);
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
        for (name, servers) in of_chain {
            let Some((facts, _)) = chains.enforced(&name) else {
                continue;
            };
            let route = ChainRoute {
                name: name.clone(),
                matching: facts.match_.clone(),
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
        inputs.extend(changed);
        let gone = self.sent.keys().filter(|number| !servers.contains_key(number));
        inputs.extend(gone.map(|number| Input::ServerRemoved(*number)));
        self.routes = routes;
        self.sent = servers;
        inputs
    }

    /// Returns what a report of a server's agent says of each of its instances.
    pub fn report(&self, report: &AgentReport) -> Vec<Input> {
        let on = self.on.get(&report.server).map(Vec::as_slice).unwrap_or_default();
        let inputs = on.iter().filter_map(|(instance, chain)| {
            let number = *self.numbers.get(instance)?;
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
    fn number(&mut self, name: &str) -> Option<ServerNumber> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        if self.next == MOST_NUMBERS {
            self.is_exhausted = true;
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// Returns `true` if there have been so many instances that a new one has no number. A new ingress has all of them.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }
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
mod tests {
    use super::*;
    use crate::reports::{FlowClass, InstanceReport};
    use tailwater_policy::server::{ClassLoad, FlowClass as Class};

    #[test]
    fn reports_tell_the_load_of_each_instance_and_their_absence_of_none() {
        let mapping = IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            threshold: 0,
            table: 0,
            flow_hash: true,
            rebalance: true,
            scale_in: false,
        };
        let mut feed = Feed::new(mapping);
        for (name, number) in [("a/web-0", 3), ("a/web-1", 4)] {
            feed.numbers.insert(name.to_owned(), number);
            let on = feed.on.entry("one".to_owned()).or_default();
            on.push((name.to_owned(), "a/web".to_owned()));
        }
        let class = |destination: &[u8]| FlowClass {
            destination: destination.to_vec(),
            source_bits: 5,
            packets: 70,
        };
        let instance = InstanceReport {
            name: "a--web-1".to_owned(),
            offered: 10,
            processed: 9,
            late: 1,
            busy_nanos: 4_000,
            measured_nanos: 300,
            classes: vec![class(&[10, 0, 0, 1]), class(&[10])],
        };
        let report = AgentReport {
            server: "one".to_owned(),
            instances: vec![instance],
        };
        let expected = ChainReport {
            chain: "a/web".to_owned(),
            counters: ServerCounters {
                offered: 10,
                processed: 9,
                busy: Nanos(4_000),
                late: 1,
            },
            measured: Some(Nanos(300)),
            dedicated: 1,
            classes: vec![ClassLoad {
                class: Class::by_source_bits(5, [10, 0, 0, 1].into()),
                packets: 70,
            }],
        };
        let report_of = |server, chains| Input::Report(ServerReport { server, chains });
        assert_eq!(
            feed.report(&report),
            [report_of(3, vec![]), report_of(4, vec![expected])]
        );
        let silent = AgentReport {
            instances: Vec::new(),
            ..report
        };
        assert_eq!(feed.report(&silent), [report_of(3, vec![]), report_of(4, vec![])]);
    }
}
