//! Device that plays a trace, as a driver sees it: queues of lent buffers, with packets spread by its own table or an
//! unknown hash.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_chain::batch::{Arrived, Batch};
use tailwater_chain::buffer::{BufferMemory, BufferPool, HEADROOM};
use tailwater_chain::region::Region;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::device::{Receiver, Sender, Steering};
use tailwater_dataplane::port::{
    OpenError, Port, PortQueue, PortRequirements, PortSender, Reta, RetaError, round_robin,
};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_traffic::Trace;

/// Spreading of packets by the device.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Number of queues: one per worker, or fewer.
    pub queues: usize,
    /// Use the bucket table rather than a hash of its own.
    pub follows: bool,
}

#[derive(Debug)]
struct State {
    /// Index of the trace's next packet.
    next: usize,
    start: Nanos,
    reta: Reta,
    free: Vec<u32>,
    /// Indexes of waiting packets, by queue.
    queues: Vec<VecDeque<usize>>,
}

#[derive(Debug)]
struct Shared {
    trace: Trace,
    hashes: Vec<u32>,
    spread: Spread,
    memory: BufferMemory,
    clock: Clock,
    state: Mutex<State>,
}

impl Shared {
    /// State after the arrival of all packets due by now.
    fn now(&self) -> MutexGuard<'_, State> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next < self.trace.len() && state.start + self.trace.arrival(state.next) <= now {
            let hash = self.hashes[state.next];
            let queue = match self.spread.follows {
                true => usize::from(state.reta[usize::from(bucket_of(hash))]),
                false => (hash >> 16) as usize % self.spread.queues,
            };
            let packet = state.next;
            state.queues[queue].push_back(packet);
            state.next += 1;
        }
        state
    }
}

/// Receive and transmit queue of the device.
#[derive(Debug)]
pub struct Queue(Arc<Shared>, usize, Vec<Arrived>);

impl Receiver for Queue {
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        let Queue(shared, queue, received) = self;
        let mut state = shared.now();
        state.free.extend(pool.returned());
        let count = most.min(state.queues[*queue].len());
        for _ in 0..count {
            let packet = state.queues[*queue].pop_front().unwrap();
            let index = state.free.pop().expect("a buffer for all that workers may hold");
            // SAFETY: a free buffer has no other handle.
            let mut buffer = unsafe { pool.claim(index) };
            let frame = shared.trace.packet(packet);
            let bytes = shared.memory.bytes_mut(&mut buffer);
            bytes[HEADROOM..HEADROOM + frame.len()].copy_from_slice(frame);
            let arrived = Arrived {
                buffer,
                start: HEADROOM as u16,
                length: frame.len() as u16,
                hash: packet.is_multiple_of(2).then_some(shared.hashes[packet]),
                entry: 0,
            };
            received.push(arrived);
        }
        count
    }

    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.2.drain(..).map(|packet| (packet, None))
    }

    fn ring(&self) -> usize {
        // It never loses packets.
        usize::MAX
    }
}

impl Sender for Queue {
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free = batch.take_buffers().map(|(buffer, ..)| buffer.index());
        state.free.extend(free);
        0
    }
}

/// Device as a port.
#[derive(Debug)]
pub struct TraceDevice {
    trace: Option<Trace>,
    spread: Spread,
    delay: Nanos,
    clock: Clock,
    shared: Option<Arc<Shared>>,
    steering: Option<Steering>,
    workers: usize,
}

impl TraceDevice {
    pub fn new(trace: Trace, spread: Spread, delay: Nanos, clock: Clock) -> TraceDevice {
        TraceDevice {
            trace: Some(trace),
            spread,
            delay,
            clock,
            shared: None,
            steering: None,
            workers: 0,
        }
    }

    fn opened(&self) -> (&Arc<Shared>, &Steering) {
        self.shared.as_ref().zip(self.steering.as_ref()).expect("it is open")
    }
}

impl Port for TraceDevice {
    fn traffic(&self) -> &str {
        "a device"
    }

    fn duration(&self) -> Option<Nanos> {
        None
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let trace = self.trace.take().expect("opened once");
        let rss = RssHasher::default();
        let hash = |frame| parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
        let hashes = (0..trace.len()).map(|i| hash(trace.packet(i))).collect();
        let frame = (0..trace.len()).map(|i| trace.length(i)).max().unwrap_or(0);
        let bytes = (HEADROOM + frame + 64).next_multiple_of(64);
        self.workers = usize::from(need.workers);
        // Buffers for the workers and the rings between them: enough for all packets, however slow the machine.
        let ring = trace.len();
        let count = self.workers as u32 * need.buffers + ring as u32;
        let region = Region::zeroed(count as usize * bytes)?;
        let base = region.base();
        // SAFETY: the region has that many bytes, and no other user.
        let memory = unsafe { BufferMemory::lent(base, count, [bytes; 2], Arc::new(region)) }?;
        let reta = round_robin(need.workers);
        let state = State {
            next: 0,
            start: Nanos::MAX,
            reta,
            free: (0..count).collect(),
            queues: vec![VecDeque::new(); self.spread.queues],
        };
        let clock = self.clock.clone();
        let steering = Steering::new(rss, (need.workers, ring), &reta, self.delay, clock.clone());
        self.steering = Some(steering.expect("a table of these workers"));
        let pools = (0..need.workers)
            .map(|_| BufferPool::lent(memory.clone(), need.buffers as usize))
            .collect();
        self.shared = Some(Arc::new(Shared {
            trace,
            hashes,
            spread: self.spread,
            memory,
            clock,
            state: Mutex::new(state),
        }));
        Ok(pools)
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let (shared, steering) = self.opened();
        shared.state.lock().unwrap().start = start;
        let queue = |number| Queue(Arc::clone(shared), number, Vec::new());
        let devices = (0..self.workers).map(|worker| {
            let receiver = (worker < self.spread.queues).then(|| queue(worker));
            (receiver.into_iter().collect(), queue(0))
        });
        let queues = steering.queues(devices.collect(), start, Nanos::MAX);
        queues
            .into_iter()
            .map(|queue| Box::new(queue) as Box<dyn PortQueue>)
            .collect()
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        let (shared, steering) = self.opened();
        Box::new(steering.sender(Queue(Arc::clone(shared), 0, Vec::new())))
    }

    fn reta_delay(&self) -> Option<Nanos> {
        Some(Nanos::ZERO)
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        let (shared, steering) = self.opened();
        shared.now().reta = *reta;
        steering.set_reta(reta)
    }

    fn monitor(&self, _: &mut dyn FnMut(String)) {
        let (shared, steering) = self.opened();
        let state = shared.now();
        if state.next == shared.trace.len() && state.queues.iter().all(VecDeque::is_empty) {
            steering.end();
        }
    }
}
