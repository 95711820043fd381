//! Partitions of a cache as plain data, and the steps from one allocation to another.

use super::mask::WayMask;

/// Kind of instances in a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One instance of a reserved SLO.
    Reserved,
    /// One instance of an on-demand SLO.
    Isolated,
    /// Any number of instances of on-demand SLOs.
    Shared,
}

/// Partition of a cache: a class of service of CAT, a group of `resctrl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique name.
    pub name: String,
    /// Kind of its instances.
    pub kind: Kind,
    /// Its ways.
    pub mask: WayMask,
    /// Names of its instances.
    pub instances: Vec<String>,
    /// Thread ids of the kernel.
    pub tasks: Vec<u32>,
}

/// All classes of one cache, without the one for everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The classes.
    pub classes: Vec<Class>,
}

impl Allocation {
    /// Returns the class with this name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// Returns the class of an instance.
    pub fn class_of(&self, instance: &str) -> Option<&Class> {
        let has = |class: &&Class| class.instances.iter().any(|name| name == instance);
        self.classes.iter().find(has)
    }

    /// Returns all ways of the given kinds of classes, as bits.
    pub fn bits(&self, kinds: &[Kind]) -> u32 {
        let classes = self.classes.iter().filter(|class| kinds.contains(&class.kind));
        classes.fold(0, |bits, class| bits | class.mask.bits())
    }
}

/// Single change of a cache's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates a class without threads.
    Create {
        /// Name.
        class: String,
        /// Ways.
        mask: WayMask,
    },
    /// Changes the ways of a class.
    Resize {
        /// Name.
        class: String,
        /// New ways.
        mask: WayMask,
    },
    /// Moves threads into a class, out of their previous one.
    Assign {
        /// Name.
        class: String,
        /// Thread ids.
        tasks: Vec<u32>,
    },
    /// Removes a class. Threads in it move to the default class of everything else.
    Remove {
        /// Name.
        class: String,
    },
}

/// Mechanism that partitions a cache: CAT through `resctrl`, or a model of it.
pub trait CacheAllocator {
    /// Error of a failed step.
    type Error;

    /// Executes a step.
    ///
    /// # Errors
    /// The step failed. Earlier steps stay in effect.
    fn step(&mut self, step: &Step) -> Result<(), Self::Error>;

    /// Executes steps in order.
    ///
    /// # Errors
    /// Returns the error of the first failed step. No later step is executed.
    fn apply(&mut self, steps: &[Step]) -> Result<(), Self::Error> {
        steps.iter().try_for_each(|step| self.step(step))
    }
}

/// Returns the steps from one allocation to another. Between any two steps, no two classes share a way, no mask is
/// empty, and there are never more classes than in `from` or in `to`. The threads of a removed class move to their new
/// one before the removal, if the new one already exists.
///
/// If classes exchange places cyclically, one of them is removed, one of on-demand instances if possible, and created
/// again when its place is free. [`OnDemand`](super::OnDemand) requests such an exchange only when a reserved instance
/// arrives or leaves.
pub fn steps(from: &Allocation, to: &Allocation) -> Vec<Step> {
    let mut steps = Vec::new();
    let assign = |class: &Class, steps: &mut Vec<Step>| {
        let before = from.class(&class.name).map_or(&[][..], |class| &class.tasks);
        let tasks = class.tasks.iter().copied();
        let tasks: Vec<u32> = tasks.filter(|task| !before.contains(task)).collect();
        if !tasks.is_empty() {
            let class = class.name.clone();
            steps.push(Step::Assign { class, tasks });
        }
    };
    for class in &to.classes {
        if from.class(&class.name).is_some() {
            assign(class, &mut steps);
        }
    }
    // Current masks during the steps, and the classes that still have to change.
    let mut now: Vec<(&Class, WayMask)> = Vec::new();
    let mut create: Vec<(&Class, bool)> = Vec::new();
    for class in &from.classes {
        match to.class(&class.name) {
            Some(_) => now.push((class, class.mask)),
            None => steps.push(Step::Remove {
                class: class.name.clone(),
            }),
        }
    }
    let goal = |class: &Class| to.class(&class.name).map_or(class.mask, |class| class.mask);
    loop {
        let open = |i: &usize| now[*i].1 != goal(now[*i].0);
        let free = |i: &usize| {
            let mask = goal(now[*i].0);
            let mut others = now.iter().enumerate().filter(|(j, _)| j != i);
            others.all(|(_, (_, other))| !other.overlaps(mask))
        };
        if let Some(next) = (0..now.len()).filter(open).find(free) {
            now[next].1 = goal(now[next].0);
            steps.push(Step::Resize {
                class: now[next].0.name.clone(),
                mask: now[next].1,
            });
            continue;
        }
        // Removing a class of an on-demand instance affects the fewest guarantees.
        let stuck = (0..now.len()).filter(open);
        let Some(stuck) = stuck.min_by_key(|&i| now[i].0.kind == Kind::Reserved) else {
            break;
        };
        let (class, _) = now.swap_remove(stuck);
        steps.push(Step::Remove {
            class: class.name.clone(),
        });
        create.extend(to.class(&class.name).map(|class| (class, true)));
    }
    let new = to.classes.iter().filter(|class| from.class(&class.name).is_none());
    create.extend(new.map(|class| (class, false)));
    for (class, all) in create {
        steps.push(Step::Create {
            class: class.name.clone(),
            mask: class.mask,
        });
        match all {
            true => steps.push(Step::Assign {
                class: class.name.clone(),
                tasks: class.tasks.clone(),
            }),
            false => assign(class, &mut steps),
        }
    }
    steps
}
