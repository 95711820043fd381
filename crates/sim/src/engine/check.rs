//! Checks of invariants that hold for every policy.
//!
//! - *Order*: a flow's packets are processed and leave in the order of their arrival.
//! - *One owner*: no core begins with a part of a flow's chain before another has ended with it.
//! - *Buckets*: a core that processes or offloads a packet owns its bucket, or flow.
//! - *Conservation*: every packet leaves, is lost, or is in the system.

/// State of one part of a flow's chain.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentState {
    /// Arrival of the last packet processed.
    arrival: u64,
    /// End of its processing, and the core.
    end: u64,
    core: u16,
}

/// Checks one tenant's flows.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// By flow: the first part or the whole, and the last part.
    flows: Vec<[SegmentState; 2]>,
}

/// Part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// All of it.
    Whole,
    /// The first functions of a flow that is split.
    First,
    /// The last ones.
    Last,
}

impl Checker {
    /// Resets the state of a flow that begins.
    pub fn opened(&mut self, flow: u32) {
        let flow = flow as usize;
        if self.flows.len() <= flow {
            self.flows.resize(flow + 1, Default::default());
        }
        self.flows[flow] = Default::default();
    }

    /// Checks a packet that a core processes from `start` to `end`.
    ///
    /// # Panics
    /// If it violates an invariant.
    pub fn processed(&mut self, (flow, arrival): (u32, u64), segment: Segment, core: usize, (start, end): (u64, u64)) {
        let parts: &[usize] = match segment {
            Segment::Whole => &[0, 1],
            Segment::First => &[0],
            Segment::Last => &[1],
        };
        for &part in parts {
            let known = &mut self.flows[flow as usize][part];
            assert!(
                known.arrival <= arrival,
                "flow {flow} is reordered: a packet of {arrival} after one of {}",
                known.arrival
            );
            assert!(
                known.end <= start || usize::from(known.core) == core && known.end <= end,
                "flow {flow} has two owners: core {core} begins at {start}, core {} ends at {}",
                known.core,
                known.end
            );
            *known = SegmentState {
                arrival,
                end,
                core: core as u16,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checker() -> Checker {
        let mut checker = Checker::default();
        checker.opened(3);
        checker.processed((3, 10), Segment::Whole, 1, (20, 30));
        checker
    }

    #[test]
    fn what_is_in_order_passes() {
        let mut checker = checker();
        checker.processed((3, 10), Segment::Whole, 1, (20, 30));
        checker.processed((3, 11), Segment::First, 2, (30, 40));
        checker.processed((3, 11), Segment::Last, 1, (40, 50));
        checker.processed((3, 12), Segment::First, 2, (41, 45));
    }

    #[test]
    #[should_panic(expected = "reordered")]
    fn an_older_packet_is_noticed() {
        checker().processed((3, 9), Segment::Whole, 1, (40, 50));
    }

    #[test]
    #[should_panic(expected = "two owners")]
    fn another_core_too_early_is_noticed() {
        checker().processed((3, 12), Segment::Last, 2, (29, 50));
    }

    #[test]
    #[should_panic(expected = "two owners")]
    fn the_whole_after_a_part_too_early_is_noticed() {
        let mut checker = checker();
        checker.processed((3, 11), Segment::Last, 2, (40, 50));
        checker.processed((3, 12), Segment::Whole, 1, (45, 60));
    }
}
