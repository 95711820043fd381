//! What is told of a flow.

use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Why a record was made (RFC 5102, `flowEndReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// The flow was idle for its timeout, or made room for another.
    Idle = 1,
    /// It lasted for the active timeout, or filled its counters; more may follow.
    Active = 2,
    /// The run has ended.
    Forced = 4,
}

/// A flow in one direction, or a part of a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Whose packets they were, as they came to the chain.
    pub key: FlowKey,
    /// Packets that were counted: with sampling, fewer than there were.
    pub packets: u64,
    /// Bytes of their IP datagrams, from the IP header on.
    pub bytes: u64,
    /// The union of their TCP flags.
    pub flags: TcpFlags,
    /// The first one's class of service: differentiated services code point and congestion bits.
    pub class: u8,
    /// The first one's ICMP type, in the high half, and code; 0 if it was none.
    pub icmp: u16,
    /// Arrival of the first, since the run's start.
    pub first: Nanos,
    /// Arrival of the last, rounded down to whole microseconds after the first.
    pub last: Nanos,
    /// Why the record was made.
    pub reason: EndReason,
}

impl FlowRecord {
    /// Whether the flow has types of messages rather than ports.
    pub fn is_icmp(&self) -> bool {
        matches!(
            (self.key.is_v4(), self.key.protocol()),
            (true, protocol::ICMP) | (false, protocol::ICMPV6)
        )
    }
}
