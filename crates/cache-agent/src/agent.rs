//! The agent: each tick reads the cache, decides, and applies the decision.

use crate::lease::Lease;
use crate::partitioner::{CachePartitioner, ClassifiedError, Found, Refused};
use std::collections::{BTreeMap, BTreeSet};
use tailwater_net::Nanos;
use tailwater_placement::lease::{Grant, Request, Terms};
use tailwater_placement::on_demand::mask::WayMask;
use tailwater_placement::on_demand::{
    Allocation, Cache, Class, Config, Decision, Kind, Observed, OnDemand, Reserved, Situation, Step, steps,
};

/// Size of a cache line in bytes, the unit of memory traffic.
const LINE: f64 = 64.0;
/// Time for which fewer classes are used after the creation of one was refused.
const FEWER: Nanos = Nanos::from_secs(10);
/// Maximum number of ticks between two retries of a refused step.
const MOST_WAIT: u32 = 16;
/// Maximum number of decisions per tick. Each refusal that has an alternative causes one more.
const DECISIONS: u32 = 64;

/// Parameters of an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Ways that always belong to on-demand instances, independent of leases.
    pub own: u16,
    /// Terms of leases.
    pub terms: Terms,
    /// Unique number of this start of the agent on this server.
    pub incarnation: u64,
    /// Parameters of the policy, without its cache, or `None` for [`Config::new`].
    pub config: Option<Config>,
}

/// Instance of an on-demand SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Its observations. Unknown occupancy and misses are filled in from the processor's counters.
    pub seen: Observed,
    /// References to the cache per packet, from a profile. With them, memory traffic gives the share of misses.
    pub references: Option<f64>,
}

/// Instances on a cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Instances of reserved SLOs. One without threads retains its ways.
    pub reserved: Vec<Reserved>,
    /// Instances of on-demand SLOs. One without threads counts as ended.
    pub on_demand: Vec<Watched>,
}

/// Step that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The step.
    pub step: Step,
    /// Reason.
    pub why: String,
}

/// Result of a tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Decision of the policy.
    pub decision: Decision,
    /// Allocation in force.
    pub in_force: Allocation,
    /// Executed steps, in order.
    pub done: Vec<Step>,
    /// Refused step without an alternative. It is retried.
    pub refused: Option<Refusal>,
    /// Threads that stay in their class, with the reason.
    pub left_out: BTreeMap<u32, String>,
    /// Number of classes currently available. Instances share if there are too few.
    pub classes: u16,
    /// Ways for all on-demand instances together, including the used leased ones.
    pub ways: u16,
    /// Leased ways that may be used.
    pub leased: u16,
    /// Observations of on-demand instances that the policy used.
    pub seen: Vec<Observed>,
}

/// Divides one cache.
#[derive(Debug)]
pub struct Agent<A> {
    allocator: A,
    policy: OnDemand,
    in_force: Allocation,
    lease: Lease,
    /// Number of classes when the creation of another was refused, and the time.
    fewer: Option<(u16, Nanos)>,
    /// Ticks until a refused step is retried, and the next such delay.
    wait: (u32, u32),
    /// Memory traffic of instances: their class, bytes, and time.
    traffic: BTreeMap<String, (String, u64, Nanos)>,
}

impl<A: CachePartitioner> Agent<A> {
    /// Creates an agent for the cache of `allocator`, which is not partitioned yet.
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

    /// Returns the allocation in force.
    pub fn in_force(&self) -> &Allocation {
        &self.in_force
    }

