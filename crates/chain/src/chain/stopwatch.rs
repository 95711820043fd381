//! Time spent in each function of a chain.

use tailwater_net::Nanos;

/// Clock reading.
pub type ReadClock = Box<dyn Fn() -> Nanos + Send>;

/// Time spent in a function while it was [timed](super::Chain::time_functions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionTime {
    /// Name of the function.
    pub function: String,
    /// Packets that reached it.
    pub packets: u64,
    /// Packets that [`time`](Self::time) covers: those of batches during which the worker was not preempted.
    pub timed: u64,
    /// Time spent on them, including the opening of their new flows.
    pub time: Nanos,
}

/// Factor over the average time of a batch's packets. A batch that exceeds it by [`BEYOND`] does not count: the worker
/// was preempted.
const TIMES: u64 = 4;
const BEYOND: u64 = 20_000;

/// Readings taken to measure the cost of one.
const READINGS: usize = 256;

/// Time and packets of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionTotals {
    /// Packets that reached it.
    pub(super) packets: u64,
    /// Packets of batches that count.
    pub(super) timed: u64,
    /// Time spent on these, in nanoseconds.
    pub(super) nanos: u64,
}

/// Times functions, batch by batch.
pub(super) struct Stopwatch {
    read: ReadClock,
    /// Batches before this time do not count.
    from: Nanos,
    /// Minimum time between two consecutive readings.
    reading: u64,
    /// Totals of each function.
    spent: Vec<FunctionTotals>,
}

impl Stopwatch {
    pub(super) fn new(read: ReadClock, from: Nanos, functions: usize) -> Stopwatch {
        let pairs = (0..READINGS).map(|_| {
            let first = read();
            read().0.saturating_sub(first.0)
        });
        Stopwatch {
            reading: pairs.min().unwrap_or(0),
            read,
            from,
            spent: vec![FunctionTotals::default(); functions],
        }
    }

    pub(super) fn read(&self) -> Nanos {
        (self.read)()
    }

    /// Records that function `i` has completed `packets` packets of the batch taken at `batch`, which it began at
    /// `began`.
    pub(super) fn note(&mut self, i: usize, packets: usize, [batch, began]: [Nanos; 2]) {
        // Compared by the batch's time, so that all functions count the same packets.
        if batch < self.from {
            return;
        }
        let took = self.read().0.saturating_sub(began.0);
        let took = took.saturating_sub(self.reading);
        let (packets, spent) = (packets as u64, &mut self.spent[i]);
        spent.packets += packets;
        let average = (spent.nanos * packets).checked_div(spent.timed);
        if average.is_some_and(|average| took > TIMES * average + BEYOND) {
            return;
        }
        spent.timed += packets;
        spent.nanos += took;
    }

    /// Totals of each function.
    pub(super) fn spent(&self) -> &[FunctionTotals] {
        &self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_a_reading_takes_and_what_is_no_work_do_not_count() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        // Each reading takes 7 ns.
        let read = move || Nanos(clock.fetch_add(7, Ordering::Relaxed) + 7);
        let mut watch = Stopwatch::new(Box::new(read), Nanos(50_000), 2);
        let work = |watch: &mut Stopwatch, function, packets, takes| {
            let began = watch.read();
            now.fetch_add(takes, Ordering::Relaxed);
            watch.note(function, packets, [began, began]);
        };
        work(&mut watch, 0, 10, 90_000);
        assert_eq!(watch.spent(), [FunctionTotals::default(); 2]);
        work(&mut watch, 1, 1, 10_000);
        for _ in 0..3 {
            work(&mut watch, 0, 10, 1000);
        }
        // The worker was preempted, and then the function was slow.
        work(&mut watch, 0, 10, 2_000_000);
        work(&mut watch, 0, 10, 4000);
        let spent = |packets, timed, nanos| FunctionTotals { packets, timed, nanos };
        assert_eq!(watch.spent(), [spent(50, 40, 7000), spent(1, 1, 10_000)]);
    }
    #[test]
    fn a_batch_counts_for_all_functions_or_for_none() {
        let mut watch = Stopwatch::new(Box::new(|| Nanos(150)), Nanos(100), 2);
        for batch in [Nanos(99), Nanos(100)] {
            // The first batch's second function begins after the time from which batches count.
            watch.note(0, 10, [batch, batch]);
            watch.note(1, 10, [batch, Nanos(120)]);
        }
        let packets: Vec<_> = watch.spent().iter().map(|spent| spent.packets).collect();
        assert_eq!(packets, [10, 10]);
    }
}
