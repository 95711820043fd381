//! Admission of chains: each gets its cores, and a promise if its profile says that it fits beside the others.
//!
//! The decision is [`SharedCores`]'. This module finds what it needs: the chains' objectives, their profiles, and the
//! cores that they have. Chains that do not change stay on their cores.
//!
//! A chain without `spec.slo.throughput` has no promise and gets the time that others leave.

mod anew;
mod gathered;
pub(crate) mod placement;
mod refusal;

pub(crate) use anew::{Anew, place_anew};
pub(crate) use gathered::{gather, question};
pub use placement::{Capacity, Placement, Promise};
pub(crate) use refusal::rate;

use crate::chain::AppliedChain;
use crate::configuration::{Configuration, ControlError};
use crate::machine::Machine;
use crate::request::Applied;
use std::sync::Arc;
use tailwater_api::chain::{CLASSIFIER, MAX_FUNCTIONS};
use tailwater_api::server::{AdmissionSpec, Unprofiled};
use tailwater_api::{IsolationMode, Throughput};
use tailwater_placement::core_shares::{Claim, Occupant, SharedCores, Wanted, predicted, weight};
use tailwater_placement::policing::Policed;
use tailwater_placement::slo::Curves;

/// Name of the function that caps a chain: that of `tailwater_functions::spec::CAP`.
const CAP: &str = "cap";
/// Reason of a forced chain.
const FORCED: &str = "applied with --force";

/// Decides about each chain of `next` that differs from the `current` configuration, in the order of their names.
///
/// # Errors
/// One line for each chain that does not fit: what binds, and what would fit.
pub(crate) fn admit(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    mut next: Configuration,
) -> Result<Configuration, ControlError> {
    let Some(admission) = Admission::new(machine, spec) else {
        next.chains.values_mut().for_each(without_cores);
        return Ok(next);
    };
    let stays = |chain: &Arc<AppliedChain>| {
        current
            .chains
            .get(&chain.name)
            .is_some_and(|old| Arc::ptr_eq(old, chain))
    };
    let mut occupants: Vec<Occupant> = next
        .running()
        .filter(|chain| stays(chain))
        .filter_map(occupant)
        .collect();
    let new: Vec<Arc<AppliedChain>> = next.running().filter(|chain| !stays(chain)).cloned().collect();
    let (mut errors, mut is_wrong) = (Vec::new(), false);
    for chain in new {
        let before = current.chains.get(&chain.name).filter(|before| !before.drained);
        match admission.place(&chain, before.map(|before| &**before), &occupants) {
            Err(reason) => {
                is_wrong |= machine.curves(&chain).is_err_and(|refusal| refusal.is_wrong());
                errors.push(format!("chain \"{}\": {reason}", chain.name));
            }
            Ok(placement) => {
                let placed = Arc::new(AppliedChain {
                    placement,
                    ..AppliedChain::clone(&chain)
                });
                occupants.extend(occupant(&placed));
                next.chains.insert(chain.name.clone(), placed);
            }
        }
    }
    if is_wrong {
        return Err(ControlError::Invalid(errors.join("\n")));
    }
    if !errors.is_empty() {
        return Err(ControlError::Refused(errors.join("\n")));
    }
    admission.predict(&mut next);
    Ok(next)
}

/// Returns the chains of `next` whose profiles have to be measured before they are admitted, in the order of their
/// names.
pub(crate) fn unprofiled(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    next: &Configuration,
) -> Vec<Arc<AppliedChain>> {
    let Some(admission) = Admission::new(machine, spec) else {
        return Vec::new();
    };
    let needs = |chain: &&Arc<AppliedChain>| {
        let before = current.chains.get(&chain.name);
        let before = before.filter(|before| !before.drained);
        before.is_none_or(|before| !Arc::ptr_eq(before, chain))
            && admission.needs_profile(chain, before.map(|before| &**before))
    };
    next.running().filter(needs).cloned().collect()
}

/// Promise of a chain on a machine that chooses cores itself.
fn without_cores(chain: &mut Arc<AppliedChain>) {
    if chain.forced && chain.placement.promise != Promise::None {
        let placement = &mut Arc::make_mut(chain).placement;
        (placement.promise, placement.reason) = (Promise::None, FORCED.to_owned());
    }
}

