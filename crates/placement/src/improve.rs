//! Decision on applying a better plan: ResQ applies one only if it saves enough (§5.3.2).

use crate::migrate::{Migration, MigrationError, aligned, migration};
use crate::plan::Plan;
use crate::slo::Target;

/// Minimum saving of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// Number of servers.
    Servers(usize),
    /// Percentage of the used servers.
    Percent(f64),
}

impl Saving {
    /// Returns `true` if `saved` of `used` servers reach the minimum. Saving none never does.
    pub fn is_reached(self, saved: usize, used: usize) -> bool {
        saved > 0
            && match self {
                Saving::Servers(least) => saved >= least,
                Saving::Percent(least) => saved as f64 * 100.0 >= least * used as f64,
            }
    }
}

/// Evaluation of another plan for the same SLOs.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposal {
    /// The plan saves enough.
    Worth {
        /// Plan, with as many instances as possible in their present places.
        plan: Box<Plan>,
        /// Migration to the plan, during which all SLOs are met.
        migration: Migration,
        /// Servers that become free.
        saved: usize,
    },
    /// The plan saves too little.
    TooLittle {
        /// Servers that would become free.
        saved: usize,
    },
    /// The plan would save enough, but no migration leads to it.
    NoWay {
        /// Servers that would become free.
        saved: usize,
        /// Reason.
        why: MigrationError,
    },
}

/// Decides if a plan replaces another one for the same SLOs.
pub fn proposal(from: &Plan, to: &Plan, least: Saving) -> Proposal {
    let plan = with_previous_placements(from, aligned(from, to));
    let saved = from.active().saturating_sub(plan.active());
    if !least.is_reached(saved, from.active()) {
        return Proposal::TooLittle { saved };
    }
    match migration(from, &plan) {
        Ok(migration) => Proposal::Worth {
            plan: Box::new(plan),
            migration,
            saved,
        },
        Err(why) => Proposal::NoWay { saved, why },
    }
}

/// Returns a plan in which on-demand SLOs keep their places, as far as there is room. SLOs at their maximum number of
/// instances cannot move, since that takes one more. SLOs with more than one have grown.
fn with_previous_placements(from: &Plan, mut plan: Plan) -> Plan {
    for old in from.placed() {
        let Target::OnDemand { most } = old.slo.target else {
            continue;
        };
        if old.instances.len() == 1 && most > 1 {
            continue;
        }
        if let Some(new) = plan.remove(&old.slo.name)
            && plan.restore(old.clone()).is_err()
        {
            // It fits at its previous places.
            let _ = plan.restore(new);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::Saving;

    #[test]
    fn a_saving_is_reached_at_equality_and_never_by_none() {
        for (least, saved, used, reached) in [
            (Saving::Servers(2), 1, 9, false),
            (Saving::Servers(2), 2, 9, true),
            (Saving::Servers(2), 3, 9, true),
            (Saving::Servers(0), 0, 9, false),
            (Saving::Servers(0), 1, 9, true),
            (Saving::Percent(10.0), 0, 10, false),
            (Saving::Percent(10.0), 1, 10, true),
            (Saving::Percent(10.0), 1, 11, false),
            (Saving::Percent(10.1), 1, 10, false),
            (Saving::Percent(0.0), 0, 10, false),
            (Saving::Percent(0.0), 1, 1000, true),
            (Saving::Percent(100.0), 10, 10, true),
        ] {
            assert_eq!(least.is_reached(saved, used), reached, "{least:?}: {saved} of {used}");
        }
    }
}
