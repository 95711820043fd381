//! Cores by epochs: theorems 1 and 2 of the [module](super).

use std::collections::VecDeque;

/// Computes the fewest core-epochs for work, each part of which can be done in any epoch of a range.
///
/// Each epoch has as many cores as its due work needs. The rest of these cores' capacity is used for available work
/// that is due next.
#[derive(Debug)]
pub(super) struct Demand {
    /// Work that a core does in an epoch, in picoseconds.
    capacity: u64,
    /// Current epoch.
    epoch: u64,
    /// Waiting work, by the epoch in which it is due, starting with the current one. Entries before `first` are zero.
    due: VecDeque<u64>,
    first: usize,
    waiting: u64,
    /// Work done since nothing was waiting, and the part of it that is due in the current or a later epoch, by epoch.
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

    /// Adds work that is available from epoch `from` on and due in epoch `due`. `from` never decreases.
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
        // Work beyond the range of the integer is left out, which lowers the bound.
        let work = work.min(u64::MAX - self.waiting);
        self.due[at] += work;
        self.waiting += work;
        self.first = self.first.min(at);
    }

    /// Ends the current epoch.
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

    /// Ends an interval, when nothing waits and no work becomes available before epoch `next`.
    fn end_block(&mut self, next: u64) {
        let later = self.ahead.iter().skip((next - self.epoch) as usize);
        let later = later.map(|work| u128::from(*work)).sum::<u128>();
        self.blocks.add(std::mem::take(&mut self.done) - later);
        self.ahead.clear();
        self.due.clear();
        self.first = 0;
    }

    /// Ends the computation. Returns the fewest core-epochs in which all work is done in time, and the demand of
    /// disjoint intervals of epochs.
    pub fn finish(mut self) -> (u64, Blocks) {
        while self.waiting > 0 {
            self.close();
        }
        self.end_block(u64::MAX);
        (self.core_epochs, self.blocks)
    }
}

/// Number of classes of the last core-epoch's work.
const CLASSES: u64 = 1024;

/// Disjoint intervals of epochs: the core-epochs that each needs, and the work that must be removed to save one.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: u64,
    core_epochs: u128,
    blocks: u128,
    /// Number of blocks by the work whose removal saves one core-epoch, and the sum of that work.
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

    /// Adds an interval with this amount of work that is both available and due within it.
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

    /// Returns the core-epochs needed if work of `left_out` may be left out.
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
        // The rest saves whole core-epochs.
        let whole = self.core_epochs - self.blocks;
        saved += (left / u128::from(self.capacity)).min(whole);
        u64::try_from(self.core_epochs - saved).unwrap_or(u64::MAX)
    }
}
