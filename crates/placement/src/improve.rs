//! Whether a better plan is worth its moves: ResQ applies one only when it saves enough (§5.3.2).

use crate::migrate::{Migration, MigrationError, aligned, migration};
use crate::plan::Plan;
use crate::slo::Target;

/// What a plan must save to be worth it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// So many servers.
    Servers(usize),
    /// So many of a hundred servers that are used.
    Percent(f64),
}

impl Saving {
    /// Whether saving so many of those that are used is enough. Saving none never is.
    pub fn is_reached(self, saved: usize, used: usize) -> bool {
        saved > 0
            && match self {
                Saving::Servers(least) => saved >= least,
                Saving::Percent(least) => saved as f64 * 100.0 >= least * used as f64,
            }
    }
}

/// What comes of another plan for the same SLOs.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposal {
    /// It is worth it.
    Worth {
        /// The plan, with as much as possible where it was.
        plan: Box<Plan>,
        /// The way there, on which no promise is broken.
        migration: Migration,
        /// Servers that become free.
        saved: usize,
    },
    /// It saves too little.
    TooLittle {
        /// Servers that would become free.
        saved: usize,
    },
    /// It would save enough, but there is no way to it.
    NoWay {
        /// Servers that would become free.
        saved: usize,
        /// Why not.
        why: MigrationError,
    },
}

/// Whether a plan is to take the place of another one for the same SLOs.
pub fn proposal(from: &Plan, to: &Plan, least: Saving) -> Proposal {
    let plan = held(from, aligned(from, to));
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

/// A plan with on-demand SLOs where they are, where there is room for that: those that have as many instances as they
/// may cannot move, since that takes one more, and those that have more than one have grown.
fn held(from: &Plan, mut plan: Plan) -> Plan {
    for old in from.placed() {
        let Target::OnDemand { most } = old.slo.target else {
            continue;
        };
        if old.instances.len() == 1 && most > 1 {
            continue;
        }
        if let Some(new) = plan.remove(&old.slo.name)
            && plan.put_again(old.clone()).is_err()
        {
            // It fits where it was.
            let _ = plan.put_again(new);
        }
    }
    plan
}
