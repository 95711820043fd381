//! Reasons for which packets from the wire are malformed.

use std::error::Error;
use std::fmt;

macro_rules! malformed {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal, $text:literal;)+) => {
        /// Reason for which a packet is malformed.
        ///
        /// [`Malformed::name`] is stable: it is the label of a counter and a field in reports. [`Malformed::index`] is
        /// dense, so an array of [`Malformed::COUNT`] counters has one for each reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Malformed {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Malformed {
            /// Every reason, in the order of [`Malformed::index`].
            pub const ALL: &[Malformed] = &[$(Malformed::$variant,)+];

            /// Returns the stable name of the reason, in kebab-case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Malformed::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for Malformed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Malformed::$variant => $text,)+
                })
            }
        }

        impl Error for Malformed {}
    };
}

malformed! {
    /// Shorter than an Ethernet header with its VLAN tags.
    TruncatedEthernet => "truncated-ethernet",
        "the frame ends within its Ethernet header or VLAN tags";
    /// Longer than 65,535 bytes.
    Oversize => "oversize",
        "the frame is longer than 65,535 bytes";
    /// More VLAN tags than [`MAX_VLAN_TAGS`](crate::vlan::MAX_VLAN_TAGS).
    TooManyVlanTags => "too-many-vlan-tags",
        "the frame has more than three VLAN tags";

    /// Shorter than an ARP packet for IPv4 over Ethernet (28 bytes, RFC 826).
    TruncatedArp => "truncated-arp",
        "the frame ends within its ARP packet";
    /// ARP for another hardware or protocol than Ethernet and IPv4.
    ArpFormat => "arp-format",
        "the ARP packet is not for IPv4 addresses over Ethernet";

    /// The frame ends within the IPv4 header.
    TruncatedIpv4Header => "truncated-ipv4-header",
        "the frame ends within its IPv4 header";
    /// The version field of an IPv4 header is not 4.
    Ipv4Version => "ipv4-version",
        "the version in the IPv4 header is not 4";
    /// The IPv4 header length field is below 5 words (RFC 791 §3.1).
    Ipv4HeaderLength => "ipv4-header-length",
        "the IPv4 header length is below 20 bytes";
    /// The IPv4 total length is below the header's length.
    Ipv4TotalLength => "ipv4-total-length",
        "the IPv4 total length is shorter than the header";
    /// The frame holds fewer bytes than the IPv4 total length.
    TruncatedIpv4 => "truncated-ipv4",
        "the frame ends before the IPv4 total length";
    /// An IPv4 option's length does not fit the header (RFC 791 §3.1).
    Ipv4Options => "ipv4-options",
        "an IPv4 option does not fit the header";

    /// The frame ends within the fixed IPv6 header.
    TruncatedIpv6Header => "truncated-ipv6-header",
        "the frame ends within its IPv6 header";
    /// The version field of an IPv6 header is not 6.
    Ipv6Version => "ipv6-version",
        "the version in the IPv6 header is not 6";
    /// The IPv6 payload length is zero although there is a next header: a jumbogram (RFC 2675), which Ethernet cannot
    /// carry, or a packet without its upper layer.
    Ipv6ZeroLength => "ipv6-zero-length",
        "the IPv6 payload length is zero although a next header is announced";
    /// The frame holds fewer bytes than the IPv6 payload length.
    TruncatedIpv6 => "truncated-ipv6",
        "the frame ends before the IPv6 payload length";
    /// An IPv6 extension header does not fit the packet.
    TruncatedExtension => "truncated-extension",
        "an IPv6 extension header reaches beyond the packet";
    /// More IPv6 extension headers than [`MAX_EXTENSIONS`](crate::ipv6::MAX_EXTENSIONS).
    TooManyExtensions => "too-many-extensions",
        "the packet has more than eight IPv6 extension headers";
    /// A hop-by-hop options header that is not the first extension header (RFC 8200 §4.1).
    HopByHopNotFirst => "hop-by-hop-not-first",
        "an IPv6 hop-by-hop options header does not directly follow the IPv6 header";
    /// More than one IPv6 fragment header.
    RepeatedFragmentHeader => "repeated-fragment-header",
        "the packet has more than one IPv6 fragment header";

    /// The data of a fragment that is not the last is not a multiple of 8 bytes long
    /// (RFC 791 §3.2, RFC 8200 §4.5).
    FragmentLength => "fragment-length",
        "a fragment that is not the last has a length that is not a multiple of 8 bytes";
    /// The fragment's data would end beyond 65,535 bytes in its datagram ("ping of death").
    FragmentOverflow => "fragment-overflow",
        "the fragment reaches beyond 65,535 bytes of its datagram";
    /// The first fragment does not hold the whole transport header (RFC 1858 §3, RFC 7112 §5).
    TinyFragment => "tiny-fragment",
        "the first fragment does not contain the transport header";
    /// A later fragment at offset 8 overwrites part of the TCP header (RFC 1858 §4).
    FragmentOverlap => "fragment-overlap",
        "a later fragment overlaps the TCP header";

    /// The packet ends within the TCP header.
    TruncatedTcp => "truncated-tcp",
        "the packet ends within its TCP header";
    /// The TCP data offset is below 5 words (RFC 9293 §3.1).
    TcpDataOffset => "tcp-data-offset",
        "the TCP data offset is below 20 bytes";
    /// A TCP option's length does not fit the header (RFC 9293 §3.2).
    TcpOptions => "tcp-options",
        "a TCP option does not fit the header";
    /// The packet ends within the UDP header.
    TruncatedUdp => "truncated-udp",
        "the packet ends within its UDP header";
    /// The UDP length is below 8 or beyond the packet's end.
    UdpLength => "udp-length",
        "the UDP length is below 8 bytes or reaches beyond the packet";
    /// The packet ends within the ICMP or ICMPv6 header.
    TruncatedIcmp => "truncated-icmp",
        "the packet ends within its ICMP header";
    /// The packet ends within the SCTP common header.
    TruncatedSctp => "truncated-sctp",
        "the packet ends within its SCTP header";
}

impl Malformed {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the reason's position in [`Malformed::ALL`]; below [`Malformed::COUNT`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn indices_are_dense_and_names_unique() {
        for (index, reason) in Malformed::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
        let names: HashSet<_> = Malformed::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Malformed::COUNT);
    }

    #[test]
    fn names_are_kebab_case_of_the_variants() {
        for reason in Malformed::ALL {
            let mut kebab = String::new();
            for c in format!("{reason:?}").chars() {
                if c.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(c.to_ascii_lowercase());
            }
            assert_eq!(reason.name(), kebab);
            assert!(!reason.to_string().ends_with('.'));
        }
    }
}
