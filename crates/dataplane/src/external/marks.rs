//! Marks of a chain with external functions in its packets' [numbers](Packet::number).

use tailwater_chain::batch::Packet;

/// Bit of a packet's number: the packet goes from the exit port to the entry port.
pub(super) const BACKWARD: u16 = 1;
/// Bit of a packet's number: a function held the packet for more than half of the objective.
pub(crate) const DETAINED: u16 = 2;

/// Returns `true` if the packet goes from the exit port to the entry port.
#[inline]
pub(super) fn goes_backward(packet: &Packet) -> bool {
    packet.number() & BACKWARD != 0
}
