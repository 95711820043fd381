//! Who may touch a flow: where its packets are processed, and how many are still there.

/// Where a flow's packets are processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// By the dispatcher, the core that owns the flow's table.
    #[default]
    Home,
    /// By the helper of this number.
    Helper(u8),
    /// In two places: the dispatcher runs the chain's segments in front of number `from`, then a helper
    /// those from there on.
    Split {
        /// The helper's first segment.
        from: u8,
        /// The helper.
        helper: u8,
    },
}

/// The dispatcher's note on one flow: the place of its packets, and how many of them are in flight,
/// that is handed to that place and not yet returned.
///
/// Only the dispatcher reads and writes it, so it needs no atomics. It holds the rule that a flow
/// has one owner: **a flow changes its place only while none of its packets is in flight.** The
/// protocol around it:
///
/// 1. For each packet, in order of arrival, the dispatcher [settles](Owner::settle) the flow where
///    the policy wants it, or learns that it has to stay, and counts the packet
///    [in](Owner::sent) before it goes into the ring to a helper.
/// 2. The helper processes packets in the order of its ring, and puts each into its return ring
///    when it no longer touches the flow's state.
/// 3. The dispatcher counts each packet [out](Owner::returned) when it takes it from the return
///    ring. A packet that never went into the ring (it was full) is counted out as well.
///
/// What a place did to the flow's state is then visible at the next one: from helper to dispatcher
/// by the return ring, from dispatcher to helper by the ring to it. Packets stay in order, since at
/// any time all of a flow's packets in flight are in one ring.
///
/// A helper waits while its return ring is full, so a dispatcher that waits for room in the ring to
/// a helper goes on collecting what returns; else both would wait for ever.
///
/// A flow that is [split](Place::Split) has two owners, each of its own part of the flow's state: the
/// dispatcher of that of the first segments, the helper of the rest. Each packet is processed here
/// first, and counted in when it leaves for the helper. The rule is the same: while none is there,
/// all of the flow is the dispatcher's, who may begin to split it, end that, or move the whole.
///
/// Packets at [`Place::Home`] need no count if the dispatcher finishes each before it settles the
/// flow again; if it gathers batches first, they are counted in and out like any other.
///
/// The same note on an RSS bucket, with every packet of its flows counted in and out, says when the
/// bucket may move to another dispatcher.
///
/// ```
/// use tailwater_handover::owner::{Owner, Place};
///
/// let mut flow = Owner::default();
/// // Two packets go to helper 3.
/// assert_eq!(flow.settle(Place::Helper(3)), Place::Helper(3));
/// flow.sent();
/// flow.sent();
/// // The policy wants the flow back, but one packet is still there: the next one follows it.
/// flow.returned();
/// assert_eq!(flow.settle(Place::Home), Place::Helper(3));
/// // None is left, so the flow comes home.
/// flow.returned();
/// assert_eq!(flow.settle(Place::Home), Place::Home);
/// // Split, it stays so until no packet is in the helper's half.
/// let split = Place::Split { from: 1, helper: 3 };
/// assert_eq!(flow.settle(split), split);
/// flow.sent();
/// assert_eq!(flow.settle(Place::Home), split);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    in_flight: u32,
    place: Place,
}

impl Owner {
    /// Where the flow's packets are processed now.
    #[inline]
    pub fn place(&self) -> Place {
        self.place
    }

    /// How many packets are handed to that place and not yet returned.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Moves the flow to `wanted` if none of its packets is in flight, and says where its next
    /// packet has to go.
    #[inline]
    pub fn settle(&mut self, wanted: Place) -> Place {
        if self.in_flight == 0 {
            self.place = wanted;
        }
        self.place
    }

    /// Counts a packet that goes to the flow's place.
    ///
    /// # Panics
    /// If 2^32 - 1 are there already: more than there can be buffers.
    #[inline]
    pub fn sent(&mut self) {
        self.sent_many(1);
    }

    /// Counts so many packets that go to the flow's place.
    ///
    /// # Panics
    /// If there would be 2^32 or more: more than there can be buffers.
    #[inline]
    pub fn sent_many(&mut self, packets: u32) {
        let count = self.in_flight.checked_add(packets);
        self.in_flight = count.expect("no more packets than buffers");
    }

    /// Counts a packet that came back, or never left.
    ///
    /// # Panics
    /// If none is in flight: then the count is wrong, and the flow may have had two owners.
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
        assert_eq!(owner.place(), Place::Home);
        let split = Place::Split { from: 2, helper: 1 };
        for place in [Place::Helper(0), split, Place::Helper(255)] {
            assert_eq!(owner.settle(place), place);
            owner.sent();
            owner.sent();
            assert_eq!(owner.in_flight(), 2);
            for _ in 0..2 {
                let elsewhere = Place::Split { from: 1, helper: 1 };
                for wanted in [Place::Home, Place::Helper(7), elsewhere] {
                    assert_eq!(owner.settle(wanted), place);
                }
                owner.returned();
            }
        }
        assert_eq!(owner.settle(Place::Home), Place::Home);
        // Counted packets keep it at home, too.
        owner.sent();
        assert_eq!(owner.settle(Place::Helper(1)), Place::Home);
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
