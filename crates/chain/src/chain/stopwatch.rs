//! Time spent in each function of a chain, and traces of single packets.

use crate::batch::{Batch, Verdict};
use crate::packet_traces::request::TraceRequest;
use crate::packet_traces::{PacketTraces, TraceStep};
use std::sync::Arc;
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
    /// How many batches there are to one that is timed, and which packets are traced.
    traces: Arc<PacketTraces>,
    /// Generation of the traces of which `request` is.
    seen: u32,
    request: Option<Arc<TraceRequest>>,
    /// The current batch has packets that are traced.
    has_traced: bool,
    /// Core, and number of the first function, as traces name them.
    place: (u32, u16),
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
    /// Times the batches that `traces` says, of those from time `from` on, for a chain of so many functions.
    pub(super) fn new(read: ReadClock, from: Nanos, traces: Arc<PacketTraces>, functions: usize) -> Stopwatch {
        let pairs = (0..READINGS).map(|_| {
            let first = read();
            read().0.saturating_sub(first.0)
        });
        Stopwatch {
            reading: pairs.min().unwrap_or(0),
            read,
            from,
            seen: traces.generation(),
            request: None,
            has_traced: false,
            place: (0, 0),
            traces,
            since: 0,
            is_running: false,
            spent: vec![FunctionTotals::default(); functions],
        }
    }

    /// Sets the core, and the number of the first function, as traces name them.
    pub(super) fn set_place(&mut self, core: u32, first: u16) {
        self.place = (core, first);
    }

    /// Decides whether the next batch is timed. `is_new` is `true` if it is in front of the first function.
    #[inline]
    pub(super) fn next_batch(&mut self, batch: &mut Batch, is_new: bool) {
        self.since += 1;
        self.is_running = self.since >= self.traces.every();
        if self.is_running {
            self.since = 0;
            self.look(batch, is_new);
        }
    }

    /// Finds out which packets of a batch are traced.
    #[cold]
    fn look(&mut self, batch: &mut Batch, is_new: bool) {
        let generation = self.traces.generation();
        if generation != self.seen
            && let Some(request) = self.traces.request()
        {
            (self.request, self.seen) = (request, generation);
        }
        self.has_traced = false;
        let Some(request) = &self.request else {
            return;
        };
        let now = (self.read)();
        for at in 0..batch.len() {
            let packet = batch.packet(at);
            let begins = is_new && !packet.is_traced() && request.takes(&packet.headers.key);
            if begins {
                request.send(self.step(batch, at, None, [now; 2]));
                batch.packet_mut(at).0.set_traced();
            }
            self.has_traced |= batch.packet(at).is_traced();
        }
    }

    /// Tells what function `i`, which began at `began`, has done to the packets that are traced.
    #[inline]
    pub(super) fn trace(&self, i: usize, batch: &Batch, began: Nanos) {
        if self.has_traced {
            self.trace_all(i, batch, began);
        }
    }

    #[cold]
    fn trace_all(&self, i: usize, batch: &Batch, began: Nanos) {
        let ended = (self.read)();
        let traced = (0..batch.len()).filter(|at| batch.packet(*at).is_traced());
        for (at, request) in traced.zip(std::iter::repeat(&self.request)) {
            if let Some(request) = request {
                request.send(self.step(batch, at, Some(i as u16 + self.place.1), [began, ended]));
            }
        }
    }

    fn step(&self, batch: &Batch, at: usize, function: Option<u16>, times: [Nanos; 2]) -> TraceStep {
        let packet = batch.packet(at);
        TraceStep::new(batch.frame(at), |step| {
            step.packet = (batch.buffer_index(at), packet.arrival);
            step.function = function;
            step.core = self.place.0;
            step.times = times;
            step.batch = batch.len() as u16;
            step.dropped = match packet.verdict {
                Verdict::Drop(reason) => Some(reason),
                Verdict::Forward | Verdict::Bypass => None,
            };
            step.flow = (packet.headers.key, packet.is_new());
        })
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
        // Copies for a trace are no work of the function.
        if let Some(began) = began
            && !self.has_traced
        {
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
    use crate::buffer::BufferPool;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_a_reading_takes_and_what_is_no_work_do_not_count() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        // Each reading takes 7 ns.
        let read = move || Nanos(clock.fetch_add(7, Ordering::Relaxed) + 7);
        let mut watch = Stopwatch::new(Box::new(read), Nanos(50_000), PacketTraces::timing_all(), 2);
        let mut batch = Batch::new(&BufferPool::new(1, 64).unwrap(), 1);
        let mut work = |watch: &mut Stopwatch, function, packets, takes| {
            watch.next_batch(&mut batch, true);
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
        let mut watch = Stopwatch::new(Box::new(|| Nanos(150)), Nanos(100), PacketTraces::timing_all(), 2);
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
        let mut watch = Stopwatch::new(Box::new(|| Nanos(9)), Nanos(0), Arc::default(), 1);
        let mut batch = Batch::new(&BufferPool::new(1, 64).unwrap(), 1);
        let mut timed = 0;
        for _ in 0..192 {
            watch.next_batch(&mut batch, true);
            let began = watch.start();
            timed += u32::from(began.is_some());
            watch.note(0, 10, Nanos(0), began);
        }
        assert_eq!(timed, 3);
        assert_eq!([watch.spent()[0].packets, watch.spent()[0].timed], [1920, 30]);
    }
}
