//! The way from one generation to the next: steps, each with its undo.

use crate::chain::AppliedChain;
use crate::configuration::Configuration;
use crate::machine::{Machine, Refusal};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Step on the way to the next generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Starts a chain.
    Add(Arc<AppliedChain>),
    /// Replaces a chain by one with other functions, another match or another name.
    Replace {
        /// Chain that is replaced.
        old: Arc<AppliedChain>,
        /// Chain that takes its packets.
        new: Arc<AppliedChain>,
    },
    /// Changes a chain whose functions keep their state.
    Change {
        /// Chain before.
        old: Arc<AppliedChain>,
        /// Chain after.
        new: Arc<AppliedChain>,
    },
    /// Drains a chain.
    Remove(Arc<AppliedChain>),
}

impl Step {
    /// Carries out the step.
    ///
    /// # Errors
    /// The machine refuses it, and runs the same chains as before.
    pub fn enact(&self, machine: &mut impl Machine) -> Result<(), Refusal> {
        match self {
            Step::Add(chain) => machine.start(chain),
            Step::Replace { old, new } => machine.replace(&old.name, new),
            Step::Change { new, .. } => machine.change(new),
            Step::Remove(chain) => machine.drain(&chain.name),
        }
    }

    /// Step that undoes this one.
    #[must_use]
    pub fn undo(&self) -> Step {
        match self {
            Step::Add(chain) => Step::Remove(Arc::clone(chain)),
            Step::Remove(chain) => Step::Add(Arc::clone(chain)),
            Step::Replace { old, new } => Step::Replace {
                old: Arc::clone(new),
                new: Arc::clone(old),
            },
            Step::Change { old, new } => Step::Change {
                old: Arc::clone(new),
                new: Arc::clone(old),
            },
        }
    }

    /// Chain that the step is about: of two, the one after it.
    pub fn chain(&self) -> &Arc<AppliedChain> {
        match self {
            Step::Add(chain) | Step::Remove(chain) => chain,
            Step::Replace { new, .. } | Step::Change { new, .. } => new,
        }
    }

    /// Description of the step, as it follows "cannot".
    pub fn verb(&self) -> &'static str {
        match self {
            Step::Add(_) => "start",
            Step::Replace { .. } => "replace",
            Step::Change { .. } => "change",
            Step::Remove(_) => "drain",
        }
    }
}

/// Returns the steps from one configuration to another. `stopped` are chains of the current one that have failed: those
/// that were given anew are started again.
///
/// Chains are removed first, since their resources may be needed; then changed, replaced and added, each in order of
/// their names. A chain that is added with the port and match of one that is removed replaces it.
pub fn between(current: &Configuration, next: &Configuration, stopped: &BTreeSet<String>) -> Vec<Step> {
    let runs = |chain: &&Arc<AppliedChain>| !stopped.contains(&chain.name);
    let mut added: Vec<&Arc<AppliedChain>> = Vec::new();
    let (mut changed, mut replaced) = (Vec::new(), Vec::new());
    for new in next.running() {
        let is_untouched = |old: &Arc<AppliedChain>| Arc::ptr_eq(old, new) && !old.drained;
        if !runs(&new) && current.chains.get(&new.name).is_some_and(is_untouched) {
            continue;
        }
        let old = current.chains.get(&new.name).filter(runs).filter(|old| !old.drained);
        match old {
            None => added.push(new),
            Some(old) if old.is_same_text(new) && old.forced == new.forced => {}
            Some(old) if old.is_changeable_to(new) => changed.push(Step::Change {
                old: Arc::clone(old),
                new: Arc::clone(new),
            }),
            Some(old) => replaced.push(Step::Replace {
                old: Arc::clone(old),
                new: Arc::clone(new),
            }),
        }
    }
    let mut removed = Vec::new();
    for old in current.running().filter(runs) {
        if next.chains.get(&old.name).is_some_and(|new| !new.drained) {
            continue;
        }
        // A chain that was drained keeps its name.
        let successor = added.iter().position(|new| {
            new.takes_same_packets(old)
                && !next.chains.contains_key(&old.name)
                && !current.chains.contains_key(&new.name)
        });
        match successor {
            Some(index) => replaced.push(Step::Replace {
                old: Arc::clone(old),
                new: Arc::clone(added.remove(index)),
            }),
            None => removed.push(Step::Remove(Arc::clone(old))),
        }
    }
    let added = added.into_iter().map(|chain| Step::Add(Arc::clone(chain)));
    removed
        .into_iter()
        .chain(changed)
        .chain(replaced)
        .chain(added)
        .collect()
}

/// Result of steps of which one failed.
#[derive(Debug)]
pub struct FailedStep {
    /// Step that failed.
    pub step: Step,
    /// The machine's reason.
    pub refusal: Refusal,
    /// Steps that could not be undone, with the reasons: their chains are not as they were before.
    pub not_undone: Vec<(Step, Refusal)>,
}

/// Carries out steps in order, calling `before` each. If one fails, those before are undone in reverse order.
///
/// # Errors
/// The step that failed.
pub fn enact(machine: &mut impl Machine, steps: &[Step], mut before: impl FnMut(&Step)) -> Result<(), Box<FailedStep>> {
    for (index, step) in steps.iter().enumerate() {
        before(step);
        if let Err(refusal) = step.enact(machine) {
            return Err(Box::new(FailedStep {
                step: step.clone(),
                refusal,
                not_undone: undo(machine, &steps[..index]),
            }));
        }
    }
    Ok(())
}

/// Undoes steps in reverse order. Returns those that could not be undone.
pub fn undo(machine: &mut impl Machine, steps: &[Step]) -> Vec<(Step, Refusal)> {
    let undone = steps.iter().rev().map(|step| (step, step.undo().enact(machine)));
    undone
        .filter_map(|(step, result)| Some((step.clone(), result.err()?)))
        .collect()
}
