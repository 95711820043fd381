//! From what was placed and what is wanted now to a plan: SLOs that left, came and changed, servers that are gone.

use crate::admit::{Answer, Denial, Reason, kept, nearest, repair, try_admit};
use crate::check::check;
use crate::cluster::Cluster;
use crate::demand::Slot;
use crate::plan::{Instance, Placed, Plan};
use crate::schedule::{Request, Scheduler};
use crate::slo::{ChainProfile, Slo, Target};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tailwater_net::Nanos;

/// What an earlier plan kept of an SLO: its terms, and where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Earlier {
    /// Its name.
    pub name: String,
    /// Its chain's name.
    pub chain: String,
    /// The traffic that its chain was measured with.
    pub traffic: Option<String>,
    /// The percentile of packets that keep the latency.
    pub percentile: Option<f64>,
    /// What was promised of its throughput.
    pub target: Target,
    /// The latency that was promised.
    pub latency: Nanos,
    /// Packets per second beyond which its packets are dropped.
    pub cap: Option<u64>,
    /// All instances are on different servers.
    pub spread: bool,
    /// No two SLOs of one group are on one server.
    pub apart: Option<String>,
    /// Its instances: names of servers, NUMA nodes, ways.
    pub instances: Vec<(String, u16, u16)>,
}

impl Earlier {
    /// What is to be kept of an SLO of a plan.
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

    /// What is to be kept of a plan.
    pub fn all(plan: &Plan) -> Vec<Self> {
        let placed = plan.placed();
        placed.map(|placed| Earlier::new(placed, plan.cluster())).collect()
    }

    /// Its terms with a chain.
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

    /// Whether a chain is the one that it was promised of.
    fn is_of(&self, chain: &ChainProfile) -> bool {
        chain.name == self.chain && chain.traffic == self.traffic && chain.percentile == self.percentile
    }
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
    /// Where it runs, or why not, and what would fit beside all that is in the plan. Denied as
    /// [changed](Course::Changed), it still runs as before, on all of its old terms, if those are still kept.
    pub answer: Answer,
    /// Instances that run elsewhere than before, those in place of lost ones among them.
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

/// Where an SLO runs, or why not.
type Decided = Result<Vec<Instance>, Reason>;

/// An SLO that was placed and is still wanted.
struct Standing {
    course: Course,
    /// Its instances on servers that are there, if they could keep their places.
    left: Vec<Instance>,
    /// Its old terms are known, and its curves bear them out where it is.
    sound: bool,
    /// Servers, by name, and nodes that its instances were on.
    before: Vec<(String, u16)>,
}

/// Brings a plan to what is wanted. What can stay stays: an instance moves only if its server is gone, or
/// its SLO changed. `chains` are those that old terms may be about: a change that is denied leaves them in force only
/// if what was measured of their chain is still known.
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
    let mut standing: BTreeMap<&str, Standing> = BTreeMap::new();
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
        // Of a chain that is no longer known only the place is kept, for the SLO as it is wanted.
        let terms = old.terms(chain.unwrap_or(&slo.chain));
        let same = terms == **slo;
        // All of what is left keeps its place before anything is looked for.
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
        let standing_now = Standing {
            course,
            left,
            sound,
            before,
        };
        standing.insert(&slo.name, standing_now);
    }
    // What is broken comes before what is changed, and that before what is new.
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
    let answered = |(slo, result): (&Slo, Option<Decided>)| {
        let old = standing.get(&*slo.name);
        let (moved, answer) = match result {
            Some(Ok(instances)) => {
                let before = old.map_or(&[][..], |old| &old.before[..]);
                let moved = moved(before, &instances, cluster);
                (moved, Answer::Admitted(instances))
            }
            Some(Err(reason)) => {
                // Only now is known what room all others leave; its own old place would be free for it.
                let held = match reason {
                    Reason::Twice => None,
                    _ => plan.remove(&slo.name),
                };
                let nearest = nearest(&plan, slo, scheduler);
                if let Some(held) = held {
                    let _ = plan.put_again(held);
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

/// Other terms for an SLO, which `held` its place until now. Where its instances are enough for them, they stay; if the
/// new terms do not fit, the old ones stay where they are still kept.
fn changed(
    plan: &mut Plan,
    slo: &Slo,
    old: &Standing,
    held: Placed,
    scheduler: &dyn Scheduler,
) -> Result<Vec<Instance>, Reason> {
    if let Ok(request) = Request::new(slo.clone(), plan.cluster()) {
        let as_many = |choice: &Vec<Slot>| choice.len() == old.left.len();
        if request.choices.list.iter().any(as_many)
            && plan.put(&request, old.left.clone()).is_ok()
            && let Some(instances) = kept(plan, slo)
        {
            return Ok(instances);
        }
    }
    let result = try_admit(plan, slo, scheduler);
    if result.is_err() && old.sound {
        // Its place is free: it just left it.
        let _ = plan.put_again(held);
    }
    result
}

/// Instances that are on other nodes than before.
fn moved(before: &[(String, u16)], now: &[Instance], cluster: &Cluster) -> usize {
    let mut before: Vec<(&str, u16)> = before.iter().map(|(s, n)| (&**s, *n)).collect();
    let is_new = |instance: &&Instance| {
        let server = &*cluster.servers()[instance.server].name;
        let mut places = before.iter();
        let found = places.position(|other| *other == (server, instance.node));
        found.map(|i| before.swap_remove(i)).is_none()
    };
    let new = now.iter().filter(is_new).count();
    // What is new in number has not moved.
    new.min(before.len())
}
