//! Headers of common packets, found without unpredictable branches.

use std::hint::select_unpredictable;

use crate::bytes::{be16, be32, be64};
use crate::flow::FlowKey;
use crate::headers::{Fragment, Headers, MAX_FRAME, Network};
use crate::protocol::{self, ethertype};
use crate::{ethernet, ipv4, ipv6};

/// Length of a VLAN tag in bytes.
const TAG: usize = 4;

/// Differences of the two IP versions. Look-ups take fewer instructions than selecting each.
struct Version {
    /// Bits of the header's first eight bytes that must have the value beside: version, length and fragmentation.
    fixed: u64,
    value: u64,
    /// Length of the header in bytes.
    header: usize,
    /// Position of the 16-bit length in the first eight bytes, and offset in the header from which it counts.
    length_shift: u32,
    length_from: usize,
    /// Offset of the protocol.
    protocol_at: usize,
    /// Protocol of its ICMP, and bits of the types of echo messages that must have the value beside.
    icmp: u32,
    echo_fixed: u32,
    echo: u32,
    network: Network,
    /// Version and no protocol, as in a flow key's last word.
    key_tail: u64,
    /// Bits of a flow key's other words that an address reaches.
    key_mask: u64,
}

const VERSIONS: [Version; 2] = [
    Version {
        fixed: 0xff << 56 | 0x3fff,
        value: 0x45 << 56,
        header: ipv4::HEADER,
        length_shift: 32,
        length_from: 0,
        protocol_at: 9,
        icmp: protocol::ICMP as u32,
        echo_fixed: !8 & 0xff,
        echo: 0,
        network: Network::V4,
        key_tail: 4 << 40,
        key_mask: 0,
    },
    Version {
        fixed: 0xf0 << 56,
        value: 0x60 << 56,
        header: ipv6::HEADER,
        length_shift: 16,
        length_from: ipv6::HEADER,
        protocol_at: 6,
        icmp: protocol::ICMPV6 as u32,
        echo_fixed: !1 & 0xff,
        echo: 128,
        network: Network::V6,
        key_tail: 6 << 40,
        key_mask: u64::MAX,
    },
];

/// Returns the headers of a whole datagram of TCP, UDP, ICMP or ICMPv6 over IPv4 without options or IPv6 without
/// extension headers, with at most one VLAN tag. Returns `None` if the frame is anything else, malformed, or so short
/// that it needs [`parse`](super::parse).
///
/// All these packets take the same path, which suits traffic with a mixture of them. For traffic of mostly plain IPv4,
/// [`parse_plain_v4`](super::parse_plain_v4) takes a third of the instructions.
#[inline]
#[must_use]
pub fn parse_common(frame: &[u8]) -> Option<Headers> {
    let head = frame.first_chunk::<{ ethernet::HEADER + TAG }>()?;
    let (outer, inner) = (be16([head[12], head[13]]), be16([head[16], head[17]]));
    let is_tagged = (outer == ethertype::VLAN) | (outer == ethertype::QINQ);
    let network = ethernet::HEADER + TAG * usize::from(is_tagged);
    let kind = select_unpredictable(is_tagged, u32::from(inner), u32::from(outer));
    let is_v6 = kind == u32::from(ethertype::IPV6);
    let version = &VERSIONS[usize::from(is_v6)];

    // With the padding of Ethernet's shortest frame, an IPv4 packet is as long, too.
    let ip = frame.get(network..)?.first_chunk::<{ ipv6::HEADER }>()?;
    let transport = network + version.header;
    let datagram = frame.get(transport..)?.first_chunk::<8>()?;
    let first = be64(ip, 0);
    let protocol = u32::from(ip[version.protocol_at & 15]);
    let end = network + version.length_from + usize::from((first >> version.length_shift) as u16);

    let [is_tcp, is_udp, is_icmp] =
        [protocol::TCP.into(), protocol::UDP.into(), version.icmp].map(|kind| protocol == kind);
    // Where the frame ends before it, the header does not fit the datagram, either, and any byte will do.
    let at = select_unpredictable(transport + 12 < frame.len(), transport + 12, 0);
    let tcp_header = usize::from(frame[at] >> 4) * 4;
    let third = be16([datagram[4], datagram[5]]);
    let header = select_unpredictable(is_tcp, tcp_header, 8);
    let least = select_unpredictable(is_tcp, 20, 8);
    let stated = select_unpredictable(is_udp, usize::from(third), header);
    let is_common = (is_v6 | (kind == u32::from(ethertype::IPV4)))
        & (first & version.fixed == version.value)
        & (is_tcp | is_udp | is_icmp)
        & (stated >= least)
        & (transport + stated <= end)
        & (end <= frame.len())
        & (frame.len() <= MAX_FRAME);
    if !is_common {
        return None;
    }

    // An echo message's identifier is both ports. Other messages of ICMP have none.
    let is_echo = u32::from(datagram[0]) & version.echo_fixed == version.echo;
    let identifiers = select_unpredictable(is_echo, u32::from(third) * 0x1_0001, 0);
    let ports = be32([datagram[0], datagram[1], datagram[2], datagram[3]]).rotate_left(16);
    let ports = select_unpredictable(is_icmp, identifiers, ports);
    let v4_addresses = be64(ip, 12).rotate_left(32);
    Some(Headers {
        network: version.network,
        fragment: Fragment::Whole,
        network_offset: network as u16,
        transport_offset: transport as u16,
        payload_offset: (transport + header) as u16,
        end: end as u16,
        key: FlowKey::from_words([
            select_unpredictable(is_v6, be64(ip, 16), v4_addresses),
            be64(ip, 8) & version.key_mask,
            be64(ip, 32) & version.key_mask,
            be64(ip, 24) & version.key_mask,
            version.key_tail | u64::from(protocol) << 32 | u64::from(ports),
        ]),
    })
}

