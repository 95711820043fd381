//! Flows and packets that one core can process in one epoch.

use crate::core::Load;

/// The most flows that a frontier tells apart. A core that processed more in an epoch is noted as
/// having processed this many, which claims less.
pub const MAX_FLOWS: u32 = 1 << 14;

/// The Pareto frontier of what one core processed in one epoch (NetBlaze, section 3.2, Fig. 3).
///
/// A core that processed ⟨f, p⟩ can process as many flows or fewer, and as many packets or fewer.
/// So the capacity for `f` flows is the largest packet count of any observation with at least `f`
/// flows: a staircase that never rises with the flows, whatever was inserted. Between observations
/// it claims no more than was seen.
///
/// For more flows than were ever seen it is zero: no group of flows is made larger than any that a
/// core has processed. (NetBlaze's code takes the last observation's packets for all larger flow
/// counts.) The static variants hold for any flow count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochFrontier {
    /// Observations that none other covers: flows rise, packets fall.
    corners: Vec<Load>,
    /// Capacity for every flow count from zero to the last corner's.
    table: Vec<u32>,
    /// Capacity for any flow count, below all corners.
    any: u32,
}

impl EpochFrontier {
    /// No observation: nothing is admitted.
    pub const fn new() -> Self {
        EpochFrontier::constant(0)
    }

    /// `packets`, whatever the number of flows.
    pub const fn constant(packets: u32) -> Self {
        EpochFrontier {
            corners: Vec::new(),
            table: Vec::new(),
            any: packets,
        }
    }

    /// Notes that a core processed this within an epoch. Returns whether the frontier grew.
    /// An observation of nothing says nothing.
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

    /// The most packets of `flows` flows together.
    #[inline]
    pub fn capacity(&self, flows: u32) -> u32 {
        match self.table.get(flows as usize) {
            Some(&capacity) => capacity,
            None => self.any,
        }
    }

    /// Whether a core can process `load` within an epoch.
    #[inline]
    pub fn admits(&self, load: Load) -> bool {
        load.packets <= self.capacity(load.flows)
    }

    /// The most packets at any flow count: what a single flow may have.
    #[inline]
    pub fn largest(&self) -> u32 {
        self.capacity(0)
    }

    /// The fewest packets at any flow count that was seen.
    pub fn smallest(&self) -> u32 {
        match self.corners.last() {
            Some(corner) if self.any == 0 => corner.packets,
            _ => self.any,
        }
    }

    /// Whether nothing is admitted.
    pub fn is_empty(&self) -> bool {
        self.largest() == 0
    }

    /// NetBlaze's ablation *static-safe* (section 4.4): the smallest packet count at all flow counts.
    pub fn static_safe(&self) -> Self {
        EpochFrontier::constant(self.smallest())
    }

    /// NetBlaze's ablation *static-unsafe* (section 4.4): the largest packet count at all flow counts.
    pub fn static_unsafe(&self) -> Self {
        EpochFrontier::constant(self.largest())
    }

    /// The observations that define the frontier: flows rise, packets fall.
    pub fn corners(&self) -> &[Load] {
        &self.corners
    }

    /// Packets that are admitted at any flow count; below those of all corners.
    pub fn any(&self) -> u32 {
        self.any
    }
}
