//! Route of a flow whose chain is divided over several auxiliary cores.

/// Maximum number of auxiliary cores on a route.
pub const MAX_PARTS: usize = 8;

/// Part of a chain that an auxiliary core runs on a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its first segment. It ends where the next part begins.
    pub from: u8,
    /// Index of the auxiliary core.
    pub auxiliary: u8,
    /// The flow's packets there: sent, and not yet returned.
    pub packets: u32,
}

/// Next core of a packet, and its work there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index of the auxiliary core.
    pub auxiliary: u8,
    /// First segment that it leaves to the next core, or 0 if it runs all that are left.
    pub until: u8,
    /// `true` if it has no other packet of the flow.
    pub is_first: bool,
}

/// Route of a [split](crate::owner::Placement::Split) flow: the parts of the chain on auxiliary cores, in order. The
/// dispatcher runs the segments in front of the first part.
///
/// A packet passes from part to part through the dispatcher, which counts it. Its next [`Hop`] tells the core how far
/// to run it. That is decided when the packet is sent there, so packets in flight keep to it when the route changes.
///
/// # Changes
/// Each segment's state of the flow has one owner. With packets in flight, a route only changes by
/// [`divide`](Route::divide): one core's last segments go to a core that has none of the flow's packets. No packet that
/// the old owner has yet to run through these segments is passed by a later one: the later ones come to it through the
/// same ring, behind the earlier ones, and reach the new owner only after they return. So all of the old owner's writes
/// to the segments' state happen before the return that the dispatcher pops, and that before the new owner's reads.
///
/// The opposite, [`join`](Route::join), gives segments back to a core *in front*. Packets on their way there could
/// overtake those behind it, so it requires that none is in flight.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    parts: [Part; MAX_PARTS],
    len: u8,
}

impl Route {
    /// Creates a route with one auxiliary core, which runs all segments from `from` on.
    pub fn new(from: u8, auxiliary: u8) -> Route {
        let mut parts = [Part::default(); MAX_PARTS];
        parts[0] = Part {
            from,
            auxiliary,
            packets: 0,
        };
        Route { parts, len: 1 }
    }

    /// Parts on auxiliary cores, in order. At least one.
    #[inline]
    pub fn parts(&self) -> &[Part] {
        &self.parts[..usize::from(self.len)]
    }

    /// Counts a packet that goes to a part.
    #[inline]
    fn go(&mut self, at: usize) -> Hop {
        let until = self.parts().get(at + 1).map_or(0, |next| next.from);
        let part = &mut self.parts[at];
        part.packets += 1;
        Hop {
            auxiliary: part.auxiliary,
            until,
            is_first: part.packets == 1,
        }
    }

    /// Counts a packet in that has passed the dispatcher's segments. Returns its first hop.
    #[inline]
    pub fn enter(&mut self) -> Hop {
        self.go(0)
    }

    /// Counts a packet that an auxiliary core has run as far as `segment`. Returns its next hop, and `true` if the core
    /// has no packet of the flow left.
    ///
    /// # Panics
    /// If the core had none, or no part begins with the segment.
    #[inline]
    pub fn relay(&mut self, auxiliary: u8, segment: u8) -> (Hop, bool) {
        let was_last = self.leave(auxiliary);
        let next = self.parts().iter().position(|part| part.from == segment);
        (self.go(next.expect("the next part begins there")), was_last)
    }

    /// Counts a packet out that an auxiliary core is done with. Returns `true` if the core has no packet of the flow
    /// left.
    ///
    /// # Panics
    /// If the core had none.
    #[inline]
    pub fn leave(&mut self, auxiliary: u8) -> bool {
        let len = usize::from(self.len);
        let part = self.parts[..len].iter_mut().find(|part| part.auxiliary == auxiliary);
        let part = part.expect("the core is on the route");
        let left = part.packets.checked_sub(1);
        part.packets = left.expect("a packet returns that was never sent");
        part.packets == 0
    }

    /// Lets another core, which must have no packet of the flow, run the last segments of one core, from `from` on.
    /// Applies to the packets that come to that core from now on. Returns `false` if a part begins there already, the
    /// core is on the route, or the route is full.
    #[must_use]
    pub fn divide(&mut self, from: u8, auxiliary: u8) -> bool {
        let is_known = |part: &Part| part.from == from || part.auxiliary == auxiliary;
        let len = usize::from(self.len);
        if from == 0 || len == MAX_PARTS || self.parts().iter().any(is_known) {
            return false;
        }
        let at = self.parts().partition_point(|part| part.from < from);
        self.parts.copy_within(at..len, at + 1);
        self.parts[at] = Part {
            from,
            auxiliary,
            packets: 0,
        };
        self.len += 1;
        true
    }

    /// Lets the core in front of the last one run its segments, too. Returns the last core's part, or `None` if there
    /// is only one.
    ///
    /// # Panics
    /// If packets are in flight.
    pub fn join(&mut self) -> Option<Part> {
        let is_empty = self.parts().iter().all(|part| part.packets == 0);
        assert!(is_empty, "a route is joined with packets in flight");
        if self.len == 1 {
            return None;
        }
        self.len -= 1;
        Some(self.parts[usize::from(self.len)])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn hop(auxiliary: u8, until: u8, is_first: bool) -> Hop {
        Hop {
            auxiliary,
            until,
            is_first,
        }
    }

    #[test]
    fn packets_in_flight_keep_to_the_route_they_began() {
        let mut route = Route::new(1, 4);
        assert_eq!(route.enter(), hop(4, 0, true));
        assert!(route.divide(2, 7));
        assert_eq!(route.enter(), hop(4, 2, false));
        // The first one has been sent by its core, the second passes on.
        assert!(!route.leave(4));
        assert_eq!(route.relay(4, 2), (hop(7, 0, true), true));
        // The dispatcher's last segments, too, and more than once.
        assert!(route.divide(3, 2));
        assert_eq!(route.enter(), hop(4, 2, true));
        assert_eq!(route.relay(4, 2), (hop(7, 3, false), true));
        assert!(!route.leave(7) && route.leave(7));
    }

    #[test]
    fn a_core_is_on_a_route_once() {
        let mut route = Route::new(3, 0);
        assert!(!route.divide(4, 0) && !route.divide(3, 1) && !route.divide(0, 1));
        for auxiliary in 1..MAX_PARTS as u8 {
            assert!(route.divide(3 + auxiliary, auxiliary));
        }
        assert!(!route.divide(1, 60), "it is full");
        let mut route = Route::new(3, 0);
        assert!(route.divide(1, 1));
        assert_eq!(
            route.enter(),
            hop(1, 3, true),
            "the dispatcher has the first segment only"
        );
    }

    #[test]
    fn the_last_part_is_joined_first() {
        let mut route = Route::new(1, 5);
        assert!(route.divide(2, 6) && route.divide(3, 7));
        assert_eq!(route.join().map(|part| part.auxiliary), Some(7));
        assert_eq!(route.join().map(|part| part.auxiliary), Some(6));
        assert_eq!(route.join(), None);
        assert_eq!(route.enter(), hop(5, 0, true));
    }

    #[test]
    #[should_panic(expected = "in flight")]
    fn a_join_with_packets_in_flight_is_noticed() {
        let mut route = Route::new(1, 5);
        route.enter();
        route.join();
    }
}