/// Decides about a chain that is resumed. Also returns the reason if it does not fit any more and runs without a
/// promise.
pub(crate) fn admit_stored(
    machine: &impl Machine,
    spec: Option<&AdmissionSpec>,
    current: &Configuration,
    mut chain: AppliedChain,
) -> (AppliedChain, Option<String>) {
    let Some(admission) = Admission::new(machine, spec).filter(|_| !chain.drained) else {
        return (chain, None);
    };
    let occupants: Vec<Occupant> = current.running().filter_map(occupant).collect();
    let before = chain.clone();
    let placed = match admission.needs_profile(&chain, None) {
        true => Err("it has no profile any more".to_owned()),
        false => admission.place(&chain, Some(&before), &occupants),
    };
    let (placement, lost) = match placed {
        Ok(placement) => (placement, None),
        Err(reason) => {
            let cores = admission.cores_of(&before, &occupants);
            (admission.without(cores, Promise::None, &reason), Some(reason))
        }
    };
    chain.placement = placement;
    // Its own prediction; those of the others are made with the next change.
    let mut alone = current.clone();
    let name = chain.name.clone();
    alone.chains.insert(name.clone(), Arc::new(chain));
    admission.predict(&mut alone);
    let placed = alone.chains.remove(&name).map(|chain| AppliedChain::clone(&chain));
    (placed.unwrap_or(before), lost)
}

/// Adds placements to the results of an apply.
pub(crate) fn tell(next: &Configuration, applied: &mut [Applied]) {
    for applied in applied {
        if let Some(chain) = next.chains.get(&applied.name) {
            applied.placement.clone_from(&chain.placement);
        }
    }
}

/// A chain as the decision takes it.
fn occupant(chain: &Arc<AppliedChain>) -> Option<Occupant> {
    let Placement { cores, claim, .. } = &chain.placement;
    (!cores.is_empty()).then(|| Occupant {
        name: chain.name.clone(),
        cores: cores.clone(),
        claim: claim.clone(),
    })
}

/// Admission to a machine with cores.
struct Admission<'m, M> {
    machine: &'m M,
    spec: Option<&'m AdmissionSpec>,
    shared: SharedCores,
}

impl<'m, M: Machine> Admission<'m, M> {
    fn new(machine: &'m M, spec: Option<&'m AdmissionSpec>) -> Option<Self> {
        let Capacity { cores, cache_bytes } = machine.capacity();
        (!cores.is_empty()).then(|| Admission {
            machine,
            spec,
            shared: SharedCores {
                cores,
                cache_bytes,
                headroom: spec.map_or(0.0, |spec| spec.headroom),
            },
        })
    }

    /// Returns the cores and the promise of a chain; `before` is what it was.
    fn place(
        &self,
        chain: &AppliedChain,
        before: Option<&AppliedChain>,
        others: &[Occupant],
    ) -> Result<Placement, String> {
        let wanted = self.wanted(chain, before);
        let there_are = self.shared.cores.len();
        if usize::from(chain.settings.cores.unwrap_or(1)) > there_are {
            return Err(format!(
                "spec.cores: expected at most {there_are}, the cores of the server, found {}",
                chain.settings.cores.unwrap_or(1)
            ));
        }
        let rest = |promise, reason: &str| {
            let cores = self.shared.admit(others, wanted);
            let cores = cores.map_err(|refused| refusal::text(&refused, wanted))?;
            Ok(self.without(cores, promise, reason))
        };
        if chain.forced {
            return rest(Promise::None, FORCED);
        }
        let Some(spec) = self.spec else {
            return rest(Promise::Unchecked, "the server has no spec.admission");
        };
        let throughput = match chain.settings.slo.throughput {
            Some(Throughput::PacketsPerSecond(throughput)) => throughput.max(1) as f64,
            Some(Throughput::BitsPerSecond(_)) => {
                return rest(
                    Promise::None,
                    "spec.slo.throughput is in bits per second; a promise is in packets per second",
                );
            }
            None => return rest(Promise::None, "no spec.slo.throughput"),
        };
        let found = self.machine.curves(chain).map_err(|error| error.to_string());
        let curves = match (found, earlier(chain, before)) {
            (Ok(Some(curves)), _) | (Ok(None) | Err(_), Some(curves)) => curves,
            (Err(error), None) if spec.profile != Unprofiled::Optional => return Err(error),
            (Err(error), None) => return rest(Promise::Unchecked, &error),
            (Ok(None), None) => match spec.profile {
                Unprofiled::Required => {
                    return Err(format!(
                        "has spec.slo.throughput and no profile in {}: measure it by tailwater profile all, or apply it \
                         with --force",
                        spec.profiles.display()
                    ));
                }
                Unprofiled::Optional => return rest(Promise::Unchecked, "no profile"),
                // Requests that change something are admitted once the profile is there.
                Unprofiled::Auto => {
                    let core = self.machine.profiling_core();
                    let core = core.map_err(|refusal| format!("has no profile, and cannot be profiled: {refusal}"))?;
                    return rest(Promise::None, &format!("would be profiled first, on core {core}"));
                }
            },
        };
        let claim = Arc::new(Claim {
            throughput,
            latency: chain.settings.slo.budget(),
            curves,
        });
        let wanted = Wanted {
            claim: Some(&claim),
            ..wanted
        };
        match self.shared.admit(others, wanted) {
            Ok(cores) => Ok(Placement {
                cores,
                promise: Promise::Promised,
                reason: String::new(),
                cap: self.cap_of(chain, &claim),
                claim: Some(Arc::clone(&claim)),
                predicted: None,
                weight: 1,
            }),
            Err(refused) => Err(refusal::text(&refused, wanted)),
        }
    }

