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

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::arp;
use crate::bytes::{put, put_u8, put_u16, put_u32};
use crate::checksum;
use crate::ethernet::{self, MIN_FRAME, MacAddress};
use crate::flow::FlowKey;
use crate::icmp;
use crate::ipv4;
use crate::ipv6;
use crate::parse::MAX_FRAME;
use crate::protocol::{self, ethertype};
use crate::tcp::{self, TcpFlags};
use crate::udp;
use crate::vlan::{MAX_VLAN_TAGS, TAG, VlanTag};

mod fragment;

pub use fragment::{FragmentError, fragment};

/// Errors of building a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Length of the frame in bytes.
        needed: usize,
        /// Length of the buffer in bytes.
        present: usize,
    },
    /// The frame would be longer than 65,535 bytes.
    TooLong(usize),
    /// The frame is longer than the requested [`FrameBuilder::frame_length`].
    FrameLength {
        /// Requested length in bytes.
        wanted: usize,
        /// Length of headers and payload in bytes.
        needed: usize,
    },
    /// IPv4 or TCP options that are not a multiple of 4 bytes or are longer than 40.
    Options(usize),
    /// An IPv6 extension header that is not a multiple of 8 bytes or is longer than 2048.
    Extension(usize),
    /// More VLAN tags than [`MAX_VLAN_TAGS`].
    VlanTags(usize),
    /// The key has no addresses: it is the default key.
    NotIp,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::BufferTooSmall { needed, present } => {
                write!(f, "the frame needs {needed} bytes, but the buffer has {present}")
            }
            BuildError::TooLong(bytes) => {
                write!(f, "the frame would be {bytes} bytes long, more than 65,535")
            }
            BuildError::FrameLength { wanted, needed } => write!(
                f,
                "headers and payload take {needed} bytes, more than the frame length of {wanted}"
            ),
            BuildError::Options(bytes) => write!(f, "options of {bytes} bytes: expected a multiple of 4, at most 40"),
            BuildError::Extension(bytes) => write!(
                f,
                "an extension header of {bytes} bytes: expected a multiple of 8, at most 2048"
            ),
            BuildError::VlanTags(tags) => {
                write!(f, "expected at most {MAX_VLAN_TAGS} VLAN tags, found {tags}")
            }
            BuildError::NotIp => f.write_str("the flow key is neither IPv4 nor IPv6"),
        }
    }
}

