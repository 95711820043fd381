//! Processing of a chain that runs to completion on its worker, or on auxiliary cores to which the worker offloads.

use super::config::LONGEST_DRAIN;
use super::context::{CountedChain, QueueContext};
use super::dispatching::DispatchTurn;
use super::finished::Finished;
use super::poll_loop::Processing;
use super::reception::{cause_of_full, receive};
use crate::attribution::Cause;
use crate::batches::TimedPart;
use crate::durable::{DurableTurn, DurableWorker};
use crate::meter::{Counting, Meter};
use crate::port::Received;
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use crate::scaling::helping::{Helping, HelpingEnds};
use std::time::Duration;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, FlowShare, FunctionTotals};
use tailwater_net::Nanos;
use tailwater_state::keeper::Keeper;

/// Packets in the port, or full batches in a row, from which on a worker without a usable auxiliary core looks for
/// flows with too many. Devices do not tell how many packets wait.
const LONG: usize = 512;
const LONG_BATCHES: u32 = 16;

/// Processing of a whole chain.
pub(super) struct ChainProcessing {
    chain: CountedChain,
    pool: BufferPool,
    batch: Batch,
    /// `None` if every packet is processed here.
    pub(super) dispatch: Option<Box<Dispatch>>,
    /// `None` if this worker processes no packets of other dedicated cores.
    pub(super) helping: Option<Box<Helping>>,
    /// `None` if RSS buckets do not migrate.
    pub(super) buckets: Option<Box<Buckets>>,
    /// `None` if there is no external flow state.
    durable: Option<Box<DurableWorker>>,
    /// The batch is from the local queue.
    from_queue: bool,
    /// Full batches received in a row, with more packets in the port.
    full_batches: u32,
    /// A function determines the batch size.
    sized: bool,
    /// Sleep time, once the worker has been idle as long. `None` if it never sleeps.
    pub(super) nap: Option<Nanos>,
}

impl ChainProcessing {
    /// Processes packets in buffers of `pool`, in batches of at most `batch` packets unless a function determines their
    /// size.
    pub(super) fn new(chain: Chain, pool: BufferPool, batch: usize) -> ChainProcessing {
        // Without a wish, with the capacity that lists of packets have for the default size: they are exchanged.
        let mut received = Batch::new(&pool, batch);
        let wanted = chain.wanted_batch();
        if let Some(packets) = wanted {
            received = Batch::new(&pool, MAX_BATCH);
            received.limit(packets);
        }
        ChainProcessing {
            batch: received,
            sized: wanted.is_some(),
            chain: CountedChain::new(chain),
            pool,
            dispatch: None,
            helping: None,
            buckets: None,
            durable: None,
            from_queue: false,
            full_batches: 0,
            nap: None,
        }
    }

    /// Enables external flow state, with batches of the size given to [`new`](ChainProcessing::new).
    pub(super) fn set_keeper(&mut self, keeper: Keeper, batch: usize) {
        let most = if self.sized { MAX_BATCH } else { batch };
        let durable = DurableWorker::new(keeper, &self.pool, most);
        let buckets_move = self.buckets.is_some() || self.dispatch.is_some();
        self.durable = Some(Box::new(match buckets_move {
            true => durable.of_moving_buckets(),
            false => durable,
        }));
    }

    /// Lets the worker process packets that other workers lend it, in batches of at most `batch`.
    ///
    /// # Safety
    /// See [`Chain::enable_borrowing`].
    pub(super) unsafe fn set_helping(&mut self, ends: HelpingEnds, batch: usize) {
        // SAFETY: guaranteed by the caller. Only batches of `Helping` are borrowed for.
        unsafe { self.chain.enable_borrowing() };
        self.helping = Some(Box::new(Helping::new(ends, &self.chain, batch)));
    }

