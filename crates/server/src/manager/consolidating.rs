//! Chains moved to fewer cores, by a plan that was found in the background.

use super::Manager;
use crate::admission;
use crate::consolidation::{Question, Targets};
use crate::events::Severity;
use crate::generation::Store;
use crate::machine::Machine;
use crate::steps::Step;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::Gathering;

impl<M: Machine, S: Store> Manager<M, S> {
    /// Number of cores that a plan has to free; `None` if no plans are looked for.
    pub(crate) fn least_freed(&self) -> Option<u32> {
        self.server.admission.as_ref()?.consolidate
    }

    /// Facts that a search for fewer cores needs.
    pub(crate) fn question(&self) -> Option<Question> {
        admission::question(
            &self.machine,
            self.server.admission.as_ref(),
            &self.current,
            self.failed(),
        )
    }

    /// Moves chains to the cores of a plan for the current generation, if enough cores become free: all of its moves,
    /// one after the other, or none.
    pub(crate) fn consolidate(&mut self, targets: &Targets, now: Nanos) {
        let failed = self.failed();
        let spec = self.server.admission.as_ref();
        let gathered = admission::gather(&self.machine, spec, &self.current, targets);
        let (Some((next, gathering)), Some(least)) = (gathered, self.least_freed()) else {
            return;
        };
        let has_failed = gathering.moves.iter().any(|step| failed.contains(&step.chain));
        if has_failed || gathering.freed.len() < least as usize {
            return;
        }
        let steps: Vec<Step> = gathering
            .moves
            .iter()
            .map(|step| Step::Replace {
                old: Arc::clone(&self.current.chains[&step.chain]),
                new: Arc::clone(&next.chains[&step.chain]),
            })
            .collect();
        let entered = self
            .check(&next, &steps)
            .and_then(|()| self.enter_by(next, &steps, now));
        let (severity, reason, message) = match entered {
            Ok(()) => (Severity::Normal, "Consolidated", saved(&gathering)),
            Err(error) => (
                Severity::Warning,
                "NotConsolidated",
                format!("chains stay on their cores: {error}"),
            ),
        };
        self.report(severity, reason, &message, now);
    }
}

/// Result of a plan, for an event.
fn saved(gathering: &Gathering) -> String {
    let cores: Vec<String> = gathering.freed.iter().map(u32::to_string).collect();
    let moves = gathering.moves.iter();
    let moves: Vec<String> = moves
        .map(|step| format!("{} from core {} to {}", step.chain, step.from, step.to))
        .collect();
    let (s, are) = if cores.len() == 1 { ("", "is") } else { ("s", "are") };
    format!(
        "core{s} {} {are} free, all promises are kept: moved {}",
        cores.join(", "),
        moves.join(", ")
    )
}
