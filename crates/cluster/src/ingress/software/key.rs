//! Fields of a packet that rules match, in a fixed-size form.

use crate::ingress::rule::{FlowMatch, MaskedAddress, PortNumber};
use tailwater_net::parse::{Network, parse};
use tailwater_net::vlan::tags;

pub(super) const ETH_V4: u16 = 0x0800;
pub(super) const ETH_V6: u16 = 0x86dd;
/// Bit beside a VLAN identifier, of packets that have one.
const VLAN_PRESENT: u64 = 0x1000;
/// Bytes of an Ethernet header and an IPv4 header without options.
const PLAIN_V4: usize = 34;

/// Fields of a packet, or the mask of a match. In order: ingress port, EtherType and VLAN; protocol; source;
/// destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PacketKey([u64; 6]);

impl PacketKey {
    /// Returns the key of a frame that has arrived on a port.
    ///
    /// As on the servers, a complete IPv4 header counts whatever follows it, other malformed frames are none of IP, and
    /// of several VLAN tags the outermost one with an identifier counts.
    #[inline]
    pub fn of(frame: &[u8], in_port: PortNumber) -> PacketKey {
        match frame.first_chunk::<PLAIN_V4>() {
            Some(head) if head[12..15] == [0x08, 0x00, 0x45] => {
                let address = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
                let first = u64::from(in_port) << 32 | u64::from(ETH_V4) << 16;
                PacketKey([first, head[23].into(), 0, address(26).into(), 0, address(30).into()])
            }
            _ => PacketKey::of_other(frame, in_port),
        }
    }

    /// Same for frames other than untagged IPv4 without options.
    #[cold]
    #[inline(never)]
    fn of_other(frame: &[u8], in_port: PortNumber) -> PacketKey {
        let vlan = tags(frame).map(|tag| tag.id).find(|id| *id != 0);
        let vlan = vlan.map_or(0, |id| u64::from(id) | VLAN_PRESENT);
        let first = |eth_type: u16| u64::from(in_port) << 32 | u64::from(eth_type) << 16 | vlan;
        let headers = parse(frame).ok().filter(|headers| headers.network != Network::NotIp);
        let Some(headers) = headers else {
            return PacketKey([first(0), 0, 0, 0, 0, 0]);
        };
        let key = &headers.key;
        let (eth_type, source, destination) = match (key.source(), key.destination()) {
            (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
                (ETH_V4, source.to_bits().into(), destination.to_bits().into())
            }
            (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
                (ETH_V6, source.to_bits(), destination.to_bits())
            }
            _ => return PacketKey([first(0), 0, 0, 0, 0, 0]),
        };
        let halves = |address: u128| [(address >> 64) as u64, address as u64];
        let ([source, more_source], [destination, more_destination]) = (halves(source), halves(destination));
        PacketKey([
            first(eth_type),
            key.protocol().into(),
            source,
            more_source,
            destination,
            more_destination,
        ])
    }

    /// Returns the mask of a match and its value, or `None` if it has fields that are not looked at here.
    pub fn of_match(matching: &FlowMatch) -> Option<(PacketKey, PacketKey)> {
        if !matching.other.is_empty() {
            return None;
        }
        let mut mask = [0; 6];
        let mut value = [0; 6];
        let mut set = |word: usize, bits: u64, to: u64| {
            mask[word] |= bits;
            value[word] |= to;
        };
        if let Some(port) = matching.in_port {
            set(0, 0xffff_ffff << 32, u64::from(port) << 32);
        }
        let mut eth_type = matching.eth_type;
        for (address, word) in [(matching.source, 2), (matching.destination, 4)] {
            let (family, bits, to) = match address {
                None => continue,
                Some(MaskedAddress::V4 { value, mask }) => (ETH_V4, u128::from(mask), u128::from(value)),
                Some(MaskedAddress::V6 { value, mask }) => (ETH_V6, mask, value),
            };
            if *eth_type.get_or_insert(family) != family {
                return None;
            }
            set(word, (bits >> 64) as u64, ((to & bits) >> 64) as u64);
            set(word + 1, bits as u64, (to & bits) as u64);
        }
        if let Some(protocol) = matching.protocol {
            eth_type?;
            set(1, 0xff, protocol.into());
        }
        match eth_type {
            // The key of a packet that is none of IP does not have its type.
            Some(kind @ (ETH_V4 | ETH_V6)) => set(0, 0xffff << 16, u64::from(kind) << 16),
            Some(_) => return None,
            None => {}
        }
        if let Some(vlan) = matching.vlan {
            set(0, 0xffff, u64::from(vlan) | VLAN_PRESENT);
        }
        Some((PacketKey(mask), PacketKey(value)))
    }

    /// Keeps the bits of a mask.
    #[inline]
    pub fn masked(&self, mask: &PacketKey) -> PacketKey {
        PacketKey(std::array::from_fn(|word| self.0[word] & mask.0[word]))
    }

    /// Returns a hash. Tables that outsiders could fill do not use it.
    #[inline]
    pub fn hash(&self) -> u64 {
        let mixed = self.0.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| {
            (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
        });
        mixed ^ mixed >> 32
    }
}
