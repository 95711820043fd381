//! Reconciliation of an earlier placement with the wanted SLOs: removed, new and changed SLOs, and lost servers.

use crate::admit::{Answer, Denial, Reason, keep_if_met, nearest, repair, try_admit};
use crate::check::check;
use crate::cluster::Cluster;
use crate::consolidate::consolidate;
use crate::demand::Slot;
use crate::plan::{Instance, Placed, Plan, Resource};
use crate::schedule::{Request, Scheduler};
use crate::slo::{ChainProfile, Slo, Target};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum rounds in which SLOs are placed again that others no longer leave what they require.
const MOST_ROUNDS: usize = 3;

/// Stored state of an SLO of an earlier plan: its terms, and its placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Earlier {
    /// Name.
    pub name: String,
    /// Name of its chain.
    pub chain: String,
    /// Traffic that its chain was measured with.
    pub traffic: Option<String>,
    /// Percentile of packets that must meet the latency.
    pub percentile: Option<f64>,
    /// Target of its throughput.
    pub target: Target,
    /// Latency objective.
    pub latency: Nanos,
    /// Packets per second beyond which its packets are dropped.
    pub cap: Option<u64>,
    /// `true` if all instances must be on different servers.
    pub spread: bool,
    /// Anti-affinity group: no two SLOs of a group share a server.
    pub apart: Option<String>,
    /// Its instances: names of servers, NUMA nodes, ways.
    pub instances: Vec<(String, u16, u16)>,
}

impl Earlier {
    /// Creates the stored state of a plan's SLO.
    pub fn new(placed: &Placed, cluster: &Cluster) -> Self {
        let Placed { slo, instances, .. } = placed;
        let name = |server: usize| cluster.servers()[server].name.clone();
        let instances = instances.iter();
        Earlier {
            name: slo.name.clone(),
            chain: slo.chain.name.clone(),
            traffic: slo.chain.traffic.clone(),
            percentile: slo.chain.percentile,
            target: slo.target,
            latency: slo.latency,
            cap: slo.cap,
            spread: slo.spread,
            apart: slo.apart.clone(),
            instances: instances.map(|i| (name(i.server), i.node, i.ways)).collect(),
        }
    }

    /// Returns the stored state of a whole plan.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let placed = plan.placed();
        placed.map(|placed| Earlier::new(placed, plan.cluster())).collect()
    }

    /// Returns its terms, with a chain.
    fn terms(&self, chain: &Arc<ChainProfile>) -> Slo {
        Slo {
            name: self.name.clone(),
            chain: chain.clone(),
            target: self.target,
            latency: self.latency,
            cap: self.cap,
            spread: self.spread,
            apart: self.apart.clone(),
        }
    }

    /// Returns `true` if a chain is the one that its terms refer to.
    fn is_of(&self, chain: &ChainProfile) -> bool {
        chain.name == self.chain && chain.traffic == self.traffic && chain.percentile == self.percentile
    }
}

/// Outcome for a wanted SLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Course {
    /// The SLO is new.
    New,
    /// The SLO is unchanged.
    Kept,
    /// The SLO has different terms.
    Changed,
    /// The SLO lost instances, or they no longer suffice by their curves.
    Repaired,
}

/// Answer for a wanted SLO.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Name of the SLO.
    pub name: String,
    /// Outcome.
    pub course: Course,
    /// Placement, or the reason of its denial and alternatives that fit into the plan. If a [change](Course::Changed)
    /// is denied, the SLO runs as before, on all of its old terms, as long as those are met.
    pub answer: Answer,
    /// Number of instances that run elsewhere than before, including replacements of lost ones.
    pub moved: usize,
}

/// Result of a reconciliation.
#[derive(Clone, Debug)]
pub struct Reconciled {
    /// New plan.
    pub plan: Plan,
    /// Answer for each wanted SLO, in their order.
    pub answers: Vec<Answered>,
    /// Names of removed SLOs.
    pub removed: Vec<String>,
    /// Servers that had instances and no longer exist.
    pub lost: Vec<String>,
}

/// Placement of an SLO, or the reason of its denial.
type Decided = Result<Vec<Instance>, Reason>;

/// SLO that was placed and is still wanted.
struct PlacedBefore {
    course: Course,
    /// Its instances on existing servers, if they could stay.
    left: Vec<Instance>,
    /// `true` if its old terms are known and met by its curves where it is.
    sound: bool,
    /// Servers, by name, and nodes that its instances were on.
    before: Vec<(String, u16)>,
}

