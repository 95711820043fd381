//! Packets in transit between cores: eight bytes in a queue, the metadata in a store that all cores share.
//!
//! Another module with `unsafe` code: one core writes the store's slots and another reads them. The [`Parcel`] is the
//! right to access a slot. There is one for each buffer, it cannot be copied, and it travels through a queue whose push
//! happens before its pop.

use crate::batch::packet::Packet;
use crate::buffer::{Buffer, BufferMemory, BufferPool};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Packet in transit to another core: its buffer, and the number its dispatcher assigned to its flow. Its metadata is
/// in the [`PacketStore`] in the meantime.
#[derive(Debug)]
pub struct Parcel(Receipt);

const _: () = assert!(size_of::<Parcel>() == 8);

impl Parcel {
    /// Number that the dispatcher assigned to the flow.
    #[inline]
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// Returns the buffer and the flow's number of a packet that will not be processed.
    #[inline]
    pub fn discard(self) -> Receipt {
        self.0
    }
}

/// Remainder of a processed packet: its buffer on the way back, and its flow's number, for the dispatcher to count the
/// packet as completed.
#[derive(Debug)]
pub struct Receipt {
    index: u32,
    pool: u16,
    number: u16,
}

impl Receipt {
    #[inline]
    pub(crate) fn new(buffer: Buffer, number: u16) -> Receipt {
        let (index, pool) = buffer.into_parts();
        Receipt { index, pool, number }
    }

    /// Number that the dispatcher assigned to the flow.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the buffer, for the pool.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        Buffer::from_parts(self.index, self.pool)
    }
}

/// Metadata of packets in queues, indexed by buffer. Clones are cheap and share one store.
#[derive(Clone, Debug)]
pub struct PacketStore {
    slots: Arc<[PacketSlot]>,
    pool: u16,
}

/// Slot in cache lines of its own, so that neighbours on different cores do not share one.
#[derive(Debug)]
#[repr(align(128))]
struct PacketSlot {
    packet: UnsafeCell<MaybeUninit<Packet>>,
    /// First segment that the core the packet goes to leaves to another one; 0 for none.
    until: UnsafeCell<u8>,
}

const _: () = assert!(size_of::<PacketSlot>() == 128);

// SAFETY: access to a slot requires the unique parcel or buffer of its index. `Packet` is plain data without a
// destructor.
unsafe impl Sync for PacketSlot {}

impl PacketStore {
    /// Creates a store for the buffers of `pool`, and of all others on its memory.
    pub fn new(pool: &BufferPool) -> PacketStore {
        PacketStore::of_memory(pool.memory())
    }

    /// Creates a store for all buffers of this memory.
    pub fn of_memory(memory: &BufferMemory) -> PacketStore {
        let slots = (0..memory.count()).map(|_| PacketSlot {
            packet: UnsafeCell::new(MaybeUninit::uninit()),
            until: UnsafeCell::new(0),
        });
        PacketStore {
            slots: slots.collect(),
            pool: memory.pool(),
        }
    }

    /// Slot of a buffer, which must belong to the store's pool.
    #[inline]
    fn slot_of(&self, receipt: &Receipt) -> &PacketSlot {
        assert!(receipt.pool == self.pool, "a buffer of another pool");
        &self.slots[receipt.index as usize]
    }

    /// Metadata in the slot of a buffer.
    #[inline]
    fn slot(&self, receipt: &Receipt) -> *mut MaybeUninit<Packet> {
        self.slot_of(receipt).packet.get()
    }

    /// Stores a packet's metadata in its buffer's slot.
    #[inline]
    pub(crate) fn put(&self, packet: Packet, buffer: Buffer) -> Parcel {
        let number = packet.number;
        let receipt = Receipt::new(buffer, number);
        // SAFETY: this core held the slot's buffer until now, so nothing else can access the slot.
        unsafe { (*self.slot(&receipt)).write(packet) };
        Parcel(receipt)
    }

    /// Takes out the metadata and buffer that [`put`](PacketStore::put) stored.
    #[inline]
    pub(crate) fn take(&self, parcel: Parcel) -> (Packet, Buffer) {
        // SAFETY: only `put` creates parcels with metadata, and this call consumes the parcel. A parcel from another
        // core came through a queue, so the write happened before.
        let packet = unsafe { (*self.slot(&parcel.0)).assume_init_read() };
        (packet, parcel.0.into_buffer())
    }

