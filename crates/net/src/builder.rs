//! Builder of whole frames with correct lengths and checksums, for traffic generators and tests.
//!
//! [`FrameBuilder::write`] fills a caller's buffer without allocating:
//!
//! ```
//! use tailwater_net::builder::FrameBuilder;
//! use tailwater_net::vlan::VlanTag;
//! use tailwater_net::{FlowKey, parse::parse, protocol};
//!
//! let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, 5000, 53);
//! let mut buffer = [0; 2048];
//! let length = FrameBuilder::new(&key)
//!     .vlan(VlanTag::customer(42))
//!     .payload(b"question")
//!     .write(&mut buffer)?;
//! let headers = parse(&buffer[..length]).unwrap();
//! assert_eq!(headers.key, key);
//! assert_eq!(headers.payload(&buffer), b"question");
//! # Ok::<(), tailwater_net::builder::BuildError>(())
//! ```

mod error;
mod fragment;
mod layout;
mod write;

pub use error::BuildError;
pub use fragment::{FragmentError, fragment};

use crate::arp;
use crate::ethernet::MacAddress;
use crate::flow::FlowKey;
use crate::icmp;
use crate::protocol;
use crate::tcp::TcpFlags;
use crate::vlan::{MAX_VLAN_TAGS, VlanTag};
use std::net::Ipv4Addr;

/// ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// [`arp::REQUEST`] or [`arp::REPLY`].
    pub operation: u16,
    /// The sender's MAC address.
    pub sender_mac: MacAddress,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's MAC address, zero in a request.
    pub target_mac: MacAddress,
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

/// Header fields of a TCP segment, except its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFields<'a> {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Receive window.
    pub window: u16,
    /// Urgent pointer.
    pub urgent_pointer: u16,
    /// Options as on the wire: a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
}

/// Segment in the middle of a connection: ACK, window 65,535, all other fields zero.
impl Default for TcpFields<'_> {
    fn default() -> Self {
        TcpFields {
            sequence: 0,
            acknowledgment: 0,
            flags: TcpFlags::ACK,
            window: 65_535,
            urgent_pointer: 0,
            options: &[],
        }
    }
}

/// Transport header, between the IP header and the payload.
#[derive(Clone, Copy, Debug)]
enum Transport<'a> {
    Tcp(TcpFields<'a>),
    Udp {
        checksum: bool,
    },
    Sctp,
    Icmp {
        kind: u8,
        code: u8,
        rest: [u8; 4],
    },
    /// No transport header: the payload follows directly.
    Raw,
}

#[derive(Clone, Copy, Debug)]
enum Network {
    Ip(FlowKey),
    Arp(Arp),
}

/// Builder of one frame. It is cheap to copy, so a template can be varied for each packet.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FrameBuilder<'a> {
    source_mac: MacAddress,
    destination_mac: MacAddress,
    tags: [VlanTag; MAX_VLAN_TAGS],
    tag_count: usize,
    network: Network,
    dscp: u8,
    ecn: u8,
    ttl: u8,
    identification: u16,
    dont_fragment: bool,
    flow_label: u32,
    ip_options: &'a [u8],
    extensions: &'a [(u8, &'a [u8])],
    transport: Transport<'a>,
    payload: &'a [u8],
    frame_length: Option<usize>,
    pad: bool,
}

impl<'a> FrameBuilder<'a> {
    /// Packet of the flow `key` without payload. Time to live 64, "do not fragment" set, locally administered MAC
    /// addresses.
    ///
    /// TCP: a segment with ACK. ICMP and ICMPv6: an echo request whose identifier is the key's source port. SCTP: a
    /// common header without its CRC. Other protocols: no transport header.
    pub fn new(key: &FlowKey) -> Self {
        let [high, low] = key.source_port().to_be_bytes();
        let echo = |kind| Transport::Icmp {
            kind,
            code: 0,
            rest: [high, low, 0, 0],
        };
        let transport = match (key.protocol(), key.is_v4()) {
            (protocol::TCP, _) => Transport::Tcp(TcpFields::default()),
            (protocol::UDP, _) => Transport::Udp { checksum: true },
            (protocol::SCTP, _) => Transport::Sctp,
            (protocol::ICMP, true) => echo(icmp::v4::ECHO_REQUEST),
            (protocol::ICMPV6, false) => echo(icmp::v6::ECHO_REQUEST),
            _ => Transport::Raw,
        };
        FrameBuilder {
            source_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            tags: [VlanTag::default(); MAX_VLAN_TAGS],
            tag_count: 0,
            network: Network::Ip(*key),
            dscp: 0,
            ecn: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: true,
            flow_label: 0,
            ip_options: &[],
            extensions: &[],
            transport,
            payload: &[],
            frame_length: None,
            pad: false,
        }
    }

