//! Execution of a chain's branches. A batch is split where its packets take different paths, and each branch runs its
//! part to the end. Where branches join, the packets are put back into their order of arrival.
//!
//! Frames stay in place: the lists hold packet handles and metadata. A batch whose packets all take the same path is
//! not touched. The lists are allocated with the chain, and never while packets pass.

use super::Chain;
use crate::batch::{Batch, MAX_BATCH, Slot};
use crate::branches::{
    Branch, BranchSet, ByPath, MAX_BRANCHES, MAX_PATHS, PathTable, Route, START, enclosing, of_classifier, routes,
};
use std::ops::Range;
use tailwater_net::Nanos;

/// Step of the packets' path through a segment.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Run of a function, by its index in the chain.
    Run(usize),
    /// Split into the arms of a [fork](Forks::forks), and join afterwards.
    Fork(usize),
}

/// Point at which packets take different paths.
#[derive(Debug)]
struct Fork {
    /// Steps of each arm.
    arms: Vec<Range<usize>>,
    /// Arm for each path. The number after the last arm stands for packets that pass none.
    arm_of: ByPath<u8>,
}

/// Steps of packets through a segment of a chain with branches.
#[derive(Debug)]
pub(super) struct Forks {
    steps: Vec<Step>,
    forks: Vec<Fork>,
    /// Steps outside all branches.
    whole: Range<usize>,
}

/// Packets of a batch while a fork's arms run.
struct Split {
    /// Buffer and list of each packet, in order of arrival.
    arrived: [(u32, u8); MAX_BATCH],
    /// Number of packets.
    count: usize,
    /// Packets of each arm, and those that pass none.
    lists: Vec<Vec<Slot>>,
    /// Split for forks within the arms.
    deeper: Option<Box<Split>>,
}

/// Preallocated splits, one for every depth of forks; the first is the outermost that is not in use.
#[derive(Default)]
pub(super) struct SplitPool(Option<Box<Split>>);

/// Functions and branches of a chain, used to build the forks.
struct Tree<'t> {
    branches: &'t [Branch],
    paths: &'t PathTable,
    /// Innermost branch that contains each function.
    within: &'t [Option<usize>],
    routes: &'t [Route],
    into: Forks,
}

impl Tree<'_> {
    /// Returns the branch that contains the function and is a direct child of `parent`.
    fn child(&self, function: usize, parent: Option<usize>) -> Option<usize> {
        let mut around = enclosing(self.branches, self.within[function]);
        around.find(|branch| self.branches[*branch].within == parent)
    }

    /// Returns the branches within `parent` that end in front of the function, and at whose end packets leave the
    /// chain.
    fn left_within(&self, parent: Option<usize>, function: usize) -> BranchSet {
        let inside = (0..self.branches.len()).filter(|branch| {
            let mut around = enclosing(self.branches, self.branches[*branch].within);
            parent.is_none() || around.any(|outer| Some(outer) == parent)
        });
        let inside: BranchSet = inside.map(BranchSet::with_branch).collect();
        self.routes[function].gone.within(inside)
    }

    /// Adds the steps of packets of branch `parent` through the functions in it, without the packets that have `left`
    /// it.
    fn steps(&mut self, functions: Range<usize>, parent: Option<usize>, left: BranchSet) -> Range<usize> {
        let mut steps = Vec::new();
        let mut at = functions.start;
        while at < functions.end {
            if self.within[at] == parent {
                let gone = self.left_within(parent, at);
                if gone != left {
                    let onward = self.steps(at..functions.end, parent, gone);
                    let arm_of = self.paths.each(1, |path| u8::from(path.meets(gone)));
                    steps.push(self.fork(vec![onward], arm_of));
                    break;
                }
                steps.push(Step::Run(at));
                at += 1;
                continue;
            }
            let (mut arms, mut branches) = (Vec::new(), Vec::new());
            while at < functions.end && self.within[at] != parent {
                let branch = self.child(at, parent);
                let branch = branch.expect("functions of a branch follow each other");
                let others = (at..functions.end).find(|i| self.child(*i, parent) != Some(branch));
                let part = at..others.unwrap_or(functions.end);
                at = part.end;
                arms.push(self.steps(part, Some(branch), BranchSet::START));
                branches.push(BranchSet::with_branch(branch));
            }
            let none = arms.len() as u8;
            let arm_of = |path: BranchSet| branches.iter().position(|branch| branch.meets(path));
            let arm_of = self.paths.each(none, |path| arm_of(path).map_or(none, |arm| arm as u8));
            steps.push(self.fork(arms, arm_of));
        }
        let start = self.into.steps.len();
        self.into.steps.extend(steps);
        start..self.into.steps.len()
    }

    fn fork(&mut self, arms: Vec<Range<usize>>, arm_of: ByPath<u8>) -> Step {
        self.into.forks.push(Fork { arms, arm_of });
        Step::Fork(self.into.forks.len() - 1)
    }
}

