//! Statuses of a server's chains and its events, published as snapshots.

use crate::configuration::Configuration;
use crate::details::{CoreDetails, PortDetails};
use crate::events::{EventRing, Severity};
use crate::machine::ChainObservation;
use crate::status::{Applies, BrokenPromise, ChainStatus, ConditionStatus, Phase, Snapshot};
use crate::steps::Step;
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Statuses and events.
pub(super) struct StatusTable {
    server: String,
    started: Nanos,
    chains: BTreeMap<String, Arc<ChainStatus>>,
    cores: (Arc<[CoreDetails]>, Nanos),
    ports: Arc<[PortDetails]>,
    events: EventRing,
    applies: Applies,
    revision: u64,
    publish: Box<dyn FnMut(Snapshot) + Send>,
}

impl StatusTable {
    pub(super) fn new(server: &str, started: Nanos, publish: Box<dyn FnMut(Snapshot) + Send>) -> StatusTable {
        StatusTable {
            server: server.to_owned(),
            started,
            chains: BTreeMap::new(),
            cores: Default::default(),
            ports: Default::default(),
            events: EventRing::default(),
            applies: Applies::default(),
            revision: 0,
            publish,
        }
    }

    pub(super) fn snapshot(&self, generation: u64) -> Snapshot {
        Snapshot {
            server: self.server.clone(),
            started: self.started,
            generation,
            chains: self.chains.clone(),
            cores: Arc::clone(&self.cores.0),
            cores_read: self.cores.1,
            ports: Arc::clone(&self.ports),
            applies: self.applies,
            events: self.events.clone(),
        }
    }

    pub(super) fn events(&self) -> &EventRing {
        &self.events
    }

    pub(super) fn publish(&mut self, generation: u64) {
        let snapshot = self.snapshot(generation);
        (self.publish)(snapshot);
    }

    /// Stores the work of the machine's cores.
    pub(super) fn store_cores(&mut self, cores: Vec<CoreDetails>, now: Nanos) {
        self.cores = (cores.into(), now);
    }

    /// Stores the packets of the machine's ports.
    pub(super) fn store_ports(&mut self, ports: Vec<PortDetails>) {
        self.ports = ports.into();
    }

    /// Counts an apply, which was accepted or refused.
    pub(super) fn count_apply(&mut self, is_accepted: bool) {
        match is_accepted {
            true => self.applies.accepted += 1,
            false => self.applies.refused += 1,
        }
    }

    pub(super) fn chains(&self) -> impl Iterator<Item = &Arc<ChainStatus>> {
        self.chains.values()
    }

    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        self.chains.get(name).map(|status| status.phase)
    }

    pub(super) fn is_failed(&self, name: &str) -> bool {
        self.phase(name) == Some(Phase::Failed)
    }

    /// Copy of all statuses, to be [restored](Self::restore).
    pub(super) fn copy(&self) -> BTreeMap<String, Arc<ChainStatus>> {
        self.chains.clone()
    }

    /// Restores statuses after steps were undone.
    pub(super) fn restore(&mut self, chains: BTreeMap<String, Arc<ChainStatus>>) {
        self.chains = chains;
        // A reader that saw the steps sees the statuses of before as changes.
        for status in self.chains.values_mut() {
            self.revision += 1;
            Arc::make_mut(status).revision = self.revision;
        }
    }

    pub(super) fn event(
        &mut self,
        now: Nanos,
        severity: Severity,
        chain: Option<&str>,
        reason: &'static str,
        text: &str,
    ) {
        self.events.add(now, severity, chain, reason, text);
    }

    /// Adds or replaces a status.
    pub(super) fn insert(&mut self, mut status: ChainStatus) {
        self.revision += 1;
        status.revision = self.revision;
        self.chains.insert(status.chain.name.clone(), Arc::new(status));
    }

    /// Enters a phase, if there is such a chain.
    pub(super) fn enter(&mut self, name: &str, phase: Phase, reason: &str, now: Nanos) {
        if let Some(status) = self.chains.get_mut(name) {
            let is_news = status.phase != phase || status.reason != reason;
            if is_news {
                self.revision += 1;
                let status = Arc::make_mut(status);
                status.enter(phase, reason, now);
                status.revision = self.revision;
            }
        }
    }

    /// Stores an observation, and adds an event if the objective is met or missed from now on.
    pub(super) fn store(&mut self, observation: ChainObservation, now: Nanos) {
        let Some(status) = self.chains.get_mut(&observation.name) else {
            return;
        };
        let status = Arc::make_mut(status);
        let before = status.known_objective;
        if status.store(observation, now) {
            self.revision += 1;
            status.revision = self.revision;
        }
        let after = status.objective_met().clone();
        let name = status.chain.name.clone();
        if before != status.known_objective {
            let (severity, reason) = match after.status {
                ConditionStatus::False => (Severity::Warning, "ObjectiveMissed"),
                ConditionStatus::True => (Severity::Normal, "ObjectiveMet"),
                ConditionStatus::Unknown => return,
            };
            self.event(now, severity, Some(&name), reason, &after.message);
        }
    }

    /// Sets or removes the reason for which a chain's promise is not kept.
    pub(super) fn set_broken(&mut self, name: &str, broken: Option<BrokenPromise>, now: Nanos) {
        if let Some(status) = self.chains.get_mut(name)
            && status.broken != broken
        {
            self.revision += 1;
            let status = Arc::make_mut(status);
            status.set_broken(broken, now);
            status.revision = self.revision;
        }
    }

    /// Removes a chain that is gone.
    pub(super) fn remove(&mut self, name: &str, now: Nanos) {
        if self.chains.remove(name).is_some() {
            self.event(now, Severity::Normal, Some(name), "Gone", "");
        }
    }

    /// Records a step that was carried out.
    pub(super) fn complete(&mut self, step: &Step, generation: u64, now: Nanos) {
        let name = step.chain().name.clone();
        let (reason, message) = match step {
            Step::Add(chain) => {
                let message = match chain.forced {
                    true => format!("generation {generation}, without a promise"),
                    false => format!("generation {generation}"),
                };
                ("Started", message)
            }
            Step::Change { .. } => ("Configured", format!("generation {generation}")),
            Step::Replace { old, new } if old.name != new.name => {
                self.enter(&old.name, Phase::Draining, "", now);
                let status = ChainStatus::new(Arc::clone(new), Phase::Starting, generation, now);
                self.insert(status);
                (
                    "Replaced",
                    format!("generation {generation}; takes the packets of chain \"{}\"", old.name),
                )
            }
            Step::Replace { .. } => ("Replaced", format!("generation {generation}")),
            Step::Remove(_) => {
                self.enter(&name, Phase::Draining, "", now);
                ("Draining", format!("generation {generation}"))
            }
        };
        if let Some(status) = self.chains.get_mut(&name) {
            self.revision += 1;
            let status = Arc::make_mut(status);
            status.generation = generation;
            status.revision = self.revision;
            // It was that of the chain before.
            status.broken = None;
        }
        self.event(now, Severity::Normal, Some(&name), reason, &message);
    }

    /// Makes statuses refer to the chains of a configuration.
    pub(super) fn refer(&mut self, configuration: &Configuration) {
        for (name, chain) in &configuration.chains {
            if let Some(status) = self.chains.get_mut(name)
                && !Arc::ptr_eq(&status.chain, chain)
            {
                Arc::make_mut(status).chain = Arc::clone(chain);
            }
        }
    }
}
