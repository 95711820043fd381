//! Chains with promises gathered on fewer cores: looked for in the background, and taken if enough cores become free.
//!
//! A search is about one generation. It is on a thread of its own, below all others' priority and away from the cores
//! of chains if there are others, and at most one runs. Nothing waits for it: what it finds for a generation that is
//! not the current one any more is dropped.

use crate::events::Severity;
use crate::generation::Store;
use crate::machine::Machine;
use crate::manager::Manager;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{Occupant, SharedCores};

/// Cores for chains, by their names.
pub(crate) type Targets = BTreeMap<String, u32>;

/// Finds cores for chains; those named stay. `None` if nothing is found.
pub(crate) type FindCores = Arc<dyn Fn(&SharedCores, &[Occupant], &BTreeSet<String>) -> Option<Targets> + Send + Sync>;

/// Cores and chains of a generation.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) generation: u64,
    pub(crate) shared: SharedCores,
    pub(crate) chains: Vec<Occupant>,
    /// Chains that have failed: they stay where they are.
    pub(crate) failed: BTreeSet<String>,
}

/// The solver, for ten seconds at most.
#[cfg(feature = "milp")]
pub(crate) fn solver() -> Option<FindCores> {
    let effort = tailwater_placement::milp::Effort {
        time: std::time::Duration::from_secs(10),
        threads: 1,
        ..Default::default()
    };
    // Without a plan in its time, there is none.
    Some(Arc::new(move |shared, chains, fixed| {
        shared.solved(chains, fixed, effort).ok()
    }))
}

/// This program has no solver.
#[cfg(not(feature = "milp"))]
pub(crate) fn solver() -> Option<FindCores> {
    None
}

/// Search for plans with fewer cores.
pub(crate) struct Consolidation {
    find: Option<FindCores>,
    /// Generation that was last searched, or is.
    asked: Option<u64>,
    running: Option<(u64, JoinHandle<Option<Targets>>)>,
    /// It was said that there is no solver.
    is_told: bool,
}

impl Consolidation {
    pub(crate) fn new(find: Option<FindCores>) -> Consolidation {
        Consolidation {
            find,
            asked: None,
            running: None,
            is_told: false,
        }
    }

    /// Takes the plan of a search that has ended, and begins one for a generation that has not been searched.
    pub(crate) fn step<M: Machine, S: Store>(&mut self, manager: &mut Manager<M, S>, now: Nanos) {
        if manager.least_freed().is_none() {
            return;
        }
        let Some(find) = &self.find else {
            if !std::mem::replace(&mut self.is_told, true) {
                let message = "spec.admission.consolidate has no effect: this program has no solver (feature milp)";
                manager.report(Severity::Warning, "NoSolver", message, now);
            }
            return;
        };
        if let Some((generation, thread)) = self.running.take_if(|(_, thread)| thread.is_finished())
            // A search that panicked has found nothing.
            && let Ok(Some(targets)) = thread.join()
            && generation == manager.generation()
        {
            manager.consolidate(&targets, now);
        }
        if self.running.is_some() || self.asked == Some(manager.generation()) {
            return;
        }
        self.asked = Some(manager.generation());
        let Some(question) = manager.question().filter(|question| question.chains.len() > 1) else {
            return;
        };
        let find = Arc::clone(find);
        let generation = question.generation;
        let thread = Builder::new().name("consolidation".to_owned()).spawn(move || {
            give_way(&question.shared.cores);
            find(&question.shared, &question.chains, &question.failed)
        });
        // Without a thread there is no search of this generation.
        self.running = thread.ok().map(|thread| (generation, thread));
    }
}

/// Lowers the thread's priority, and keeps it off these cores if there are others. Without the permission it stays
/// where it is.
fn give_way(cores: &[u32]) {
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    let _ = rustix::process::nice(19);
    if let Ok(mut allowed) = sched_getaffinity(None) {
        for core in cores
            .iter()
            .map(|core| *core as usize)
            .filter(|core| *core < rustix::thread::CpuSet::MAX_CPU)
        {
            allowed.unset(core);
        }
        if allowed.count() > 0 {
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(test)]
mod tests;
