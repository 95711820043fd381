//! Use of the host's auxiliary cores by its chains.

use super::{LiveMachine, MakeOffloading, OFFLOADED, Offloading};
use crate::chain::AppliedChain;
use crate::events::Severity;
use crate::machine::{MachineNote, Refusal};
use tailwater_dataplane::RunPlan;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_policy::core::{MakeMapper, Unit};

impl LiveMachine {
    /// Lets chains use the host's auxiliary cores.
    #[must_use]
    pub fn offloading(mut self, make: MakeOffloading) -> LiveMachine {
        self.offloading = Some(Offloading(make));
        self
    }

    /// Returns the configuration by which a chain uses the host's auxiliary cores, if it does.
    pub(super) fn scaling(
        &self,
        chain: &AppliedChain,
        (spec, is_isolated): (&ChainSpec, bool),
        except: Option<&str>,
    ) -> Result<Option<ScalingConfig>, Refusal> {
        let (Some(pool), Some(Offloading(make))) = (self.host.auxiliary(), &self.offloading) else {
            return Ok(None);
        };
        let others = self.chains.values().filter(|other| Some(other.name()) != except);
        let beside = others.filter(|other| other.port() == chain.port && other.offloads());
        let workers = beside.map(|other| other.cores().len()).sum::<usize>() + chain.placement.cores.len();
        let Some((_, buffers)) = OFFLOADED.into_iter().find(|(most, _)| workers <= *most) else {
            return Ok(None);
        };
        if kept_home(spec, is_isolated).is_some() {
            return Ok(None);
        }
        let mapper = make(spec, is_isolated).map_err(Refusal::new)?;
        let mapper = mapper.filter(|mapper| !splits_state(spec, mapper));
        Ok(mapper.map(|mapper| ScalingConfig {
            auxiliary: pool.cores().to_vec(),
            dedicated_help: false,
            mapper,
            park: Mode::Sleep,
            buffers,
        }))
    }

    /// Notes why a chain does not use the host's auxiliary cores, if something of the chain is the reason.
    pub(super) fn note_kept_home(&mut self, chain: &AppliedChain, plan: &RunPlan) {
        let (Some(_), Some(Offloading(make))) = (self.host.auxiliary(), &self.offloading) else {
            return;
        };
        let (spec, isolation) = (plan.spec(), plan.config().isolation.as_ref());
        let isolated = isolation.and_then(|isolation| isolation.bound_to_one_core(spec));
        let isolated = isolated
            .map(|(function, reason)| format!("isolated function {function} cannot run on auxiliary cores: {reason}"));
        let splits = || {
            let mapper = make(spec, isolation.is_some()).ok().flatten();
            let splits = mapper.is_some_and(|mapper| splits_state(spec, &mapper));
            splits.then(|| "its policy offloads single flows, and flow state in Redis goes with RSS buckets".to_owned())
        };
        let reason = isolated
            .or_else(|| kept_home(spec, isolation.is_some()))
            .or_else(splits);
        if let Some(message) = reason {
            self.notes.push(MachineNote {
                severity: Severity::Normal,
                chain: Some(chain.name.clone()),
                reason: "NoAuxiliaryCores",
                message,
            });
        }
    }
}

/// Returns why no packet of a chain leaves its dedicated cores, whatever the policy.
fn kept_home(spec: &ChainSpec, is_isolated: bool) -> Option<String> {
    if let Some((function, _)) = spec.externals().next() {
        return Some(format!("packets of external function {function} cannot be offloaded"));
    }
    if let Some((function, reason)) = spec.bound_to_core() {
        return Some(format!("function {function} cannot run on auxiliary cores: {reason}"));
    }
    let is_stored = spec.state.is_some() && is_isolated;
    is_stored.then(|| "isolated functions cannot keep flow state in Redis on auxiliary cores".to_owned())
}

/// Returns `true` if a chain has state in Redis, which goes with RSS buckets, and the policy offloads single flows.
fn splits_state(spec: &ChainSpec, mapper: &MakeMapper) -> bool {
    spec.state.is_some() && mapper().unit() != Unit::Bucket
}
