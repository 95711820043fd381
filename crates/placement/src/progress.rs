//! Progress of a migration: its remaining steps, after arbitrary changes of the cluster.
//!
//! Steps name their servers, so they remain valid when the cluster changes. The remaining steps are checked again each
//! time. They are taken in order, and all SLOs must be met after each. If a step of an SLO has become impossible, the
//! SLO's steps are dropped, except drains of instances that its other instances can replace.
//!
//! Operators report steps as done by number, possibly from an outdated list. So a number never stands for two steps.
//! When steps are dropped, or another migration begins, the remaining steps get new numbers after the last number used.

use crate::check::check;
use crate::cluster::Cluster;
use crate::migrate::{Migration, Step};
use crate::plan::{Instance, Plan};
use crate::reconcile::Earlier;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// As [`Step::Start`].
    Start,
    /// As [`Step::Resize`].
    Resize,
    /// As [`Step::Drain`].
    Drain,
}

impl Action {
    /// All actions with their names.
    pub const ALL: [(&str, Action); 3] = [
        ("start", Action::Start),
        ("resize", Action::Resize),
        ("drain", Action::Drain),
    ];
}

/// Step with its server by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedStep {
    /// Action.
    pub step: Action,
    /// Name of the SLO.
    pub slo: String,
    /// Name of the server.
    pub server: String,
    /// NUMA node.
    pub node: u16,
    /// Ways of the instance, or those before a resize.
    pub ways: u16,
    /// Ways after a resize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u16>,
}

impl NamedStep {
    /// Creates the named form of a step.
    pub fn new(step: &Step, cluster: &Cluster) -> Self {
        let (action, slo, at, to) = match step {
            Step::Start { slo, at } => (Action::Start, slo, at, None),
            Step::Resize { slo, at, to } => (Action::Resize, slo, at, Some(*to)),
            Step::Drain { slo, at } => (Action::Drain, slo, at, None),
        };
        NamedStep {
            step: action,
            slo: slo.clone(),
            server: cluster.servers()[at.server].name.clone(),
            node: at.node,
            ways: at.ways,
            to,
        }
    }
}

/// Unfinished migration, or the last finished one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Number of its completed steps.
    pub done: usize,
    /// Number of the last step reported as done, or 0 before any.
    pub told: u64,
    /// Number of the first of `steps`, from which the others are counted. If there are none, it is the next number.
    pub first: u64,
    /// Remaining steps, in order.
    pub steps: Vec<NamedStep>,
}

impl Default for Pending {
    /// Returns the state without any migration.
    fn default() -> Self {
        Pending {
            done: 0,
            told: 0,
            first: 1,
            steps: Vec::new(),
        }
    }
}

/// Reason why steps cannot be recorded as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoneError {
    /// No steps are left.
    #[error("expected a migration in the state, found none; `--optimal --migrate` writes one")]
    Over,
    /// No list has a step with this number.
    #[error("expected one of the remaining steps, {first} to {last}, found {number}")]
    Unknown {
        /// First remaining number.
        first: u64,
        /// Last remaining number.
        last: u64,
        /// Reported number.
        number: u64,
    },
    /// The step was completed before the last reported one, or was dropped, or the remaining steps have new numbers.
    #[error(
        "expected one of the remaining steps, {first} to {last}, found {number}, which is done or from an earlier \
         migration"
    )]
    Stale {
        /// First remaining number.
        first: u64,
        /// Last remaining number.
        last: u64,
        /// Reported number.
        number: u64,
    },
    /// The state has no instance that matches the step.
    #[error("step {number} in the state refers to an instance that is not running")]
    Unlike {
        /// Number of the step.
        number: u64,
    },
}

impl Pending {
    /// Creates the progress of a whole migration. Its numbers continue those of `before`.
    pub fn new(migration: &Migration, cluster: &Cluster, before: &Pending) -> Self {
        let steps = migration.steps.iter();
        Pending {
            steps: steps.map(|step| NamedStep::new(step, cluster)).collect(),
            ..before.dropped()
        }
    }

    /// Ends the migration, for example because its plan is already reached. Its numbers are not used again.
    pub fn dropped(&self) -> Self {
        Pending {
            first: self.next(),
            ..Pending::default()
        }
    }

    /// Returns the remaining steps with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &NamedStep)> {
        (self.first..).zip(&self.steps)
    }

    /// Returns the next unused number.
    fn next(&self) -> u64 {
        self.first.saturating_add(self.steps.len() as u64)
    }

    /// Records the remaining steps up to `number` as done, and applies them to the instances of `earlier`. The last
    /// reported number can be reported again.
    ///
    /// # Errors
    /// No such step remains, the number is ambiguous, or an instance does not match. In the last case, a part of the
    /// steps may be applied to `earlier`.
    pub fn done(&mut self, number: u64, earlier: &mut [Earlier]) -> Result<(), DoneError> {
        if number == self.told && number > 0 {
            return Ok(());
        }
        if self.steps.is_empty() {
            return Err(DoneError::Over);
        }
        let (first, next) = (self.first, self.next());
        let last = next.saturating_sub(1);
        if number == 0 || number >= next {
            return Err(DoneError::Unknown { first, last, number });
        }
        let Some(before) = number.checked_sub(first) else {
            return Err(DoneError::Stale { first, last, number });
        };
        let places = earlier.iter().enumerate();
        let places: HashMap<String, usize> = places.map(|(i, e)| (e.name.clone(), i)).collect();
        for step in self.steps.drain(..=before as usize) {
            let unlike = DoneError::Unlike { number: self.first };
            self.done += 1;
            self.first += 1;
            let slo = places.get(&step.slo).map(|&i| &mut earlier[i]);
            let instances = &mut slo.ok_or(unlike)?.instances;
            let at = (step.server, step.node, step.ways);
            let place = instances.iter().position(|other| *other == at);
            match (step.step, place, step.to) {
                (Action::Start, _, _) => instances.push(at),
                (Action::Resize, Some(place), Some(to)) => instances[place].2 = to,
                (Action::Drain, Some(place), _) => {
                    instances.remove(place);
                }
                _ => return Err(unlike),
            }
        }
        self.told = number;
        Ok(())
    }
}

