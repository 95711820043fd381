//! Admission of a running chain by a profile that was measured anew, since its old one did not hold.

use super::{Admission, Placement, Promise, occupant, refusal};
use crate::chain::AppliedChain;
use crate::configuration::Configuration;
use crate::machine::Machine;
use std::sync::Arc;
use tailwater_api::Throughput;
use tailwater_api::server::AdmissionSpec;
use tailwater_placement::admit::Nearest;
use tailwater_placement::core_shares::{Claim, Occupant, Refused, Wanted};

/// Change of a chain's predicted cost that needs no other share.
const SAME_COST: f64 = 0.05;
/// Part of the throughput that would fit which is promised: the search for it has an error.
const REDUCED: f64 = 0.999;

/// Promise of a chain by its new profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Anew {
    /// Its old profile holds: the chain stays as it is.
    Same,
    /// The whole one, possibly on another core.
    Promised,
    /// Less throughput, for this reason.
    Reduced(String),
    /// None, for this reason.
    Lost(String),
}

/// Returns the configuration in which the running chain `name` is placed by its new profile. The others stay where they
/// are.
///
/// # Errors
/// There is no such chain, or no profile of it: one line.
pub(crate) fn place_anew(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    name: &str,
) -> Result<(Configuration, Anew), String> {
    let admission = Admission::new(machine, spec).ok_or("the machine chooses cores itself")?;
    let old = current.running().find(|chain| chain.name == name);
    let old = old.ok_or("it does not run any more")?;
    let Some(Throughput::PacketsPerSecond(throughput)) = old.settings.slo.throughput else {
        return Err("it has no spec.slo.throughput any more".to_owned());
    };
    let curves = machine.curves(old).map_err(|refusal| refusal.to_string())?;
    let claim = Claim {
        throughput: throughput.max(1) as f64,
        latency: old.settings.slo.budget(),
        curves: curves.ok_or("its files have changed meanwhile")?,
    };
    let others: Vec<Occupant> = current
        .running()
        .filter(|chain| chain.name != name)
        .filter_map(occupant)
        .collect();
    let (placement, anew) = admission.by_claim(old, claim, &others);
    let mut next = current.clone();
    next.generation += 1;
    let placed = AppliedChain {
        placement,
        ..AppliedChain::clone(old)
    };
    next.chains.insert(name.to_owned(), Arc::new(placed));
    admission.predict(&mut next);
    match anew == Anew::Promised && is_same(&old.placement, &next.chains[name].placement) {
        true => Ok((current.clone(), Anew::Same)),
        false => Ok((next, anew)),
    }
}

/// Returns `true` if a chain has the same cores and promise, and about the same predicted cost.
fn is_same(old: &Placement, new: &Placement) -> bool {
    let throughput = |placement: &Placement| placement.claim.as_ref().map(|claim| claim.throughput);
    let cost = |placement: &Placement| placement.predicted.map(|predicted| predicted.cost);
    let (Some(before), Some(after)) = (cost(old), cost(new)) else {
        return false;
    };
    old.cores == new.cores && throughput(old) == throughput(new) && (after / before - 1.0).abs() <= SAME_COST
}

impl<M: Machine> Admission<'_, M> {
    /// Returns the placement of a chain by a claim, or by the part of it that fits.
    fn by_claim(&self, old: &AppliedChain, claim: Claim, others: &[Occupant]) -> (Placement, Anew) {
        let wanted = self.wanted(old, Some(old));
        let promised = |cores: Vec<u32>, claim: Arc<Claim>, reason: &str| Placement {
            cores,
            promise: Promise::Promised,
            reason: reason.to_owned(),
            cap: self.cap_of(old, &claim),
            claim: Some(claim),
            predicted: None,
            weight: 1,
        };
        let claim = Arc::new(claim);
        let with_claim = Wanted {
            claim: Some(&claim),
            ..wanted
        };
        let refused = match self.shared.admit(others, with_claim) {
            Ok(cores) => return (promised(cores, Arc::clone(&claim), ""), Anew::Promised),
            Err(refused) => refused,
        };
        let reason = refusal::text(&refused, with_claim);
        if let Some(throughput) = less(&refused) {
            let less = Arc::new(Claim {
                throughput,
                ..Claim::clone(&claim)
            });
            let with_less = Wanted {
                claim: Some(&less),
                ..wanted
            };
            if let Ok(cores) = self.shared.admit(others, with_less) {
                let reason = format!("reduced to {}: {reason}", refusal::rate(throughput));
                return (promised(cores, Arc::clone(&less), &reason), Anew::Reduced(reason));
            }
        }
        let cores = self.cores_of(old, others);
        (self.without(cores, Promise::None, &reason), Anew::Lost(reason))
    }
}

/// Throughput that would fit with the same latency.
fn less(refused: &Refused) -> Option<f64> {
    refused.nearest.iter().find_map(|nearest| match nearest {
        Nearest::Throughput(most) if most * REDUCED >= 1.0 => Some(most * REDUCED),
        _ => None,
    })
}
