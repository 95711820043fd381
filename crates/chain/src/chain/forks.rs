//! Branches of a chain: a batch is split where its packets go different ways, each branch runs its part to the end, and
//! where branches come together the packets are put into their order of arrival again.
//!
//! Frames stay where they are: what is put into lists is a packet's handle, with what is known of it. A batch that
//! goes one way as a whole is not touched. The lists are made with the chain, so nothing is allocated for packets.

use super::Chain;
use crate::batch::{Batch, MAX_BATCH, Slot};
use crate::branches::{Branch, ByWay, MAX_BRANCHES, MAX_WAYS, Path, Route, START, Ways, around, of_classifier, routes};
use std::ops::Range;
use tailwater_net::Nanos;

/// A step of packets' way through a segment.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Through a function, by its place in the chain.
    Run(usize),
    /// To the arms of a [fork](Forks::forks), and together again.
    Fork(usize),
}

/// Where packets go different ways.
#[derive(Debug)]
struct Fork {
    /// The steps of each arm.
    arms: Vec<Range<usize>>,
    /// The arm of packets of each way; the number behind all arms for those that pass none.
    arm_of: ByWay<u8>,
}

/// How packets pass a segment of a chain with branches.
#[derive(Debug)]
pub(super) struct Forks {
    steps: Vec<Step>,
    forks: Vec<Fork>,
    /// The steps that are in no branch.
    whole: Range<usize>,
}

/// Where the packets of a batch are while a fork's arms are run.
struct Split {
    /// Of each packet, in order of arrival: its buffer and its list.
    arrived: [(u32, u8); MAX_BATCH],
    /// How many they were.
    count: usize,
    /// The packets of each arm, and those that pass none.
    lists: Vec<Vec<Slot>>,
    /// That of forks within the arms.
    deeper: Option<Box<Split>>,
}

/// A split for every depth of forks, so that none is made while packets pass: the outermost that is not in use.
#[derive(Default)]
pub(super) struct Waiting(Option<Box<Split>>);

/// A chain's functions with their branches, while forks are made.
struct Tree<'t> {
    branches: &'t [Branch],
    ways: &'t Ways,
    /// Of each function, the innermost branch that it is in.
    within: &'t [Option<usize>],
    routes: &'t [Route],
    into: Forks,
}

impl Tree<'_> {
    /// The branch that a function is in and that begins right within `parent`.
    fn child(&self, function: usize, parent: Option<usize>) -> Option<usize> {
        let mut around = around(self.branches, self.within[function]);
        around.find(|branch| self.branches[*branch].within == parent)
    }

    /// Branches within `parent` at whose end, in front of a function, packets have left.
    fn left_within(&self, parent: Option<usize>, function: usize) -> Path {
        let inside = (0..self.branches.len()).filter(|branch| {
            let mut around = around(self.branches, self.branches[*branch].within);
            parent.is_none() || around.any(|outer| Some(outer) == parent)
        });
        let inside: Path = inside.map(Path::of).collect();
        self.routes[function].gone.within(inside)
    }

    /// The steps of packets of branch `parent` through functions that are in it. They are not among those that have
    /// `left` it.
    fn steps(&mut self, functions: Range<usize>, parent: Option<usize>, left: Path) -> Range<usize> {
        let mut steps = Vec::new();
        let mut at = functions.start;
        while at < functions.end {
            if self.within[at] == parent {
                let gone = self.left_within(parent, at);
                if gone != left {
                    let onward = self.steps(at..functions.end, parent, gone);
                    let arm_of = self.ways.each(1, |path| u8::from(path.meets(gone)));
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
                arms.push(self.steps(part, Some(branch), Path::START));
                branches.push(Path::of(branch));
            }
            let none = arms.len() as u8;
            let arm_of = |path: Path| branches.iter().position(|branch| branch.meets(path));
            let arm_of = self.ways.each(none, |path| arm_of(path).map_or(none, |arm| arm as u8));
            steps.push(self.fork(arms, arm_of));
        }
        let start = self.into.steps.len();
        self.into.steps.extend(steps);
        start..self.into.steps.len()
    }

    fn fork(&mut self, arms: Vec<Range<usize>>, arm_of: ByWay<u8>) -> Step {
        self.into.forks.push(Fork { arms, arm_of });
        Step::Fork(self.into.forks.len() - 1)
    }
}