    /// Takes the buffer of a packet that is lost.
    #[inline]
    pub fn discard(&self, parcel: Parcel) -> Buffer {
        self.take(parcel).1
    }

    /// Arrival time of the packet.
    #[inline]
    pub fn arrival(&self, parcel: &Parcel) -> Nanos {
        // SAFETY: as in `take`; the parcel remains, so the slot is only read.
        unsafe { (*self.slot(&parcel.0)).assume_init_ref().arrival }
    }

    /// RSS hash of the packet.
    #[inline]
    pub fn rss_hash(&self, parcel: &Parcel) -> u32 {
        // SAFETY: as in `arrival`.
        unsafe { (*self.slot(&parcel.0)).assume_init_ref().rss_hash }
    }

    /// Next [segment](crate::chain::Chain::segments) of the chain for the packet.
    #[inline]
    pub fn segment(&self, parcel: &Parcel) -> usize {
        // SAFETY: as in `arrival`.
        let packet = unsafe { (*self.slot(&parcel.0)).assume_init_ref() };
        usize::from(packet.segment)
    }

    /// First [segment](crate::chain::Chain::segments) that the core the packet goes to leaves to another one, or 0 for
    /// none, as it was [set](PacketStore::set_until) for a packet that begins at a later segment than the first.
    #[inline]
    pub fn until(&self, parcel: &Parcel) -> usize {
        // SAFETY: as in `arrival`. The value is initialized, and of this packet or an earlier one with the buffer.
        let until = unsafe { *self.slot_of(&parcel.0).until.get() };
        usize::from(until)
    }

    /// Sets that segment.
    #[inline]
    pub fn set_until(&self, parcel: &mut Parcel, segment: usize) {
        // SAFETY: the parcel is the right to access the slot, and it is borrowed exclusively.
        unsafe { *self.slot_of(&parcel.0).until.get() = segment as u8 };
    }

    /// Prefetches the metadata of a packet.
    #[inline]
    pub fn prefetch(&self, parcel: &Parcel) {
        if let Some(slot) = self.slots.get(parcel.0.index as usize) {
            let first = slot.packet.get().cast::<u8>();
            crate::region::prefetch(first);
            crate::region::prefetch(first.wrapping_add(crate::region::CACHE_LINE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Verdict};

    #[test]
    fn packets_come_through_the_store_as_they_were() {
        let mut pool = BufferPool::new(8, 64).unwrap();
        let store = PacketStore::new(&pool);
        let mut batch = Batch::new(&pool, 4);
        for i in 0..4u8 {
            assert!(batch.push(&mut pool, &[i; 20], Nanos(i.into()), u32::from(i)));
        }
        let mut parcels = Vec::new();
        let number = |packet: &Packet| (packet.rss_hash % 2 == 1).then_some(7);
        batch.offload(&store, number, |parcel| parcels.push(parcel));
        assert_eq!((batch.len(), batch.frame(1)[0]), (2, 2));
        assert!(parcels.iter().all(|parcel| parcel.number() == 7));

        store.set_until(&mut parcels[0], 2);
        assert_eq!((store.until(&parcels[0]), store.until(&parcels[1])), (2, 0));
        let mut other = Batch::new(&pool, 4);
        parcels.into_iter().for_each(|parcel| other.add_parcel(&store, parcel));
        assert_eq!((other.frame(0), other.frame(1)), (&[1; 20][..], &[3; 20][..]));
        assert_eq!(other.iter().map(|packet| packet.arrival.0).collect::<Vec<_>>(), [1, 3]);
        other.packet_mut(0).0.verdict = Verdict::Drop(0);
        other.compact(|_, _| {});
        let receipts: Vec<Receipt> = other.return_buffers().collect();
        assert_eq!(receipts.iter().map(Receipt::number).collect::<Vec<_>>(), [7, 7]);
        receipts
            .into_iter()
            .for_each(|receipt| pool.give(receipt.into_buffer()));
        batch.release(&mut pool);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    #[should_panic(expected = "another pool")]
    fn a_store_of_another_pool_is_refused() {
        let mut pool = BufferPool::new(1, 64).unwrap();
        let store = PacketStore::new(&BufferPool::new(1, 64).unwrap());
        let mut batch = Batch::new(&pool, 1);
        assert!(batch.push(&mut pool, &[0; 20], Nanos::ZERO, 0));
        batch.offload(&store, |_| Some(0), |_| ());
    }
}
