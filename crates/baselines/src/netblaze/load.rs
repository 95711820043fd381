//! Sums of loads.

use tailwater_policy::core::Load;

/// Both loads together.
pub(super) fn sum(a: Load, b: Load) -> Load {
    Load {
        flows: a.flows.saturating_add(b.flows),
        packets: a.packets.saturating_add(b.packets),
    }
}

/// A load and a flow more.
#[inline]
pub(super) fn grown(load: Load, packets: u32) -> Load {
    Load {
        flows: load.flows.saturating_add(1),
        packets: load.packets.saturating_add(packets),
    }
}
