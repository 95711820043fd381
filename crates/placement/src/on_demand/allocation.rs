//! What a cache is cut into, as plain data, and the steps from one such cut to another.

use super::mask::WayMask;

/// Who is in a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One instance of a reserved SLO.
    Reserved,
    /// One instance of an on-demand SLO.
    Isolated,
    /// Any number of instances of on-demand SLOs.
    Shared,
}

/// A part of a cache: a class of service of CAT, a group of `resctrl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, different from all others'.
    pub name: String,
    /// Who is in it.
    pub kind: Kind,
    /// Its ways.
    pub mask: WayMask,
    /// The instances in it, by name.
    pub instances: Vec<String>,
    /// Their threads, as the kernel numbers them.
    pub tasks: Vec<u32>,
}

/// All classes of one cache, without the one for everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The classes.
    pub classes: Vec<Class>,
}

impl Allocation {
    /// A class by its name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name == name)
    }

    /// The class that an instance is in.
    pub fn class_of(&self, instance: &str) -> Option<&Class> {
        let has = |class: &&Class| class.instances.iter().any(|name| name == instance);
        self.classes.iter().find(has)
    }

    /// All ways of some kinds of classes, as bits.
    pub fn bits(&self, kinds: &[Kind]) -> u32 {
        let classes = self.classes.iter().filter(|class| kinds.contains(&class.kind));
        classes.fold(0, |bits, class| bits | class.mask.bits())
    }
}

/// One thing to do to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new class, with nobody in it.
    Create {
        /// Its name.
        class: String,
        /// Its ways.
        mask: WayMask,
    },
    /// Other ways for a class.
    Resize {
        /// Its name.
        class: String,
        /// Its ways.
        mask: WayMask,
    },
    /// Threads enter a class, and leave the one that they were in.
    Assign {
        /// Its name.
        class: String,
        /// The threads.
        tasks: Vec<u32>,
    },
    /// A class is no more. Threads that are in it have what is left to everything else.
    Remove {
        /// Its name.
        class: String,
    },
}

/// What cuts a real cache: CAT by `resctrl`, or a model of it.
pub trait CacheAllocator {
    /// Why a step failed.
    type Error;

    /// Does a step.
    ///
    /// # Errors
    /// It could not be done; those before it are done.
    fn step(&mut self, step: &Step) -> Result<(), Self::Error>;

    /// Does steps in their order.
    ///
    /// # Errors
    /// That of the first step that failed; none after it is done.
    fn apply(&mut self, steps: &[Step]) -> Result<(), Self::Error> {
        steps.iter().try_for_each(|step| self.step(step))
    }
}

/// The steps from one allocation to another, in an order in which two classes never have a way in common, no mask is
/// ever empty, and there are never more classes than in the one or the other. The threads of a class that
/// goes enter theirs before it does, if that exists already.
///
/// Where classes change places all around, one of them is removed, one of on-demand instances if there is any, and
/// created again when its place is free: [`OnDemand`](super::OnDemand) has them change places only where what is
/// reserved comes or leaves.
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
    // What masks are as steps go on, and classes that still have to change.
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
        // The fewest feel it if it is one of an on-demand instance.
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