    /// Reads the cache, without ways and classes that other programs use now.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn cache(&mut self) -> Result<Cache, A::Error> {
        self.allocator.cache()
    }

    /// Returns a request for the controller, if one is due.
    pub fn request(&mut self, now: Nanos) -> Option<Request> {
        self.lease.request(now)
    }

    /// Processes a grant. Returns `true` if it takes effect.
    pub fn granted(&mut self, now: Nanos, grant: &Grant) -> bool {
        self.lease.receive(now, grant)
    }

    /// Reads the state of the cache, decides, and executes the decision.
    ///
    /// # Errors
    /// The cache cannot be read. Nothing was done.
    pub fn tick(&mut self, now: Nanos, seen: &Seen) -> Result<Tick, A::Error> {
        let mut cache = self.allocator.cache()?;
        let found = self.allocator.classes()?;
        self.fewer = self.fewer.filter(|(_, at)| now.saturating_sub(*at) < FEWER);
        if let Some((classes, _)) = self.fewer {
            cache.classes = cache.classes.min(classes);
        }
        let (mut reserved, mut on_demand) = (seen.reserved.clone(), self.present(seen));
        self.correct(&found);
        self.assign_instances(&on_demand);
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
            // Observations count once, however many decisions are made.
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

    /// Same as [`tick`](Self::tick), at once and all or nothing: it does not wait after an earlier refusal, and if a
    /// step is refused, it goes back to the allocation of before and returns the refusal. Steps back that are refused,
    /// too, are left to the next tick.
    ///
    /// # Errors
    /// The cache cannot be read. Nothing was done.
    pub fn tick_or_undo(&mut self, now: Nanos, seen: &Seen) -> Result<Result<Tick, Refusal>, A::Error> {
        let found = self.allocator.classes()?;
        self.correct(&found);
        let (before, policy) = (self.in_force.clone(), self.policy.clone());
        self.wait = (0, 1);
        let tick = self.tick(now, seen)?;
        let Some(refusal) = tick.refused else {
            return Ok(Ok(tick));
        };
        // A remaining difference is found and corrected by the next tick.
        let _ = self.change(&before, &mut Vec::new());
        (self.policy, self.wait) = (policy, (0, 1));
        Ok(Err(refusal))
    }

    /// Removes all classes.
    ///
    /// # Errors
    /// Returns the first error. Classes that could be removed are gone, the others remain, and the call can be
    /// repeated.
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

    /// Returns the number of ways of on-demand instances.
    fn used(&self) -> u16 {
        let bits = self.in_force.bits(&[Kind::Isolated, Kind::Shared]);
        bits.count_ones() as u16
    }

    /// Returns the running on-demand instances.
    fn present(&mut self, seen: &Seen) -> Vec<Watched> {
        let all = seen.on_demand.iter();
        let present: Vec<Watched> = all.filter(|watched| !watched.seen.tasks.is_empty()).cloned().collect();
        let names: BTreeSet<&str> = present.iter().map(|watched| &*watched.seen.name).collect();
        self.traffic.retain(|name, _| names.contains(&**name));
        present
    }

    /// Sets the allocation in force to the classes found.
    fn correct(&mut self, found: &[Found]) {
        let now = |name: &str| found.iter().find(|found| found.name == name);
        self.in_force.classes.retain(|class| now(&class.name).is_some());
        for class in &mut self.in_force.classes {
            let Some(found) = now(&class.name) else {
                continue;
            };
            let first = found.ways.trailing_zeros().min(31);
            let row = (found.ways >> first).trailing_ones();
            // Of ways with gaps only the first run counts. The decision then assigns others.
            class.mask = WayMask::new(first as u16, row as u16).unwrap_or(class.mask);
            class.tasks.clone_from(&found.tasks);
        }
    }

    /// Assigns instances to the classes of their threads.
    fn assign_instances(&mut self, on_demand: &[Watched]) {
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

    /// Updates the instances of each class after steps, for readers before the next tick.
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

    /// Fills in the processor's counters.
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
        // In another class, or after monitoring restarted, bytes count from a different start.
        if before == class.name && bytes >= was && packets * references >= 1.0 {
            let part = (bytes - was) as f64 / LINE / (packets * references);
            seen.misses = seen.misses.or(Some(part.min(1.0)));
        }
    }

    /// Executes the steps to an allocation, up to the first refused one.
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

    /// Restores the ways of classes that grew while others could not shrink, because together they exceed the lease.
    fn shrink(&mut self, before: &[Found], done: &mut Vec<Step>) {
        let mut classes = self.in_force.classes.clone();
        classes.retain(|class| class.kind != Kind::Reserved);
        for class in classes {
            let was = before.iter().find(|found| found.name == class.name);
            let was = was.and_then(|found| WayMask::from_bits(found.ways));
            let step = match was {
                // Not possible if another class has got these ways in the meantime.
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

/// Applies a step towards an allocation to the allocation in force.
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
