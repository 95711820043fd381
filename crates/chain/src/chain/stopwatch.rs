//! Time spent in each function of a chain, and traces of single packets.

use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use crate::flow_table::FlowTable;
use crate::function::Explanation;
use crate::packet_traces::request::TraceRequest;
use crate::packet_traces::{PacketTraces, TIMED_BATCHES, TracePlace, TraceRole, TraceStep, TracedFlow};
use std::cell::RefCell;
use std::sync::Arc;
use tailwater_net::toeplitz::bucket_of;
use tailwater_net::{FlowKey, Nanos};

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
    /// Explanations by index of the packet's buffer, of a watch that collects them in the place of a request.
    collected: Option<RefCell<Vec<(u32, Explanation)>>>,
    /// The current batch has packets that are traced.
    has_traced: bool,
    /// Time at which the current function began with the batch.
    began: Nanos,
    /// Keys of the current batch's packets in front of the current function, if some are traced.
    keys: Box<[FlowKey; MAX_BATCH]>,
    /// Core, and number of the first function, as traces name them.
    place: TracePlace,
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
            collected: None,
            has_traced: false,
            began: Nanos::ZERO,
            keys: Box::new([FlowKey::default(); MAX_BATCH]),
            place: TracePlace::default(),
            traces,
            since: 0,
            is_running: false,
            spent: vec![FunctionTotals::default(); functions],
        }
    }

    /// Collects the explanations of packets that are marked as traced, for a chain of so many functions.
    pub(super) fn collecting(functions: usize) -> Stopwatch {
        Stopwatch {
            collected: Some(RefCell::default()),
            ..Stopwatch::new(
                Box::new(|| Nanos::ZERO),
                Nanos(u64::MAX),
                PacketTraces::timing_all(),
                functions,
            )
        }
    }

    /// Forgets the collected explanations.
    pub(super) fn forget_collected(&mut self) {
        if let Some(collected) = &mut self.collected {
            collected.get_mut().clear();
        }
    }

    /// Returns the collected explanation of the packet in this buffer.
    pub(super) fn collected(&mut self, buffer: u32) -> Option<Explanation> {
        let mut collected = self.collected.as_mut()?.get_mut().iter();
        collected.find(|(of, _)| *of == buffer).map(|(_, text)| *text)
    }

    /// Sets the core, and the number of the first function, as traces name them.
    pub(super) fn set_place(&mut self, place: TracePlace) {
        self.place = place;
    }

    /// Decides whether the next batch is timed. `is_new` is `true` if it is in front of the first function.
    #[inline]
    pub(super) fn next_batch(&mut self, batch: &mut Batch, (is_new, table): (bool, Option<&FlowTable>)) {
        self.since += 1;
        self.is_running = self.since >= self.traces.every();
        if self.is_running {
            self.look(batch, is_new, table);
        }
    }

    /// Finds out which packets of a batch are traced. During a trace, batches without such packets are timed as seldom
    /// as otherwise.
    #[cold]
    fn look(&mut self, batch: &mut Batch, is_new: bool, table: Option<&FlowTable>) {
        let generation = self.traces.generation();
        if generation != self.seen
            && let Some(request) = self.traces.request()
        {
            (self.request, self.seen) = (request, generation);
        }
        // A packet in front of the first function is not traced yet.
        self.has_traced = match &self.request {
            Some(request) if is_new && request.may_begin_in(batch) => self.begin_packets(batch, table),
            Some(_) if !is_new => batch.iter().any(Packet::is_traced),
            Some(_) => false,
            None => self.collected.is_some() && batch.iter().any(Packet::is_traced),
        };
        batch.set_has_traced(self.has_traced);
        let is_due = self.since >= TIMED_BATCHES;
        self.is_running = self.has_traced || is_due || self.request.is_none();
        if is_due || self.request.is_none() {
            self.since = 0;
        }
    }

    /// Begins to trace those packets of a batch that match, with a step of each. Returns `true` if there are some.
    fn begin_packets(&self, batch: &mut Batch, table: Option<&FlowTable>) -> bool {
        let mut begun = None;
        for at in 0..batch.len() {
            let key = &batch.packet(at).headers.key;
            if self.request.as_ref().is_some_and(|request| request.takes(key)) {
                let now = *begun.get_or_insert_with(|| (self.read)());
                self.send_step((batch, at), table, None, (Explanation::EMPTY, [now; 2]));
                batch.packet_mut(at).0.set_traced();
            }
        }
        begun.is_some()
    }

    /// Returns `true` if packets of the current batch are traced.
    #[inline]
    pub(super) fn has_traced(&self) -> bool {
        self.has_traced
    }

    /// Reads the clock.
    pub(super) fn read(&self) -> Nanos {
        (self.read)()
    }

    /// Sends a step of the packet at index `at`: in front of the chain, or behind function `i`, with its explanation
    /// and the times between which it had the batch.
    pub(super) fn send_step(
        &self,
        (batch, at): (&Batch, usize),
        table: Option<&FlowTable>,
        i: Option<usize>,
        (explanation, times): (Explanation, [Nanos; 2]),
    ) {
        let Some(request) = &self.request else {
            if let (Some(collected), Some(_)) = (&self.collected, i) {
                collected.borrow_mut().push((batch.buffer_index(at), explanation));
            }
            return;
        };
        let packet = batch.packet(at);
        request.send(TraceStep::new(batch.frame(at), |step| {
            step.packet = (batch.memory().pool(), batch.buffer_index(at), packet.arrival);
            step.function = i.map(|i| i as u16 + self.place.first);
            step.core = self.place.core;
            step.role = match self.place.is_auxiliary {
                false => TraceRole::Dedicated,
                true if table.is_some_and(|table| table.holds(packet.rss_hash)) => TraceRole::Leased,
                true => TraceRole::Auxiliary,
            };
            step.times = times;
            step.batch = batch.len() as u16;
            step.dropped = match packet.verdict {
                Verdict::Drop(reason) => Some(reason),
                Verdict::Forward | Verdict::Bypass => None,
            };
            step.key = packet.headers.key;
            step.flow = TracedFlow {
                index: packet.flow(),
                is_new: packet.is_new(),
                is_reversed: packet.is_reversed(),
                bucket: bucket_of(packet.rss_hash),
            };
            step.explanation = explanation;
        }));
    }

    /// Time at which a function begins with a batch; `None` if the batch is not timed.
    #[inline]
    pub(super) fn start(&mut self, batch: &Batch) -> Option<Nanos> {
        self.is_running.then(|| self.start_timed(batch))
    }

    #[inline(never)]
    fn start_timed(&mut self, batch: &Batch) -> Nanos {
        self.note_keys(batch);
        self.began = (self.read)();
        self.began
    }

    /// Notes the packets' keys in front of the current function, if some of the packets are traced.
    pub(super) fn note_keys(&mut self, batch: &Batch) {
        if self.has_traced {
            for (key, packet) in self.keys.iter_mut().zip(batch.iter()) {
                *key = packet.headers.key;
            }
        }
    }

    /// Time at which the current function began with the batch, if that is timed.
    pub(super) fn began(&self) -> Nanos {
        self.began
    }

    /// Addresses, ports and protocol of the packet at index `at` in front of the current function.
    pub(super) fn key_before(&self, at: usize) -> FlowKey {
        self.keys.get(at).copied().unwrap_or_default()
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
            watch.next_batch(&mut batch, (true, None));
            let began = watch.start(&batch);
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
            watch.next_batch(&mut batch, (true, None));
            let began = watch.start(&batch);
            timed += u32::from(began.is_some());
            watch.note(0, 10, Nanos(0), began);
        }
        assert_eq!(timed, 3);
        assert_eq!([watch.spent()[0].packets, watch.spent()[0].timed], [1920, 30]);
    }
}