/// Finds the headers of a whole IPv4 datagram of TCP or UDP without options, with at most one customer VLAN tag.
/// Returns `true` if `headers` are right. If not, the frame needs [`parse_common`], and `headers` have no meaning.
///
/// One path for all frames, for callers that collect the others without a branch.
#[inline]
#[must_use]
pub fn guess_v4(frame: &[u8], headers: &mut Headers) -> bool {
    // Ethernet, IPv4 and TCP headers, behind the tag if there is one.
    const NEEDED: usize = ethernet::HEADER + ipv4::HEADER + 20;
    const TRANSPORT: u32 = (ethernet::HEADER + ipv4::HEADER) as u32;
    /// By protocol, the least length that a transport header states: its own for TCP, the datagram's for UDP. No other
    /// protocol states as much.
    const LEAST: [u32; 32] = {
        let mut least = [u32::MAX; 32];
        least[protocol::TCP as usize] = 20;
        least[protocol::UDP as usize] = 8;
        least
    };
    let Some(head) = frame.first_chunk::<{ NEEDED + TAG }>() else {
        return false;
    };
    let is_tagged = be16([head[12], head[13]]) == ethertype::VLAN;
    let (untagged, tagged) = (head.first_chunk::<NEEDED>(), head.last_chunk::<NEEDED>());
    let Some(head) = select_unpredictable(is_tagged, tagged, untagged) else {
        return false;
    };
    let tag = u32::from(is_tagged) * TAG as u32;

    // Offsets count as if there were no tag; the same neighbouring fields as in `parse_plain_v4`.
    let first = be64(head, 12);
    let second = be64(head, 20);
    let end = ethernet::HEADER as u32 + u32::from((first >> 16) as u16);
    // Neither a fragment nor a protocol beyond the table.
    let is_in_table = second & (0x3fff << 48 | 0xe0 << 32) == 0;
    let protocol = (second >> 32) as u32 & 31;
    let is_udp = protocol & 1 != 0;
    let tcp_header = u32::from(head[46] >> 4) * 4;
    let udp_length = u32::from(be16([head[38], head[39]]));
    let stated = select_unpredictable(is_udp, udp_length, tcp_header);
    let header = select_unpredictable(is_udp, 8, tcp_header);
    let ports = be32([head[34], head[35], head[36], head[37]]);
    *headers = Headers {
        network: Network::V4,
        fragment: Fragment::Whole,
        network_offset: (ethernet::HEADER as u32 + tag) as u16,
        transport_offset: (TRANSPORT + tag) as u16,
        payload_offset: (TRANSPORT + tag + header) as u16,
        end: (end + tag) as u16,
        key: FlowKey::v4_of_wire(be64(head, 26), ports, protocol),
    };
    (first >> 40 == 0x08_0045)
        & is_in_table
        & (stated >= LEAST[protocol as usize])
        & (TRANSPORT + stated <= end)
        & ((end + tag) as usize <= frame.len())
        & (frame.len() <= MAX_FRAME)
}

/// Returns `true` if headers that [`guess_v4`] found are of a frame with a VLAN tag.
#[inline]
pub fn is_tagged_v4(headers: &Headers) -> bool {
    usize::from(headers.network_offset) != ethernet::HEADER
}

/// Returns `true` if [`parse_plain_v4`](super::parse_plain_v4) finds these headers, too. They must be those that
/// [`parse_common`] found.
#[inline]
pub fn is_plain(headers: &Headers) -> bool {
    // With a VLAN tag or IPv6, it is elsewhere.
    const TRANSPORT: u16 = (ethernet::HEADER + ipv4::HEADER) as u16;
    (headers.transport_offset == TRANSPORT) & (headers.key.protocol() != protocol::ICMP)
}
