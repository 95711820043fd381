//! Treatment of packets that functions cannot process.

use crate::batch::Verdict;
use tailwater_api::PacketAction;

/// Treatment of packets in front of the first function.
#[derive(Clone, Copy, Debug)]
pub struct InputPolicy {
    /// Packets whose headers are truncated, contradictory or out of range.
    pub malformed: PacketAction,
    /// Packets that are not IP (ARP, LLDP, ...).
    pub non_ip: PacketAction,
}

/// Verdict on a packet that functions cannot process.
pub(super) fn unfit_verdict(fate: PacketAction) -> Verdict {
    match fate {
        PacketAction::Drop => Verdict::Drop(0),
        PacketAction::Pass => Verdict::Bypass,
    }
}
