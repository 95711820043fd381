//! Numbers of flows with packets in the system.

use tailwater_chain::batch::Packet;
use tailwater_chain::chain::{ActiveFlow, Chain};
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// No flow number.
const NONE: u16 = u16::MAX;

/// Flow numbers without a flow table, by the lower half of the RSS hash. Flows that share it share a destination, which
/// preserves the order.
type ByHash = Box<[u16; 1 << 16]>;

/// Reference to a flow in the flow table. Without a flow table, `hash` identifies it: the RSS hash's lower half.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowReference {
    flow: ActiveFlow,
    hash: u16,
}

impl Default for FlowReference {
    fn default() -> FlowReference {
        FlowReference {
            flow: ActiveFlow::NONE,
            hash: 0,
        }
    }
}

/// RSS bucket of a hash, given its lower half, which has all the bits needed.
#[inline]
fn bucket_of_low(hash: u16) -> usize {
    usize::from(bucket_of(u32::from(hash)))
}

/// Numbers of a dispatcher's flows, by packet. With a flow table, they are stored there.
#[derive(Debug)]
pub(super) struct FlowNumbers {
    by_hash: Option<ByHash>,
    /// Numbered flows of each RSS bucket.
    active_in: Box<[u32; BUCKETS]>,
}

impl FlowNumbers {
    pub(super) fn new(has_flows: bool) -> FlowNumbers {
        FlowNumbers {
            by_hash: (!has_flows).then(|| Box::new([NONE; 1 << 16])),
            active_in: Box::new([0; BUCKETS]),
        }
    }

    /// Returns `true` if no flow of this RSS bucket has a number.
    pub(super) fn is_free_of(&self, bucket: u16) -> bool {
        self.active_in[usize::from(bucket)] == 0
    }

    /// Returns the number of the packet's flow, if it has one.
    #[inline]
    pub(super) fn find(&self, packet: &Packet, chain: &Chain) -> Option<u16> {
        match &self.by_hash {
            None => chain.active(packet),
            Some(by_hash) => Some(by_hash[usize::from(packet.rss_hash as u16)]).filter(|n| *n != NONE),
        }
    }

    /// Assigns a number to the packet's flow.
    #[inline]
    pub(super) fn assign(&mut self, number: u16, packet: &Packet, chain: &mut Chain) -> FlowReference {
        let hash = packet.rss_hash as u16;
        self.active_in[bucket_of_low(hash)] += 1;
        let flow = match &mut self.by_hash {
            None => chain.activate(packet, number),
            Some(by_hash) => {
                by_hash[usize::from(hash)] = number;
                ActiveFlow::NONE
            }
        };
        FlowReference { flow, hash }
    }

    /// Removes the number of a flow of which no packet is in the system any more.
    #[inline]
    pub(super) fn remove(&mut self, reference: FlowReference, chain: &mut Chain) {
        match &mut self.by_hash {
            None => chain.deactivate(reference.flow),
            Some(by_hash) => by_hash[usize::from(reference.hash)] = NONE,
        }
        self.active_in[bucket_of_low(reference.hash)] -= 1;
    }
}
