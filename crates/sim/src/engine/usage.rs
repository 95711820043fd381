//! Active cores, counted in epochs of 100 µs as in NetBlaze: a core counts in each epoch in which it was active at any
//! time.

use crate::chain::COUNTED;

/// Counts active epochs of cores.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Active cores minus those of the previous epoch.
    changes: Vec<i32>,
    /// By core: start of its activity, and the first epoch that it has not been counted in.
    cores: Vec<(Option<u64>, u64)>,
}

impl Usage {
    pub fn new(cores: usize) -> Usage {
        Usage {
            changes: Vec::new(),
            cores: vec![(None, 0); cores],
        }
    }

    /// Marks a core as active.
    pub fn begin(&mut self, core: usize, now: u64) {
        self.cores[core].0.get_or_insert(now);
    }

    /// Marks a core as inactive from `now` on.
    pub fn end(&mut self, core: usize, now: u64) {
        let (since, counted) = &mut self.cores[core];
        let Some(since) = since.take() else { return };
        let first = (since / COUNTED.0).max(*counted);
        let next = now.max(since + 1).div_ceil(COUNTED.0);
        if first < next {
            *counted = next;
            self.change(first, 1);
            self.change(next, -1);
        }
    }

    fn change(&mut self, epoch: u64, by: i32) {
        let epoch = epoch as usize;
        if self.changes.len() <= epoch {
            self.changes.resize(epoch + 1, 0);
        }
        self.changes[epoch] += by;
    }

    /// Returns the active cores in each epoch from `start` to `end`, when all activity ends.
    pub fn finish(mut self, start: u64, end: u64) -> Vec<u16> {
        (0..self.cores.len()).for_each(|core| self.end(core, end));
        let epochs = end.div_ceil(COUNTED.0).max(1) as usize;
        let mut active = 0;
        let sums = (0..epochs).map(|epoch| {
            active += self.changes.get(epoch).copied().unwrap_or(0);
            active as u16
        });
        sums.skip((start / COUNTED.0) as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_counts_once_in_an_epoch() {
        let us = 1_000;
        let mut usage = Usage::new(2);
        usage.begin(0, 0);
        usage.begin(1, 150 * us);
        usage.end(1, 160 * us);
        usage.begin(1, 190 * us);
        usage.begin(1, 195 * us);
        usage.end(1, 210 * us);
        usage.end(1, 220 * us);
        usage.begin(1, 399 * us);
        assert_eq!(usage.finish(0, 500 * us), [1, 2, 2, 2, 2]);
        assert_eq!(Usage::new(3).finish(0, 0), [0]);
    }

    #[test]
    fn a_span_that_ends_with_an_epoch_is_in_that_one_only() {
        let mut usage = Usage::new(1);
        usage.begin(0, 0);
        usage.end(0, 100_000);
        assert_eq!(usage.finish(0, 300_000), [1, 0, 0]);
    }

    #[test]
    fn epochs_of_a_warm_up_are_left_out() {
        let mut usage = Usage::new(2);
        usage.begin(0, 0);
        usage.begin(1, 250_000);
        assert_eq!(usage.finish(200_000, 400_000), [2, 2]);
    }
}