impl Error for BuildError {}

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
        let (link, rest) = frame.split_at_mut(layout.link);
        let (datagram, padding) = rest.split_at_mut(layout.network + layout.upper);
        let (network, upper) = datagram.split_at_mut(layout.network);
        padding.fill(0);
        self.write_link(link);
        match &self.network {
            Network::Arp(arp) => write_arp(network, arp),
            Network::Ip(key) => {
                let (source, destination) = (key.source(), key.destination());
                match (source, destination) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => {
                        self.write_v4(network, upper.len(), key, s, d);
                    }
                    (IpAddr::V6(s), IpAddr::V6(d)) => {
                        self.write_v6(network, upper.len(), key, s, d);
                    }
                    _ => return Err(BuildError::NotIp),
                }
                self.write_transport(upper, layout.transport, key);
            }
        }
        Ok(layout.frame)
    }

    /// Checks all limits, and computes the lengths.
    #[inline]
    fn layout(&self) -> Result<Layout, BuildError> {
        if self.tag_count > MAX_VLAN_TAGS {
            return Err(BuildError::VlanTags(self.tag_count));
        }
        let link = ethernet::HEADER + self.tag_count * TAG;
        let network = match &self.network {
            Network::Arp(_) => arp::PACKET,
            Network::Ip(key) => match key.version() {
                4 => ipv4::HEADER + check_options(self.ip_options)?,
                6 => ipv6::HEADER + self.extensions_length()?,
                _ => return Err(BuildError::NotIp),
            },
        };
        let transport = match &self.transport {
            Transport::Tcp(fields) => tcp::HEADER + check_options(fields.options)?,
            Transport::Udp { .. } => udp::HEADER,
            Transport::Sctp => 12,
            Transport::Icmp { .. } => icmp::HEADER,
            Transport::Raw => 0,
        };
        let mut upper = transport + self.payload.len();
        if let Some(wanted) = self.frame_length {
            let needed = link + network + upper;
            if needed > wanted {
                return Err(BuildError::FrameLength { wanted, needed });
            }
            upper += wanted - needed;
        }
        let mut frame = link + network + upper;
        if self.pad {
            frame = frame.max(MIN_FRAME);
        }
        if frame > MAX_FRAME {
            return Err(BuildError::TooLong(frame));
        }
        Ok(Layout {
            link,
            network,
            transport,
            upper,
            frame,
        })
    }

    fn extensions_length(&self) -> Result<usize, BuildError> {
        let mut total = 0;
        for (_, data) in self.extensions {
            let length = 2 + data.len();
            if !length.is_multiple_of(8) || length > 2048 {
                return Err(BuildError::Extension(length));
            }
            total += length;
        }
        Ok(total)
    }

    fn write_link(&self, out: &mut [u8]) {
        put(out, 0, self.destination_mac.0);
        put(out, 6, self.source_mac.0);
        let mut offset = 12;
        for tag in self.tags.iter().take(self.tag_count) {
            put_u16(out, offset, tag.ethertype);
            put_u16(out, offset + 2, tag.control());
            offset += TAG;
        }
        let ethertype = match &self.network {
            Network::Arp(_) => ethertype::ARP,
            Network::Ip(key) if key.is_v4() => ethertype::IPV4,
            Network::Ip(_) => ethertype::IPV6,
        };
        put_u16(out, offset, ethertype);
    }

    fn write_v4(&self, out: &mut [u8], upper: usize, key: &FlowKey, s: Ipv4Addr, d: Ipv4Addr) {
        let length = out.len();
        put_u8(out, 0, 0x40 | (length / 4) as u8);
        put_u8(out, 1, self.dscp << 2 | self.ecn);
        put_u16(out, 2, (length + upper) as u16);
        put_u16(out, 4, self.identification);
        put_u16(out, 6, (self.dont_fragment as u16) << 14);
        put_u8(out, 8, self.ttl);
        put_u8(out, 9, key.protocol());
        put_u16(out, 10, 0);
        put(out, 12, s.octets());
        put(out, 16, d.octets());
        copy_at(out, ipv4::HEADER, self.ip_options);
        let checksum = !checksum::sum(out);
        put_u16(out, 10, checksum);
    }

    fn write_v6(&self, out: &mut [u8], upper: usize, key: &FlowKey, s: Ipv6Addr, d: Ipv6Addr) {
        let first = 0x6000_0000 | (self.dscp as u32) << 22 | (self.ecn as u32) << 20 | self.flow_label;
        put_u32(out, 0, first);
        put_u16(out, 4, (out.len() - ipv6::HEADER + upper) as u16);
        put_u8(out, 7, self.ttl);
        put(out, 8, s.octets());
        put(out, 24, d.octets());
        // Offset of the field in the previous header that names the next one.
        let mut name_at = 6;
        let mut offset = ipv6::HEADER;
        for &(kind, data) in self.extensions {
            put_u8(out, name_at, kind);
            name_at = offset;
            put_u8(out, offset + 1, ((2 + data.len()) / 8 - 1) as u8);
            copy_at(out, offset + 2, data);
            offset += 2 + data.len();
        }
        put_u8(out, name_at, key.protocol());
    }

    /// Writes the transport header (`header` bytes), the payload, and zeros up to the end of `out`.
    fn write_transport(&self, out: &mut [u8], header: usize, key: &FlowKey) {
        copy_at(out, header, self.payload);
        if let Some(zeros) = out.get_mut(header + self.payload.len()..) {
            zeros.fill(0);
        }
        let checksum_at = match &self.transport {
            Transport::Tcp(fields) => {
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put_u32(out, 4, fields.sequence);
                put_u32(out, 8, fields.acknowledgment);
                put(out, 12, [((header / 4) as u8) << 4, fields.flags.0]);
                put_u16(out, 14, fields.window);
                put_u16(out, 16, 0);
                put_u16(out, 18, fields.urgent_pointer);
                copy_at(out, tcp::HEADER, fields.options);
                16
            }
            Transport::Udp { checksum } => {
                let length = out.len() as u16;
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put_u16(out, 4, length);
                put_u16(out, 6, 0);
                if !checksum {
                    return;
                }
                6
            }
            Transport::Sctp => {
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put(out, 4, [0; 8]);
                return;
            }
            Transport::Icmp { kind, code, rest } => {
                put(out, 0, [*kind, *code, 0, 0]);
                put(out, 4, *rest);
                if key.is_v4() {
                    let checksum = !checksum::sum(out);
                    put_u16(out, 2, checksum);
                    return;
                }
                2
            }
            Transport::Raw => return,
        };
        let checksum = match (key.source(), key.destination()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => checksum::transport_v4(s, d, key.protocol(), out),
            (IpAddr::V6(s), IpAddr::V6(d)) => checksum::transport_v6(s, d, key.protocol(), out),
            _ => return,
        };
        let checksum = match self.transport {
            Transport::Udp { .. } => checksum::udp_field(checksum),
            _ => checksum,
        };
        put_u16(out, checksum_at, checksum);
    }
}

/// Lengths of a frame's parts in bytes.
struct Layout {
    /// Ethernet header and VLAN tags.
    link: usize,
    /// IP header with options or extensions, or ARP packet.
    network: usize,
    /// Transport header.
    transport: usize,
    /// Transport header and payload, with the padding of [`FrameBuilder::frame_length`].
    upper: usize,
    /// Whole frame, with Ethernet padding.
    frame: usize,
}

/// Returns the length of the options, if it is valid.
fn check_options(options: &[u8]) -> Result<usize, BuildError> {
    match options.len() {
        length if length <= 40 && length.is_multiple_of(4) => Ok(length),
        length => Err(BuildError::Options(length)),
    }
}

fn write_arp(out: &mut [u8], arp: &Arp) {
    put(out, 0, arp::FORMAT);
    put_u16(out, 6, arp.operation);
    put(out, 8, arp.sender_mac.0);
    put(out, 14, arp.sender_ip.octets());
    put(out, 18, arp.target_mac.0);
    put(out, 24, arp.target_ip.octets());
}

/// Copies `data` to `out` at `offset`, if it fits.
#[inline]
fn copy_at(out: &mut [u8], offset: usize, data: &[u8]) {
    if let Some(place) = out.get_mut(offset..offset + data.len()) {
        place.copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
