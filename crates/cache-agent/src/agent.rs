//! A tick: looking, deciding, doing.

use crate::cut::{Cut, Found, Refused, Why};
use crate::lease::Lease;
use std::collections::{BTreeMap, BTreeSet};
use tailwater_net::Nanos;
use tailwater_placement::lease::{Grant, Request, Terms};
use tailwater_placement::on_demand::mask::WayMask;
use tailwater_placement::on_demand::{
    Allocation, Class, Config, Decision, Kind, Observed, OnDemand, Reserved, Situation, Step, steps,
};

/// Bytes that come from memory at a time.
const LINE: f64 = 64.0;
/// How long fewer classes are made do with after one was refused.
const FEWER: Nanos = Nanos::from_secs(10);
/// The most ticks between two trials of what was refused.
const MOST_WAIT: u32 = 16;
/// The most decisions in a tick: after each refusal that can be decided around, one more.
const DECISIONS: u32 = 64;

/// What an agent may divide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Ways that belong to on-demand instances, whatever is leased.
    pub own: u16,
    /// The terms of leases.
    pub terms: Terms,
    /// No other start of an agent on this server has this number.
    pub incarnation: u64,
    /// How patiently; its cache is not looked at. `None`: [`Config::new`].
    pub config: Option<Config>,
}

/// An instance of an on-demand SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// What was seen of it. What is unknown of occupancy and misses is filled in from the processor's counters.
    pub seen: Observed,
    /// References to the cache for each packet, from a profile: with them, memory traffic tells which part misses.
    pub references: Option<f64>,
}

/// What is on a cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Instances of reserved SLOs; one without threads keeps its ways.
    pub reserved: Vec<Reserved>,
    /// Instances of on-demand SLOs; one without threads counts as gone.
    pub on_demand: Vec<Watched>,
}

/// A step that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The step.
    pub step: Step,
    /// Why not.
    pub why: String,
}

/// What came of a tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// What was decided.
    pub decision: Decision,
    /// What the cache is cut into now.
    pub in_force: Allocation,
    /// Steps that were done, in their order.
    pub done: Vec<Step>,
    /// What was refused and could not be decided around; it is tried again.
    pub refused: Option<Refusal>,
    /// Threads that stay where they are, and why.
    pub left_out: BTreeMap<u32, String>,
    /// Classes that there can be at the moment, for lack of which instances may share.
    pub classes: u16,
    /// Ways that on-demand instances may have together, and how many of those are leased.
    pub ways: u16,
    /// Leased ways that may be used.
    pub leased: u16,
    /// What the policy was told of on-demand instances.
    pub seen: Vec<Observed>,
}

/// Divides one cache.
#[derive(Debug)]
pub struct Agent<A> {
    allocator: A,
    policy: OnDemand,
    in_force: Allocation,
    lease: Lease,
    /// Classes that there were when another was refused, and when that was.
    fewer: Option<(u16, Nanos)>,
    /// Ticks until what was refused is tried again, and how many it will be after that.
    wait: (u32, u32),
    /// Memory traffic of instances: their class, bytes, and when.
    traffic: BTreeMap<String, (String, u64, Nanos)>,
}

