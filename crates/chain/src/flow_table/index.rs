//! Indices of flows.

/// Index of a flow in the table. Only a look-up creates one, so it is always in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowIndex(pub(super) u32);

impl FlowIndex {
    /// No flow.
    pub(crate) const NONE: FlowIndex = FlowIndex(u32::MAX);

    /// Index of a flow in another process's table.
    #[inline]
    pub(crate) fn of_another(index: u32) -> FlowIndex {
        FlowIndex(index)
    }

    #[inline]
    pub(crate) fn get(self) -> Option<u32> {
        (self != FlowIndex::NONE).then_some(self.0)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Rejects a packet without a flow. Out of line, because every function with state checks that for each packet.
#[cold]
#[inline(never)]
pub(super) fn no_flow() -> ! {
    panic!("the packet has no flow in this table")
}
