//! Chains with promises that are moved together.

use super::{Admission, Placement, occupant};
use crate::chain::AppliedChain;
use crate::configuration::Configuration;
use crate::consolidation::{Question, Targets};
use crate::machine::Machine;
use std::collections::BTreeSet;
use std::sync::Arc;
use tailwater_api::server::AdmissionSpec;
use tailwater_placement::core_shares::{Gathering, Occupant};

/// Returns what a search for fewer cores needs to know. `None` on a machine that chooses cores itself.
pub(crate) fn question(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    failed: BTreeSet<String>,
) -> Option<Question> {
    Some(Question {
        generation: current.generation,
        shared: Admission::new(machine, spec)?.shared,
        chains: current.running().filter_map(occupant).collect(),
        failed,
    })
}

/// Returns the configuration in which chains have those of the wanted cores that they can have, one after the other,
/// with the moves. Every promise that is kept stays kept. `None` on a machine that chooses cores itself.
pub(crate) fn gather(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    targets: &Targets,
) -> Option<(Configuration, Gathering)> {
    let admission = Admission::new(machine, spec)?;
    let chains: Vec<Occupant> = current.running().filter_map(occupant).collect();
    let gathering = admission.shared.gathering(&chains, targets);
    let mut next = current.clone();
    next.generation += 1;
    for step in &gathering.moves {
        let old = current.chains.get(&step.chain)?;
        let placement = Placement {
            cores: vec![step.to],
            predicted: None,
            ..old.placement.clone()
        };
        let moved = AppliedChain {
            placement,
            ..AppliedChain::clone(old)
        };
        next.chains.insert(step.chain.clone(), Arc::new(moved));
    }
    admission.predict(&mut next);
    Some((next, gathering))
}
