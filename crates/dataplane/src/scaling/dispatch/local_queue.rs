//! Packets of the local queue: those that are processed here completely, and those of split flows, which continue on
//! auxiliary cores.

use super::Dispatch;
use std::cell::Cell;
use tailwater_chain::batch::{Batch, Packet};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dispatch::OWN;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::core::Unit;

impl Dispatch {
    /// Takes packets out of the local queue, up to the room of the batch, which is empty. Packets that are processed
    /// completely go into the batch, those of split flows into the [parts](Dispatch::parts). They are counted out when
    /// they are [done](Dispatch::done) or [passed on](Dispatch::pass_on). If RSS buckets are `leaving`, packets behind
    /// do not wait long. Returns `true` if more are left.
    #[inline]
    pub(crate) fn take(&mut self, batch: &mut Batch, leaving: bool) -> bool {
        let Dispatch {
            machine,
            lists,
            parts,
            store,
            ..
        } = self;
        let (room, mut taken) = (batch.room(), 0);
        lists.take(machine.backlog.next_list(leaving), room, |parcel| {
            taken += 1;
            match machine.backlog.split_of(parcel.number()) {
                None => batch.add_parcel(store, parcel),
                Some((from, _)) => parts[from].add_parcel(store, parcel),
            }
        });
        machine.backlog.waiting() > taken
    }

    /// Like [`take`](Dispatch::take), but puts all into the batch: no packet is processed after this.
    pub(crate) fn take_undone(&mut self, batch: &mut Batch) -> bool {
        // If the mapper panicked in the middle of a batch, some packets were not parked yet.
        self.park();
        let Dispatch {
            machine, lists, store, ..
        } = self;
        machine.backlog.unpark_all(|parcel| lists.push(OWN, parcel));
        for list in [OWN, machine.backlog.behind()] {
            lists.take(list, batch.room(), |parcel| batch.add_parcel(store, parcel));
        }
        !batch.is_empty() && machine.backlog.waiting() as usize > batch.len()
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
        let Dispatch {
            machine, flow_numbers, ..
        } = self;
        for receipt in batch.return_buffers() {
            if let Some(flow) = machine.backlog.done_here(receipt.number()) {
                flow_numbers.remove(*flow, chain);
            }
            pool.give(receipt.into_buffer());
        }
    }

    /// Counts the packets of a batch from the local queue out, before they are processed: some may wait for the store
    /// afterwards, in order.
    #[inline]
    pub(crate) fn count_out(&mut self, batch: &Batch, chain: &mut Chain) {
        for packet in batch.iter() {
            if let Some(flow) = self.machine.backlog.done_here(packet.number()) {
                self.flow_numbers.remove(*flow, chain);
            }
        }
    }

    /// Discards the first `count` packets of a batch from the local queue, and counts them out.
    #[cold]
    pub(crate) fn discard(&mut self, count: usize, batch: &mut Batch, pool: &mut BufferPool, chain: &mut Chain) {
        for receipt in batch.take_first(count) {
            if let Some(flow) = self.machine.backlog.discarded_here(receipt.number()) {
                self.flow_numbers.remove(*flow, chain);
            }
            pool.give(receipt.into_buffer());
        }
    }

    /// Stages the remaining packets for the auxiliary cores, and counts out dropped ones.
    pub(crate) fn pass_on(&mut self, from: usize, pool: &mut BufferPool, chain: &mut Chain) {
        let Dispatch {
            machine,
            unit,
            lists,
            store,
            parts,
            ..
        } = self;
        let next = Cell::new((OWN, 0));
        let number = |packet: &Packet| {
            next.set(machine.backlog.pass_on(packet.number()));
            if *unit == Unit::Bucket {
                chain.keep_flows(bucket_of(packet.rss_hash), true);
            }
            Some(packet.number())
        };
        parts[from].offload(store, number, |mut parcel| {
            let (list, until) = next.get();
            store.set_until(&mut parcel, until);
            lists.push(list, parcel);
        });
        self.done_part(from, pool, chain);
    }

    /// Counts out the packets of a part.
    pub(crate) fn done_part(&mut self, from: usize, pool: &mut BufferPool, chain: &mut Chain) {
        let Dispatch {
            machine,
            flow_numbers,
            parts,
            ..
        } = self;
        for receipt in parts[from].return_buffers() {
            if let Some(flow) = machine.backlog.done_here(receipt.number()) {
                flow_numbers.remove(*flow, chain);
            }
            pool.give(receipt.into_buffer());
        }
    }
}
