//! One pass over a frame: where its headers lie, its flow key, or why it is malformed.

use crate::flow::FlowKey;

/// What a packet is at the network layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Neither IPv4 nor IPv6 (ARP, LLDP, ...): it has no flow.
    #[default]
    NotIp,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Whether a packet is a fragment of an IP datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// A whole datagram.
    #[default]
    Whole,
    /// The first fragment: it holds the transport header.
    First,
    /// A later fragment: it has no transport header, and its flow key has no ports.
    Later,
}

/// Where the headers of a packet lie. All offsets are from the start of the frame, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Network layer.
    pub network: Network,
    /// Fragment or whole.
    pub fragment: Fragment,
    /// Start of the IP header (of the payload after Ethernet and VLAN tags if not IP).
    pub network_offset: u16,
    /// Start of the transport header (of the fragment's data in a later fragment).
    pub transport_offset: u16,
    /// Start of the transport payload (equal to `transport_offset` for protocols not known here).
    pub payload_offset: u16,
    /// End of the IP datagram: what follows up to the frame's end is padding.
    pub end: u16,
    /// The 5-tuple; the default key if not IP.
    pub key: FlowKey,
}

/// Why a packet is malformed. The names are stable: they appear in reports as
/// [`Malformed::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Malformed {
    /// Shorter than an Ethernet header with its tags.
    TruncatedEthernet,
}

/// Finds the headers of an Ethernet frame.
///
/// # Errors
/// The first reason found why the frame cannot be trusted.
pub fn parse(frame: &[u8]) -> Result<Headers, Malformed> {
    if frame.len() < 14 {
        return Err(Malformed::TruncatedEthernet);
    }
    Ok(Headers::default())
}
