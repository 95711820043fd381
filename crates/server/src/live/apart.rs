//! Chains that cannot run beside their successor for a moment, since both would use the same interfaces.

use super::news::{is_of_state, severity_of};
use super::running::{RunningChain, StartFrom};
use super::{DRAIN_TIMEOUT, LiveMachine};
use crate::chain::AppliedChain;
use crate::machine::{MachineNote, Refusal};
use std::time::Duration;
use tailwater_dataplane::RunPlan;

impl LiveMachine {
    /// Notes news of the interfaces of external functions, and warnings about the store of flow state.
    pub(super) fn monitor_externals(&mut self) {
        for (name, chain) in &self.chains {
            let news = chain.news().into_iter().map(|message| MachineNote {
                severity: severity_of(&message),
                chain: Some(name.clone()),
                reason: match is_of_state(&message) {
                    true => "StateNotSafe",
                    false => "PortChanged",
                },
                message,
            });
            self.notes.extend(news);
        }
    }

    /// Replaces a chain by one with the same interfaces, once it has ended. Its packets belong to no chain meanwhile.
    /// If the new one does not start, the old one does again.
    pub(super) fn replace_after_end(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        self.port(chain)?;
        let Some(mut leaving) = self.chains.remove(old) else {
            return Err(Refusal::new(format!("chain {old} does not run")));
        };
        let plan = leaving.plan().clone();
        let outside = plan.spec().externals().map(|(_, external)| external.timeout.0);
        let timeout = DRAIN_TIMEOUT + Duration::from_nanos(outside.sum());
        leaving.drain();
        leaving.await_end(timeout);
        if !leaving.is_finished() {
            self.leaving.push(leaving);
            return Err(Refusal::new(format!(
                "chain {old} has not ended within {} s",
                timeout.as_secs()
            )));
        }
        let place = (leaving.port().to_owned(), leaving.weight());
        self.tell_end(leaving);
        let started = self.launch(chain, None).map(|started| (chain.name.clone(), started));
        let started = started.map_err(|refused| match self.start_again(old, &plan, &place) {
            Ok(again) => {
                self.chains.insert(old.to_owned(), again);
                refused
            }
            Err(error) => Refusal::new(format!(
                "{refused}; chain {old}, which it was to replace, cannot be started again: {error}"
            )),
        });
        let result = started.map(|(name, started)| drop(self.chains.insert(name, started)));
        self.show();
        result
    }

    /// Starts a chain again that ran before.
    fn start_again(&self, name: &str, plan: &RunPlan, (port, weight): &(String, u32)) -> Result<RunningChain, Refusal> {
        let port = self.ports.get(port);
        let port = port.ok_or_else(|| Refusal::new("its port is not open"))?;
        let from = StartFrom {
            name,
            weight: *weight,
            port,
            host: &self.host,
            continues_files: true,
            replaced: None,
        };
        RunningChain::start(plan.clone(), from)
    }
}