/// Creates a plan for the wanted SLOs from an earlier placement. An instance moves only if its server no longer exists,
/// or its SLO changed. New SLOs are admitted in order; several of them may be placed together on fewer servers than one
/// after the other, as far as the scheduler [consolidates](Scheduler::consolidates). `chains` are the chains of old
/// terms: after a denied change, these stay in force only if the curves of their chain are still known.
pub fn reconcile(
    cluster: &Cluster,
    earlier: &[Earlier],
    wanted: &[Slo],
    chains: &[Arc<ChainProfile>],
    scheduler: &dyn Scheduler,
) -> Reconciled {
    let mut plan = Plan::new(cluster.clone());
    let names: BTreeMap<&str, &Slo> = wanted.iter().map(|slo| (&*slo.name, slo)).collect();
    let known: HashMap<&str, &Arc<ChainProfile>> = chains.iter().map(|c| (&*c.name, c)).collect();
    let servers = cluster.servers().iter().enumerate();
    let servers: HashMap<&str, usize> = servers.map(|(i, s)| (&*s.name, i)).collect();
    let mut removed = Vec::new();
    let mut lost = BTreeSet::new();
    let mut standing: BTreeMap<&str, PlacedBefore> = BTreeMap::new();
    for old in earlier {
        let Some(slo) = names.get(&*old.name) else {
            removed.push(old.name.clone());
            continue;
        };
        let (mut left, mut before) = (Vec::new(), Vec::new());
        for (server, node, ways) in &old.instances {
            before.push((server.clone(), *node));
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
        let here = [Some(&slo.chain), known.get(&*old.chain).copied()];
        let chain = here.into_iter().flatten().find(|chain| old.is_of(chain));
        // If its chain is no longer known, only the placement is preserved, for the SLO as wanted now.
        let terms = old.terms(chain.unwrap_or(&slo.chain));
        let same = terms == **slo;
        // All remaining instances occupy their places before any search.
        let placed = Request::new(terms, cluster).is_ok_and(|request| plan.put(&request, left.clone()).is_ok());
        let sound = chain.is_some() && placed && check(cluster, plan.get(&old.name)).is_empty();
        let course = match (same, sound) {
            (true, true) => Course::Kept,
            (true, false) => Course::Repaired,
            (false, _) => Course::Changed,
        };
        if !placed {
            left.clear();
        }
        let standing_now = PlacedBefore {
            course,
            left,
            sound,
            before,
        };
        standing.insert(&slo.name, standing_now);
    }
    // Only now are all neighbours known.
    for name in scheduler.unmet(&plan) {
        if let Some(old) = standing.get_mut(&*name) {
            old.sound = false;
            if old.course == Course::Kept {
                old.course = Course::Repaired;
            }
        }
    }
    // Repairs come before changes, and changes before new SLOs.
    let mut results: Vec<Option<Decided>> = vec![None; wanted.len()];
    for course in [Course::Repaired, Course::Changed, Course::New] {
        for (slo, result) in wanted.iter().zip(&mut results) {
            let old = standing.get(&*slo.name);
            if old.map_or(Course::New, |old| old.course) != course {
                continue;
            }
            let held = old.and_then(|_| plan.remove(&slo.name));
            *result = Some(match (old, held) {
                (Some(old), Some(held)) if course == Course::Changed => changed(&mut plan, slo, old, held, scheduler),
                (Some(_), Some(held)) => {
                    let slo = slo.clone();
                    repair(&mut plan, Placed { slo, ..held }, scheduler)
                }
                _ => try_admit(&mut plan, slo, scheduler),
            });
        }
    }
    if scheduler.consolidates() {
        let is_new = |slo: &Slo| standing.get(&*slo.name).is_none_or(|old| old.course == Course::New);
        consolidated(&mut plan, wanted, &mut results, is_new, scheduler);
    }
    settle(&mut plan, wanted, &mut results, scheduler);
    let answered = |(slo, result): (&Slo, Option<Decided>)| {
        let old = standing.get(&*slo.name);
        let (moved, answer) = match result {
            Some(Ok(instances)) => {
                let before = old.map_or(&[][..], |old| &old.before[..]);
                let moved = moved(before, &instances, cluster);
                (moved, Answer::Admitted(instances))
            }
            Some(Err(reason)) => {
                // Only now is the room left by all others known. Its own old place would be free for it.
                let held = match reason {
                    Reason::Twice => None,
                    _ => plan.remove(&slo.name),
                };
                let nearest = nearest(&plan, slo, scheduler);
                if let Some(held) = held {
                    let _ = plan.restore(held);
                }
                (0, Answer::Denied(Denial { reason, nearest }))
            }
            None => {
                let placed = plan.get(&slo.name);
                let instances = placed.map(|placed| placed.instances.clone());
                (0, Answer::Admitted(instances.unwrap_or_default()))
            }
        };
        Answered {
            name: slo.name.clone(),
            course: old.map_or(Course::New, |old| old.course),
            answer,
            moved,
        }
    };
    let answers = wanted.iter().zip(results).map(answered).collect();
    Reconciled {
        answers,
        plan,
        removed,
        lost: lost.into_iter().collect(),
    }
}

/// Places SLOs again that are not met by what the scheduler knows beyond the curves, because others have left or moved:
/// a prediction may be lower beside fewer others.
fn settle(plan: &mut Plan, wanted: &[Slo], results: &mut [Option<Decided>], scheduler: &dyn Scheduler) {
    for _ in 0..MOST_ROUNDS {
        let unmet = scheduler.unmet(plan);
        if unmet.is_empty() {
            return;
        }
        for name in unmet {
            let number = wanted.iter().position(|slo| slo.name == name);
            if let (Some(number), Some(held)) = (number, plan.remove(&name)) {
                let result = try_admit(plan, &held.slo, scheduler);
                // A denied change stays denied: these are the old terms.
                if !matches!(results[number], Some(Err(_))) {
                    results[number] = Some(result);
                }
            }
        }
    }
    // The plan must hold even where it does not settle.
    for name in scheduler.unmet(plan) {
        if let Some(number) = wanted.iter().position(|slo| slo.name == name) {
            plan.remove(&name);
            results[number] = Some(Err(Reason::Room(vec![Resource::Quiet])));
        }
    }
}

/// Places new SLOs again together if there are several, and tries those once more that had no room.
fn consolidated(
    plan: &mut Plan,
    wanted: &[Slo],
    results: &mut [Option<Decided>],
    is_new: impl Fn(&Slo) -> bool,
    scheduler: &dyn Scheduler,
) {
    let new = || wanted.iter().zip(0..).filter(|(slo, _)| is_new(slo));
    let admitted = |results: &[Option<Decided>]| {
        let admitted = new().filter(|&(_, number): &(&Slo, usize)| matches!(results[number], Some(Ok(_))));
        admitted.map(|(slo, _)| slo.name.clone()).collect::<BTreeSet<String>>()
    };
    let before = admitted(results);
    if before.len() < 2 {
        return;
    }
    consolidate(plan, &before, scheduler);
    for (slo, number) in new() {
        if let Some(Err(Reason::Room(_))) = results[number] {
            results[number] = Some(try_admit(plan, slo, scheduler));
        }
    }
    let after = admitted(results);
    if after.len() > before.len() {
        consolidate(plan, &after, scheduler);
    }
    for (slo, number) in new() {
        if let (Some(Ok(instances)), Some(placed)) = (&mut results[number], plan.get(&slo.name)) {
            instances.clone_from(&placed.instances);
        }
    }
}

/// Changes the terms of an SLO, which occupied its place as `held` so far. If its instances suffice for the new terms,
/// they stay. If the new terms do not fit, the old ones stay in force as long as they are met.
fn changed(
    plan: &mut Plan,
    slo: &Slo,
    old: &PlacedBefore,
    held: Placed,
    scheduler: &dyn Scheduler,
) -> Result<Vec<Instance>, Reason> {
    if let Ok(request) = Request::new(slo.clone(), plan.cluster()) {
        let as_many = |choice: &Vec<Slot>| choice.len() == old.left.len();
        if request.choices.list.iter().any(as_many)
            && plan.put(&request, old.left.clone()).is_ok()
            && let Some(instances) = keep_if_met(plan, slo, scheduler)
        {
            return Ok(instances);
        }
    }
    let result = try_admit(plan, slo, scheduler);
    if result.is_err() && old.sound {
        // Its place is free: it was removed just before.
        let _ = plan.restore(held);
    }
    result
}

/// Returns the number of instances on other nodes than before.
fn moved(before: &[(String, u16)], now: &[Instance], cluster: &Cluster) -> usize {
    let mut before: Vec<(&str, u16)> = before.iter().map(|(s, n)| (&**s, *n)).collect();
    let is_new = |instance: &&Instance| {
        let server = &*cluster.servers()[instance.server].name;
        let mut places = before.iter();
        let found = places.position(|other| *other == (server, instance.node));
        found.map(|i| before.swap_remove(i)).is_none()
    };
    let new = now.iter().filter(is_new).count();
    // Additional instances have not moved.
    new.min(before.len())
}
