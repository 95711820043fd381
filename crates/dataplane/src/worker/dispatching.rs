//! Turn of a worker that offloads flows to auxiliary cores: between its port queue, its local queue, and theirs.

use super::context::{CountedChain, QueueContext};
use super::reception::{cause_of_full, receive};
use crate::batches::TimedPart;
use crate::durable::{DurableTurn, DurableWorker};
use crate::port::{PortQueue, Received};
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dispatch::Iteration;
use tailwater_net::Nanos;

/// Worker state that a dispatching turn uses.
pub(super) struct DispatchTurn<'w> {
    pub(super) context: &'w mut QueueContext,
    pub(super) dispatch: &'w mut Dispatch,
    pub(super) chain: &'w mut CountedChain,
    pub(super) pool: &'w mut BufferPool,
    pub(super) batch: &'w mut Batch,
    pub(super) buckets: Option<&'w mut Buckets>,
    /// External flow state, if there is any.
    pub(super) durable: Option<&'w mut DurableWorker>,
    /// The batch is from the local queue.
    pub(super) from_queue: &'w mut bool,
    /// Functions run in processes of their own.
    pub(super) is_isolated: bool,
}

impl DispatchTurn<'_> {
    /// Puts received packets, and those that have arrived meanwhile, into the local queue or offloads them, after their
    /// look-up unless buckets are lent. Then processes a batch of the local queue. Returns the end time.
    pub(super) fn process(&mut self, received: &mut Received, now: Nanos) -> Nanos {
        // The packets of the turn come behind those that waited for the store.
        let now = match self.durable_turn() {
            Some((durable, mut turn)) => turn.resume(durable, now),
            None => now,
        };
        let (mut time, packets) = self.distribute_arrived(received, now);
        self.dispatch.decide(self.chain, self.durable.as_deref(), time);
        if self.is_isolated && self.dispatch.has_staged() {
            self.chain.before_flows_move();
        }
        self.dispatch.flush(time);
        self.context.meter.window().auxiliary += self.dispatch.charge(time);
        // Without room nothing more can be received before some packets are processed.
        let before = time;
        let awaits = self.is_isolated && self.chain.awaits_process();
        if self.dispatch.processes(received.waiting > 0 && self.has_room()) && !awaits {
            time = self.process_queued(now, time);
        }
        self.dispatch.report(&mut self.context.meter.window().scaling);
        if time == before {
            // No packet was processed, but time advances.
            time = self.context.clock.now();
            self.context.meter.note_part(time.saturating_sub(before), time);
            if packets > 0 {
                self.dispatch.dispatched(time.saturating_sub(now));
            }
        }
        self.dispatch.turned(time, received.waiting > 0);
        if let Some((durable, mut turn)) = self.durable_turn() {
            time = turn.end(durable, time);
        }
        self.chain.expire(time);
        if let Some(durable) = &mut self.durable {
            durable.send(self.chain, time, |_| true);
        }
        time
    }

    /// External flow state, if there is any, with the rest of what its part of a turn uses.
    #[inline]
    fn durable_turn(&mut self) -> Option<(&mut DurableWorker, DurableTurn<'_, dyn PortQueue, BufferPool>)> {
        let durable = self.durable.as_deref_mut()?;
        let turn = DurableTurn {
            context: &mut *self.context,
            chain: &mut *self.chain,
            buffers: &mut *self.pool,
        };
        Some((durable, turn))
    }

    /// Distributes the received batch and further packets that have arrived, and takes back packets that auxiliary
    /// cores have processed. Returns the end time, and the number of packets received.
    fn distribute_arrived(&mut self, received: &mut Received, now: Nanos) -> (Nanos, usize) {
        let (mut time, mut iteration, mut all) = (now, Iteration::default(), 0);
        loop {
            let packets = self.batch.len();
            all += packets;
            let arrival = self.first_arrival(time);
            let refused = match packets {
                0 => 0,
                _ => self.distribute(received.waiting > 0, time),
            };
            self.dispatch.collect(self.pool, self.chain, time);
            // A turn that only received what it refuses would process nothing.
            let has_room = refused == 0 && self.has_room();
            if !iteration.receives_again(packets, received.waiting > 0, has_room) {
                return (time, all);
            }
            let before = time;
            time = self.context.clock.now();
            let times = [arrival, before, time];
            self.context.record(TimedPart::Received, (packets, true), times);
            self.context.meter.note_part(time.saturating_sub(before), time);
            *received = self.receive(time);
            let full = || cause_of_full(self.pool, Some(&*self.dispatch), self.buckets.as_deref());
            let span = [before.max(time), time];
            self.context.meter.note_arrivals(*received, span, full);
        }
    }

    /// Returns `true` if further packets can be received.
    fn has_room(&self) -> bool {
        self.pool.available() > 0 && self.dispatch.receives()
    }

    /// Puts the packets of a received batch into the local queue or offloads them, after their look-up unless buckets
    /// are lent. `is_waiting` is set if packets wait in the port. Returns the number of packets lost because their
    /// flows have too many.
    fn distribute(&mut self, is_waiting: bool, time: Nanos) -> u64 {
        self.context.meter.note_batch(self.batch);
        if is_waiting || !self.dispatch.has_no_backlog() {
            let late = self.context.too_late_to_queue(self.batch, time);
            for receipt in self.batch.take_first(late) {
                self.pool.give(receipt.into_buffer());
            }
        }
        let packets = self.batch.len();
        let lends = self.dispatch.lends_buckets();
        if !lends {
            self.chain.look_up(self.batch, time);
        }
        let functions = self.batch.len();
        let durable = self.durable.as_deref();
        self.dispatch.distribute(self.batch, self.chain, durable, time);
        let refused = self.dispatch.lose_refused(self.pool);
        if refused > 0 {
            self.context.meter.note_flow_overload(refused);
        }
        let gone = functions - self.batch.len();
        if gone < packets {
            // Packets that bypass the functions, and those lost for lack of resources.
            self.process_rest(packets - gone, lends, time);
        }
        self.batch.release(self.pool);
        refused
    }

    /// Processes `packets` packets of a received batch that were not distributed.
    fn process_rest(&mut self, packets: usize, lends: bool, time: Nanos) {
        if let Some(durable) = self.durable.as_deref_mut() {
            let mut turn = DurableTurn {
                context: &mut *self.context,
                chain: &mut *self.chain,
                buffers: &mut *self.pool,
            };
            turn.process(durable, self.batch, time);
            return;
        }
        let run = if lends { Chain::process } else { Chain::run };
        self.context.pass(self.chain, self.batch, packets, time, run);
    }

    /// Receives into the batch, which is empty.
    fn receive(&mut self, now: Nanos) -> Received {
        let queue = &mut *self.context.port;
        let mut received = receive((queue, self.buckets.as_deref_mut()), now, self.pool, self.batch);
        self.context.discard_waiting(&mut received, 1, now);
        received
    }

    /// Processes a batch of the local queue, and the parts of split flows that are next in it, in a turn that began at
    /// `turn`. Returns the end time.
    fn process_queued(&mut self, turn: Nanos, mut time: Nanos) -> Nanos {
        let leaving = self.buckets.as_ref().is_some_and(|buckets| buckets.is_leaving());
        let more = self.dispatch.take(self.batch, leaving);
        *self.from_queue = true;
        if !self.batch.is_empty() {
            time = self.process_batch(turn, time, more);
        }
        *self.from_queue = false;
        if self.dispatch.parts().next().is_some() {
            time = self.process_parts(time, more);
        }
        time
    }

    /// Runs the batch of the local queue through the chain. Returns the end time.
    fn process_batch(&mut self, turn: Nanos, time: Nanos, backlog: bool) -> Nanos {
        let late = self.context.too_late(self.batch, backlog, time);
        if late > 0 {
            self.dispatch.discard(late, self.batch, self.pool, self.chain);
            if self.batch.is_empty() {
                return self.context.clock.now();
            }
        }
        let packets = self.batch.len();
        if backlog {
            self.context.meter.note_backlog(self.batch, time);
        }
        let arrival = self.first_arrival(time);
        let began = self.context.clock.now();
        self.context.meter.note_part(began.saturating_sub(time), began);
        self.dispatch.dispatched(began.saturating_sub(turn));
        let (mut new, lends) = (0, self.dispatch.lends_buckets());
        let run = |chain: &mut Chain, batch: &mut Batch, began| {
            if lends {
                new = chain.process_counting(batch, began);
                return;
            }
            chain.prefetch_from(0, batch);
            new = batch.iter().filter(|packet| packet.is_new()).count();
            chain.run(batch, began);
        };
        let sent = match self.durable.as_deref_mut() {
            None => self.context.pass(self.chain, self.batch, packets, began, run),
            Some(durable) => {
                // Packets that wait for the store leave the batch, and are no load of this core.
                self.dispatch.count_out(self.batch, self.chain);
                *self.from_queue = false;
                let mut turn = DurableTurn {
                    context: &mut *self.context,
                    chain: &mut *self.chain,
                    buffers: &mut *self.pool,
                };
                let (sent, opened) = turn.process(durable, self.batch, began);
                new = opened;
                sent
            }
        };
        let times = [arrival, began, sent];
        self.context.record(TimedPart::Processed, (packets, backlog), times);
        // A turn in which other packets were split gives no per-packet cost.
        if self.dispatch.parts().next().is_none() {
            self.dispatch.learn(packets, new, sent.saturating_sub(turn));
        }
        if backlog {
            self.context.learn(packets, time, sent);
        }
        self.note_batch(times);
        self.dispatch.done(self.batch, self.pool, self.chain);
        sent
    }

    /// Runs packets of split flows through the chain's first segments and offloads them to their auxiliary cores.
    /// Returns the end time.
    fn process_parts(&mut self, mut time: Nanos, backlog: bool) -> Nanos {
        let lends = self.dispatch.lends_buckets();
        for from in 1..self.chain.segments() {
            let batch = self.dispatch.part(from);
            let packets = batch.len();
            let Some(arrival) = batch.first().map(|first| first.arrival) else {
                continue;
            };
            if backlog {
                self.context.meter.note_backlog(batch, time);
            }
            let mut bypass = 0;
            if lends {
                self.chain.look_up(batch, time);
                bypass = batch.take_bypass(self.batch);
                *self.from_queue = bypass > 0;
            }
            self.chain.prefetch_before(from, batch);
            if self.chain.needs_payload_before(from) {
                self.context.port.complete(batch);
            }
            self.chain.run_before(from, batch, time);
            let packets = packets - bypass;
            let gone = packets - batch.len();
            self.dispatch.pass_on(from, self.pool, self.chain);
            let began = std::mem::replace(&mut time, self.context.clock.now());
            self.dispatch.flush(time);
            let lost = self.chain.newly_lost();
            self.context.meter.note_processed(packets, gone, lost, [began, time]);
            if bypass > 0 {
                time = self.context.send(self.chain, self.batch, bypass, time);
                self.dispatch.done(self.batch, self.pool, self.chain);
                *self.from_queue = false;
            }
            self.note_batch([arrival, began, time]);
        }
        time
    }

    /// Arrival of the batch's first packet, or `time` if the batch is empty.
    fn first_arrival(&self, time: Nanos) -> Nanos {
        self.batch.first().map_or(time, |first| first.arrival)
    }

    /// Counts a batch for the server mapper.
    fn note_batch(&mut self, times: [Nanos; 3]) {
        if let Some(buckets) = &mut self.buckets {
            buckets.note_batch(times);
        }
    }
}
