//! Flows and packets that one core can process in one epoch.

use crate::core::Load;

/// Largest flow count that a frontier distinguishes. An observation of more flows is recorded with this many, which
/// claims less.
pub const MAX_FLOWS: u32 = 1 << 14;

/// Pareto frontier of the loads that one core processed in one epoch (NetBlaze, section 3.2, Fig. 3).
///
/// A core that processed ⟨f, p⟩ can process as many flows or fewer, and as many packets or fewer. So the capacity for
/// `f` flows is the largest packet count of any observation with at least `f` flows. This is a staircase that never
/// rises with the flows, whatever was inserted. Between observations it claims no more than was observed.
///
/// For more flows than were ever observed the capacity is zero: no group of flows is made larger than any that a core
/// has processed. (NetBlaze's code takes the last observation's packets for all larger flow counts.) The static
/// variants hold for any flow count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochFrontier {
    /// Observations that no other one covers, with rising flows and falling packets.
    corners: Vec<Load>,
    /// Capacity for every flow count from zero to the last corner's.
    table: Vec<u32>,
    /// Capacity for any flow count. It is below that of all corners.
    any: u32,
}

impl EpochFrontier {
    /// Creates a frontier without observations, which admits nothing.
    pub const fn new() -> Self {
        EpochFrontier::constant(0)
    }

    /// Creates a frontier that admits `packets` for any number of flows.
    pub const fn constant(packets: u32) -> Self {
        EpochFrontier {
            corners: Vec::new(),
            table: Vec::new(),
            any: packets,
        }
    }

    /// Records that a core processed this load within an epoch. Returns `true` if the frontier grew. An empty
    /// observation is ignored.
    pub fn insert(&mut self, seen: Load) -> bool {
        let seen = Load {
            flows: seen.flows.min(MAX_FLOWS),
            ..seen
        };
        if seen.flows == 0 || self.capacity(seen.flows) >= seen.packets {
            return false;
        }
        let covers = |corner: &Load| corner.flows <= seen.flows && corner.packets <= seen.packets;
        self.corners.retain(|corner| !covers(corner));
        let after = self.corners.partition_point(|c| c.flows < seen.flows);
        self.corners.insert(after, seen);
        let flows = seen.flows as usize;
        if self.table.len() <= flows {
            self.table.resize(flows + 1, self.any);
        }
        for capacity in &mut self.table[..=flows] {
            *capacity = seen.packets.max(*capacity);
        }
        true
    }

    /// Returns the maximum number of packets of `flows` flows together.
    #[inline]
    pub fn capacity(&self, flows: u32) -> u32 {
        match self.table.get(flows as usize) {
            Some(&capacity) => capacity,
            None => self.any,
        }
    }

    /// Returns `true` if a core can process `load` within an epoch.
    #[inline]
    pub fn admits(&self, load: Load) -> bool {
        load.packets <= self.capacity(load.flows)
    }

    /// Returns the maximum number of packets at any flow count, which is the limit for a single flow.
    #[inline]
    pub fn largest(&self) -> u32 {
        self.capacity(0)
    }

    /// Returns the minimum number of packets over the observed flow counts.
    pub fn smallest(&self) -> u32 {
        match self.corners.last() {
            Some(corner) if self.any == 0 => corner.packets,
            _ => self.any,
        }
    }

    /// Returns `true` if nothing is admitted.
    pub fn is_empty(&self) -> bool {
        self.largest() == 0
    }

    /// Returns NetBlaze's ablation *static-safe* (section 4.4): the smallest packet count at all flow counts.
    pub fn static_safe(&self) -> Self {
        EpochFrontier::constant(self.smallest())
    }

    /// Returns NetBlaze's ablation *static-unsafe* (section 4.4): the largest packet count at all flow counts.
    pub fn static_unsafe(&self) -> Self {
        EpochFrontier::constant(self.largest())
    }

    /// Returns the observations that define the frontier, with rising flows and falling packets.
    pub fn corners(&self) -> &[Load] {
        &self.corners
    }

    /// Returns the packets admitted at any flow count. The value is below that of all corners.
    pub fn any(&self) -> u32 {
        self.any
    }
}