/// Reason why the migration of an SLO stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// A server no longer exists.
    #[error("server {0} is no longer in the cluster")]
    Server(String),
    /// The SLO is not placed any more.
    #[error("it is no longer placed")]
    Unplaced,
    /// An instance to be resized no longer exists.
    #[error("its instance on {0} no longer exists")]
    Instance(String),
    /// The room is occupied.
    #[error("insufficient resources for it on {0}")]
    Room(String),
    /// The SLO would be violated during the migration.
    #[error("a step would violate its SLO: {0}")]
    Promise(String),
    /// The migration was abandoned on request.
    #[error("it was abandoned")]
    Abandoned,
}

/// Remaining part of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Remaining steps, in order. All SLOs are met after each. If some steps were dropped, the numbers are new.
    pub pending: Pending,
    /// SLOs that stay where they are, with the reason.
    pub stopped: BTreeMap<String, Stopped>,
}

/// Continues a migration from the state of `plan`.
pub fn resume(plan: &Plan, pending: &Pending) -> Resumed {
    go_on(plan, pending, BTreeMap::new())
}

/// Ends a migration. Only drains of instances that already have successors remain.
pub fn abandon(plan: &Plan, pending: &Pending) -> Resumed {
    let all = pending.steps.iter();
    let all = all.map(|step| (step.slo.clone(), Stopped::Abandoned));
    go_on(plan, pending, all.collect())
}

fn go_on(plan: &Plan, pending: &Pending, mut stopped: BTreeMap<String, Stopped>) -> Resumed {
    let servers = plan.cluster().servers().iter().enumerate();
    let servers: HashMap<&str, usize> = servers.map(|(i, server)| (&*server.name, i)).collect();
    // A stopped SLO frees or occupies room that others expect, so all steps are checked again. Each pass stops at least
    // one more SLO, which bounds the loop.
    loop {
        let mut now = plan.clone();
        let mut steps = Vec::new();
        let before = stopped.len();
        for step in &pending.steps {
            let is_stopped = stopped.contains_key(&step.slo);
            if is_stopped && step.step != Action::Drain {
                continue;
            }
            match take(&mut now, step, &servers) {
                Ok(true) => steps.push(step.clone()),
                Ok(false) => {}
                Err(_) if is_stopped => {}
                Err(why) => {
                    stopped.insert(step.slo.clone(), why);
                }
            }
        }
        if stopped.len() == before {
            // New numbers, so that a report from an older list cannot refer to dropped steps.
            let first = match steps.len() == pending.steps.len() {
                true => pending.first,
                false => pending.next(),
            };
            return Resumed {
                pending: Pending {
                    first,
                    steps,
                    ..pending.clone()
                },
                stopped,
            };
        }
    }
}

/// Takes a step if all SLOs are met after it. Returns `true` if there was anything to do.
fn take(plan: &mut Plan, step: &NamedStep, servers: &HashMap<&str, usize>) -> Result<bool, Stopped> {
    let drains = step.step == Action::Drain;
    let server = match servers.get(&*step.server) {
        Some(&server) => server,
        // The instance to drain has ended.
        None if drains => return Ok(false),
        None => return Err(Stopped::Server(step.server.clone())),
    };
    let at = Instance {
        server,
        node: step.node,
        ways: step.ways,
    };
    let before = match plan.remove(&step.slo) {
        Some(before) => before,
        None if drains => return Ok(false),
        None => return Err(Stopped::Unplaced),
    };
    let mut after = before.clone();
    let place = after.instances.iter().position(|other| *other == at);
    let outcome = match (step.step, place, step.to) {
        (Action::Start, _, _) => {
            after.instances.push(at);
            Ok(true)
        }
        (Action::Resize, Some(place), Some(to)) => {
            after.instances[place].ways = to;
            Ok(true)
        }
        (Action::Resize, _, _) => Err(Stopped::Instance(step.server.clone())),
        (Action::Drain, Some(place), _) => {
            after.instances.remove(place);
            Ok(true)
        }
        (Action::Drain, None, _) => Ok(false),
    };
    let outcome = outcome.and_then(|changed| match check(plan.cluster(), [&after]).first() {
        Some(violation) if changed => Err(Stopped::Promise(violation.to_string())),
        _ if plan.restore(after).is_err() => Err(Stopped::Room(step.server.clone())),
        _ => Ok(changed),
    });
    if outcome.is_err() {
        // The SLO fitted here before.
        let _ = plan.restore(before);
    }
    outcome
}