impl Forks {
    /// How deep forks are within each other on these steps.
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
    /// Says which functions are in which branches: for each function the innermost, as a place in the list, if it
    /// is in one. The functions stand in this order: a classifier, those of its first branch, of its second, and so
    /// on, and what is behind it.
    ///
    /// # Panics
    /// If there are more than [`MAX_BRANCHES`], or more ways than [`MAX_WAYS`], or not as
    /// many places as functions, or functions of a branch that do not follow each other.
    #[must_use]
    pub fn with_branches(mut self, branches: &[Branch], within: &[Option<usize>]) -> Chain {
        if branches.is_empty() {
            return self;
        }
        assert!(branches.len() <= MAX_BRANCHES, "too many branches");
        assert_eq!(within.len(), self.stages.len(), "a place for each function");
        let names = self.stages.iter().map(|stage| stage.name.as_str());
        let places: Vec<_> = names.zip(within.iter().copied()).collect();
        let routes = routes(branches, &places);
        let ways = Ways::new(branches, &places).expect("no more ways than a packet can tell");
        let (mut depth, mut lists) = (0, 0);
        for segment in &mut self.segments {
            let functions = segment.stages.clone();
            let in_front = places[..functions.start].iter();
            let known: Path = in_front
                .flat_map(|(name, _)| of_classifier(branches, name))
                .map(|(at, _)| Path::of(at))
                .collect();
            // What decides which functions with state a flow is shown to here.
            let deciding: Path = functions
                .clone()
                .filter(|i| self.stages[*i].slot.is_some())
                .map(|i| routes[i].within.and(routes[i].gone))
                .collect();
            let deciding = deciding.within(known);
            segment.came = Some(ways.each(START, |path| {
                let alike = |(_, other): &(u8, Path)| other.within(deciding) == path.within(deciding);
                ways.iter().find(alike).map_or(START, |(way, _)| way)
            }));
            let mut tree = Tree {
                branches,
                ways: &ways,
                within,
                routes: &routes,
                into: Forks {
                    steps: Vec::new(),
                    forks: Vec::new(),
                    whole: 0..0,
                },
            };
            let whole = tree.steps(functions, None, Path::START);
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
            stage.ways = Some(ways.each(false, |path| route.passes(path)));
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
        self.waiting = Waiting(splits);
        self
    }

    /// Runs packets through a segment with branches.
    #[inline]
    pub(super) fn run_forks(&mut self, segment: usize, batch: &mut Batch, how: (Nanos, bool)) {
        // Lent, and put back below.
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

    /// Has each packet pass its arm, if it is to pass one.
    fn run_fork(&mut self, (segment, forks): (usize, &Forks), fork: usize, batch: &mut Batch, how: (Nanos, bool)) {
        let Fork { arms, arm_of } = &forks.forks[fork];
        let first = batch.first().map_or(0, |packet| packet.way);
        let first = arm_of[usize::from(first)];
        if batch.iter().all(|packet| arm_of[usize::from(packet.way)] == first) {
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
    /// Puts the batch's packets into the lists of their arms.
    fn divide(&mut self, batch: &mut Batch, arm_of: &[u8; MAX_WAYS]) {
        let packets = batch.slots_mut_vec().drain(..);
        self.count = packets.len();
        for (slot, arrived) in packets.zip(&mut self.arrived) {
            let arm = arm_of[usize::from(slot.packet.way)];
            *arrived = (slot.buffer_index(), arm);
            self.lists[usize::from(arm)].push(slot);
        }
    }

    /// Exchanges the batch's packets for those of a list.
    fn exchange(&mut self, batch: &mut Batch, list: usize) {
        std::mem::swap(batch.slots_mut_vec(), &mut self.lists[list]);
    }

    /// Puts what is left of the lists back into the batch, which is empty, in order of arrival.
    fn unite(&mut self, batch: &mut Batch) {
        let packets = batch.slots_mut_vec();
        let mut lists = self.lists.iter_mut();
        let mut lists: [_; MAX_BRANCHES + 1] = std::array::from_fn(|_| lists.next().map(|list| list.drain(..)));
        for (buffer, arm) in &self.arrived[..self.count] {
            let Some(list) = &mut lists[usize::from(*arm)] else {
                continue;
            };
            // Functions drop packets, and change nothing else of their order.
            let next = list.as_slice().first();
            if next.is_some_and(|slot| slot.buffer_index() == *buffer) {
                packets.extend(list.next());
            }
        }
        lists.into_iter().flatten().for_each(|rest| packets.extend(rest));
    }
}