    /// Returns `true` if received packets, if any, have to go through the dispatcher: packets wait here or on auxiliary
    /// cores, a decision about idle auxiliary cores is due, or packets wait in the port that an auxiliary core could
    /// take.
    #[inline]
    fn dispatches(&mut self, received: Received, now: Nanos) -> bool {
        let Some(dispatch) = &mut self.dispatch else {
            return false;
        };
        let is_full = received.waiting > 0 && self.batch.room() == 0;
        self.full_batches = if is_full {
            self.full_batches.saturating_add(1)
        } else {
            0
        };
        let is_long = received.waiting >= LONG || self.full_batches >= LONG_BATCHES;
        let waiting = waiting(received, self.full_batches, self.batch.len());
        dispatch.note_port(is_long, waiting);
        if !dispatch.is_quiet()
            || dispatch.has_auxiliary_cores()
                && (dispatch.is_due(now) || !dispatch.is_in_time(waiting + self.batch.len()))
        {
            return true;
        }
        if received.waiting == 0 {
            dispatch.keep_request(now);
            return dispatch.is_withdrawn(now);
        }
        dispatch.queues(now, (waiting, is_long), &self.batch)
    }

    /// Offers help to other dedicated cores, if they are behind and this one has time, and processes a batch of theirs,
    /// after a turn of its own that ended at `end`, unless there was nothing to do. Returns the end time.
    #[inline(never)]
    fn help(&mut self, context: &mut QueueContext, received: Received, end: Option<Nanos>) -> Option<Nanos> {
        let is_settled = self.buckets.as_ref().is_none_or(|buckets| buckets.is_settled());
        let waiting = waiting(received, self.full_batches, context.config.batch);
        let dispatch = self.dispatch.as_ref();
        let can_help = is_settled && dispatch.is_some_and(|dispatch| dispatch.can_help(waiting));
        let helping = self.helping.as_mut()?;
        helping.update(can_help);
        let Some([began, sent]) = helping.serve(context, &mut self.chain) else {
            return end;
        };
        if let Some(buckets) = &mut self.buckets {
            // Its packets waited elsewhere.
            buckets.note_batch([began, began, sent]);
        }
        Some(sent)
    }

    /// Runs a turn of the dispatcher. Returns the end time.
    fn process_dispatching(&mut self, context: &mut QueueContext, received: &mut Received, now: Nanos) -> Nanos {
        let Some(dispatch) = &mut self.dispatch else {
            return now;
        };
        let mut turn = DispatchTurn {
            context,
            dispatch,
            chain: &mut self.chain,
            pool: &mut self.pool,
            batch: &mut self.batch,
            buckets: self.buckets.as_deref_mut(),
            durable: self.durable.as_deref_mut(),
            from_queue: &mut self.from_queue,
            is_isolated: self.sized,
        };
        let end = turn.process(received, now);
        self.size_batch();
        end
    }

    /// Runs a turn with external flow state and packets that wait for it. Returns the end time, or `None` if there was
    /// nothing to do.
    fn process_durable(&mut self, context: &mut QueueContext, now: Nanos, backlog: bool) -> Option<Nanos> {
        let durable = self.durable.as_mut()?;
        let late = context.too_late(&self.batch, backlog, now);
        if late > 0 {
            let packets = self.batch.iter().take(late);
            packets.for_each(|packet| context.meter.note_arrival(packet.arrival));
            let receipts = self.batch.take_first(late);
            receipts.for_each(|receipt| self.pool.give(receipt.into_buffer()));
        }
        let packets = self.batch.len();
        // Later waits, for the store, are no load of this core.
        let arrival = self.batch.first().map(|first| first.arrival);
        if packets > 0 {
            context.meter.note_batch(&self.batch);
        }
        let mut turn = DurableTurn {
            context,
            chain: &mut self.chain,
            buffers: &mut self.pool,
        };
        let mut time = turn.resume(durable, now);
        if packets > 0 {
            if backlog {
                turn.context.meter.note_backlog(&self.batch, time);
            }
            let began = time;
            let (sent, new) = turn.process(durable, &mut self.batch, began);
            time = sent;
            if let Some(dispatch) = &mut self.dispatch {
                if backlog {
                    dispatch.learn_straight(packets, new, sent.saturating_sub(began));
                }
                dispatch.went_straight();
            }
        }
        time = turn.end(durable, time);
        if time > now {
            self.chain.expire(time);
        }
        durable.send(&mut self.chain, time, |_| true);
        let end = (time > now).then_some(time);
        if let (Some(end), Some(arrival)) = (end, arrival) {
            if backlog {
                context.learn(packets, now, end);
            }
            if let Some(buckets) = &mut self.buckets {
                buckets.note_batch([arrival, now, end]);
            }
        }
        self.size_batch();
        end
    }

