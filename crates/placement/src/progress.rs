//! A migration of which a part is done: what is left of it, whatever happened in between.
//!
//! Steps name their servers, so that they outlive the cluster that they were made for. What is left is looked at anew
//! each time: steps of an SLO that cannot be taken any more, in their order and with all promises kept after each, are
//! given up, but for drains of instances that its others make up for.
//!
//! Steps are told done by number, by somebody who read them off a list that may be old. So no number ever stands for two
//! steps: when some are given up, and when another migration begins, what is left is numbered on from the last number
//! that was given.

use crate::check::check;
use crate::cluster::Cluster;
use crate::migrate::{Migration, Step};
use crate::plan::{Instance, Plan};
use crate::reconcile::Earlier;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What a step does.
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
    /// All, by what they are called.
    pub const ALL: [(&str, Action); 3] = [
        ("start", Action::Start),
        ("resize", Action::Resize),
        ("drain", Action::Drain),
    ];
}

/// A step, with its server by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedStep {
    /// What is done.
    pub step: Action,
    /// Its SLO.
    pub slo: String,
    /// The server.
    pub server: String,
    /// Its NUMA node.
    pub node: u16,
    /// The instance's ways; of a resize those before.
    pub ways: u16,
    /// Its ways from then on, of a resize.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u16>,
}

impl NamedStep {
    /// A step on a cluster.
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

/// A migration that is not over, or the last one that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// How many of its steps are done.
    pub done: usize,
    /// The number that was told done last; 0 before any was.
    pub told: u64,
    /// The number of the first of `steps`, from which the others are counted; without any, that which comes next.
    pub first: u64,
    /// The steps that are left, in order.
    pub steps: Vec<NamedStep>,
}

impl Default for Pending {
    /// There never was any.
    fn default() -> Self {
        Pending {
            done: 0,
            told: 0,
            first: 1,
            steps: Vec::new(),
        }
    }
}

/// Why steps cannot have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoneError {
    /// There is nothing left to do.
    #[error("there is no migration in the state; `--optimal --migrate` puts one there")]
    Over,
    /// It is a step of no list.
    #[error("expected one of the steps that are left, {first} to {last}, found {number}")]
    Unknown {
        /// The first that is left.
        first: u64,
        /// The last.
        last: u64,
        /// What was told.
        number: u64,
    },
    /// It was done before the one told last, or given up, or what was left got other numbers since.
    #[error(
        "expected one of the steps that are left, {first} to {last}, found {number}, which is done, or of a list that \
         no longer holds"
    )]
    Stale {
        /// The first that is left.
        first: u64,
        /// The last.
        last: u64,
        /// What was told.
        number: u64,
    },
    /// It is about an instance that does not run by the state.
    #[error("step {number} in the state is about an instance that does not run")]
    Unlike {
        /// The step.
        number: u64,
    },
}

impl Pending {
    /// All of a migration, numbered on from those `before` it.
    pub fn new(migration: &Migration, cluster: &Cluster, before: &Pending) -> Self {
        let steps = migration.steps.iter();
        Pending {
            steps: steps.map(|step| NamedStep::new(step, cluster)).collect(),
            ..before.dropped()
        }
    }

    /// No migration any more, as when a plan is there already: its numbers are not given again.
    pub fn dropped(&self) -> Self {
        Pending {
            first: self.next(),
            ..Pending::default()
        }
    }

    /// Steps that are left, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &NamedStep)> {
        (self.first..).zip(&self.steps)
    }

    /// The number after the last that was given.
    fn next(&self) -> u64 {
        self.first.saturating_add(self.steps.len() as u64)
    }

    /// Takes the steps that are left up to this number as done: instances of `earlier` are then where they leave them.
    /// The number that was told last may be told again.
    ///
    /// # Errors
    /// They cannot have been, or it is not certain which steps are meant; `earlier` may have a part of them.
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

/// Why an SLO no longer goes where its migration was to bring it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// A server is gone.
    #[error("server {0} is gone")]
    Server(String),
    /// It runs nowhere any more.
    #[error("it is not placed any more")]
    Unplaced,
    /// An instance that was to be resized is gone.
    #[error("its instance on {0} is gone")]
    Instance(String),
    /// Something else has the room.
    #[error("there is no room for it on {0} any more")]
    Room(String),
    /// Its promise would be broken on the way.
    #[error("its promise would be broken on the way: {0}")]
    Promise(String),
    /// It was asked for.
    #[error("it was abandoned")]
    Abandoned,
}

/// What is left of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// What can still be done, in order, with all promises kept after each step; with new numbers if it is not all that
    /// was left.
    pub pending: Pending,
    /// SLOs that stay where they are, and why.
    pub stopped: BTreeMap<String, Stopped>,
}

/// Goes on with a migration from where `plan` is.
pub fn resume(plan: &Plan, pending: &Pending) -> Resumed {
    go_on(plan, pending, BTreeMap::new())
}

/// Ends a migration: what is left are drains of instances that have their successors already.
pub fn abandon(plan: &Plan, pending: &Pending) -> Resumed {
    let all = pending.steps.iter();
    let all = all.map(|step| (step.slo.clone(), Stopped::Abandoned));
    go_on(plan, pending, all.collect())
}

fn go_on(plan: &Plan, pending: &Pending, mut stopped: BTreeMap<String, Stopped>) -> Resumed {
    let servers = plan.cluster().servers().iter().enumerate();
    let servers: HashMap<&str, usize> = servers.map(|(i, server)| (&*server.name, i)).collect();
    // Whoever stops leaves, or takes, room that others were to have or to leave: they are looked at again. There is one
    // more that stops each time.
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
            // Whoever has an older list would otherwise tell steps done that are no longer here.
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

/// Takes a step if all promises are kept after it; whether there was anything to do.
fn take(plan: &mut Plan, step: &NamedStep, servers: &HashMap<&str, usize>) -> Result<bool, Stopped> {
    let drains = step.step == Action::Drain;
    let server = match servers.get(&*step.server) {
        Some(&server) => server,
        // What is to end has ended.
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
        _ if plan.put_again(after).is_err() => Err(Stopped::Room(step.server.clone())),
        _ => Ok(changed),
    });
    if outcome.is_err() {
        // It was there a moment ago.
        let _ = plan.put_again(before);
    }
    outcome
}
