//! The most cores of an epoch: theorem 3 of the [module](super).

use crate::chain::COUNTED;
use crate::rack::MOST_CORES;

/// What any number of cores has to leave undone at least, so that the rest is in time.
///
/// For each number of cores a bucket that leaks as fast as they work, and holds what they can do within the
/// objective.
#[derive(Debug)]
pub(super) struct Peak {
    /// What a core can have waiting, in picoseconds.
    room: u64,
    /// When work last came, in nanoseconds.
    now: u64,
    /// What one core more than its place has waiting. All others have `others`.
    waiting: Vec<u64>,
    others: u64,
    /// What one core more than its place has left undone. All others: nothing.
    undone: Vec<u64>,
}

/// What a core does in a time, in picoseconds, but for what it carries over: a nanosecond more an epoch.
#[inline]
fn leaked(time: u64) -> u64 {
    time.saturating_mul(1000)
        .saturating_add(time.div_ceil(COUNTED.0 / 1000))
}

impl Peak {
    /// For an objective, in nanoseconds.
    pub fn new(objective: u64) -> Peak {
        Peak {
            room: leaked(objective) + 4_000,
            now: 0,
            waiting: Vec::new(),
            others: 0,
            undone: Vec::new(),
        }
    }

    /// Work comes at a time, never before that of the call before.
    pub fn add(&mut self, now: u64, work: u64) {
        let passed = leaked(now - self.now);
        self.now = now;
        let by = |place: usize, each: u64| each.saturating_mul(place as u64 + 1);
        // The more cores, the sooner they are through: from some number on all are.
        while self.waiting.len() < MOST_CORES && self.others > by(self.waiting.len(), passed) {
            self.waiting.push(self.others);
        }
        for (place, waiting) in self.waiting.iter_mut().enumerate() {
            *waiting = waiting.saturating_sub(by(place, passed));
        }
        while self.waiting.last() == Some(&0) {
            self.waiting.pop();
        }
        while self.waiting.len() < MOST_CORES && work > by(self.waiting.len(), self.room) {
            self.waiting.push(0);
        }
        if self.undone.len() < self.waiting.len() {
            self.undone.resize(self.waiting.len(), 0);
        }
        let both = self.waiting.iter_mut().zip(&mut self.undone);
        for (place, (waiting, undone)) in both.enumerate() {
            let all = waiting.saturating_add(work);
            *waiting = all.min(by(place, self.room));
            *undone = undone.saturating_add(all - *waiting);
        }
        self.others = work;
    }

    /// The fewest cores that leave no more than so much undone; one more than a rack has if none do.
    pub fn cores(&self, left_out: u128) -> u32 {
        let enough = |undone: &u64| u128::from(*undone) <= left_out;
        let cores = self.undone.iter().position(enough);
        cores.unwrap_or(self.undone.len()) as u32 + 1
    }
}
