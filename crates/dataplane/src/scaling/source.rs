//! Packets that a dispatcher has sent to this core: an auxiliary core, or another dedicated core that helps it.

use super::lent_state::LentState;
use super::link::FromDispatcher;
use crate::batches::TimedPart;
use crate::durable::{DurableWorker, KeeperCounters};
use crate::port::PortSender;
use crate::worker::context::{CountedChain, WorkerContext};
use std::ops::Range;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::Parcel;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::core::Unit;
use tailwater_state::keeper::Keeper;

/// Returns the index of the batch of packets that pass a chain's segments from `from` to in front of `until`, or to the
/// end if that is 0. Among packets that enter at the same segment, those that go further come first.
#[inline]
fn batch_of(from: usize, until: usize, segments: usize) -> usize {
    match until {
        0 => from * segments,
        _ => from * segments + segments - until,
    }
}

/// Returns the segments that the packets of a batch pass.
#[inline]
fn segments_of(batch: usize, segments: usize) -> Range<usize> {
    batch / segments..segments - batch % segments
}

/// Batches in which a chain takes packets of other cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batching {
    segments: usize,
    /// Maximum number of packets.
    most: usize,
    /// Isolated functions determine the size.
    is_isolated: bool,
}

impl Batching {
    /// For `chain`, in batches of at most `batch` packets unless isolated functions determine their size.
    pub(super) fn new(chain: &Chain, batch: usize) -> Batching {
        Batching {
            segments: chain.segments(),
            most: batch,
            is_isolated: chain.has_isolated_functions(),
        }
    }

    /// Number of packets for which a batch needs room.
    fn room(&self) -> usize {
        if self.is_isolated { MAX_BATCH } else { self.most }
    }
}

/// Rings from and to one dispatcher, with batches for its packets.
pub(super) struct Source {
    pub(super) link: FromDispatcher,
    /// Batches by the [segments](segments_of) that the packets pass here: all, unless their flow is split.
    batches: Vec<Batch>,
    /// Parcels on their way from the ring to the batch.
    parcels: Vec<Parcel>,
    /// Unit in which the dispatcher offloads packets.
    unit: Unit,
    /// Batches of lent buckets so far.
    turns: usize,
    batching: Batching,
    /// `None` if there is no external flow state.
    state: Option<Box<LentState>>,
}

impl Source {
    /// For packets of the dispatcher's memory.
    pub(super) fn new((link, memory): (FromDispatcher, BufferMemory), unit: Unit, batching: Batching) -> Source {
        Source {
            link,
            batches: (0..batching.segments * batching.segments)
                .map(|_| Batch::of_memory(memory.clone(), batching.room()))
                .collect(),
            parcels: Vec::with_capacity(batching.room()),
            unit,
            turns: 0,
            batching,
            state: None,
        }
    }

    /// Enables external flow state.
    ///
    /// # Panics
    /// If the dispatcher offloads flows instead of buckets.
    pub(super) fn set_keeper(&mut self, keeper: Keeper) {
        assert!(self.unit == Unit::Bucket, "flow state comes with buckets");
        let memory = self.batches[0].memory().clone();
        let durable = DurableWorker::of_lent_buckets(keeper, memory, self.batching.room());
        self.state = Some(Box::new(LentState::new(durable)));
    }

