//! Packets of a dispatcher: its local queue, and those about to be offloaded.

use tailwater_chain::parcel::Parcel;
use tailwater_dispatch::OWN;
use tailwater_handover::partition::partition;

/// Maximum number of auxiliary cores for which the queue is sorted in a pass each.
const MOST_PASSES: u32 = 4;

/// Lists of packets, by destination. Memory is never allocated after creation.
#[derive(Debug)]
pub(super) struct PacketLists {
    /// Front of the local queue, last packet first.
    front: Vec<Parcel>,
    /// The back of the local queue, then parcels for each auxiliary core that have not been pushed yet, packets about
    /// to be parked, the back of the queue behind, and packets about to be lost. One array, so that a packet's list
    /// needs no branch.
    lists: Vec<Vec<Parcel>>,
    /// Front of the queue behind, last packet first.
    front_behind: Vec<Parcel>,
    /// Empty list, swapped with the back of the local queue when that is sorted.
    spare: Vec<Parcel>,
    /// Packets that leave a local queue while it is sorted, and those of them that are not of the current list.
    leaving: Vec<Parcel>,
    others: Vec<Parcel>,
}

impl PacketLists {
    /// For a dispatcher with `buffers` buffers and this many auxiliary cores.
    pub(super) fn new(buffers: usize, auxiliaries: usize) -> PacketLists {
        // One more, for sorting.
        let list = || Vec::with_capacity(buffers + 1);
        PacketLists {
            front: list(),
            lists: (0..auxiliaries + 4).map(|_| list()).collect(),
            front_behind: list(),
            spare: list(),
            leaving: list(),
            others: list(),
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

    /// Returns `true` if parcels are staged for any of them.
    #[inline]
    pub(super) fn has_staged(&self) -> bool {
        let auxiliaries = self.lists.len() - 4;
        self.lists[1..=auxiliaries].iter().any(|staged| !staged.is_empty())
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

    /// Moves the packets of both local queues to the lists that `list_of` returns for their flows, if it returns one:
    /// those of the auxiliary cores in the bit map `moved_to`.
    pub(super) fn sort(&mut self, moved_to: u64, list_of: impl Fn(u16) -> Option<usize>) {
        let behind = self.behind();
        let PacketLists {
            front,
            lists,
            front_behind,
            spare,
            leaving,
            others,
        } = self;
        for (front, own) in [(front, OWN), (front_behind, behind)] {
            std::mem::swap(&mut lists[own], spare);
            // The front is in reverse order.
            front.reverse();
            for part in [front, &mut *spare] {
                partition(part, &mut lists[own], leaving, |parcel| {
                    list_of(parcel.number()).is_none()
                });
            }
            let mut left = moved_to;
            if (1..=MOST_PASSES).contains(&left.count_ones()) {
                // A pass for each core but the last is faster than choosing a list for each packet.
                while left & (left - 1) != 0 {
                    let list = left.trailing_zeros() as usize + 1;
                    left &= left - 1;
                    let is_in_list = |parcel: &Parcel| list_of(parcel.number()) == Some(list);
                    partition(leaving, &mut lists[list], others, is_in_list);
                    std::mem::swap(leaving, others);
                }
                let list = left.trailing_zeros() as usize + 1;
                debug_assert!(leaving.iter().all(|parcel| list_of(parcel.number()) == Some(list)));
                lists[list].append(leaving);
            }
            for parcel in leaving.drain(..) {
                let list = list_of(parcel.number()).unwrap_or(own);
                lists[list].push(parcel);
            }
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
