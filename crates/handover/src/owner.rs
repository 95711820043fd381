//! Ownership of a flow: the core that processes its packets, and the number of packets still there.

/// Core or cores that process a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The dispatcher, which owns the flow's table.
    #[default]
    Home,
    /// The auxiliary core with this index.
    Auxiliary(u8),
    /// Two cores or more: the dispatcher runs the chain's segments before `from`, then auxiliary cores run the rest. If
    /// there is more than one, the flow's [`Route`](crate::route::Route) has the others.
    Split {
        /// First segment on the first auxiliary core.
        from: u8,
        /// Index of the first auxiliary core.
        auxiliary: u8,
    },
}

/// Ownership record of one flow: where its packets are processed, and how many are in flight, that is, sent there and
/// not yet returned.
///
/// Only the dispatcher reads and writes it, so it needs no atomics. It enforces that a flow has one owner: **a flow
/// changes its core only while none of its packets is in flight.** The protocol:
///
/// 1. For each packet, in order of arrival, the dispatcher calls [`settle`](Owner::settle) with the core the policy
///    selects. The result is where the packet goes: there, or to the current core if the flow has to stay. The
///    dispatcher counts the packet [in](Owner::sent) before it pushes it into the ring to an auxiliary core.
/// 2. The auxiliary core processes packets in ring order, and pushes each into its return ring once it no longer
///    accesses the flow's state.
/// 3. The dispatcher counts each packet [out](Owner::returned) when it pops it from the return ring. A packet that
///    never entered the ring (it was full) is counted out as well.
///
/// Writes to the flow's state on one core are then visible on the next: from auxiliary core to dispatcher through the
/// return ring, from dispatcher to auxiliary core through the ring to it. Packets stay in order, because all of a
/// flow's packets in flight are in one ring at any time.
///
/// An auxiliary core waits while its return ring is full. So a dispatcher that waits for room in the ring to an
/// auxiliary core keeps popping returned packets. Otherwise both would deadlock.
///
/// A flow that is [split](Placement::Split) has two owners, each of its own part of the flow's state: the dispatcher of
/// that of the first segments, the auxiliary core of the rest. The dispatcher processes each packet first, and counts
/// it in when it leaves for the auxiliary core. The rule is the same. While no packet is there, the dispatcher owns the
/// whole flow, and may split it, end the split, or move all of it.
///
/// Only [`divide`](Owner::divide) changes a split with packets in flight: the dispatcher's last segments go to another
/// core. The packets that the dispatcher has run through these segments are in front of all later ones, and it is done
/// with the segments.
///
/// Packets at [`Placement::Home`] need no count if the dispatcher finishes each before it settles the flow again. If it
/// gathers batches first, they are counted in and out like any other.
///
/// The same record for an RSS bucket, with every packet of its flows counted in and out, determines when the bucket may
/// move to another dispatcher.
///
/// ```
/// use tailwater_handover::owner::{Owner, Placement};
///
/// let mut flow = Owner::default();
/// // Two packets go to auxiliary 3.
/// assert_eq!(flow.settle(Placement::Auxiliary(3)), Placement::Auxiliary(3));
/// flow.sent();
/// flow.sent();
/// // The policy wants the flow back, but one packet is still there: the next one follows it.
/// flow.returned();
/// assert_eq!(flow.settle(Placement::Home), Placement::Auxiliary(3));
/// // None is left, so the flow comes home.
/// flow.returned();
/// assert_eq!(flow.settle(Placement::Home), Placement::Home);
/// // Split, it stays so until no packet is in the auxiliary's half.
/// let split = Placement::Split { from: 1, auxiliary: 3 };
/// assert_eq!(flow.settle(split), split);
/// flow.sent();
/// assert_eq!(flow.settle(Placement::Home), split);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    in_flight: u32,
    placement: Placement,
}

impl Owner {
    /// Current placement of the flow.
    #[inline]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Packets sent to the current core and not yet returned.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Moves the flow to `wanted` if none of its packets is in flight. Returns the placement that applies to its next
    /// packet.
    #[inline]
    pub fn settle(&mut self, wanted: Placement) -> Placement {
        if self.in_flight == 0 {
            self.placement = wanted;
        }
        self.placement
    }

    /// Gives the last of the dispatcher's segments of a split flow, those from `from` on, to an auxiliary core that has
    /// none of its packets. The packets in flight continue as before. Returns `true` if the dispatcher had these
    /// segments.
    #[inline]
    pub fn divide(&mut self, from: u8, auxiliary: u8) -> bool {
        let Placement::Split { from: before, .. } = self.placement else {
            return false;
        };
        let has_them = from < before;
        if has_them {
            self.placement = Placement::Split { from, auxiliary };
        }
        has_them
    }

    /// Counts a packet sent to the flow's core.
    ///
    /// # Panics
    /// If 2^32 - 1 are in flight already: more than there can be buffers.
    #[inline]
    pub fn sent(&mut self) {
        self.sent_many(1);
    }

    /// Counts `packets` packets sent to the flow's core.
    ///
    /// # Panics
    /// If 2^32 or more would be in flight: more than there can be buffers.
    #[inline]
    pub fn sent_many(&mut self, packets: u32) {
        let count = self.in_flight.checked_add(packets);
        self.in_flight = count.expect("no more packets than buffers");
    }

    /// Counts a packet that returned, or that was never sent.
    ///
    /// # Panics
    /// If none is in flight: the count is wrong, and the flow may have had two owners.
    #[inline]
    pub fn returned(&mut self) {
        let count = self.in_flight.checked_sub(1);
        self.in_flight = count.expect("a packet returns that was never sent");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flow_moves_only_when_none_is_in_flight() {
        let mut owner = Owner::default();
        assert_eq!(owner.placement(), Placement::Home);
        let split = Placement::Split { from: 2, auxiliary: 1 };
        for placement in [Placement::Auxiliary(0), split, Placement::Auxiliary(255)] {
            assert_eq!(owner.settle(placement), placement);
            owner.sent();
            owner.sent();
            assert_eq!(owner.in_flight(), 2);
            for _ in 0..2 {
                let other = Placement::Split { from: 1, auxiliary: 1 };
                for wanted in [Placement::Home, Placement::Auxiliary(7), other] {
                    assert_eq!(owner.settle(wanted), placement);
                }
                owner.returned();
            }
        }
        assert_eq!(owner.settle(Placement::Home), Placement::Home);
        // Counted packets keep a flow on the dispatcher, too.
        owner.sent();
        assert_eq!(owner.settle(Placement::Auxiliary(1)), Placement::Home);
    }

    #[test]
    fn the_dispatcher_gives_its_last_segments_away_with_packets_in_flight() {
        let mut owner = Owner::default();
        assert!(!owner.divide(1, 0), "it is not split");
        owner.settle(Placement::Split { from: 2, auxiliary: 1 });
        owner.sent();
        assert!(
            !owner.divide(2, 0) && !owner.divide(3, 0),
            "the auxiliary core has these"
        );
        assert!(owner.divide(1, 0));
        assert_eq!(owner.placement(), Placement::Split { from: 1, auxiliary: 0 });
        assert_eq!(owner.in_flight(), 1);
    }

    #[test]
    #[should_panic(expected = "never sent")]
    fn a_packet_too_many_is_noticed() {
        Owner::default().returned();
    }

    #[test]
    fn a_note_is_small() {
        assert_eq!(size_of::<Owner>(), 8);
    }
}