    /// Returns `true` while packets or buckets wait for the store.
    #[inline]
    pub(super) fn awaits_store(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_waiting())
    }

    /// Counters of external flow state, if there is any, after the last turn.
    pub(super) fn finish(self, now: Nanos) -> Option<KeeperCounters> {
        self.state.map(|state| state.finish(now))
    }

    /// Processes a batch, or discards it if the dispatcher has given up. Returns the times at which this began and
    /// ended, or `None` if there is none.
    #[inline]
    pub(super) fn serve<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) -> Option<[Nanos; 2]> {
        if self.state.is_some() {
            return self.serve_with_state(context, chain);
        }
        let Source {
            link,
            batches,
            parcels,
            batching,
            ..
        } = self;
        let waiting = link.parcels.ready(batching.room());
        if waiting == 0 {
            return None;
        }
        let is_isolated = batching.is_isolated;
        if is_isolated {
            batching.most = chain.wanted_batch().unwrap_or(batching.most);
        }
        let most = batching.most;
        let now = context.clock.now();
        if link.is_abandoned() {
            self.discard(context, now);
            return Some([now; 2]);
        }
        // Data written by another core are fetched in three waves, each prefetched before it is read: the packets'
        // metadata, then their headers and their flows' state.
        link.parcels.pop_each(most, |parcel| {
            link.store.prefetch(&parcel);
            parcels.push(parcel);
        });
        let popped = parcels.len();
        let segments = chain.segments();
        // Only split flows have packets in other batches than the first.
        let mut used = 1;
        for parcel in parcels.drain(..) {
            let at = match link.store.segment(&parcel) {
                0 => 0,
                from => batch_of(from, link.store.until(&parcel), segments),
            };
            used = used.max(at + 1);
            batches[at].add_parcel(&link.store, parcel);
        }
        let batches = &mut batches[..used];
        // Packets of lent buckets come without their flows, unless they were split.
        let unit = self.unit;
        let lent = |from: usize| unit == Unit::Bucket && from == 0;
        for (at, batch) in batches.iter().enumerate().filter(|(_, batch)| !batch.is_empty()) {
            let its = segments_of(at, segments);
            if !lent(its.start) {
                chain.prefetch_segments(its, batch);
            }
        }
        // All packets of a flow enter at the same segment. Later ones go no further than earlier ones, while some are
        // here: a route is divided then, and never joined. So the earlier ones are in front.
        let mut time = now;
        for (at, batch) in batches.iter_mut().enumerate() {
            if batch.is_empty() {
                continue;
            }
            let Range {
                start: from,
                end: until,
            } = segments_of(at, segments);
            let late = context.too_late(batch, waiting > popped, time);
            if late > 0 {
                link.receipts.push_from(&mut batch.take_first(late));
            }
            let packets = batch.len();
            if packets == 0 {
                continue;
            }
            let arrival = batch.first().map_or(time, |first| first.arrival);
            if waiting > popped {
                context.meter.note_backlog(batch, time);
            }
            if until < segments {
                let began = time;
                if chain.needs_payload_before(until) {
                    context.port.complete(batch);
                }
                chain.run_between(from..until, batch, began);
                let gone = packets - batch.len();
                batch.offload(
                    &link.store,
                    |packet| Some(packet.number()),
                    |parcel| parcels.push(parcel),
                );
                let (going, pushed) = (parcels.len(), link.onward.push_all(parcels));
                assert!(pushed == going, "a ring to a dispatcher is full");
                link.receipts.push_from(&mut batch.return_buffers());
                time = context.clock.now();
                let lost = chain.newly_lost();
                context.meter.note_processed(packets, gone, lost, [began, time]);
                if waiting > popped {
                    context.learn(packets, began, time);
                }
                continue;
            }
            let run = |chain: &mut Chain, batch: &mut Batch, began| match lent(from) {
                true => chain.process(batch, began),
                false => chain.run_from(from, batch, began),
            };
            if lent(from) {
                chain.borrow(batch);
                // The core that holds the bucket cannot do it now. Each of them has its turn.
                self.turns = self.turns.wrapping_add(1);
                let bucket = bucket_of(batch.packet(self.turns % packets).rss_hash);
                chain.expire_lent(bucket, time);
            }
            let sent = context.pass(chain, batch, packets, time, run);
            let began = std::mem::replace(&mut time, sent);
            if is_isolated {
                chain.before_flows_move();
            }
            // Before the receipts, with which the dispatcher takes the buckets back.
            chain.return_borrowed();
            if waiting > popped {
                context.learn(packets, began, sent);
            }
            if from == 0 {
                let times = [arrival, began, sent];
                context.record(TimedPart::Helped, (packets, waiting > popped), times);
            }
            let pushed = link.receipts.push_from(&mut batch.return_buffers());
            assert!(pushed == packets, "a ring to a dispatcher is full");
        }
        Some([now, time])
    }

    /// The same with external flow state: also lets packets leave or continue that waited for the store.
    fn serve_with_state<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) -> Option<[Nanos; 2]> {
        let Source {
            link,
            batches,
            turns,
            batching,
            state,
            ..
        } = self;
        let (state, batch) = (state.as_mut()?, &mut batches[0]);
        let waiting = link.parcels.ready(batching.room());
        if waiting == 0 && !state.is_waiting() {
            return None;
        }
        let now = context.clock.now();
        if link.is_abandoned() {
            state.give_up(context, chain, link, now);
            self.discard(context, now);
            return Some([now; 2]);
        }
        let mut time = state.resume(context, chain, now);
        let popped = link
            .parcels
            .pop_each(batching.most, |parcel| batch.add_parcel(&link.store, parcel));
        state.note(batch);
        let is_backlog = waiting > popped;
        let late = context.too_late(batch, is_backlog, time);
        if late > 0 {
            state.take_first(batch, late);
        }
        let (packets, mut expiring) = (batch.len(), None);
        if packets > 0 {
            if is_backlog {
                context.meter.note_backlog(batch, time);
            }
            *turns = turns.wrapping_add(1);
            expiring = Some(bucket_of(batch.packet(*turns % packets).rss_hash));
            let arrival = batch.first().map_or(time, |first| first.arrival);
            let began = time;
            time = state.process(context, chain, batch, began);
            if is_backlog {
                context.learn(packets, began, time);
            }
            context.record(TimedPart::Helped, (packets, is_backlog), [arrival, began, time]);
        }
        time = state.end(context, chain, link, (expiring, time));
        (popped > 0 || time > now).then_some([now, time])
    }

    /// Counts a batch as lost.
    #[cold]
    fn discard<P: PortSender + ?Sized>(&mut self, context: &mut WorkerContext<P>, now: Nanos) {
        let Source {
            link,
            batches,
            batching,
            ..
        } = self;
        let batch = &mut batches[0];
        link.parcels
            .pop_each(batching.most, |parcel| batch.add_parcel(&link.store, parcel));
        context.meter.note_undrained_batch(batch, now);
        link.receipts.push_from(&mut batch.return_buffers());
    }

    /// Counts the packets that the panicked core was processing as lost, and returns their buffers. Later ones will be
    /// discarded.
    pub(super) fn give_back<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) {
        let now = context.clock.now();
        let Source {
            link,
            batches,
            parcels,
            state,
            ..
        } = self;
        link.give_up();
        if let Some(state) = state {
            state.give_up(context, chain, link, now);
        }
        chain.return_borrowed();
        for parcel in parcels.drain(..) {
            batches[0].add_parcel(&link.store, parcel);
        }
        for batch in batches.iter_mut().filter(|batch| batch.in_hand() > 0) {
            // The first batch is the one that was being processed.
            let lost = chain.newly_lost();
            context.meter.note_unfinished(batch, lost, now);
            link.receipts.push_from(&mut batch.return_buffers());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_go_further_are_in_an_earlier_batch() {
        const SEGMENTS: usize = 4;
        assert_eq!(segments_of(batch_of(0, 0, 1), 1), 0..1);
        for from in 0..SEGMENTS {
            let mut before = batch_of(from, 0, SEGMENTS);
            assert_eq!(segments_of(before, SEGMENTS), from..SEGMENTS);
            for until in (from + 1..SEGMENTS).rev() {
                let at = batch_of(from, until, SEGMENTS);
                assert!(at > before);
                assert_eq!(segments_of(at, SEGMENTS), from..until);
                before = at;
            }
        }
    }
}