    /// Runs the received batch, which must not be empty, through the chain, sends it and measures. Returns the end
    /// time.
    #[inline]
    fn process_batch(&mut self, context: &mut QueueContext, received: Received, began: Nanos) -> Nanos {
        let backlog = received.waiting > 0;
        let (chain, batch) = (&mut self.chain, &mut self.batch);
        context.meter.note_batch(batch);
        let late = context.too_late(batch, backlog, began);
        if late > 0 {
            batch
                .take_first(late)
                .for_each(|receipt| self.pool.give(receipt.into_buffer()));
            if batch.is_empty() {
                return context.clock.now();
            }
        }
        let packets = batch.len();
        let arrival = batch.first().map_or(began, |first| first.arrival);
        if backlog && !received.unhashed {
            // The flows in front matter only in a backlog.
            context.meter.note_backlog(batch, began);
        }
        let sent = match &mut self.dispatch {
            Some(dispatch) if backlog => {
                let mut new = 0;
                let run = |chain: &mut Chain, batch: &mut Batch, began| new = chain.process_counting(batch, began);
                let sent = context.pass(chain, batch, packets, began, run);
                dispatch.learn_straight(packets, new, sent.saturating_sub(began));
                sent
            }
            _ if received.unhashed => context.pass_unhashed(chain, batch, (packets, backlog), began),
            _ => context.pass(chain, batch, packets, began, Chain::process),
        };
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.went_straight();
        }
        if let Some(buckets) = &mut self.buckets {
            buckets.note_batch([arrival, began, sent]);
        }
        if backlog {
            context.learn(packets, began, sent);
        }
        context.record(TimedPart::Whole, (packets, backlog), [arrival, began, sent]);
        batch.release(&mut self.pool);
        self.size_batch();
        self.chain.expire(sent);
        sent
    }

    /// Sets the next batch's size to the one a function requires.
    #[inline]
    fn size_batch(&mut self) {
        if self.sized
            && let Some(packets) = self.chain.wanted_batch()
        {
            self.batch.limit(packets);
        }
    }

    /// Returns `true` if no packet waits for the store.
    fn is_durable_quiet(&self) -> bool {
        self.durable.as_ref().is_none_or(|durable| durable.is_quiet())
    }
}

/// Returns about how many packets wait in the port, of which a device tells only whether there are any. After
/// `full_batches` full batches in a row, the last of `batch` packets, there are the more, the longer that lasted.
#[inline]
fn waiting(received: Received, full_batches: u32, batch: usize) -> usize {
    match received.counts_waiting {
        true => received.waiting,
        false => received.waiting.max(full_batches as usize * batch),
    }
}

impl Counting for ChainProcessing {
    fn count(&self, counts: &mut Vec<u64>) {
        self.chain.count(counts);
    }

    fn count_functions(&self, totals: &mut Vec<FunctionTotals>) {
        self.chain.count_functions(totals);
    }

    fn flows(&self) -> u64 {
        Counting::flows(&self.chain)
    }
}

impl Processing for ChainProcessing {
    /// RSS hashes matter to the chain, to other cores and RSS buckets, and to the causes of packets that are discarded
    /// before their headers have been parsed.
    fn prepare(&self, context: &mut QueueContext) {
        let is_alone = self.dispatch.is_none() && self.helping.is_none() && self.buckets.is_none();
        if is_alone && self.durable.is_none() && context.freshness.is_none() && !self.chain.reads_hashes() {
            context.port.leave_out_hashes();
        }
    }

