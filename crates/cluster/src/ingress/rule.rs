//! Rules of a switch's table: match, priority and action.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Number of a switch port. The highest 256 are reserved by OpenFlow.
pub type PortNumber = u32;
/// Ethernet address.
pub type MacAddress = [u8; 6];

/// Rule of the switch's first table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlowRule {
    /// Mark of its owner.
    pub cookie: u64,
    /// Of all rules that match a packet, the one with the highest priority applies.
    pub priority: u16,
    /// Packets that it applies to.
    pub matching: FlowMatch,
    /// Action on them.
    pub action: Action,
}

/// Packets that a rule applies to: those that agree in every field that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowMatch {
    /// Port that they arrive on.
    pub in_port: Option<PortNumber>,
    /// Type of the frame behind VLAN tags.
    pub eth_type: Option<u16>,
    /// VLAN identifier, 1 to 4094. `None` matches packets without a tag, too.
    pub vlan: Option<u16>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source address.
    pub source: Option<MaskedAddress>,
    /// Destination address.
    pub destination: Option<MaskedAddress>,
    /// Fields that Tailwater does not use, as OpenFlow encodes them: of other owners' rules.
    pub other: Vec<u8>,
}

/// Address of which the bits of a mask are compared. Others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MaskedAddress {
    /// IPv4.
    V4 {
        /// Value of the bits.
        value: u32,
        /// Bits that are compared.
        mask: u32,
    },
    /// IPv6.
    V6 {
        /// Value of the bits.
        value: u128,
        /// Bits that are compared.
        mask: u128,
    },
}

/// Action of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Packets are dropped.
    Drop,
    /// The switch forwards them as if it had no rules.
    Normal,
    /// They go to the ingress, whole.
    Controller,
    /// They go to these ports unchanged.
    Ports(Vec<PortNumber>),
    /// They get the server's address as destination, and go to its port.
    Server {
        /// Address of the server.
        mac: MacAddress,
        /// Its switch port.
        port: PortNumber,
    },
    /// Anything else, of other owners' rules. Never written.
    Other,
}

impl FlowRule {
    /// Returns what identifies a rule in a table.
    pub fn key(&self) -> (u16, &FlowMatch) {
        (self.priority, &self.matching)
    }
}

impl MaskedAddress {
    /// Returns the addresses of a prefix; `None` for a prefix without bits, which needs no match.
    pub fn of_prefix(prefix: ipnet::IpNet) -> Option<MaskedAddress> {
        let length = u32::from(prefix.prefix_len());
        match prefix.network() {
            _ if length == 0 => None,
            IpAddr::V4(address) => Some(MaskedAddress::V4 {
                value: address.to_bits(),
                mask: u32::MAX << (32 - length),
            }),
            IpAddr::V6(address) => Some(MaskedAddress::V6 {
                value: address.to_bits(),
                mask: u128::MAX << (128 - length),
            }),
        }
    }

    /// Returns the prefix, if the mask is one of a prefix.
    pub fn to_prefix(self) -> Option<ipnet::IpNet> {
        let (address, bits, width): (IpAddr, u32, u32) = match self {
            MaskedAddress::V4 { value, mask } if mask.count_ones() == mask.leading_ones() => {
                (Ipv4Addr::from_bits(value).into(), mask.count_ones(), 32)
            }
            MaskedAddress::V6 { value, mask } if mask.count_ones() == mask.leading_ones() => {
                (Ipv6Addr::from_bits(value).into(), mask.count_ones(), 128)
            }
            _ => return None,
        };
        debug_assert!(bits <= width);
        ipnet::IpNet::new(address, bits as u8).ok()
    }

    /// Returns the addresses that both match, if there are any.
    pub fn and(self, other: MaskedAddress) -> Option<MaskedAddress> {
        match (self, other) {
            (MaskedAddress::V4 { value, mask }, MaskedAddress::V4 { value: v, mask: m }) => {
                ((value ^ v) & mask & m == 0).then_some(MaskedAddress::V4 {
                    value: value | v,
                    mask: mask | m,
                })
            }
            (MaskedAddress::V6 { value, mask }, MaskedAddress::V6 { value: v, mask: m }) => {
                ((value ^ v) & mask & m == 0).then_some(MaskedAddress::V6 {
                    value: value | v,
                    mask: mask | m,
                })
            }
            _ => None,
        }
    }
}

impl fmt::Display for MaskedAddress {
    /// Writes the address and its mask, or the prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.to_prefix(), *self) {
            (Some(prefix), _) => write!(f, "{prefix}"),
            (None, MaskedAddress::V4 { value, mask }) => {
                write!(f, "{}/{}", Ipv4Addr::from_bits(value), Ipv4Addr::from_bits(mask))
            }
            (None, MaskedAddress::V6 { value, mask }) => {
                write!(f, "{}/{}", Ipv6Addr::from_bits(value), Ipv6Addr::from_bits(mask))
            }
        }
    }
}

impl fmt::Display for FlowMatch {
    /// Writes the fields as `ovs-ofctl` does: `ip,nw_dst=10.0.0.0/8`; `any` if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        match self.eth_type {
            Some(0x0800) => fields.push("ip".to_owned()),
            Some(0x86dd) => fields.push("ipv6".to_owned()),
            Some(other) => fields.push(format!("dl_type=0x{other:04x}")),
            None => {}
        }
        fields.extend(self.in_port.map(|port| format!("in_port={port}")));
        fields.extend(self.vlan.map(|vlan| format!("dl_vlan={vlan}")));
        fields.extend(self.protocol.map(|protocol| format!("nw_proto={protocol}")));
        fields.extend(self.source.map(|source| format!("nw_src={source}")));
        fields.extend(self.destination.map(|destination| format!("nw_dst={destination}")));
        if !self.other.is_empty() {
            fields.push("other fields".to_owned());
        }
        f.write_str(if fields.is_empty() { "any" } else { "" })?;
        f.write_str(&fields.join(","))
    }
}
