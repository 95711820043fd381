//! Execution of a chain's branches. A batch is split where its packets take different paths, and each branch runs its
//! part to the end. Where branches join, the packets are put back into their order of arrival.
//!
//! Frames stay in place: the lists hold packet handles and metadata. A batch whose packets all take the same path is
//! not touched. The lists are allocated with the chain, and never while packets pass.

use super::Chain;
use super::forks::{Fork, Forks, SplitPool, Step, Tree};
use crate::batch::Batch;
use crate::branches::{Branch, BranchSet, MAX_BRANCHES, PathTable, START, of_classifier, routes};
use std::ops::Range;
use tailwater_net::Nanos;

impl Chain {
    /// Sets the branches of the functions: `within` holds, for each function, the index of the innermost branch that
    /// contains it, if any. A classifier is followed by the functions of its first branch, those of its second, and so
    /// on, and then by the functions after it.
    ///
    /// # Panics
    /// - If there are more than [`MAX_BRANCHES`] branches, or more than [`MAX_PATHS`](crate::branches::MAX_PATHS)
    ///   paths.
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
            let forks = Tree::new(branches, &paths, within, &routes).forks(functions);
            depth = depth.max(forks.depth());
            lists = lists.max(forks.lists());
            segment.forks = (!forks.forks.is_empty()).then(|| Box::new(forks));
        }
        for (stage, route) in self.stages.iter_mut().zip(&routes) {
            stage.paths = Some(paths.each(false, |path| route.passes(path)));
        }
        self.branches = true;
        self.waiting = SplitPool::new(depth, lists);
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