impl Forks {
    /// Returns the nesting depth of the forks in these steps.
    fn depth(&self, steps: &Range<usize>) -> usize {
        let depths = self.steps[steps.clone()].iter().map(|step| match step {
            Step::Run(_) => 0,
            Step::Fork(fork) => {
                let arms = self.forks[*fork].arms.iter();
                1 + arms.map(|arm| self.depth(arm)).max().unwrap_or(0)
            }
        });
        depths.max().unwrap_or(0)
    }
}

impl Chain {
    /// Sets the branches of the functions: `within` holds, for each function, the index of the innermost branch that
    /// contains it, if any. A classifier is followed by the functions of its first branch, those of its second, and so
    /// on, and then by the functions after it.
    ///
    /// # Panics
    /// - If there are more than [`MAX_BRANCHES`] branches, or more than [`MAX_PATHS`] paths.
    /// - If `within` does not have one element for each function.
    /// - If the functions of a branch are not consecutive.
    #[must_use]
    pub fn with_branches(mut self, branches: &[Branch], within: &[Option<usize>]) -> Chain {
        if branches.is_empty() {
            return self;
        }
        assert!(branches.len() <= MAX_BRANCHES, "too many branches");
        assert_eq!(within.len(), self.stages.len(), "an index for each function");
        let names = self.stages.iter().map(|stage| stage.name.as_str());
        let positions: Vec<_> = names.zip(within.iter().copied()).collect();
        let routes = routes(branches, &positions);
        let paths = PathTable::new(branches, &positions).expect("at most MAX_PATHS paths");
        let (mut depth, mut lists) = (0, 0);
        for segment in &mut self.segments {
            let functions = segment.stages.clone();
            let in_front = positions[..functions.start].iter();
            let known: BranchSet = in_front
                .flat_map(|(name, _)| of_classifier(branches, name))
                .map(|(at, _)| BranchSet::with_branch(at))
                .collect();
            // Branches that decide which functions with state see a flow here.
            let deciding: BranchSet = functions
                .clone()
                .filter(|i| self.stages[*i].slot.is_some())
                .map(|i| routes[i].within.and(routes[i].gone))
                .collect();
            let deciding = deciding.within(known);
            segment.path_class = Some(paths.each(START, |path| {
                let alike = |(_, other): &(u8, BranchSet)| other.within(deciding) == path.within(deciding);
                paths.iter().find(alike).map_or(START, |(number, _)| number)
            }));
            let mut tree = Tree {
                branches,
                paths: &paths,
                within,
                routes: &routes,
                into: Forks {
                    steps: Vec::new(),
                    forks: Vec::new(),
                    whole: 0..0,
                },
            };
            let whole = tree.steps(functions, None, BranchSet::START);
            let forks = Forks {
                whole: whole.clone(),
                ..tree.into
            };
            depth = depth.max(forks.depth(&whole));
            let arms = forks.forks.iter().map(|fork| fork.arms.len());
            lists = lists.max(1 + arms.max().unwrap_or(0));
            segment.forks = (!forks.forks.is_empty()).then(|| Box::new(forks));
        }
        for (stage, route) in self.stages.iter_mut().zip(&routes) {
            stage.paths = Some(paths.each(false, |path| route.passes(path)));
        }
        let splits = (0..depth).fold(None, |deeper, _| {
            Some(Box::new(Split {
                arrived: [(0, 0); MAX_BATCH],
                count: 0,
                lists: (0..lists).map(|_| Vec::with_capacity(MAX_BATCH)).collect(),
                deeper,
            }))
        });
        self.branches = true;
        self.waiting = SplitPool(splits);
        self
    }

