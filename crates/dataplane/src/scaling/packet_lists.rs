//! Packets of a dispatcher: its local queue, and those about to be offloaded.

use tailwater_chain::parcel::Parcel;
use tailwater_dispatch::OWN;

/// Lists of packets, by destination. Memory is never allocated after creation.
#[derive(Debug)]
pub(super) struct PacketLists {
    /// Front of the local queue, last packet first.
    front: Vec<Parcel>,
    /// The back of the local queue, then parcels for each auxiliary core that have not been pushed yet, packets about
    /// to be parked, the back of the queue behind, and packets about to be lost. One array, so sorting needs no branch
    /// per packet.
    lists: Vec<Vec<Parcel>>,
    /// Front of the queue behind, last packet first.
    front_behind: Vec<Parcel>,
    /// Empty list, swapped with the back of the local queue when that is sorted.
    spare: Vec<Parcel>,
}

impl PacketLists {
    /// For a dispatcher with `buffers` buffers and this many auxiliary cores.
    pub(super) fn new(buffers: usize, auxiliaries: usize) -> PacketLists {
        PacketLists {
            front: Vec::with_capacity(buffers),
            lists: (0..auxiliaries + 4).map(|_| Vec::with_capacity(buffers)).collect(),
            front_behind: Vec::with_capacity(buffers),
            spare: Vec::with_capacity(buffers),
        }
    }

    /// Appends a packet to a list.
    #[inline]
    pub(super) fn push(&mut self, list: usize, parcel: Parcel) {
        self.lists[list].push(parcel);
    }

    /// First packet of the local queue, or of that behind it.
    pub(super) fn first(&self) -> Option<&Parcel> {
        let behind = || self.front_behind.last().or(self.lists[self.behind()].first());
        self.front.last().or(self.lists[OWN].first()).or_else(behind)
    }

    /// Index of the queue behind.
    #[inline]
    fn behind(&self) -> usize {
        self.lists.len() - 2
    }

    /// Parcels staged for an auxiliary core.
    #[inline]
    pub(super) fn staged(&mut self, auxiliary: usize) -> &mut Vec<Parcel> {
        &mut self.lists[auxiliary + 1]
    }

    /// Packets about to be parked.
    #[inline]
    pub(super) fn parking(&mut self) -> std::vec::Drain<'_, Parcel> {
        let parking = self.lists.len() - 3;
        self.lists[parking].drain(..)
    }

    /// Packets about to be lost.
    #[inline]
    pub(super) fn refused(&mut self) -> std::vec::Drain<'_, Parcel> {
        let refused = self.lists.len() - 1;
        self.lists[refused].drain(..)
    }

    /// Moves packets from the local queue to that behind, in order. Returns their number.
    #[cold]
    pub(super) fn overtake(&mut self, is_overtaken: impl Fn(&Parcel) -> bool) -> u32 {
        let behind = self.behind();
        let PacketLists { front, lists, .. } = self;
        let [own, back] = lists.get_disjoint_mut([OWN, behind]).expect("two lists");
        // The front is in reverse order.
        let before = back.len();
        back.extend(front.extract_if(.., |parcel| is_overtaken(parcel)));
        back[before..].reverse();
        back.extend(own.extract_if(.., |parcel| is_overtaken(parcel)));
        (back.len() - before) as u32
    }

    /// Moves the packets of both local queues to the lists that `list_of` returns for their flows, if it returns one.
    pub(super) fn sort(&mut self, mut list_of: impl FnMut(u16) -> Option<usize>) {
        let behind = self.behind();
        let PacketLists {
            front,
            lists,
            front_behind,
            spare,
        } = self;
        for (front, own) in [(front, OWN), (front_behind, behind)] {
            std::mem::swap(&mut lists[own], spare);
            let mut put = |parcel: Parcel| {
                let list = list_of(parcel.number()).unwrap_or(own);
                lists[list].push(parcel);
            };
            front.drain(..).rev().for_each(&mut put);
            spare.drain(..).for_each(&mut put);
        }
    }

    /// Removes up to `most` packets from the local queue, or from that behind, in order.
    #[inline]
    pub(super) fn take(&mut self, list: usize, most: usize, mut each: impl FnMut(Parcel)) {
        let front = match list {
            OWN => &mut self.front,
            _ => &mut self.front_behind,
        };
        for _ in 0..most {
            if front.is_empty() {
                std::mem::swap(front, &mut self.lists[list]);
                front.reverse();
            }
            let Some(parcel) = front.pop() else {
                return;
            };
            each(parcel);
        }
    }
}