    /// ARP packet of its sender; a request is broadcast.
    pub fn arp(arp: Arp) -> Self {
        let destination = match arp.operation {
            arp::REQUEST => MacAddress::BROADCAST,
            _ => arp.target_mac,
        };
        FrameBuilder {
            network: Network::Arp(arp),
            transport: Transport::Raw,
            ..Self::new(&FlowKey::default()).macs(arp.sender_mac, destination)
        }
    }

    /// Sets the MAC addresses.
    pub fn macs(mut self, source: MacAddress, destination: MacAddress) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// Adds a VLAN tag inside those added before.
    pub fn vlan(mut self, tag: VlanTag) -> Self {
        if let Some(free) = self.tags.get_mut(self.tag_count) {
            *free = tag;
        }
        self.tag_count += 1;
        self
    }

    /// Sets the time to live or hop limit.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the differentiated services code point (0 to 63) and explicit congestion notification (0 to 3).
    pub fn dscp_ecn(mut self, dscp: u8, ecn: u8) -> Self {
        (self.dscp, self.ecn) = (dscp & 0x3f, ecn & 3);
        self
    }

    /// Sets the IPv4 identification.
    pub fn identification(mut self, identification: u16) -> Self {
        self.identification = identification;
        self
    }

    /// Sets or clears the IPv4 "do not fragment" flag.
    pub fn dont_fragment(mut self, dont: bool) -> Self {
        self.dont_fragment = dont;
        self
    }

    /// Sets the IPv6 flow label; only its low 20 bits are used.
    pub fn flow_label(mut self, label: u32) -> Self {
        self.flow_label = label & 0x000f_ffff;
        self
    }

    /// Sets IPv4 options as on the wire: a multiple of 4 bytes, at most 40.
    pub fn ip_options(mut self, options: &'a [u8]) -> Self {
        self.ip_options = options;
        self
    }

    /// Sets the IPv6 extension headers: the kind of each, and its bytes after next header and length, a multiple of 8
    /// less 2. Authentication headers are not supported, because their length field has another unit.
    pub fn extensions(mut self, extensions: &'a [(u8, &'a [u8])]) -> Self {
        self.extensions = extensions;
        self
    }

    /// Sets the TCP header fields. The key's protocol must be TCP.
    pub fn tcp(mut self, fields: TcpFields<'a>) -> Self {
        self.transport = Transport::Tcp(fields);
        self
    }

    /// Omits the UDP checksum: the field is zero.
    pub fn without_udp_checksum(mut self) -> Self {
        if let Transport::Udp { checksum } = &mut self.transport {
            *checksum = false;
        }
        self
    }

    /// Sets type and code of an ICMP or ICMPv6 message (by the key's protocol). `rest` is the four bytes after the
    /// checksum.
    pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        self.transport = Transport::Icmp { kind, code, rest };
        self
    }

    /// Sets the transport payload.
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// Makes the frame exactly `length` bytes long, without the frame check sequence. Zeros after the payload, inside
    /// the datagram, fill it up.
    pub fn frame_length(mut self, length: usize) -> Self {
        self.frame_length = Some(length);
        self
    }

    /// Pads the frame to 60 bytes, the minimum on the wire, outside the datagram.
    pub fn pad_to_minimum(mut self) -> Self {
        self.pad = true;
        self
    }

    /// Returns the frame's length in bytes.
    ///
    /// # Errors
    /// As [`FrameBuilder::write`].
    pub fn length(&self) -> Result<usize, BuildError> {
        Ok(self.layout()?.frame)
    }

    /// Builds the frame in a new vector.
    ///
    /// # Errors
    /// As [`FrameBuilder::write`].
    pub fn to_vec(&self) -> Result<Vec<u8>, BuildError> {
        let mut frame = vec![0; self.length()?];
        self.write(&mut frame)?;
        Ok(frame)
    }

    /// Writes the frame to the start of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// [`BuildError::BufferTooSmall`] if `out` is too short, or another [`BuildError`] if a part exceeds its limit.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let layout = self.layout()?;
        let present = out.len();
        let Some(frame) = out.get_mut(..layout.frame) else {
            return Err(BuildError::BufferTooSmall {
                needed: layout.frame,
                present,
            });
        };
        self.write_parts(frame, &layout)?;
        Ok(layout.frame)
    }
}

#[cfg(test)]
mod tests;
