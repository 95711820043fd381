//! Forks: where the packets of a batch take different paths through a segment, and the lists they wait in.

use crate::batch::{Batch, MAX_BATCH, Slot};
use crate::branches::{Branch, BranchSet, ByPath, MAX_BRANCHES, MAX_PATHS, PathTable, Route, enclosing};
use std::ops::Range;

/// Step of the packets' path through a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Run of a function, by its index in the chain.
    Run(usize),
    /// Split into the arms of a [fork](Forks::forks), and join afterwards.
    Fork(usize),
}

/// Point at which packets take different paths.
#[derive(Debug)]
pub(super) struct Fork {
    /// Steps of each arm.
    pub(super) arms: Vec<Range<usize>>,
    /// Arm for each path. The number after the last arm stands for packets that pass none.
    pub(super) arm_of: ByPath<u8>,
}

/// Steps of packets through a segment of a chain with branches.
#[derive(Debug)]
pub(super) struct Forks {
    pub(super) steps: Vec<Step>,
    pub(super) forks: Vec<Fork>,
    /// Steps outside all branches.
    pub(super) whole: Range<usize>,
}

/// Packets of a batch while a fork's arms run.
pub(super) struct Split {
    /// Buffer and list of each packet, in order of arrival.
    arrived: [(u32, u8); MAX_BATCH],
    /// Number of packets.
    count: usize,
    /// Packets of each arm, and those that pass none.
    pub(super) lists: Vec<Vec<Slot>>,
    /// Split for forks within the arms.
    pub(super) deeper: Option<Box<Split>>,
}

/// Preallocated splits, one for every depth of forks; the first is the outermost that is not in use.
#[derive(Default)]
pub(super) struct SplitPool(pub(super) Option<Box<Split>>);

/// Functions and branches of a chain, used to build the forks.
pub(super) struct Tree<'t> {
    branches: &'t [Branch],
    paths: &'t PathTable,
    /// Innermost branch that contains each function.
    within: &'t [Option<usize>],
    routes: &'t [Route],
    into: Forks,
}

impl<'t> Tree<'t> {
    /// `within` holds, for each function, the innermost branch that contains it.
    pub(super) fn new(
        branches: &'t [Branch],
        paths: &'t PathTable,
        within: &'t [Option<usize>],
        routes: &'t [Route],
    ) -> Tree<'t> {
        Tree {
            branches,
            paths,
            within,
            routes,
            into: Forks {
                steps: Vec::new(),
                forks: Vec::new(),
                whole: 0..0,
            },
        }
    }

    /// Builds the forks of a segment with these functions.
    pub(super) fn forks(mut self, functions: Range<usize>) -> Forks {
        let whole = self.steps(functions, None, BranchSet::START);
        Forks { whole, ..self.into }
    }

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
    /// Returns the nesting depth of the forks.
    pub(super) fn depth(&self) -> usize {
        self.depth_of(&self.whole)
    }

    /// Returns the number of lists that packets are split into: one for each arm, and one for those that pass none.
    pub(super) fn lists(&self) -> usize {
        let arms = self.forks.iter().map(|fork| fork.arms.len());
        1 + arms.max().unwrap_or(0)
    }

    /// Returns the nesting depth of the forks in these steps.
    fn depth_of(&self, steps: &Range<usize>) -> usize {
        let depths = self.steps[steps.clone()].iter().map(|step| match step {
            Step::Run(_) => 0,
            Step::Fork(fork) => {
                let arms = self.forks[*fork].arms.iter();
                1 + arms.map(|arm| self.depth_of(arm)).max().unwrap_or(0)
            }
        });
        depths.max().unwrap_or(0)
    }
}

impl SplitPool {
    /// Allocates splits for forks of this nesting depth, each with this number of lists.
    pub(super) fn new(depth: usize, lists: usize) -> SplitPool {
        SplitPool((0..depth).fold(None, |deeper, _| {
            Some(Box::new(Split {
                arrived: [(0, 0); MAX_BATCH],
                count: 0,
                lists: (0..lists).map(|_| Vec::with_capacity(MAX_BATCH)).collect(),
                deeper,
            }))
        }))
    }
}

impl Split {
    /// Moves the batch's packets to the lists of their arms.
    pub(super) fn divide(&mut self, batch: &mut Batch, arm_of: &[u8; MAX_PATHS]) {
        let packets = batch.slots_mut_vec().drain(..);
        self.count = packets.len();
        for (slot, arrived) in packets.zip(&mut self.arrived) {
            let arm = arm_of[usize::from(slot.packet.path)];
            *arrived = (slot.buffer_index(), arm);
            self.lists[usize::from(arm)].push(slot);
        }
    }

    /// Swaps the batch's packets with those of a list.
    pub(super) fn exchange(&mut self, batch: &mut Batch, list: usize) {
        std::mem::swap(batch.slots_mut_vec(), &mut self.lists[list]);
    }

    /// Moves the remaining packets of the lists back into the empty batch, in order of arrival.
    pub(super) fn unite(&mut self, batch: &mut Batch) {
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
