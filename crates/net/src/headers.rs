//! Where the headers of a packet lie.

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
///
/// An IPv6 "atomic fragment" (a fragment header with offset zero and no more fragments) is a
/// whole datagram (RFC 6946).
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

/// Where the headers of a packet lie. All offsets are from the start of the frame, in bytes;
/// `network_offset <= transport_offset <= payload_offset <= end <= frame length`.
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
    /// The 5-tuple; the default key if not IP. A first fragment has its ports, a later one
    /// zeros. The protocol of an IPv6 later fragment is the next header of its fragment header,
    /// which may be another extension header.
    pub key: FlowKey,
}

impl Headers {
    /// Whether the frame holds a transport header, that is, is IP and not a later fragment.
    #[inline]
    pub fn has_transport(&self) -> bool {
        self.network != Network::NotIp && self.fragment != Fragment::Later
    }

    /// The IP datagram (everything after Ethernet and VLAN tags if not IP), without padding.
    /// Empty if the headers are not this frame's.
    #[inline]
    pub fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.network_offset, self.end)
    }

    /// The transport header and its payload. Empty if the headers are not this frame's.
    #[inline]
    pub fn transport<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.transport_offset, self.end)
    }

    /// The transport payload, without Ethernet padding. Empty if the headers are not this
    /// frame's.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.payload_offset, self.end)
    }
}

#[inline]
fn between(frame: &[u8], start: u16, end: u16) -> &[u8] {
    frame.get(start as usize..end as usize).unwrap_or_default()
}
