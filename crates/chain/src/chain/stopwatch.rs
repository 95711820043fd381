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

/// Packets and time of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTotals {
    /// Packets that reached it.
    pub packets: u64,
    /// Packets of batches that were timed, and during which the worker was not preempted.
    pub timed: u64,
    /// Time spent on these, in nanoseconds.
    pub nanos: u64,
}

impl FunctionTotals {
    /// Adds another instance's totals.
    pub fn add(&mut self, other: &FunctionTotals) {
        self.packets += other.packets;
        self.timed += other.timed;
        self.nanos += other.nanos;
    }

    /// Mean time of a packet in nanoseconds; `None` if none was timed.
    pub fn nanos_per_packet(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.nanos as f64 / self.timed as f64)
    }
}

/// Times functions, batch by batch.
pub(super) struct Stopwatch {
    read: ReadClock,
    /// Batches before this time do not count.
    from: Nanos,
    /// One batch in so many is timed.
    every: u32,
    /// Batches since the last one that was timed.
    since: u32,
    /// The current batch is timed.
    is_running: bool,
    /// Minimum time between two consecutive readings.
    reading: u64,
    /// Totals of each function.
    spent: Vec<FunctionTotals>,
}

impl Stopwatch {
    /// Times one batch in `every`, of those from time `from` on, for a chain of so many functions.
    pub(super) fn new(read: ReadClock, from: Nanos, every: u32, functions: usize) -> Stopwatch {
        let pairs = (0..READINGS).map(|_| {
            let first = read();
            read().0.saturating_sub(first.0)
        });
        Stopwatch {
            reading: pairs.min().unwrap_or(0),
            read,
            from,
            every,
            since: 0,
            is_running: false,
            spent: vec![FunctionTotals::default(); functions],
        }
    }

    /// Decides whether the next batch is timed.
    #[inline]
    pub(super) fn next_batch(&mut self) {
        self.since += 1;
        self.is_running = self.since >= self.every;
        if self.is_running {
            self.since = 0;
        }
    }

    /// Time at which a function begins with a batch; `None` if the batch is not timed.
    #[inline]
    pub(super) fn start(&self) -> Option<Nanos> {
        self.is_running.then(|| (self.read)())
    }

    /// Records that function `i` has completed `packets` packets of the batch taken at `batch`, which it
    /// [began](Self::start) at `began`.
    #[inline]
    pub(super) fn note(&mut self, i: usize, packets: usize, batch: Nanos, began: Option<Nanos>) {
        // Compared by the batch's time, so that all functions count the same packets.
        if batch < self.from {
            return;
        }
        self.spent[i].packets += packets as u64;
        if let Some(began) = began {
            self.note_time(i, packets as u64, began);
        }
    }

    fn note_time(&mut self, i: usize, packets: u64, began: Nanos) {
        let took = (self.read)().0.saturating_sub(began.0);
        let took = took.saturating_sub(self.reading);
        let spent = &mut self.spent[i];
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
        let mut watch = Stopwatch::new(Box::new(read), Nanos(50_000), 1, 2);
        let work = |watch: &mut Stopwatch, function, packets, takes| {
            watch.next_batch();
            let began = watch.start();
            now.fetch_add(takes, Ordering::Relaxed);
            watch.note(function, packets, began.unwrap(), began);
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
        let mut watch = Stopwatch::new(Box::new(|| Nanos(150)), Nanos(100), 1, 2);
        for batch in [Nanos(99), Nanos(100)] {
            // The first batch's second function begins after the time from which batches count.
            watch.note(0, 10, batch, Some(batch));
            watch.note(1, 10, batch, Some(Nanos(120)));
        }
        let packets: Vec<_> = watch.spent().iter().map(|spent| spent.packets).collect();
        assert_eq!(packets, [10, 10]);
    }
    #[test]
    fn one_batch_in_so_many_is_timed_and_all_packets_count() {
        let mut watch = Stopwatch::new(Box::new(|| Nanos(9)), Nanos(0), 4, 1);
        let mut timed = 0;
        for _ in 0..12 {
            watch.next_batch();
            let began = watch.start();
            timed += u32::from(began.is_some());
            watch.note(0, 10, Nanos(0), began);
        }
        assert_eq!(timed, 3);
        assert_eq!([watch.spent()[0].packets, watch.spent()[0].timed], [120, 30]);
    }
}
