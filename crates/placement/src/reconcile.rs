//! From what was placed and what is wanted now to a plan: SLOs that left, came and changed, servers that are gone.

use crate::admit::{Answer, admit, change, repair};
use crate::check::check;
use crate::cluster::Cluster;
use crate::plan::{Instance, Placed, Plan};
use crate::schedule::{Request, Scheduler};
use crate::slo::{Slo, Target};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tailwater_net::Nanos;

/// What an earlier plan kept of an SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Earlier {
    /// Its name.
    pub name: String,
    /// Its chain's name.
    pub chain: String,
    /// What was promised of its throughput.
    pub target: Target,
    /// The latency that was promised.
    pub latency: Nanos,
    /// Its instances: names of servers, NUMA nodes, ways.
    pub instances: Vec<(String, u16, u16)>,
}

/// What happened to an SLO that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Course {
    /// It is new.
    New,
    /// It is as it was.
    Kept,
    /// It has other terms.
    Changed,
    /// It lost instances, or they are no longer enough by their curves.
    Repaired,
}

/// An SLO that is wanted, and what becomes of it.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Its name.
    pub name: String,
    /// What happened to it.
    pub course: Course,
    /// Where it runs, or why not. Denied as [changed](Course::Changed), it still runs as before, if all of its
    /// servers are there.
    pub answer: Answer,
    /// Instances that are elsewhere than before.
    pub moved: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Reconciled {
    /// The plan.
    pub plan: Plan,
    /// What becomes of each SLO that is wanted, in their order.
    pub answers: Vec<Answered>,
    /// SLOs that left.
    pub removed: Vec<String>,
    /// Servers that instances were on, and that are gone.
    pub lost: Vec<String>,
}

/// Brings a plan to what is wanted. What can stay stays: an instance moves only if its server is gone, or
/// its SLO changed.
pub fn reconcile(
    cluster: &Cluster,
    earlier: &[Earlier],
    wanted: &[Slo],
    scheduler: &dyn Scheduler,
) -> Reconciled {
    let mut plan = Plan::new(cluster.clone());
    let names: BTreeMap<&str, &Slo> = wanted.iter().map(|slo| (&*slo.name, slo)).collect();
    let servers = cluster.servers().iter().enumerate();
    let servers: BTreeMap<&str, usize> = servers.map(|(i, s)| (&*s.name, i)).collect();
    let mut removed = Vec::new();
    let mut lost = BTreeSet::new();
    let mut courses: BTreeMap<&str, (Course, Vec<Instance>)> = BTreeMap::new();
    for old in earlier {
        let Some(slo) = names.get(&*old.name) else {
            removed.push(old.name.clone());
            continue;
        };
        let mut left = Vec::new();
        for (server, node, ways) in &old.instances {
            match servers.get(&**server) {
                Some(&server) => left.push(Instance {
                    server,
                    node: *node,
                    ways: *ways,
                }),
                None => {
                    lost.insert(server.clone());
                }
            }
        }
        let same =
            slo.chain.name == old.chain && slo.target == old.target && slo.latency == old.latency;
        let terms = Slo {
            target: old.target,
            latency: old.latency,
            ..(*slo).clone()
        };
        // All of what is left keeps its place before anything is looked for.
        let placed = Request::new(terms.clone(), cluster)
            .is_ok_and(|request| plan.put(&request, left.clone()).is_ok());
        let whole = placed && check(cluster, plan.get(&old.name)).is_empty();
        let course = match (same, whole) {
            (true, true) => Course::Kept,
            (true, false) => Course::Repaired,
            (false, _) => Course::Changed,
        };
        if !placed {
            left.clear();
        }
        courses.insert(&slo.name, (course, left));
    }
    // What is broken comes before what is changed, and that before what is new.
    let mut answers: BTreeMap<&str, Answer> = BTreeMap::new();
    for course in [Course::Repaired, Course::Changed] {
        for slo in wanted {
            let Some((found, left)) = courses.get(&*slo.name) else {
                continue;
            };
            if *found != course {
                continue;
            }
            let answer = match (course, plan.get(&slo.name)) {
                (Course::Changed, Some(_)) => changed(&mut plan, slo, left, scheduler),
                (Course::Repaired, Some(_)) => match plan.remove(&slo.name) {
                    Some(placed) => repair(
                        &mut plan,
                        Placed {
                            slo: slo.clone(),
                            ..placed
                        },
                        scheduler,
                    ),
                    None => admit(&mut plan, slo.clone(), scheduler),
                },
                _ => admit(&mut plan, slo.clone(), scheduler),
            };
            // The old terms stay only where they are still kept.
            if !check(cluster, plan.get(&slo.name)).is_empty() {
                plan.remove(&slo.name);
            }
            answers.insert(&slo.name, answer);
        }
    }
    let answered = |slo: &Slo| {
        let (course, before) = match courses.get(&*slo.name) {
            Some((course, before)) => (*course, before.clone()),
            None => (Course::New, Vec::new()),
        };
        let answer = match (answers.remove(&*slo.name), plan.get(&slo.name)) {
            (Some(answer), _) => answer,
            (None, Some(placed)) => Answer::Admitted(placed.instances.clone()),
            (None, None) => admit(&mut plan, slo.clone(), scheduler),
        };
        let moved = match (&answer, course) {
            (_, Course::New) | (Answer::Denied(_), _) => 0,
            (Answer::Admitted(now), _) => moved(&before, now),
        };
        Answered {
            name: slo.name.clone(),
            course,
            answer,
            moved,
        }
    };
    let answers = wanted.iter().map(answered).collect();
    Reconciled {
        answers,
        plan,
        removed,
        lost: lost.into_iter().collect(),
    }
}

/// Other terms for an SLO. Where its instances are enough for them, they stay.
fn changed(plan: &mut Plan, slo: &Slo, left: &[Instance], scheduler: &dyn Scheduler) -> Answer {
    if let Some(before) = plan.remove(&slo.name) {
        let kept = Request::new(slo.clone(), plan.cluster())
            .is_ok_and(|request| plan.put(&request, left.to_vec()).is_ok());
        if kept {
            let least = Request::new(slo.clone(), plan.cluster()).map(|r| r.choices.list);
            let ways = |choice: &Vec<crate::demand::Slot>| choice.len() == left.len();
            let enough = check(plan.cluster(), plan.get(&slo.name)).is_empty();
            if enough && least.is_ok_and(|list| list.iter().any(ways)) {
                return Answer::Admitted(left.to_vec());
            }
            plan.remove(&slo.name);
        }
        // It fits where it was.
        let _ = plan.put_again(before);
    }
    change(plan, slo.clone(), scheduler)
}

/// Instances that are on other nodes than before.
fn moved(before: &[Instance], now: &[Instance]) -> usize {
    let mut before: Vec<_> = before.iter().map(|i| (i.server, i.node)).collect();
    let stays = |instance: &&Instance| {
        let place = (instance.server, instance.node);
        let found = before.iter().position(|other| *other == place);
        found.map(|i| before.swap_remove(i)).is_none()
    };
    let new = now.iter().filter(stays).count();
    // What is new in number has not moved.
    new.min(before.len())
}