    #[inline]
    fn receive(&mut self, context: &mut QueueContext, now: Nanos) -> Received {
        if let Some(buckets) = &mut self.buckets {
            let (queue, dispatch) = (&*context.port, self.dispatch.as_deref());
            let durable = self.durable.as_deref_mut();
            buckets.turn(now, queue, &mut self.chain, dispatch, durable);
        }
        let buckets = self.buckets.as_deref_mut();
        let (queue, pool) = (&mut *context.port, &mut self.pool);
        let has_room = self.dispatch.as_ref().is_none_or(|dispatch| dispatch.receives());
        let receives = has_room && !(self.sized && self.chain.awaits_process());
        let mut received = match receives {
            true => receive((queue, buckets), now, pool, &mut self.batch),
            // Packets stay in the ring. It is looked at all the same.
            false => self
                .batch
                .without_room(move |batch| receive((queue, buckets), now, pool, batch)),
        };
        // The next batch is processed behind this one, or, with auxiliary cores, perhaps at once.
        let packets = match self.dispatch {
            Some(_) => 1,
            None => self.batch.len() + context.config.batch,
        };
        context.discard_waiting(&mut received, packets, now);
        received
    }

    fn cause_of_full(&self) -> Cause {
        cause_of_full(&self.pool, self.dispatch.as_deref(), self.buckets.as_deref())
    }

    #[inline]
    fn process(&mut self, context: &mut QueueContext, received: &mut Received, now: Nanos) -> Option<Nanos> {
        let end = if self.dispatches(*received, now) {
            Some(self.process_dispatching(context, received, now))
        } else if self.durable.is_some() {
            self.process_durable(context, now, received.waiting > 0)
        } else if self.batch.is_empty() {
            None
        } else {
            Some(self.process_batch(context, *received, now))
        };
        match &self.helping {
            Some(helping) if helping.is_requested() => self.help(context, *received, end),
            _ => end,
        }
    }

    /// A worker may sleep if no packet can arrive for some time because it has no RSS bucket, or if none has arrived
    /// for so long that it may take a nap.
    #[inline]
    fn on_idle(&mut self, received: Received, now: Nanos, idle: Nanos) -> Option<Duration> {
        self.chain.expire(now);
        let rest = self.buckets.as_ref().and_then(|buckets| buckets.rest());
        let rest = rest.or_else(|| {
            let nap = self.nap.filter(|nap| idle >= *nap)?;
            // Packets that wait for the store must not wait for the worker in addition.
            let quiet = received.waiting == 0 && self.is_durable_quiet();
            quiet.then(|| Duration::from_nanos(nap.0))
        })?;
        // Nor those of other dedicated cores.
        let may_sleep = self.helping.as_mut().is_none_or(|helping| helping.may_sleep());
        may_sleep.then_some(rest)
    }

    fn succeed(&mut self, chain: Chain, kept: &[String]) {
        match self.chain.can_succeed(&chain) {
            true => self.chain.succeed(chain, kept),
            false => drop(chain.drain()),
        }
    }

    fn succeed_to(&mut self, share: FlowShare, kept: &[String]) {
        self.chain.succeed_to(share, kept);
    }

    #[inline]
    fn limit(&mut self, packets: usize) {
        if !self.sized {
            self.batch.limit(packets);
        }
    }

    fn chain(&mut self) -> Option<&mut Chain> {
        Some(&mut self.chain)
    }

    #[inline]
    fn waits_for_others(&self) -> bool {
        let dispatch = self.dispatch.as_ref();
        dispatch.is_some_and(|dispatch| !dispatch.is_quiet() || dispatch.has_auxiliary_cores())
    }

    /// The worker is also needed while RSS buckets migrate.
    fn is_done(&self) -> bool {
        self.is_durable_quiet()
            && self.dispatch.as_ref().is_none_or(|dispatch| dispatch.is_quiet())
            && self.buckets.as_ref().is_none_or(|buckets| buckets.may_end())
    }

