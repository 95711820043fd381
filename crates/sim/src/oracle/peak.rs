//! Most cores of an epoch: theorem 3 of the [module](super).

use crate::chain::COUNTED;
use crate::rack::MOST_CORES;

/// Minimum work that any number of cores leaves undone, so that the rest is in time.
///
/// Each number of cores has a bucket that leaks as fast as they work, and holds the work that they can do within the
/// objective.
#[derive(Debug)]
pub(super) struct Peak {
    /// Maximum waiting work of a core, in picoseconds.
    room: u64,
    /// Time of the last arrival of work, in nanoseconds.
    now: u64,
    /// Waiting work with `index + 1` cores. All larger numbers of cores have `others`.
    waiting: Vec<u64>,
    others: u64,
    /// Undone work with `index + 1` cores. It is zero for all larger numbers.
    undone: Vec<u64>,
}

/// Returns the work of a core in a given time, in picoseconds. It includes a nanosecond per epoch, but not the
/// carry-over.
#[inline]
fn leaked(time: u64) -> u64 {
    time.saturating_mul(1000)
        .saturating_add(time.div_ceil(COUNTED.0 / 1000))
}

impl Peak {
    /// Creates the state for an objective, in nanoseconds.
    pub fn new(objective: u64) -> Peak {
        Peak {
            room: leaked(objective) + 4_000,
            now: 0,
            waiting: Vec::new(),
            others: 0,
            undone: Vec::new(),
        }
    }

    /// Adds work at a given time, which never decreases.
    pub fn add(&mut self, now: u64, work: u64) {
        let passed = leaked(now - self.now);
        self.now = now;
        let by = |place: usize, each: u64| each.saturating_mul(place as u64 + 1);
        // More cores finish sooner: from some number on all of them are idle.
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

    /// Returns the fewest cores that leave at most `left_out` undone, or one more than a rack can have.
    pub fn cores(&self, left_out: u128) -> u32 {
        let enough = |undone: &u64| u128::from(*undone) <= left_out;
        let cores = self.undone.iter().position(enough);
        cores.unwrap_or(self.undone.len()) as u32 + 1
    }
}
