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

/// Number of functions, counted from the chain's end, that are told apart. The first of them stands for all in front of
/// it, too, and is not checked where the chain is cut in front of it.
const PARTS: usize = 4;

/// Number of last functions at the chain's begin.
pub(crate) const FUNCTIONS: u8 = u8::MAX;

/// Checks one tenant's flows.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    /// By flow: its last functions, the last one first.
    flows: Vec<[SegmentState; PARTS]>,
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

    /// Checks a packet that a core processes from `start` to `end`. The functions are those from the last `first` on
    /// to in front of the last `end_part`.
    ///
    /// # Panics
    /// If it violates an invariant.
    pub fn processed(
        &mut self,
        (flow, arrival): (u32, u64),
        [first, end_part]: [u8; 2],
        core: usize,
        (start, end): (u64, u64),
    ) {
        let most = PARTS.min(first.into());
        for part in usize::from(end_part)..most {
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
        checker.processed((3, 10), [FUNCTIONS, 0], 1, (20, 30));
        checker
    }

    #[test]
    fn what_is_in_order_passes() {
        let mut checker = checker();
        checker.processed((3, 10), [FUNCTIONS, 0], 1, (20, 30));
        checker.processed((3, 11), [FUNCTIONS, 2], 2, (30, 40));
        checker.processed((3, 11), [2, 0], 1, (40, 50));
        checker.processed((3, 12), [FUNCTIONS, 2], 2, (41, 45));
        checker.processed((3, 12), [2, 1], 1, (51, 55));
        checker.processed((3, 12), [1, 0], 3, (55, 60));
    }

    #[test]
    #[should_panic(expected = "reordered")]
    fn an_older_packet_is_noticed() {
        checker().processed((3, 9), [FUNCTIONS, 0], 1, (40, 50));
    }

    #[test]
    #[should_panic(expected = "two owners")]
    fn another_core_too_early_is_noticed() {
        checker().processed((3, 12), [1, 0], 2, (29, 50));
    }

    #[test]
    #[should_panic(expected = "two owners")]
    fn the_whole_after_a_part_too_early_is_noticed() {
        let mut checker = checker();
        checker.processed((3, 11), [1, 0], 2, (40, 50));
        checker.processed((3, 12), [FUNCTIONS, 0], 1, (45, 60));
    }

    #[test]
    #[should_panic(expected = "two owners")]
    fn a_longer_part_too_early_is_noticed() {
        let mut checker = checker();
        checker.processed((3, 11), [1, 0], 2, (40, 50));
        checker.processed((3, 12), [3, 0], 4, (45, 60));
    }
}
