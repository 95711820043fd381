//! Beginning of chains: plan of a run, and its start by itself or in the place of another.

use super::outputs::check_outputs;
use super::reading::cores_of;
use super::running::{RunningChain, StartFrom};
use super::take_over::check_isolated_outputs;
use super::{DRAIN_TIMEOUT, LiveMachine, external, reading, succession};
use crate::chain::AppliedChain;
use crate::machine::Refusal;
use std::sync::Arc;
use tailwater_dataplane::shared_port::SharedPort;
use tailwater_dataplane::{RunConfig, RunPlan};
use tailwater_functions::spec::ChainSpec;

impl LiveMachine {
    /// Reads a chain with its functions, and plans its run on its core.
    pub(super) fn plan(&self, chain: &AppliedChain, except: Option<&str>) -> Result<RunPlan, Refusal> {
        let (spec, isolation) = self.reader.read_capped(chain)?;
        let cores = cores_of(chain)?;
        if isolation.is_some() && cores.len() > 1 {
            return Err(Refusal::new(format!(
                "spec.cores: expected 1 with isolated functions on a server, found {}",
                cores.len()
            )));
        }
        let others = || self.chains.values().filter(|running| Some(running.name()) != except);
        for other in others().filter(|other| !other.is_finished()) {
            check_outputs(&spec, other, &[])?;
        }
        external::check(&spec, cores.len(), others())?;
        if let Some(isolation) = &isolation {
            reading::check_cores(isolation, self.host.cores())?;
        }
        let isolated = isolation.as_ref();
        let scaling = match isolated.and_then(|isolation| isolation.bound_to_one_core(&spec)) {
            Some(_) => None,
            None => self.scaling(chain, (&spec, isolated.is_some()), except)?,
        };
        let config = RunConfig {
            scaling,
            isolation,
            keep_packets: self.kept(&spec),
            ..RunConfig::new(cores)
        };
        RunPlan::new(spec, config).map_err(|error| Refusal::new(error.to_string()))
    }

    pub(super) fn port(&self, chain: &AppliedChain) -> Result<&Arc<SharedPort>, Refusal> {
        let port = self.ports.get(&chain.port);
        port.ok_or_else(|| Refusal::new(format!("port {} is not open", chain.port)))
    }

    /// Returns the running chain of this name, if another one can take its place: on another port it takes no packets
    /// over.
    pub(super) fn succeeded(&self, name: &str, chain: &AppliedChain) -> Option<&RunningChain> {
        let old = self.chains.get(name)?;
        (old.port() == chain.port && old.runs()).then_some(old)
    }

    /// Starts a chain in the place of another one, if there is one. Functions that both have keep their state. Those
    /// whose configuration differs get the new one before, and the old one again if the chain cannot start.
    pub(super) fn launch(&mut self, chain: &AppliedChain, replaced: Option<&str>) -> Result<RunningChain, Refusal> {
        let plan = self.plan(chain, Some(replaced.unwrap_or(&chain.name)))?;
        self.note_kept_home(chain, &plan);
        if self.taking_over.is_pending {
            check_isolated_outputs(&plan)?;
        }
        let old = replaced.and_then(|name| self.chains.get(name));
        let replaced = replaced.and_then(|name| self.succeeded(name, chain));
        replaced.map_or(Ok(()), |old| succession::check(old, &plan))?;
        // Isolated functions keep nothing of other processes, and external ones cut the chain into several.
        let is_cut = |spec: &ChainSpec| spec.externals().next().is_some();
        let keeps = plan.config().isolation.is_none()
            && !is_cut(plan.spec())
            && !replaced.is_some_and(|old| is_cut(old.spec()));
        let changed = replaced
            .filter(|_| keeps)
            .map(|old| old.take_configurations(plan.spec()));
        let kept = match replaced.and_then(RunningChain::reconfigure).filter(|_| keeps) {
            Some(reconfigure) => reconfigure.kept_by(plan.spec()),
            None => Vec::new(),
        };
        let started = old
            .map_or(Ok(()), |old| check_outputs(plan.spec(), old, &kept))
            .and_then(|()| {
                RunningChain::start(
                    plan,
                    StartFrom {
                        name: &chain.name,
                        weight: chain.placement.weight,
                        port: self.port(chain)?,
                        continues_files: self.taking_over.is_pending,
                        host: &self.host,
                        replaced: replaced.map(|old| (old, kept)),
                    },
                )
            });
        if started.is_err()
            && let Some(changed) = changed
        {
            changed.undo();
        }
        started
    }

    /// Starts a chain, or lets it wait for the end of a take-over.
    pub(super) fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        if self.taking_over.defers(chain) {
            return self.defer(chain);
        }
        if let Some(draining) = self.chains.get(&chain.name) {
            draining.await_end(DRAIN_TIMEOUT);
            if !draining.is_finished() {
                return Err(Refusal::new(format!("chain {} is still draining", chain.name)));
            }
        }
        let started = self.launch(chain, None);
        let mut started = started.inspect_err(|refusal| self.taking_over.fail_again(&chain.name, refusal))?;
        started.carried = self.taking_over.forget(&chain.name);
        // The chain that had its slot before may have left samples.
        self.read_flow_samples();
        if let Some(started) = &mut self.started {
            started.push(chain.name.clone());
        }
        if let Some(ended) = self.chains.insert(chain.name.clone(), started) {
            self.tell_end(ended);
        }
        self.show();
        Ok(())
    }

    /// Starts a chain in the place of a running one.
    pub(super) fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        let plan = self.plan(chain, Some(old))?;
        let cores = plan.config().cores.len();
        let running = self.chains.get(old);
        if running.is_some_and(|running| external::share_interfaces(running, plan.spec(), cores)) {
            return self.replace_after_end(old, chain);
        }
        drop(plan);
        let started = self.launch(chain, Some(old))?;
        if let Some(mut old) = self.chains.remove(old) {
            old.drain();
            old.successor = Some(chain.name.clone());
            self.leaving.push(old);
        }
        self.read_flow_samples();
        if let Some(started) = &mut self.started {
            started.push(chain.name.clone());
        }
        self.chains.insert(chain.name.clone(), started);
        self.show();
        Ok(())
    }
}
