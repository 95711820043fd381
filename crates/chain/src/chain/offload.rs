//! Flows whose packets other cores process.

use super::Chain;
use crate::batch::Packet;
use crate::flow_table::FlowIndex;

/// Flow with packets in the system, as returned by [`Chain::activate`].
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlow(FlowIndex);

impl ActiveFlow {
    /// No flow.
    pub const NONE: ActiveFlow = ActiveFlow(FlowIndex::NONE);
}

impl Chain {
    /// Returns the active number of the packet's flow, if it has packets in the system.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn active(&self, packet: &Packet) -> Option<u16> {
        self.table.as_ref()?.active(packet.flow)
    }

    /// Assigns an active number below 65,535 to the packet's flow. Until it is [removed](Chain::deactivate), the flow
    /// stays in the table.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn activate(&mut self, packet: &Packet, number: u16) -> ActiveFlow {
        if let Some(table) = &mut self.table {
            table.set_active(packet.flow, Some(number));
        }
        ActiveFlow(packet.flow)
    }

    /// Removes the active number: the flow has no packets in the system any more.
    #[inline]
    pub fn deactivate(&mut self, flow: ActiveFlow) {
        if let Some(table) = &mut self.table {
            table.set_active(flow.0, None);
        }
    }

    /// Returns `true` if the core that looked the packet up must process it: a function opens a companion for each
    /// flow, and has not opened one for this flow. This includes flows that branches keep away from such a function's
    /// segment, because their branch is not known yet.
    #[inline]
    pub fn is_bound(&mut self, packet: &Packet) -> bool {
        let Some(table) = &mut self.table else {
            return false;
        };
        let mut opening = self.segments.iter().filter(|s| s.opens_companions);
        opening.any(|segment| *table.word(packet.flow, segment.settled_at(packet.is_reversed())) != segment.settled)
    }
}
