//! Numbers of flows, or RSS buckets, with packets in the system.

use tailwater_chain::batch::Packet;
use tailwater_chain::chain::{ActiveFlow, Chain};
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_policy::core::Unit;

/// No flow number.
const NONE: u16 = u16::MAX;

/// Flow numbers without a flow table, by the lower half of the RSS hash. Flows that share it share a destination, which
/// preserves the order.
type ByHash = Box<[u16; 1 << 16]>;

/// Reference to a flow in the flow table. Without a flow table, and for buckets, `hash` identifies it: the RSS hash's
/// lower half.
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

impl FlowReference {
    /// RSS bucket of the flow.
    #[inline]
    pub(super) fn bucket(&self) -> u16 {
        bucket_of_low(self.hash) as u16
    }
}

/// Place where numbers are stored.
#[derive(Debug)]
enum Numbers {
    InFlowTable,
    ByHash(ByHash),
    ByBucket(Box<[u16; BUCKETS]>),
}

/// Numbers of a dispatcher's flows or buckets, by packet.
#[derive(Debug)]
pub(super) struct FlowNumbers {
    numbers: Numbers,
    /// Numbered flows of each RSS bucket.
    active_in: Box<[u32; BUCKETS]>,
}

impl FlowNumbers {
    /// For units of this kind, in a chain that has a flow table if `has_flows`.
    pub(super) fn new(has_flows: bool, unit: Unit) -> FlowNumbers {
        FlowNumbers {
            numbers: match (has_flows, unit) {
                (false, _) => Numbers::ByHash(Box::new([NONE; 1 << 16])),
                (true, Unit::Flow) => Numbers::InFlowTable,
                (true, Unit::Bucket) => Numbers::ByBucket(Box::new([NONE; BUCKETS])),
            },
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
        let number = match &self.numbers {
            Numbers::InFlowTable => return chain.active(packet),
            Numbers::ByHash(by_hash) => by_hash[usize::from(packet.rss_hash as u16)],
            Numbers::ByBucket(by_bucket) => by_bucket[usize::from(bucket_of(packet.rss_hash))],
        };
        (number != NONE).then_some(number)
    }

    /// Assigns a number to the packet's flow.
    #[inline]
    pub(super) fn assign(&mut self, number: u16, packet: &Packet, chain: &mut Chain) -> FlowReference {
        let hash = packet.rss_hash as u16;
        let bucket = bucket_of_low(hash);
        self.active_in[bucket] += 1;
        let mut flow = ActiveFlow::NONE;
        match &mut self.numbers {
            Numbers::InFlowTable => flow = chain.activate(packet, number),
            Numbers::ByHash(by_hash) => by_hash[usize::from(hash)] = number,
            Numbers::ByBucket(by_bucket) => by_bucket[bucket] = number,
        }
        FlowReference { flow, hash }
    }

    /// Removes the number of a flow of which no packet is in the system any more. A lent bucket is taken back.
    #[inline]
    pub(super) fn remove(&mut self, reference: FlowReference, chain: &mut Chain) {
        let bucket = reference.bucket();
        match &mut self.numbers {
            Numbers::InFlowTable => chain.deactivate(reference.flow),
            Numbers::ByHash(by_hash) => by_hash[usize::from(reference.hash)] = NONE,
            Numbers::ByBucket(by_bucket) => {
                by_bucket[usize::from(bucket)] = NONE;
                chain.take_back(bucket);
                chain.keep_flows(bucket, false);
            }
        }
        self.active_in[usize::from(bucket)] -= 1;
    }
}
