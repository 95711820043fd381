//! Dispatcher: the work of a worker with a port queue beyond processing packets. It moves the packets as the shared
//! state machine in `tailwater_dispatch` decides.

mod help;
mod local_queue;

use super::flow_numbers::{FlowNumbers, FlowReference};
use super::lending::Borrower;
use super::link::ToAuxiliary;
use super::packet_lists::PacketLists;
use crate::durable::DurableWorker;
use crate::scaling::counters::ScalingCounters;
use std::cell::Cell;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::{PacketStore, Parcel};
use tailwater_dispatch::{AuxiliaryCores, Backlog, Dispatcher, OWN};
use tailwater_handover::helping::HelpOffers;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Flowlet, Notice, Unit};

/// Receipts collected at a time.
const RECEIPTS: usize = 256;

/// State of a dispatcher.
pub(crate) struct Dispatch {
    /// Index of the dispatcher.
    number: u32,
    machine: Dispatcher<FlowReference, Parcel>,
    unit: Unit,
    flow_numbers: FlowNumbers,
    lists: PacketLists,
    store: PacketStore,
    links: Vec<ToAuxiliary>,
    /// Offers of other dedicated cores, if some can help, `true` if this core requests help, and the last time at which
    /// it needed any.
    offers: Option<HelpOffers>,
    requests: bool,
    needed_at: Nanos,
    /// A long queue waits in the port, and about so many packets.
    is_long: bool,
    waiting: usize,
    /// Its account with the broker, if auxiliary cores are shared with other chains.
    borrower: Option<Arc<Borrower>>,
    /// Packets of split flows on their way to auxiliary cores, by the segment before which they leave. Unused for
    /// segment 0.
    parts: Vec<Batch>,
    counters: ScalingCounters,
    /// Time up to which activated auxiliary cores have been charged, and their number since then.
    charged: (Nanos, u64),
}

/// Activation of the auxiliary cores of a dispatcher, counted.
struct Activations<'a> {
    dispatcher: u32,
    now: Nanos,
    links: &'a [ToAuxiliary],
    counters: &'a mut ScalingCounters,
}

impl AuxiliaryCores for Activations<'_> {
    fn activate(&mut self, auxiliary: usize) -> bool {
        let helper = &self.links[auxiliary].helper;
        let is_active = helper.activate(self.dispatcher, self.now);
        match helper.is_dedicated() {
            true => self.counters.dedicated_activated += u64::from(is_active),
            false => self.counters.activated += u64::from(is_active),
        }
        is_active
    }

    fn release(&mut self, auxiliary: usize) {
        let helper = &self.links[auxiliary].helper;
        helper.release();
        self.counters.released += u64::from(!helper.is_dedicated());
    }
}

/// Returns `true` if a bucket can be lent: it is held, and the store has answered all requests about its flows.
#[inline]
fn can_lend(chain: &Chain, durable: Option<&DurableWorker>, bucket: u16) -> bool {
    chain.holds_bucket(bucket) && durable.is_none_or(|durable| durable.is_free_of(chain, bucket))
}

impl Dispatch {
    /// Creates dispatcher `number` with the buffers of `pool`, for `chain`.
    ///
    /// # Panics
    /// If there are more than [`MAX_AUXILIARY_CORES`](tailwater_policy::core::MAX_AUXILIARY_CORES) links.
    pub(crate) fn new(
        number: u32,
        mapper: Box<dyn CoreMapper>,
        store: PacketStore,
        links: Vec<ToAuxiliary>,
        pool: &BufferPool,
        chain: &Chain,
    ) -> Dispatch {
        let buffers = pool.most() as usize;
        let parts = (0..chain.segments()).map(|_| Batch::new(pool, MAX_BATCH));
        let unit = mapper.unit();
        Dispatch {
            number,
            machine: Dispatcher::new(mapper, Backlog::with_capacity(links.len(), buffers)),
            unit,
            flow_numbers: FlowNumbers::new(chain.has_flows(), unit),
            lists: PacketLists::new(buffers, links.len()),
            store,
            offers: links.iter().find_map(|link| link.helper.offers().cloned()),
            requests: false,
            needed_at: Nanos::ZERO,
            is_long: false,
            waiting: 0,
            borrower: None,
            links,
            parts: parts.collect(),
            counters: ScalingCounters::default(),
            charged: (Nanos::ZERO, 0),
        }
    }

