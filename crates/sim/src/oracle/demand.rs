//! Cores by epochs: theorems 1 and 2 of the [module](super).

use std::collections::VecDeque;

/// The fewest core-epochs for work that may be done in any of some epochs each.
///
/// Each epoch has as many cores as what is due in it needs, and what these cores have left goes to what is due
/// next, of what is there.
#[derive(Debug)]
pub(super) struct Demand {
    /// What a core does in an epoch, in picoseconds.
    capacity: u64,
    /// The epoch that is open.
    epoch: u64,
    /// Work that is waiting, by the epoch from the open one on in which it is due; none before `first`.
    due: VecDeque<u64>,
    first: usize,
    waiting: u64,
    /// What was done since nothing was waiting; of that, what is not due before the open epoch, by epoch.
    done: u128,
    ahead: VecDeque<u64>,
    core_epochs: u64,
    blocks: Blocks,
}

impl Demand {
    pub fn new(capacity: u64) -> Demand {
        Demand {
            capacity,
            epoch: 0,
            due: VecDeque::new(),
            first: 0,
            waiting: 0,
            done: 0,
            ahead: VecDeque::new(),
            core_epochs: 0,
            blocks: Blocks::new(capacity),
        }
    }

    /// Work is there from an epoch on and due in another. The first are never earlier than before.
    pub fn add(&mut self, from: u64, due: u64, work: u64) {
        while self.epoch < from && self.waiting > 0 {
            self.close();
        }
        if self.waiting == 0 {
            self.end_block(from);
        }
        self.epoch = self.epoch.max(from);
        let at = (due - self.epoch) as usize;
        if self.due.len() <= at {
            self.due.resize(at + 1, 0);
        }
        // What does not fit in a number is left out: the bound is lower.
        let work = work.min(u64::MAX - self.waiting);
        self.due[at] += work;
        self.waiting += work;
        self.first = self.first.min(at);
    }

    /// The open epoch is over.
    fn close(&mut self) {
        self.epoch += 1;
        let due = self.due.pop_front().unwrap_or(0);
        self.ahead.pop_front();
        self.first = self.first.saturating_sub(1);
        self.core_epochs += due.div_ceil(self.capacity);
        let mut left = (self.capacity - due % self.capacity) % self.capacity;
        self.waiting -= due;
        self.done += u128::from(due);
        while left > 0 && self.waiting > 0 {
            let waiting = &mut self.due[self.first];
            let some = left.min(*waiting);
            *waiting -= some;
            left -= some;
            self.waiting -= some;
            self.done += u128::from(some);
            if self.ahead.len() <= self.first {
                self.ahead.resize(self.first + 1, 0);
            }
            self.ahead[self.first] += some;
            if left > 0 {
                self.first += 1;
            }
        }
    }

    /// Nothing is waiting, and nothing comes before an epoch: an interval ends ahead of that.
    fn end_block(&mut self, next: u64) {
        let later = self.ahead.iter().skip((next - self.epoch) as usize);
        let later = later.map(|work| u128::from(*work)).sum::<u128>();
        self.blocks.add(std::mem::take(&mut self.done) - later);
        self.ahead.clear();
        self.due.clear();
        self.first = 0;
    }

    /// Nothing more comes. Returns the fewest core-epochs in which all is done in time, and the demand of
    /// intervals that have no epoch in common.
    pub fn finish(mut self) -> (u64, Blocks) {
        while self.waiting > 0 {
            self.close();
        }
        self.end_block(u64::MAX);
        (self.core_epochs, self.blocks)
    }
}

/// Classes of what is left of a demand.
const CLASSES: u64 = 1024;

/// Intervals that have no epoch in common: how many core-epochs each needs, and what would have to go for one less.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: u64,
    core_epochs: u128,
    blocks: u128,
    /// Blocks by what would have to go for one core-epoch less, and that in all.
    classes: Vec<(u64, u128)>,
}

impl Blocks {
    pub fn new(capacity: u64) -> Blocks {
        Blocks {
            capacity,
            core_epochs: 0,
            blocks: 0,
            classes: Vec::new(),
        }
    }

    /// An interval of which the work is so much that is there not before and due not after.
    pub fn add(&mut self, demand: u128) {
        if demand == 0 {
            return;
        }
        let capacity = u128::from(self.capacity);
        let most = demand.div_ceil(capacity);
        let last = demand - (most - 1) * capacity;
        self.core_epochs += most;
        self.blocks += 1;
        let class = ((last - 1) * u128::from(CLASSES) / capacity) as usize;
        if self.classes.len() <= class {
            self.classes.resize(class + 1, (0, 0));
        }
        let (count, sum) = &mut self.classes[class];
        *count += 1;
        *sum += last;
    }

    /// Core-epochs without which it does not go, if so much work may be left out.
    pub fn core_epochs(&self, left_out: u128) -> u64 {
        let mut left = left_out;
        let mut saved = 0;
        for (class, &(count, sum)) in self.classes.iter().enumerate() {
            if left >= sum {
                left -= sum;
                saved += u128::from(count);
                continue;
            }
            let least = class as u128 * u128::from(self.capacity) / u128::from(CLASSES) + 1;
            saved += (left / least).min(u128::from(count));
            left = 0;
            break;
        }
        // What is left over goes to whole core-epochs.
        let whole = self.core_epochs - self.blocks;
        saved += (left / u128::from(self.capacity)).min(whole);
        u64::try_from(self.core_epochs - saved).unwrap_or(u64::MAX)
    }
}
