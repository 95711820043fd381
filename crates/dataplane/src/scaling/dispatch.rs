//! Dispatcher: the work of a worker with a port queue beyond processing packets.

use super::ScalingCounters;
use super::backlog::Backlog;
use super::link::ToAuxiliary;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::PacketStore;
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, MAX_AUXILIARY_CORES, Notice, Plan, View};

/// Maximum number of packets looked up per turn, before the local queue is served again.
pub(crate) const MOST_RECEIVED: usize = 2048;

/// Receipts collected at a time.
const RECEIPTS: usize = 256;

/// State of a dispatcher.
pub(crate) struct Dispatch {
    /// Index of the dispatcher.
    number: u32,
    mapper: Box<dyn CoreMapper>,
    backlog: Backlog,
    store: PacketStore,
    links: Vec<ToAuxiliary>,
    auxiliary: Vec<AuxiliaryCore>,
    plan: Plan,
    /// Packets of split flows on their way to auxiliary cores, by the segment before which they leave. Unused for
    /// segment 0.
    parts: Vec<Batch>,
    boost: bool,
    /// Auxiliary cores being relieved, as a bit map.
    relieved: u64,
    counters: ScalingCounters,
    /// Time up to which activated auxiliary cores have been charged.
    charged: Nanos,
}

impl Dispatch {
    /// Creates dispatcher `number` with the buffers of `pool`, for `chain`.
    ///
    /// # Panics
    /// If there are more than [`MAX_AUXILIARY_CORES`] links.
    pub(crate) fn new(
        number: u32,
        mapper: Box<dyn CoreMapper>,
        store: PacketStore,
        links: Vec<ToAuxiliary>,
        pool: &BufferPool,
        chain: &Chain,
    ) -> Dispatch {
        assert!(
            links.len() <= MAX_AUXILIARY_CORES,
            "at most {MAX_AUXILIARY_CORES} auxiliary cores"
        );
        let buffers = pool.capacity() as u32;
        let parts = (0..chain.segments()).map(|_| Batch::new(pool, MAX_BATCH));
        Dispatch {
            number,
            mapper,
            backlog: Backlog::new(buffers, links.len(), chain.has_flows()),
            store,
            auxiliary: vec![AuxiliaryCore::default(); links.len()],
            links,
            plan: Plan::default(),
            parts: parts.collect(),
            boost: false,
            relieved: 0,
            counters: ScalingCounters::default(),
            charged: Nanos::ZERO,
        }
    }

    /// Adds the counts since the last call.
    #[inline]
    pub(crate) fn report(&mut self, to: &mut ScalingCounters) {
        to.merge(&std::mem::take(&mut self.counters));
    }

