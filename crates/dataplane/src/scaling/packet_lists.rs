//! Packets of a dispatcher: its local queue, and those about to be offloaded.

use tailwater_chain::parcel::Parcel;
use tailwater_dispatch::OWN;

/// Lists of packets, by destination. Memory is never allocated after creation.
#[derive(Debug)]
pub(super) struct PacketLists {
    /// Front of the local queue, last packet first.
    front: Vec<Parcel>,
    /// The back of the local queue, then parcels for each auxiliary core that have not been pushed yet, and finally
    /// packets about to be parked. One array, so sorting needs no branch per packet.
    lists: Vec<Vec<Parcel>>,
    /// Empty list, swapped with the back of the local queue when that is sorted.
    spare: Vec<Parcel>,
}

impl PacketLists {
    /// For a dispatcher with `buffers` buffers and this many auxiliary cores.
    pub(super) fn new(buffers: usize, auxiliaries: usize) -> PacketLists {
        PacketLists {
            front: Vec::with_capacity(buffers),
            lists: (0..auxiliaries + 2).map(|_| Vec::with_capacity(buffers)).collect(),
            spare: Vec::with_capacity(buffers),
        }
    }

    /// Appends a packet to a list.
    #[inline]
    pub(super) fn push(&mut self, list: usize, parcel: Parcel) {
        self.lists[list].push(parcel);
    }

    /// First packet of the local queue.
    pub(super) fn first(&self) -> Option<&Parcel> {
        self.front.last().or(self.lists[OWN].first())
    }

    /// Parcels staged for an auxiliary core.
    #[inline]
    pub(super) fn staged(&mut self, auxiliary: usize) -> &mut Vec<Parcel> {
        &mut self.lists[auxiliary + 1]
    }

    /// Packets about to be parked.
    #[inline]
    pub(super) fn parking(&mut self) -> std::vec::Drain<'_, Parcel> {
        let parking = self.lists.len() - 1;
        self.lists[parking].drain(..)
    }

    /// Moves the local queue's packets to the lists that `list_of` returns for their flows.
    pub(super) fn sort(&mut self, list_of: impl Fn(u16) -> usize) {
        let PacketLists { front, lists, spare } = self;
        std::mem::swap(&mut lists[OWN], spare);
        let mut put = |parcel: Parcel| {
            let list = list_of(parcel.number());
            lists[list].push(parcel);
        };
        front.drain(..).rev().for_each(&mut put);
        spare.drain(..).for_each(&mut put);
    }

    /// Removes up to `most` packets from the local queue, in order.
    #[inline]
    pub(super) fn take(&mut self, most: usize, mut each: impl FnMut(Parcel)) {
        for _ in 0..most {
            if self.front.is_empty() {
                std::mem::swap(&mut self.front, &mut self.lists[OWN]);
                self.front.reverse();
            }
            let Some(parcel) = self.front.pop() else {
                return;
            };
            each(parcel);
        }
    }
}
