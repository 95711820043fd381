//! Packets on their way between cores: eight bytes in a queue, the rest in a store that all see.
//!
//! Another module with `unsafe` code: the store's places are written by one core and read by
//! another. The [`Parcel`] is the right to a place: there is one for each buffer, it cannot be
//! copied, and it travels through a queue whose push happens before its pop.

use crate::batch::Packet;
use crate::buffer::{Buffer, BufferPool};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tailwater_net::Nanos;

/// A packet on its way to another core: its buffer, and the number that its dispatcher gave its flow.
/// The packet's metadata is in the [`PacketStore`] meanwhile.
#[derive(Debug)]
pub struct Parcel(Receipt);

const _: () = assert!(size_of::<Parcel>() == 8);

impl Parcel {
    /// The flow's number with its dispatcher.
    #[inline]
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// The buffer and the flow's number, of a packet that nobody will process.
    #[inline]
    pub fn discard(self) -> Receipt {
        self.0
    }
}

/// What is left of a packet that has been processed: a buffer on its way back, and the number of a
/// flow one of whose packets is done.
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

    /// The flow's number with its dispatcher.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The buffer, for the pool.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        Buffer::from_parts(self.index, self.pool)
    }
}

/// The metadata of packets that are in queues, by buffer. Cheap to clone: clones are one store.
#[derive(Clone, Debug)]
pub struct PacketStore {
    places: Arc<[Place]>,
    pool: u16,
}

/// Lines of their own, so that neighbours on different cores do not share one.
#[derive(Debug)]
#[repr(align(128))]
struct Place(UnsafeCell<MaybeUninit<Packet>>);

// SAFETY: a place is touched only with the parcel or buffer of its index in hand, of which there is
// one; `Packet` is plain data, without a destructor.
unsafe impl Sync for Place {}

impl PacketStore {
    /// For the buffers of `pool`.
    pub fn new(pool: &BufferPool) -> PacketStore {
        let places = (0..pool.capacity()).map(|_| Place(UnsafeCell::new(MaybeUninit::uninit())));
        PacketStore {
            places: places.collect(),
            pool: pool.memory().pool(),
        }
    }

    /// The place of a buffer, which must be of the store's pool.
    #[inline]
    fn place(&self, receipt: &Receipt) -> *mut MaybeUninit<Packet> {
        assert!(receipt.pool == self.pool, "a buffer of another pool");
        self.places[receipt.index as usize].0.get()
    }

    /// Puts a packet's metadata where its buffer says.
    #[inline]
    pub(crate) fn put(&self, packet: Packet, buffer: Buffer) -> Parcel {
        let number = packet.number;
        let receipt = Receipt::new(buffer, number);
        // SAFETY: the place is that of a buffer which this core held until now, and nobody else can.
        unsafe { (*self.place(&receipt)).write(packet) };
        Parcel(receipt)
    }

    /// Takes out what [`put`](PacketStore::put) put in.
    #[inline]
    pub(crate) fn take(&self, parcel: Parcel) -> (Packet, Buffer) {
        // SAFETY: parcels with metadata are made by `put` only, and consumed here; whoever got this one
        // from another core did so through a queue, so the write happened before.
        let packet = unsafe { (*self.place(&parcel.0)).assume_init_read() };
        (packet, parcel.0.into_buffer())
    }

    /// When the packet arrived.
    #[inline]
    pub fn arrival(&self, parcel: &Parcel) -> Nanos {
        // SAFETY: as in `take`; the parcel stays, so the place is only read.
        unsafe { (*self.place(&parcel.0)).assume_init_ref().arrival }
    }

    /// The [segment](crate::chain::Chain::segments) of the chain that is to process the packet next.
    #[inline]
    pub fn segment(&self, parcel: &Parcel) -> usize {
        // SAFETY: as in `arrival`.
        let packet = unsafe { (*self.place(&parcel.0)).assume_init_ref() };
        usize::from(packet.segment)
    }

    /// Starts to fetch what is known of a packet.
    #[inline]
    pub fn prefetch(&self, parcel: &Parcel) {
        if let Some(place) = self.places.get(parcel.0.index as usize) {
            let first = place.0.get().cast::<u8>();
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
        batch.send_away(&store, number, |parcel| parcels.push(parcel));
        assert_eq!((batch.len(), batch.frame(1)[0]), (2, 2));
        assert!(parcels.iter().all(|parcel| parcel.number() == 7));

        let mut other = Batch::new(&pool, 4);
        parcels.into_iter().for_each(|parcel| other.take_in(&store, parcel));
        assert_eq!((other.frame(0), other.frame(1)), (&[1; 20][..], &[3; 20][..]));
        assert_eq!(other.iter().map(|packet| packet.arrival.0).collect::<Vec<_>>(), [1, 3]);
        other.packet_mut(0).0.verdict = Verdict::Drop(0);
        other.compact(|_, _| {});
        let receipts: Vec<Receipt> = other.send_back().collect();
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
        batch.send_away(&store, |_| Some(0), |_| ());
    }
}
