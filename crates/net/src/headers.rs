//! Location of a packet's headers.

use crate::flow::FlowKey;

/// Maximum length of a frame that [`parse`](crate::parse::parse) accepts, in bytes.
pub const MAX_FRAME: usize = u16::MAX as usize;

/// Network-layer protocol of a packet.
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

/// Fragmentation state of a packet.
///
/// An IPv6 "atomic fragment" (a fragment header with offset zero and no more fragments) is a whole datagram (RFC 6946).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// Whole datagram.
    #[default]
    Whole,
    /// First fragment. It holds the transport header.
    First,
    /// Later fragment. It has no transport header, and its flow key has no ports.
    Later,
}

/// Location of a packet's headers. All offsets are from the start of the frame, in bytes: `network_offset <=
/// transport_offset <= payload_offset <= end <= frame length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Network-layer protocol.
    pub network: Network,
    /// Fragmentation state.
    pub fragment: Fragment,
    /// Start of the IP header. If not IP, start of the payload after Ethernet and VLAN tags.
    pub network_offset: u16,
    /// Start of the transport header. In a later fragment, start of the fragment's data.
    pub transport_offset: u16,
    /// Start of the transport payload. Equal to `transport_offset` for unsupported protocols.
    pub payload_offset: u16,
    /// End of the IP datagram. The rest of the frame is padding.
    pub end: u16,
    /// 5-tuple, or the default key if not IP. The key of a later fragment has zeros as ports. The protocol of an IPv6
    /// later fragment is the next header of its fragment header, which may be another extension header.
    pub key: FlowKey,
}

impl Headers {
    /// Returns `true` if the frame holds a transport header: it is IP and not a later fragment.
    #[inline]
    pub fn has_transport(&self) -> bool {
        self.network != Network::NotIp && self.fragment != Fragment::Later
    }

    /// Returns the IP datagram without padding. If not IP, returns everything after Ethernet and VLAN tags. Empty if
    /// the headers are of another frame.
    #[inline]
    pub fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.network_offset, self.end)
    }

    /// Returns the transport header and its payload. Empty if the headers are of another frame.
    #[inline]
    pub fn transport<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.transport_offset, self.end)
    }

    /// Returns the transport payload, without Ethernet padding. Empty if the headers are of another frame.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        between(frame, self.payload_offset, self.end)
    }
}

#[inline]
fn between(frame: &[u8], start: u16, end: u16) -> &[u8] {
    frame.get(start as usize..end as usize).unwrap_or_default()
}