impl<A: Cut> Agent<A> {
    /// Divides what this cuts, which is cut into nothing yet.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn new(mut allocator: A, settings: &Settings) -> Result<Self, A::Error> {
        let cache = allocator.cache()?;
        let config = settings
            .config
            .map_or(Config::new(cache), |config| Config { cache, ..config });
        Ok(Agent {
            allocator,
            policy: OnDemand::new(config, Allocation::default()),
            in_force: Allocation::default(),
            lease: Lease::new(settings.terms, settings.incarnation, settings.own),
            fewer: None,
            wait: (0, 1),
            traffic: BTreeMap::new(),
        })
    }

    /// What the cache is cut into.
    pub fn in_force(&self) -> &Allocation {
        &self.in_force
    }

    /// A request for the controller, if one is to be sent now.
    pub fn request(&mut self, now: Nanos) -> Option<Request> {
        self.lease.request(now)
    }

    /// Takes a grant, and says whether it is in force.
    pub fn granted(&mut self, now: Nanos, grant: &Grant) -> bool {
        self.lease.receive(now, grant)
    }

    /// Looks what the cache is cut into, decides and does.
    ///
    /// # Errors
    /// The cache cannot be looked at; nothing was done.
    pub fn tick(&mut self, now: Nanos, seen: &Seen) -> Result<Tick, A::Error> {
        let mut cache = self.allocator.cache()?;
        let found = self.allocator.classes()?;
        self.fewer = self.fewer.filter(|(_, at)| now.saturating_sub(*at) < FEWER);
        if let Some((classes, _)) = self.fewer {
            cache.classes = cache.classes.min(classes);
        }
        let (mut reserved, mut on_demand) = (seen.reserved.clone(), self.present(seen));
        self.correct(&found);
        self.who_is_where(&on_demand);
        for instance in &mut on_demand {
            self.count(now, instance);
        }
        let mut on_demand: Vec<Observed> = on_demand.into_iter().map(|watched| watched.seen).collect();
        let ways = self.lease.ways(now);
        let waits = self.wait.0 > 0 && self.used() <= ways;
        let (mut done, mut left_out) = (Vec::new(), BTreeMap::new());
        let mut decisions = 0;
        let (decision, refused) = loop {
            decisions += 1;
            let before = self.policy.clone();
            self.policy.found(cache, self.in_force.clone());
            let decision = self.policy.tick(&Situation {
                now,
                ways,
                reserved: &reserved,
                on_demand: &on_demand,
            });
            if waits {
                break (decision, None);
            }
            let Err((step, error)) = self.change(&decision.allocation, &mut done) else {
                break (decision, None);
            };
            let can = match error.refused() {
                Refused::Later => false,
                Refused::Classes => {
                    let classes = self.in_force.classes.len() as u16;
                    let fewer = classes < cache.classes;
                    cache.classes = classes.min(cache.classes);
                    self.fewer = Some((cache.classes, now));
                    fewer
                }
                Refused::Task(task) => {
                    let tasks = reserved.iter_mut().map(|reserved| &mut reserved.tasks);
                    let tasks = tasks.chain(on_demand.iter_mut().map(|seen| &mut seen.tasks));
                    tasks.for_each(|tasks| tasks.retain(|other| *other != task));
                    left_out.insert(task, error.to_string()).is_none()
                }
            };
            if !can || decisions == DECISIONS {
                let why = error.to_string();
                break (decision, Some(Refusal { step, why }));
            }
            // What was seen counts once, however often is decided.
            self.policy = before;
        };
        self.wait = match (&refused, waits) {
            (_, true) => (self.wait.0 - 1, self.wait.1),
            (None, false) => (0, 1),
            (Some(_), false) => (self.wait.1, (2 * self.wait.1).min(MOST_WAIT)),
        };
        if refused.is_some() && self.used() > ways {
            self.shrink(&found, &mut done);
        }
        self.names(&on_demand, &decision.allocation);
        let used = self.used();
        self.lease.follow(ways, &decision, used);
        Ok(Tick {
            decision,
            in_force: self.in_force.clone(),
            done,
            refused,
            left_out,
            classes: cache.classes,
            ways,
            leased: self.lease.allowed(now),
            seen: on_demand,
        })
    }

    /// Gives everything back: all classes that can be removed are.
    ///
    /// # Errors
    /// The first that could not be removed; it is there still, and this can be called again.
    pub fn end(&mut self) -> Result<(), A::Error> {
        let steps = steps(&self.in_force, &Allocation::default());
        let mut failed = None;
        for step in steps {
            match self.allocator.step(&step) {
                Ok(()) => follow(&mut self.in_force, &step, &Allocation::default()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Ways of on-demand instances.
    fn used(&self) -> u16 {
        let bits = self.in_force.bits(&[Kind::Isolated, Kind::Shared]);
        bits.count_ones() as u16
    }

    /// On-demand instances that run.
    fn present(&mut self, seen: &Seen) -> Vec<Watched> {
        let all = seen.on_demand.iter();
        let present: Vec<Watched> = all.filter(|watched| !watched.seen.tasks.is_empty()).cloned().collect();
        let names: BTreeSet<&str> = present.iter().map(|watched| &*watched.seen.name).collect();
        self.traffic.retain(|name, _| names.contains(&**name));
        present
    }

    /// Has what is in force be what was found.
    fn correct(&mut self, found: &[Found]) {
        let now = |name: &str| found.iter().find(|found| found.name == name);
        self.in_force.classes.retain(|class| now(&class.name).is_some());
        for class in &mut self.in_force.classes {
            let Some(found) = now(&class.name) else {
                continue;
            };
            let first = found.ways.trailing_zeros().min(31);
            let row = (found.ways >> first).trailing_ones();
            // Of ways that are apart, the first ones: then it is given others.
            class.mask = WayMask::new(first as u16, row as u16).unwrap_or(class.mask);
            class.tasks.clone_from(&found.tasks);
        }
    }

    /// An instance is where its threads are.
    fn who_is_where(&mut self, on_demand: &[Watched]) {
        for class in &mut self.in_force.classes {
            if class.kind == Kind::Reserved {
                continue;
            }
            let here = |watched: &&Watched| {
                let mut tasks = watched.seen.tasks.iter();
                tasks.any(|task| class.tasks.contains(task))
            };
            let here = on_demand.iter().filter(here);
            class.instances = here.map(|watched| watched.seen.name.clone()).collect();
        }
    }

    /// After steps: who is in which class now, for those that read it before the next tick.
    fn names(&mut self, on_demand: &[Observed], decided: &Allocation) {
        for class in &mut self.in_force.classes {
            if let Some(decided) = decided.class(&class.name) {
                class.kind = decided.kind;
            }
            if class.kind == Kind::Reserved {
                class.instances = vec![class.name.clone()];
                continue;
            }
            let here = |seen: &&Observed| seen.tasks.iter().any(|task| class.tasks.contains(task));
            let here = on_demand.iter().filter(here);
            class.instances = here.map(|seen| seen.name.clone()).collect();
        }
    }

    /// Fills in what the processor counts.
    fn count(&mut self, now: Nanos, watched: &mut Watched) {
        let seen = &mut watched.seen;
        let Some(class) = self.in_force.class_of(&seen.name) else {
            self.traffic.remove(&seen.name);
            return;
        };
        let alone = class.instances.len() == 1;
        let usage = self.allocator.usage(&class.name, &seen.name, &seen.tasks, alone);
        seen.occupancy = seen.occupancy.or(usage.occupancy);
        let Some(bytes) = usage.traffic else {
            self.traffic.remove(&seen.name);
            return;
        };
        let state = (class.name.clone(), bytes, now);
        let Some((before, was, at)) = self.traffic.insert(seen.name.clone(), state) else {
            return;
        };
        let references = watched.references.unwrap_or(0.0);
        let packets = seen.offered * now.saturating_sub(at).as_secs_f64();
        // In another class, or watched anew, bytes are counted from other times on.
        if before == class.name && bytes >= was && packets * references >= 1.0 {
            let part = (bytes - was) as f64 / LINE / (packets * references);
            seen.misses = seen.misses.or(Some(part.min(1.0)));
        }
    }

    /// Does what leads to an allocation, up to what is refused.
    fn change(&mut self, to: &Allocation, done: &mut Vec<Step>) -> Result<(), (Step, A::Error)> {
        for step in steps(&self.in_force, to) {
            if let Err(error) = self.allocator.step(&step) {
                return Err((step, error));
            }
            follow(&mut self.in_force, &step, to);
            done.push(step);
        }
        Ok(())
    }

    /// Some classes grew, others could not be made smaller, and together they have more than is leased: those that
    /// grew have what they had.
    fn shrink(&mut self, before: &[Found], done: &mut Vec<Step>) {
        let mut classes = self.in_force.classes.clone();
        classes.retain(|class| class.kind != Kind::Reserved);
        for class in classes {
            let was = before.iter().find(|found| found.name == class.name);
            let was = was.and_then(|found| WayMask::from_bits(found.ways));
            let step = match was {
                // Ways that others have got meanwhile it does not get back.
                Some(mask) if mask.bits() & !class.mask.bits() == 0 && mask != class.mask => Step::Resize {
                    class: class.name,
                    mask,
                },
                Some(_) => continue,
                None => Step::Remove { class: class.name },
            };
            if self.allocator.step(&step).is_ok() {
                follow(&mut self.in_force, &step, &Allocation::default());
                done.push(step);
            }
        }
    }
}

/// What is in force after a step towards an allocation.
fn follow(in_force: &mut Allocation, step: &Step, to: &Allocation) {
    match step {
        Step::Create { class, mask } => in_force.classes.push(Class {
            name: class.clone(),
            kind: to.class(class).map_or(Kind::Shared, |class| class.kind),
            mask: *mask,
            instances: Vec::new(),
            tasks: Vec::new(),
        }),
        Step::Resize { class, mask } => {
            let mut classes = in_force.classes.iter_mut();
            if let Some(class) = classes.find(|other| other.name == *class) {
                class.mask = *mask;
            }
        }
        Step::Assign { class, tasks } => {
            for other in &mut in_force.classes {
                match other.name == *class {
                    true => other.tasks.extend(tasks),
                    false => other.tasks.retain(|task| !tasks.contains(task)),
                }
            }
        }
        Step::Remove { class } => in_force.classes.retain(|other| other.name != *class),
    }
}