    /// Runs packets through a segment with branches.
    #[inline]
    pub(super) fn run_forks(&mut self, segment: usize, batch: &mut Batch, how: (Nanos, bool)) {
        // Taken out for the run, and put back below.
        let Some(forks) = self.segments[segment].forks.take() else {
            return;
        };
        self.run_steps((segment, &forks), &forks.whole, batch, how);
        self.segments[segment].forks = Some(forks);
    }

    fn run_steps(
        &mut self,
        (segment, forks): (usize, &Forks),
        steps: &Range<usize>,
        batch: &mut Batch,
        how: (Nanos, bool),
    ) {
        for step in &forks.steps[steps.clone()] {
            if batch.is_empty() {
                break;
            }
            match *step {
                Step::Run(stage) => self.run_stage(stage, segment, batch, how),
                Step::Fork(fork) => self.run_fork((segment, forks), fork, batch, how),
            }
        }
    }

    /// Runs each packet through its arm, if it passes one.
    fn run_fork(&mut self, (segment, forks): (usize, &Forks), fork: usize, batch: &mut Batch, how: (Nanos, bool)) {
        let Fork { arms, arm_of } = &forks.forks[fork];
        let first = batch.first().map_or(0, |packet| packet.path);
        let first = arm_of[usize::from(first)];
        if batch.iter().all(|packet| arm_of[usize::from(packet.path)] == first) {
            if let Some(steps) = arms.get(usize::from(first)) {
                self.run_steps((segment, forks), steps, batch, how);
            }
            return;
        }
        let split = self.waiting.0.take();
        let mut split = split.expect("a split for each depth");
        self.waiting.0 = split.deeper.take();
        split.divide(batch, arm_of);
        for (arm, steps) in arms.iter().enumerate() {
            if !split.lists[arm].is_empty() {
                split.exchange(batch, arm);
                self.run_steps((segment, forks), steps, batch, how);
                split.exchange(batch, arm);
            }
        }
        split.unite(batch);
        split.deeper = self.waiting.0.take();
        self.waiting.0 = Some(split);
    }
}

impl Split {
    /// Moves the batch's packets to the lists of their arms.
    fn divide(&mut self, batch: &mut Batch, arm_of: &[u8; MAX_PATHS]) {
        let packets = batch.slots_mut_vec().drain(..);
        self.count = packets.len();
        for (slot, arrived) in packets.zip(&mut self.arrived) {
            let arm = arm_of[usize::from(slot.packet.path)];
            *arrived = (slot.buffer_index(), arm);
            self.lists[usize::from(arm)].push(slot);
        }
    }

    /// Swaps the batch's packets with those of a list.
    fn exchange(&mut self, batch: &mut Batch, list: usize) {
        std::mem::swap(batch.slots_mut_vec(), &mut self.lists[list]);
    }

    /// Moves the remaining packets of the lists back into the empty batch, in order of arrival.
    fn unite(&mut self, batch: &mut Batch) {
        let packets = batch.slots_mut_vec();
        let mut lists = self.lists.iter_mut();
        let mut lists: [_; MAX_BRANCHES + 1] = std::array::from_fn(|_| lists.next().map(|list| list.drain(..)));
        for (buffer, arm) in &self.arrived[..self.count] {
            let Some(list) = &mut lists[usize::from(*arm)] else {
                continue;
            };
            // Functions may drop packets, but do not reorder them.
            let next = list.as_slice().first();
            if next.is_some_and(|slot| slot.buffer_index() == *buffer) {
                packets.extend(list.next());
            }
        }
        lists.into_iter().flatten().for_each(|rest| packets.extend(rest));
    }
}