    /// Returns `true` if no packet waits or is on an auxiliary core, so received packets can be processed at once.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && !self.boost
    }

    /// Returns `true` if no packet of this RSS bucket waits or is on an auxiliary core.
    pub(crate) fn is_free_of(&self, bucket: u16) -> bool {
        self.backlog.is_free_of(bucket)
    }

    /// Returns `true` if an auxiliary core is activated.
    #[inline]
    pub(crate) fn has_auxiliary_cores(&self) -> bool {
        self.auxiliary.iter().any(|helper| helper.active)
    }

    /// Packets on auxiliary cores, or parked until others of their flow have left one.
    pub(crate) fn offloaded(&self) -> u32 {
        let helpers = self.auxiliary.iter().map(|helper| helper.load.packets);
        helpers.sum::<u32>() + self.backlog.parked().packets
    }

    /// Time for which auxiliary cores have been activated since the last call, summed over all.
    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos) -> Nanos {
        let since = match self.charged {
            Nanos::ZERO => now,
            charged => charged,
        };
        let span = now.saturating_sub(since);
        self.charged = now;
        let recruited = self.auxiliary.iter().filter(|helper| helper.active);
        Nanos(span.0 * recruited.count() as u64)
    }

    /// Moves the packets of a batch that was looked up to the local queue, or stages them for auxiliary cores. Packets
    /// that have left the chain stay in the batch.
    pub(crate) fn distribute(&mut self, batch: &mut Batch, chain: &mut Chain, now: Nanos) {
        for (helper, link) in self.auxiliary.iter_mut().zip(&self.links) {
            helper.taken = !helper.active && !link.activation.is_free();
        }
        let before = self.backlog.parked().packets;
        let Dispatch {
            links,
            counters,
            number,
            ..
        } = self;
        let activate = |i: usize, helper: &mut AuxiliaryCore| activate(*number, &links[i], helper, counters);
        self.backlog.distribute(
            batch,
            chain,
            &self.store,
            (&mut *self.mapper, &mut self.auxiliary),
            now,
            activate,
        );
        self.counters.packets_parked += u64::from(self.backlog.parked().packets - before);
    }

    /// Takes back packets that auxiliary cores have processed, and places flows that waited for them.
    pub(crate) fn collect(&mut self, pool: &mut BufferPool, chain: &mut Chain, now: Nanos) {
        let Dispatch {
            backlog,
            links,
            auxiliary: helpers,
            counters,
            number,
            ..
        } = self;
        for (link, helper) in links.iter_mut().zip(&mut *helpers) {
            if helper.load.packets == 0 {
                continue;
            }
            while link.receipts.pop_each(RECEIPTS, |receipt| {
                backlog.done_by(receipt.number(), helper, chain, now);
                pool.give(receipt.into_buffer());
            }) == RECEIPTS
            {}
        }
        if backlog.parked().packets > 0 {
            let mapper = &mut *self.mapper;
            let activate = |i, helper: &mut AuxiliaryCore| activate(*number, &links[i], helper, counters);
            backlog.place_parked(&self.store, (mapper, helpers), now, activate);
        }
    }

    /// Calls the mapper, if it is due, and carries out its plan.
    #[inline]
    pub(crate) fn decide(&mut self, chain: &Chain, now: Nanos) {
        if self.mapper.due(now, self.backlog.here().packets) {
            self.ask(chain, now);
        }
    }

    fn ask(&mut self, chain: &Chain, now: Nanos) {
        for (helper, link) in self.auxiliary.iter_mut().zip(&self.links) {
            helper.taken = !helper.active && !link.activation.is_free();
        }
        let oldest = self.backlog.oldest(&self.store).unwrap_or(now);
        let packets = self.backlog.here().packets;
        let view = View {
            now,
            oldest,
            packets,
            parked: self.backlog.parked(),
            queued: self.backlog.queued(),
            auxiliaries: &self.auxiliary,
        };
        self.plan.clear(view.queued.len());
        self.mapper.decide(&view, &mut self.plan);
        self.counters.decisions += 1;
        let Dispatch {
            links,
            counters,
            number,
            ..
        } = self;
        for split in &self.plan.splits {
            let Some(from) = chain.segment_of_last(split.last_functions) else {
                continue;
            };
            let to = (from, split.auxiliary);
            let auxiliary = &mut self.auxiliary;
            let begun = self.backlog.split(split.flow, to, auxiliary, |helper| {
                activate(*number, &links[split.auxiliary], helper, counters)
            });
            counters.splits += u64::from(begun);
        }
        let moved = self
            .backlog
            .move_flows(&self.plan.destinations, &mut self.auxiliary, |i, helper| {
                activate(*number, &links[i], helper, counters)
            });
        self.counters.moves += u64::from(moved > 0);
        self.counters.flows_moved += u64::from(moved);
        for (i, helper) in self.auxiliary.iter_mut().enumerate() {
            let let_go = self.plan.release >> i & 1 != 0 && !self.backlog.is_needed(i);
            if let_go && helper.active && helper.load.packets == 0 {
                helper.active = false;
                self.links[i].activation.release();
                self.counters.released += 1;
            }
        }
        let begun = self.plan.relieve & !self.relieved;
        self.counters.relieved += u64::from(begun.count_ones());
        self.relieved = self.plan.relieve;
        self.backlog.relieve(self.plan.relieve);
        self.counters.boosts += u64::from(self.plan.boost && !self.boost);
        self.boost = self.plan.boost;
        match self.plan.notice {
            Some(Notice::WhaleBeyondSplit { .. }) => self.counters.whales_beyond_split += 1,
            Some(Notice::OutOfCores { .. }) => self.counters.out_of_cores += 1,
            None => {}
        }
    }

    /// Pushes packets staged for auxiliary cores.
    #[inline]
    pub(crate) fn flush(&mut self, now: Nanos) {
        for (i, link) in self.links.iter_mut().enumerate() {
            let staged = self.backlog.staged(i);
            if staged.is_empty() {
                continue;
            }
            let wanted = staged.len();
            let pushed = link.parcels.push_all(staged);
            // The ring has room for every buffer.
            assert!(pushed == wanted, "a ring to an auxiliary core is full");
            self.counters.packets_offloaded += pushed as u64;
            link.call(now);
        }
    }

    /// Returns `true` if the local queue is to be processed now. In boost mode, while `more` packets wait in the port,
    /// this is so only for packets that no other core may process.
    #[inline]
    pub(crate) fn processes(&self, more: bool) -> bool {
        !self.boost || !more || self.backlog.has_bound()
    }

    /// Takes packets out of the local queue, up to the room of the batch, which is empty. Packets that are processed
    /// completely go into the batch, those of split flows into the [parts](Dispatch::parts). Returns `true` if more are
    /// left.
    #[inline]
    pub(crate) fn take(&mut self, batch: &mut Batch) -> bool {
        let Dispatch {
            backlog, parts, store, ..
        } = self;
        let (room, mut taken) = (batch.room(), 0);
        backlog.take(room, |parcel, from| {
            taken += 1;
            match from {
                0 => batch.add_parcel(store, parcel),
                from => parts[from].add_parcel(store, parcel),
            }
        });
        backlog.here().packets > taken
    }

    /// Like [`take`](Dispatch::take), but puts all into the batch: no packet is processed after this.
    pub(crate) fn take_undone(&mut self, batch: &mut Batch) -> bool {
        self.backlog.unpark_all();
        let store = &self.store;
        self.backlog
            .take(batch.room(), |parcel, _| batch.add_parcel(store, parcel));
        self.backlog.here().packets as usize > batch.len()
    }

    /// Packets of split flows that were [taken](Dispatch::take), by the segment at which auxiliary cores continue.
    /// Process them before [passing them on](Dispatch::pass_on).
    #[inline]
    pub(crate) fn part(&mut self, from: usize) -> &mut Batch {
        &mut self.parts[from]
    }

    /// Segments for which there are such packets.
    #[inline]
    pub(crate) fn parts(&self) -> impl Iterator<Item = usize> + use<'_> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(from, batch)| (!batch.is_empty()).then_some(from))
    }

    /// Returns the buffers of a processed batch from the local queue, and counts its packets out.
    #[inline]
    pub(crate) fn done(&mut self, batch: &mut Batch, pool: &mut BufferPool, chain: &mut Chain) {
        for receipt in batch.return_buffers() {
            self.backlog.done_here(receipt.number(), chain);
            pool.give(receipt.into_buffer());
        }
    }

    /// Stages the remaining packets for the auxiliary cores, and counts out dropped ones.
    pub(crate) fn pass_on(&mut self, from: usize, pool: &mut BufferPool, chain: &mut Chain) {
        let batch = &mut self.parts[from];
        self.backlog.pass_on(batch, &self.store, &mut self.auxiliary);
        self.done_part(from, pool, chain);
    }

    /// Counts out the packets of a part.
    pub(crate) fn done_part(&mut self, from: usize, pool: &mut BufferPool, chain: &mut Chain) {
        for receipt in self.parts[from].return_buffers() {
            self.backlog.done_here(receipt.number(), chain);
            pool.give(receipt.into_buffer());
        }
    }

    /// Reports to the mapper that the chain took `took` for `packets` packets of the local queue, of which `new` were
    /// the first of their flows.
    #[inline]
    pub(crate) fn learn(&mut self, packets: usize, new: usize, took: Nanos) {
        self.mapper.completed(packets as u32, new as u32, took);
    }

    /// Stops auxiliary cores from processing further packets: the run is over.
    pub(crate) fn abandon(&mut self) {
        self.links.iter().for_each(ToAuxiliary::abandon);
    }

    /// Releases all auxiliary cores, at the end.
    pub(crate) fn release_all(&mut self) {
        for (helper, link) in self.auxiliary.iter_mut().zip(&self.links) {
            if std::mem::take(&mut helper.active) {
                link.activation.release();
            }
        }
    }
}

/// Activates an auxiliary core for dispatcher `number`, unless it is already. Returns `true` if it works for it now.
#[inline]
fn activate(number: u32, link: &ToAuxiliary, helper: &mut AuxiliaryCore, counters: &mut ScalingCounters) -> bool {
    if !helper.active {
        helper.active = link.activation.take(number);
        helper.taken = !helper.active;
        counters.activated += u64::from(helper.active);
    }
    helper.active
}
