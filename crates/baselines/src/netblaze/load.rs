//! Sums of loads.

use tailwater_policy::core::Load;

/// Returns the sum of two loads.
pub(super) fn sum(a: Load, b: Load) -> Load {
    Load {
        flows: a.flows.saturating_add(b.flows),
        packets: a.packets.saturating_add(b.packets),
    }
}

/// Returns the load plus one flow with this many packets.
#[inline]
pub(super) fn grown(load: Load, packets: u32) -> Load {
    Load {
        flows: load.flows.saturating_add(1),
        packets: load.packets.saturating_add(packets),
    }
}