    /// Borrows auxiliary cores from a pool.
    pub(crate) fn borrowing(self, borrower: Option<Arc<Borrower>>) -> Dispatch {
        Dispatch { borrower, ..self }
    }

    /// Returns `true` if buckets are offloaded: packets are looked up by the core that processes them.
    #[inline]
    pub(crate) fn lends_buckets(&self) -> bool {
        self.unit == Unit::Bucket
    }

    /// Adds the counts since the last call.
    #[inline]
    pub(crate) fn report(&mut self, to: &mut ScalingCounters) {
        to.merge(&std::mem::take(&mut self.counters));
    }

    /// Returns `true` if no packet waits or is on an auxiliary core, so received packets can be processed at once.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.machine.is_quiet()
    }

    /// Returns `true` if no packet waits in the local queue, but those of flows with too many. Packets on auxiliary
    /// cores are no backlog.
    #[inline]
    pub(crate) fn has_no_backlog(&self) -> bool {
        self.machine.backlog.here().packets == 0
    }

    /// Returns `true` if packets are to be received now: see [`Backlog::receives`].
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.machine.backlog.receives()
    }

    /// Returns `true` if packets that wait in the port, about `waiting`, go through the local queue: an auxiliary core
    /// could take them because they would be late here, or a flow may have too many. All others are processed straight
    /// from the port. `is_long` is set for a long queue.
    #[inline]
    pub(crate) fn queues(&mut self, now: Nanos, (waiting, is_long): (usize, bool), batch: &Batch) -> bool {
        let is_in_time = self.machine.is_in_time(waiting + batch.len());
        match is_in_time {
            true => self.keep_request(now),
            false => self.request_help(now),
        }
        self.update_available(now);
        if let Some(first) = batch.first().filter(|_| self.machine.backlog.is_single()) {
            self.machine.backlog.sample(first.rss_hash);
        }
        match self.machine.backlog.is_single() {
            true => self.machine.backlog.looks_for_whales(now, is_long),
            false => !is_in_time,
        }
    }

    /// Returns `true` if no packet of this RSS bucket waits or is on an auxiliary core.
    pub(crate) fn is_free_of(&self, bucket: u16) -> bool {
        self.flow_numbers.is_free_of(bucket)
    }

    /// Returns `true` if an auxiliary core is activated.
    #[inline]
    pub(crate) fn has_auxiliary_cores(&self) -> bool {
        let mut auxiliaries = self.machine.backlog.auxiliaries().iter();
        auxiliaries.any(|auxiliary| auxiliary.active)
    }

    /// Returns `true` if this core processes so many packets, which wait in the port, in time by itself.
    #[inline]
    pub(crate) fn is_in_time(&self, packets: usize) -> bool {
        self.machine.is_in_time(packets)
    }

    /// Notes that a batch was processed straight from the port.
    #[inline]
    pub(crate) fn went_straight(&mut self) {
        self.machine.went_straight();
    }

    /// Returns `true` if a decision is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.machine.is_due(now)
    }

    /// Packets on auxiliary cores, or parked until others of their flow have left one.
    pub(crate) fn offloaded(&self) -> u32 {
        let backlog = &self.machine.backlog;
        let offloaded = backlog.auxiliaries().iter().map(|auxiliary| auxiliary.load.packets);
        offloaded.sum::<u32>() + backlog.parked().packets
    }

    /// Time for which auxiliary cores have been activated since the last call, summed over all. Dedicated cores that
    /// help are none.
    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos) -> Nanos {
        let auxiliaries = self.machine.backlog.auxiliaries().iter();
        let is_charged = |auxiliary: &&AuxiliaryCore| auxiliary.active && !auxiliary.dedicated;
        let active = auxiliaries.filter(is_charged).count() as u64;
        // Between two calls there may be a long time without any.
        let (since, were_active) = std::mem::replace(&mut self.charged, (now, active));
        Nanos(now.saturating_sub(since).0 * were_active)
    }

    /// Moves the packets of a batch to the local queue, or stages them for auxiliary cores. Unless buckets are
    /// offloaded, the batch was looked up, and packets that have left the chain stay in the batch. With external flow
    /// state (`durable`), buckets with requests under way stay here.
    pub(crate) fn distribute(
        &mut self,
        batch: &mut Batch,
        chain: &mut Chain,
        durable: Option<&DurableWorker>,
        now: Nanos,
    ) {
        self.request_help(now);
        self.update_available(now);
        let before = self.machine.backlog.parked().packets;
        self.machine.backlog.make_room(batch.len());
        if let Some(borrower) = &self.borrower {
            borrower.received(batch.len());
        }
        let Dispatch {
            number: dispatcher,
            machine,
            unit,
            flow_numbers,
            lists,
            store,
            links,
            counters,
            ..
        } = self;
        let mut activations = Activations {
            dispatcher: *dispatcher,
            now,
            links,
            counters,
        };
        let (list, overtaken, moved) = (Cell::new(OWN), Cell::new(None), Cell::new(None));
        let hash_of = |rss_hash| match unit {
            Unit::Flow => 0,
            Unit::Bucket => rss_hash,
        };
        let number = |packet: &Packet| {
            if let Some((number, packets)) = moved.take() {
                machine.backlog.overtook(number, packets);
            }
            let number = match flow_numbers.find(packet, chain) {
                Some(number) => number,
                None => {
                    let is_bound = match unit {
                        Unit::Flow => chain.is_bound(packet),
                        Unit::Bucket => !can_lend(chain, durable, bucket_of(packet.rss_hash)),
                    };
                    let assign = |number| flow_numbers.assign(number, packet, chain);
                    // There are more numbers than buffers.
                    let number = machine.backlog.open(is_bound, assign)?;
                    if !is_bound {
                        let flowlet = Flowlet {
                            arrival: packet.arrival,
                            new: *unit == Unit::Flow && packet.is_new(),
                            packets: 1,
                            parked: false,
                        };
                        machine.place(number, flowlet, now, &mut activations);
                    }
                    number
                }
            };
            let to = machine.backlog.receive(number, hash_of(packet.rss_hash));
            if *unit == Unit::Bucket && machine.backlog.is_elsewhere(to) {
                chain.lend(bucket_of(packet.rss_hash));
            }
            list.set(to);
            overtaken.set(machine.backlog.take_overtaken());
            Some(number)
        };
        batch.offload(store, number, |parcel| {
            if let Some(overtaken) = overtaken.take() {
                let is_overtaken =
                    |parcel: &Parcel| overtaken.concerns(parcel.number(), hash_of(store.rss_hash(parcel)));
                moved.set(Some((overtaken.number, lists.overtake(is_overtaken))));
            }
            lists.push(list.get(), parcel);
        });
        if let Some((number, packets)) = moved.take() {
            self.machine.backlog.overtook(number, packets);
        }
        self.machine.backlog.end_look(now);
        self.park();
        self.counters.packets_parked += u64::from(self.machine.backlog.parked().packets - before);
    }

    /// Gives back the buffers of packets that are lost because their flow has too many. Returns their number.
    #[inline]
    pub(crate) fn lose_refused(&mut self, pool: &mut BufferPool) -> u64 {
        let mut lost = 0;
        for parcel in self.lists.refused() {
            pool.give(self.store.discard(parcel));
            lost += 1;
        }
        lost
    }

    /// Parks the packets that were set aside.
    fn park(&mut self) {
        for parcel in self.lists.parking() {
            self.machine.backlog.park(parcel.number(), parcel);
        }
    }

    /// Takes back packets that auxiliary cores have processed, stages those that continue on another auxiliary core,
    /// and places flows that waited for them.
    pub(crate) fn collect(&mut self, pool: &mut BufferPool, chain: &mut Chain, now: Nanos) {
        let Dispatch {
            number,
            machine,
            unit,
            flow_numbers,
            lists,
            store,
            links,
            borrower,
            counters,
            ..
        } = self;
        for (auxiliary, link) in links.iter_mut().enumerate() {
            if machine.backlog.auxiliaries()[auxiliary].load.packets == 0 {
                continue;
            }
            while link.receipts.pop_each(RECEIPTS, |receipt| {
                if let Some(flow) = machine.backlog.done_by(receipt.number(), auxiliary, now) {
                    flow_numbers.remove(*flow, chain);
                } else if *unit == Unit::Bucket && machine.backlog.is_split_and_back(receipt.number()) {
                    // Until the next of its packets is passed on, its flows may end.
                    chain.keep_flows(machine.backlog.flow(receipt.number()).key().bucket(), false);
                }
                pool.give(receipt.into_buffer());
            }) == RECEIPTS
            {}
            if machine.backlog.has_splits() {
                while link.onward.pop_each(RECEIPTS, |mut parcel| {
                    let segment = store.segment(&parcel);
                    let (list, until) = machine.backlog.relay(parcel.number(), auxiliary, segment, now);
                    store.set_until(&mut parcel, until);
                    lists.push(list, parcel);
                }) == RECEIPTS
                {}
            }
            if let Some(took) = link.take_woke() {
                machine.woke(took);
                if let Some(borrower) = borrower {
                    borrower.woke(took);
                }
            }
        }
        let mut activations = Activations {
            dispatcher: *number,
            now,
            links,
            counters,
        };
        machine.backlog.release_withdrawn(&mut activations);
        if machine.backlog.parked().packets > 0 {
            let arrival = |parcel: &Parcel| store.arrival(parcel);
            let mut lent = None;
            let put = |list, parcel| {
                match (*unit, list) {
                    (Unit::Flow, _) => {}
                    // Its last packet has left the auxiliary core.
                    (Unit::Bucket, OWN) => chain.take_back(bucket_of(store.rss_hash(&parcel))),
                    // It may have been split, and so been here. All of its packets go together.
                    (Unit::Bucket, _) => {
                        let bucket = bucket_of(store.rss_hash(&parcel));
                        if lent.replace(bucket) != Some(bucket) {
                            chain.lend_on(bucket);
                        }
                    }
                }
                lists.push(list, parcel);
            };
            machine.place_parked(now, arrival, &mut activations, put);
        }
    }

    /// Calls the mapper, if it is due, and carries out its plan. For `durable` see
    /// [`distribute`](Dispatch::distribute).
    #[inline]
    pub(crate) fn decide(&mut self, chain: &mut Chain, durable: Option<&DurableWorker>, now: Nanos) {
        if self.machine.is_due(now) {
            if durable.is_some() {
                let is_bound = |unit: &FlowReference| !can_lend(chain, durable, unit.bucket());
                self.machine.backlog.rebind(is_bound);
            }
            self.run_mapper(chain, now);
        }
    }

    fn run_mapper(&mut self, chain: &mut Chain, now: Nanos) {
        self.update_available(now);
        let oldest = self.lists.first().map(|parcel| self.store.arrival(parcel));
        let mut activations = Activations {
            dispatcher: self.number,
            now,
            links: &self.links,
            counters: &mut self.counters,
        };
        let lends = self.unit == Unit::Bucket;
        let first_segment = |last_functions| {
            let segment = chain.segment_of_last(last_functions)?;
            // The flow table of a split bucket stays here.
            (!lends || !chain.opens_companions_from(segment)).then_some(segment)
        };
        let decision = self.machine.decide(now, oldest, first_segment, &mut activations);
        if decision.flows_moved > 0 {
            let backlog = &self.machine.backlog;
            debug_assert_eq!(backlog.moved().count(), decision.flows_moved as usize);
            if lends {
                backlog.moved().for_each(|unit| chain.lend(unit.bucket()));
            }
            let list_of = |number| backlog.auxiliary_list_of(number);
            self.lists.sort(decision.moved_to, list_of);
        }
        self.counters.decisions += 1;
        self.counters.splits += u64::from(decision.splits);
        self.counters.joins += u64::from(decision.joins);
        self.counters.moves += u64::from(decision.flows_moved > 0);
        self.counters.flows_moved += u64::from(decision.flows_moved);
        self.counters.relieved += u64::from(decision.relieved);
        self.counters.boosts += u64::from(decision.boosted);
        match decision.notice {
            Some(Notice::WhaleBeyondSplit { .. }) => self.counters.whales_beyond_split += 1,
            Some(Notice::OutOfCores { .. }) => self.counters.out_of_cores += 1,
            None => {}
        }
    }

    /// Returns `true` if packets are staged for auxiliary cores.
    #[inline]
    pub(crate) fn has_staged(&self) -> bool {
        self.lists.has_staged()
    }

    /// Pushes packets staged for auxiliary cores.
    #[inline]
    pub(crate) fn flush(&mut self, now: Nanos) {
        for (i, link) in self.links.iter_mut().enumerate() {
            let staged = self.lists.staged(i);
            if staged.is_empty() {
                continue;
            }
            let wanted = staged.len();
            let pushed = link.parcels.push_all(staged);
            // The ring has room for every buffer.
            assert!(pushed == wanted, "a ring to an auxiliary core is full");
            self.counters.packets_offloaded += pushed as u64;
            if link.helper.is_dedicated() {
                self.counters.packets_to_dedicated += pushed as u64;
            }
            link.call(now);
        }
    }

    /// Returns `true` if the local queue is to be processed now. In boost mode, while `more` packets wait in the port,
    /// this is so only for packets that no other core may process.
    #[inline]
    pub(crate) fn processes(&self, more: bool) -> bool {
        self.machine.processes(more)
    }

    /// Reports to the mapper that the chain took `took` for `packets` packets of the local queue, of which `new` were
    /// the first of their flows.
    #[inline]
    pub(crate) fn learn(&mut self, packets: usize, new: usize, took: Nanos) {
        self.machine.completed(packets as u32, new as u32, took);
        if let Some(borrower) = &self.borrower {
            borrower.learn(packets, took);
        }
    }

    /// Same as [`learn`](Dispatch::learn), for a batch that was processed straight from the port.
    #[inline]
    pub(crate) fn learn_straight(&mut self, packets: usize, new: usize, took: Nanos) {
        self.machine.completed_straight(packets as u32, new as u32, took);
        if let Some(borrower) = &self.borrower {
            borrower.learn(packets, took);
            borrower.received(packets);
        }
    }

    /// Ends a turn at `now`, after which packets wait in the port if `is_waiting`.
    #[inline]
    pub(crate) fn turned(&mut self, now: Nanos, is_waiting: bool) {
        if self.borrower.is_some() {
            self.publish(now);
        }
        let no_benefit = self.machine.turned(now, is_waiting);
        self.counters.no_benefit += u64::from(no_benefit);
    }

    /// Reports to the mapper that receiving, placing and offloading packets took `took` of a turn.
    #[inline]
    pub(crate) fn dispatched(&mut self, took: Nanos) {
        self.machine.dispatched(took);
    }

    /// Stops auxiliary cores from processing further packets: the run is over.
    pub(crate) fn abandon(&mut self) {
        self.links.iter().for_each(ToAuxiliary::abandon);
    }

    /// Releases all auxiliary cores, at the end.
    pub(crate) fn release_all(&mut self) {
        self.end_request();
        let mut activations = Activations {
            dispatcher: self.number,
            now: Nanos::ZERO,
            links: &self.links,
            // Releases at the end are no decisions.
            counters: &mut ScalingCounters::default(),
        };
        self.machine.backlog.release_all(&mut activations);
    }
}
