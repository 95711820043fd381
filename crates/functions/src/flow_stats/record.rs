//! Exported flow records.

use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Reason for a record (RFC 5102, `flowEndReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// The flow was idle for its timeout, or was evicted.
    Idle = 1,
    /// The flow lasted for the active timeout, or a counter was full. More records may follow.
    Active = 2,
    /// The run has ended.
    Forced = 4,
}

/// Record of a flow in one direction, or of a part of a long flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Key of the flow's packets as they entered the chain.
    pub key: FlowKey,
    /// Counted packets. With sampling, fewer than arrived.
    pub packets: u64,
    /// Bytes of the counted packets, from the IP header on.
    pub bytes: u64,
    /// Union of their TCP flags.
    pub flags: TcpFlags,
    /// Class of service of the first packet: DSCP and ECN bits.
    pub class: u8,
    /// ICMP type (upper byte) and code of the first packet; 0 for other protocols.
    pub icmp: u16,
    /// Arrival of the first packet, since the start of the run.
    pub first: Nanos,
    /// Arrival of the last packet, rounded down to whole microseconds after the first.
    pub last: Nanos,
    /// Reason for the record.
    pub reason: EndReason,
}

impl FlowRecord {
    /// Returns `true` if the flow has ICMP types instead of ports.
    pub fn is_icmp(&self) -> bool {
        matches!(
            (self.key.is_v4(), self.key.protocol()),
            (true, protocol::ICMP) | (false, protocol::ICMPV6)
        )
    }
}