    /// Cap of a chain with this promise. Chains with branches, with isolated functions, or without room for a policer
    /// have none.
    fn cap_of(&self, chain: &AppliedChain, claim: &Claim) -> Option<Policed> {
        let has_room = chain.functions.len() < MAX_FUNCTIONS && chain.settings.isolation.mode == IsolationMode::None;
        let clashes =
            |(name, kind): &(Option<String>, String)| kind == CLASSIFIER || name.as_deref().unwrap_or(kind) == CAP;
        let can = has_room && !chain.functions.iter().any(clashes);
        self.spec.filter(|spec| spec.caps && can).map(|_| claim.cap())
    }

    /// Request of a chain without a promise, for at most the cores that there are.
    fn wanted<'c>(&self, chain: &'c AppliedChain, before: Option<&'c AppliedChain>) -> Wanted<'c> {
        let cores = usize::from(chain.settings.cores.unwrap_or(1));
        Wanted {
            name: &chain.name,
            cores: cores.min(self.shared.cores.len()),
            claim: None,
            before: before.map_or(&[], |before| &before.placement.cores),
        }
    }

    /// Returns `true` if the profile of a chain has to be measured before it is admitted; `before` is what it was.
    fn needs_profile(&self, chain: &AppliedChain, before: Option<&AppliedChain>) -> bool {
        let is_auto = self.spec.is_some_and(|spec| spec.profile == Unprofiled::Auto);
        let throughput = chain.settings.slo.throughput;
        // One that wants too many cores is refused without a measurement.
        let has_cores = usize::from(chain.settings.cores.unwrap_or(1)) <= self.shared.cores.len();
        is_auto
            && has_cores
            && !chain.forced
            && matches!(throughput, Some(Throughput::PacketsPerSecond(_)))
            && earlier(chain, before).is_none()
            && matches!(self.machine.curves(chain), Ok(None))
    }

    /// Cores of a chain without a promise.
    fn cores_of(&self, before: &AppliedChain, others: &[Occupant]) -> Vec<u32> {
        let cores = self.shared.admit(others, self.wanted(before, Some(before)));
        cores.unwrap_or_else(|_| vec![self.shared.cores[0]])
    }

    fn without(&self, cores: Vec<u32>, promise: Promise, reason: &str) -> Placement {
        Placement {
            cores,
            promise,
            reason: reason.to_owned(),
            weight: weight(None, self.shared.headroom),
            ..Placement::default()
        }
    }

    /// Predicts all chains beside each other.
    fn predict(&self, next: &mut Configuration) {
        let chains: Vec<(Arc<AppliedChain>, Occupant)> = next
            .running()
            .filter_map(|chain| Some((Arc::clone(chain), occupant(chain)?)))
            .collect();
        let occupants: Vec<Occupant> = chains.iter().map(|(_, occupant)| occupant.clone()).collect();
        let all = predicted(self.shared.cache_bytes, &occupants);
        for ((chain, _), predicted) in chains.into_iter().zip(all) {
            // A chain's weight is that of its start.
            let is_new = chain.placement.predicted.is_none();
            let weight = match predicted.filter(|_| is_new) {
                Some(predicted) => weight(Some(predicted.share), self.shared.headroom),
                None => chain.placement.weight,
            };
            if chain.placement.predicted != predicted {
                let placement = Placement {
                    predicted,
                    weight,
                    ..chain.placement.clone()
                };
                let updated = AppliedChain {
                    placement,
                    ..AppliedChain::clone(&chain)
                };
                next.chains.insert(chain.name.clone(), Arc::new(updated));
            }
        }
    }
}

/// Curves of a chain before it changed: other rules of the same functions have no profile yet.
fn earlier(chain: &AppliedChain, before: Option<&AppliedChain>) -> Option<Arc<Curves>> {
    let is_alike = |before: &&AppliedChain| {
        let (old, new) = (&before.settings, &chain.settings);
        before.is_changeable_to(chain) && old.slo == new.slo && old.isolation == new.isolation
    };
    let before = before.filter(is_alike);
    Some(Arc::clone(&before?.placement.claim.as_ref()?.curves))
}

#[cfg(test)]
mod tests;
