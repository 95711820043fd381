//! Use of the host's auxiliary cores by its chains.

use super::{LiveMachine, MakeOffloading, OFFLOADED, Offloading};
use crate::chain::AppliedChain;
use crate::events::Severity;
use crate::machine::{MachineNote, Refusal};
use tailwater_dataplane::RunPlan;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_policy::core::Unit;

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
        let is_bound = spec.externals().next().is_some() || spec.bound_to_core().is_some();
        if is_bound || spec.state.is_some() && is_isolated {
            return Ok(None);
        }
        let mapper = make(spec, is_isolated).map_err(Refusal::new)?;
        // State in Redis goes with RSS buckets.
        let mapper = mapper.filter(|mapper| spec.state.is_none() || mapper().unit() == Unit::Bucket);
        Ok(mapper.map(|mapper| ScalingConfig {
            auxiliary: pool.cores().to_vec(),
            dedicated_help: false,
            mapper,
            park: Mode::Sleep,
            buffers,
        }))
    }

    /// Notes that a chain does not use the host's auxiliary cores because of an isolated function, or of one whose state
    /// belongs to a core.
    pub(super) fn note_bound(&mut self, chain: &AppliedChain, plan: &RunPlan) {
        let offloads = self.host.auxiliary().is_some() && self.offloading.is_some();
        let isolation = plan.config().isolation.as_ref();
        let isolated = isolation.and_then(|isolation| isolation.bound_to_one_core(plan.spec()));
        let isolated = isolated.map(|found| ("isolated function", found));
        let bound = isolated.or_else(|| plan.spec().bound_to_core().map(|found| ("function", found)));
        if let Some((what, (function, reason))) = bound.filter(|_| offloads) {
            self.notes.push(MachineNote {
                severity: Severity::Normal,
                chain: Some(chain.name.clone()),
                reason: "NoAuxiliaryCores",
                message: format!("{what} {function} cannot run on auxiliary cores: {reason}"),
            });
        }
    }
}