    fn abort(&mut self, context: &mut QueueContext, now: Nanos) {
        let meter = &mut context.meter;
        if self.batch.in_hand() > 0 {
            meter.note_unfinished(&mut self.batch, self.chain.newly_lost(), now);
        }
        match &mut self.dispatch {
            Some(dispatch) if self.from_queue => {
                dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
            }
            _ => self.batch.release(&mut self.pool),
        }
        if let Some(helping) = &mut self.helping {
            helping.give_back(context, &mut self.chain);
        }
        let meter = &mut context.meter;
        if let Some(batch) = self.durable.as_mut().and_then(|durable| durable.in_hand()) {
            meter.note_unfinished(batch, self.chain.newly_lost(), now);
            batch.release(&mut self.pool);
        }
        if let Some(dispatch) = &mut self.dispatch {
            for from in 1..self.chain.segments() {
                let part = dispatch.part(from);
                if part.in_hand() > 0 {
                    meter.note_unfinished(part, self.chain.newly_lost(), now);
                    dispatch.done_part(from, &mut self.pool, &mut self.chain);
                }
            }
            let refused = dispatch.lose_refused(&mut self.pool);
            meter.note_flow_overload(refused);
            // Packets about to be offloaded come back as lost.
            dispatch.abandon();
            dispatch.flush(now);
        }
    }

    /// Packets are buffered, wait for the store, or are in the local queue or on auxiliary cores.
    fn discard(&mut self, context: &mut QueueContext, now: Nanos) {
        let meter = &mut context.meter;
        if let Some(buckets) = &mut self.buckets {
            while buckets.take_rest(&mut self.batch) {
                self.batch.iter().for_each(|packet| meter.note_arrival(packet.arrival));
                meter.note_undrained_batch(&self.batch, now);
                self.batch.release(&mut self.pool);
            }
        }
        while let Some(batch) = self.durable.as_mut().and_then(|durable| durable.give_up()) {
            meter.note_undrained_batch(batch, now);
            batch.release(&mut self.pool);
        }
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        dispatch.abandon();
        let mut more = true;
        while more {
            more = dispatch.take_undone(&mut self.batch);
            meter.note_undrained_batch(&self.batch, now);
            dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
        }
        // Auxiliary cores count the packets they discard, and then return the buffers.
        let until = now + LONGEST_DRAIN;
        while !dispatch.is_quiet() && context.clock.now() < until {
            dispatch.collect(&mut self.pool, &mut self.chain, now);
            // Packets of split flows that continue elsewhere.
            dispatch.flush(now);
            if let Some(helping) = &mut self.helping {
                // The core that has them may wait for this one in the same way.
                helping.serve_rest(context, &mut self.chain);
            }
            std::thread::yield_now();
        }
    }

    fn close(&mut self, meter: &mut Meter) {
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.release_all();
        }
        if let Some(helping) = &mut self.helping {
            helping.withdraw();
            // Closes the rings, for whose end other dedicated cores wait.
            self.dispatch = None;
        }
        if let Some(buckets) = &mut self.buckets {
            buckets.report(&mut meter.window().buckets);
        }
    }

    fn serve_others(&mut self, context: &mut QueueContext) -> bool {
        let helping = self.helping.as_mut();
        helping.is_none_or(|helping| helping.serve_rest(context, &mut self.chain))
    }

    fn give_back(&mut self, context: &mut QueueContext) {
        if let Some(helping) = &mut self.helping {
            helping.give_back(context, &mut self.chain);
        }
    }

    fn reclaim(&mut self, context: &mut QueueContext) {
        context.port.reclaim(&mut self.pool);
    }

    fn finish(self, now: Nanos) -> Finished {
        Finished {
            chains: vec![self.chain.into_chain()],
            buckets: self.buckets,
            state_counters: self.durable.map(|durable| durable.finish(now)).into_iter().collect(),
            ..Finished::default()
        }
    }
}
