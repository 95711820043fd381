//! Statuses from what the machine observes.

use super::Manager;
use crate::events::Severity;
use crate::generation::Store;
use crate::machine::{ChainObservation, ChainState, Machine};
use crate::status::Phase;
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Reason of a chain that the machine has lost.
const FORGOTTEN: &str = "the data plane does not run it any more";
/// Reason of a chain that ended although nobody drained it.
const ENDED: &str = "ended without being drained";

impl<M: Machine, S: Store> Manager<M, S> {
    /// Updates the statuses of all chains, and publishes them.
    pub fn observe(&mut self, now: Nanos) {
        let observed = self.machine.observe().into_iter();
        for note in self.machine.notes() {
            let chain = note.chain.as_deref();
            self.table.event(now, note.severity, chain, note.reason, &note.message);
        }
        let mut observed: BTreeMap<String, ChainObservation> = observed
            .map(|observation| (observation.name.clone(), observation))
            .collect();
        let names: Vec<(String, Phase)> = self
            .table
            .chains()
            .map(|status| (status.chain.name.clone(), status.phase))
            .collect();
        for (name, phase) in names {
            let observation = observed.remove(&name);
            let state = observation.as_ref().map(|observation| observation.state.clone());
            self.update(&name, phase, state, now);
            if let Some(observation) = observation {
                self.watch_promise(&observation, now);
                self.table.store(observation, now);
            }
        }
        self.forget_promises();
        self.table.store_cores(self.machine.cores(), now);
        self.table.store_ports(self.machine.ports());
        self.table.publish(self.current.generation);
    }

    /// Begins to end all chains, without changing the configuration. They have ended when
    /// [`is_idle`](Self::is_idle) holds.
    pub fn shut_down(&mut self, now: Nanos) {
        let names: Vec<String> = self.current.running().map(|chain| chain.name.clone()).collect();
        // The first one's packets go to no chain that ends later.
        self.machine.begin_change(true);
        for name in names {
            match self.machine.drain(&name) {
                Ok(()) => self.table.enter(&name, Phase::Draining, "", now),
                Err(refusal) => {
                    let message = format!("cannot drain: {refusal}");
                    self.table
                        .event(now, Severity::Warning, Some(&name), "StepFailed", &message);
                }
            }
        }
        self.machine.complete_change();
        self.table.publish(self.current.generation);
    }

    /// Returns `true` if the machine runs no chain any more.
    pub fn is_idle(&mut self) -> bool {
        let observed = self.machine.observe();
        let is_over = |state: &ChainState| matches!(state, ChainState::Ended | ChainState::Failed(_));
        observed.iter().all(|observation| is_over(&observation.state))
    }

    fn update(&mut self, name: &str, phase: Phase, state: Option<ChainState>, now: Nanos) {
        let configured = self.current.chains.get(name);
        let should_run = configured.is_some_and(|chain| !chain.drained);
        let is_gone = configured.is_none();
        match state {
            Some(ChainState::Starting) if should_run => self.table.enter(name, Phase::Starting, "", now),
            Some(ChainState::Running) if should_run => {
                if phase != Phase::Running {
                    self.table.event(now, Severity::Normal, Some(name), "Running", "");
                }
                self.table.enter(name, Phase::Running, "", now);
            }
            Some(ChainState::Failed(reason)) if should_run => self.fail(name, &reason, now),
            Some(ChainState::Ended) if should_run => self.fail(name, ENDED, now),
            // A replaced chain of the same name may still drain.
            Some(ChainState::Draining) if should_run => {}
            None if should_run && phase != Phase::Failed => self.fail(name, FORGOTTEN, now),
            None | Some(ChainState::Ended) if !should_run => self.end(name, phase, is_gone, now),
            Some(ChainState::Failed(reason)) => {
                // The machine forgets it.
                let _ = self.machine.drain(name);
                if phase != Phase::Drained {
                    let message = format!("while draining: {reason}");
                    self.table.event(now, Severity::Warning, Some(name), "Failed", &message);
                }
                self.end(name, phase, is_gone, now);
            }
            Some(_) if !should_run => self.table.enter(name, Phase::Draining, "", now),
            _ => {}
        }
    }

    fn fail(&mut self, name: &str, reason: &str, now: Nanos) {
        if !self.table.is_failed(name) {
            self.table.event(now, Severity::Warning, Some(name), "Failed", reason);
        }
        self.table.enter(name, Phase::Failed, reason, now);
    }

    /// Records that a drained chain has processed its last packet.
    fn end(&mut self, name: &str, phase: Phase, is_gone: bool, now: Nanos) {
        match is_gone {
            true => self.table.remove(name, now),
            false => {
                if phase != Phase::Drained {
                    self.table.event(now, Severity::Normal, Some(name), "Drained", "");
                }
                self.table.enter(name, Phase::Drained, "", now);
            }
        }
    }
}
