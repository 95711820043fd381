//! Renumbering of flows: a trace that is repeated or overlaid gets other addresses.
//!
//! A mask is XORed onto the low 16 bits of both addresses. So both directions of a connection stay each other's
//! reverse, and prefixes down to /16 (IPv6: /112) are kept. Checksums are updated (RFC 1624). Since the RSS hash is
//! linear over XOR, it changes by a constant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_net::checksum::ChecksumDelta;
use tailwater_net::parse::{Fragment, Headers, Network};
use tailwater_net::protocol;
use tailwater_net::toeplitz::{End, RssHasher};

/// Effect of a mask on RSS hashes: the bits that it flips, by [`Network`]. A look-up for each packet is cheaper than a
/// `match`.
#[derive(Clone, Copy, Debug)]
pub struct HashChange([u32; 3]);

/// Renumbering of a packet: the offsets of its addresses and checksums.
#[derive(Clone, Copy, Debug)]
pub struct Renumbering {
    network: Network,
    /// Offset of the IP header in the frame.
    ip: u16,
    /// Offset in the frame of the transport checksum over the addresses; 0 for none.
    checksum: u16,
    /// `true` for UDP, where a checksum of zero means no checksum (RFC 768).
    udp: bool,
}

impl Renumbering {
    /// Renumbering of packets without addresses.
    pub const NONE: Renumbering = Renumbering {
        network: Network::NotIp,
        ip: 0,
        checksum: 0,
        udp: false,
    };

    /// Renumbering of a packet with these headers.
    pub fn of(headers: &Headers) -> Renumbering {
        let network = headers.network;
        if network == Network::NotIp {
            return Renumbering::NONE;
        }
        let within = match headers.key.protocol() {
            protocol::TCP => Some(16),
            protocol::UDP => Some(6),
            protocol::ICMPV6 if network == Network::V6 => Some(2),
            _ => None,
        };
        let checksum = match (within, headers.fragment) {
            (Some(offset), Fragment::Whole | Fragment::First) => headers.transport_offset + offset,
            _ => 0,
        };
        let udp = headers.key.protocol() == protocol::UDP;
        Renumbering {
            network,
            ip: headers.network_offset,
            checksum,
            udp,
        }
    }

    /// Returns the effect of a mask on RSS hashes.
    pub fn hash_change(rss: &RssHasher, mask: u16) -> HashChange {
        let v4 = IpAddr::V4(Ipv4Addr::from_bits(u32::from(mask)));
        let v6 = IpAddr::V6(Ipv6Addr::from_bits(u128::from(mask)));
        let of_both =
            |mask| rss.address_contribution(End::Source, mask) ^ rss.address_contribution(End::Destination, mask);
        let mut change = [0; 3];
        change[Network::V4 as usize] = of_both(v4);
        change[Network::V6 as usize] = of_both(v6);
        HashChange(change)
    }

    /// Returns the packet's RSS hash after renumbering; `change` is from [`Renumbering::hash_change`].
    #[inline]
    pub fn hash(self, hash: u32, change: &HashChange) -> u32 {
        hash ^ change.0[self.network as usize]
    }

    /// Renumbers the packet's frame: XORs `mask` onto the low 16 bits of both addresses. A correct checksum stays
    /// correct, and a wrong one stays wrong.
    #[inline]
    pub fn apply(self, frame: &mut [u8], mask: u16) {
        let ip = usize::from(self.ip);
        let (source, destination) = match self.network {
            Network::V4 => (ip + 14, ip + 18),
            Network::V6 => (ip + 22, ip + 38),
            Network::NotIp => return,
        };
        let mut change = ChecksumDelta::NONE;
        for at in [source, destination] {
            if let Some(word) = word(frame, at) {
                let old = u16::from_be_bytes(*word);
                *word = (old ^ mask).to_be_bytes();
                change = change.and(ChecksumDelta::u16(old, old ^ mask));
            }
        }
        self.update_checksums(frame, change);
    }

    /// Gives the packet's frame another destination, which must be of the same IP version. A correct checksum stays
    /// correct, and a wrong one stays wrong.
    pub fn redirect(self, frame: &mut [u8], destination: IpAddr) {
        let ip = usize::from(self.ip);
        let change = match (self.network, destination) {
            (Network::V4, IpAddr::V4(new)) => {
                let Some(place) = frame.get_mut(ip + 16..).and_then(|rest| rest.first_chunk_mut()) else {
                    return;
                };
                let old = Ipv4Addr::from(std::mem::replace(place, new.octets()));
                ChecksumDelta::ipv4(old, new)
            }
            (Network::V6, IpAddr::V6(new)) => {
                let Some(place) = frame.get_mut(ip + 24..).and_then(|rest| rest.first_chunk_mut()) else {
                    return;
                };
                let old = Ipv6Addr::from(std::mem::replace(place, new.octets()));
                ChecksumDelta::ipv6(old, new)
            }
            _ => return,
        };
        self.update_checksums(frame, change);
    }

    /// Updates the checksums over the addresses.
    #[inline]
    fn update_checksums(self, frame: &mut [u8], change: ChecksumDelta) {
        let ip = usize::from(self.ip);
        if self.network == Network::V4
            && let Some(checksum) = word(frame, ip + 10)
        {
            *checksum = change.apply(u16::from_be_bytes(*checksum)).to_be_bytes();
        }
        if self.checksum != 0
            && let Some(checksum) = word(frame, usize::from(self.checksum))
        {
            let old = u16::from_be_bytes(*checksum);
            let new = if self.udp {
                change.apply_udp(old)
            } else {
                change.apply(old)
            };
            *checksum = new.to_be_bytes();
        }
    }
}

#[inline]
fn word(frame: &mut [u8], at: usize) -> Option<&mut [u8; 2]> {
    frame.get_mut(at..)?.first_chunk_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tailwater_net::FlowKey;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
    use tailwater_net::parse::parse;

    proptest! {
        /// The renumbered packet is valid and has other addresses, its hash is what a NIC would compute, and the
        /// reverse direction stays the reverse.
        #[test]
        fn renumbered_packets_are_right(
            v6 in any::<bool>(), source in any::<u128>(), destination in any::<u128>(),
            tcp in any::<bool>(), ports in any::<(u16, u16)>(), mask in any::<u16>(),
            payload in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let protocol = if tcp { protocol::TCP } else { protocol::UDP };
            let key = match v6 {
                true => FlowKey::v6(source.into(), destination.into(), protocol, ports.0, ports.1),
                false => FlowKey::v4(
                    (source as u32).into(), (destination as u32).into(), protocol, ports.0, ports.1,
                ),
            };
            let rss = RssHasher::default();
            let change = Renumbering::hash_change(&rss, mask);
            let mut renumbered = vec![];
            for key in [key, key.reversed()] {
                let mut frame = FrameBuilder::new(&key).payload(&payload).to_vec().unwrap();
                let headers = parse(&frame).unwrap();
                let renumbering = Renumbering::of(&headers);
                renumbering.apply(&mut frame, mask);
                let after = parse(&frame).unwrap();
                prop_assert_ne!(verify_network(&frame, &after), Checksum::Wrong);
                prop_assert_eq!(verify_transport(&frame, &after), Checksum::Correct);
                prop_assert_eq!(after.key == key, mask == 0);
                let hash = renumbering.hash(rss.hash_headers(&headers), &change);
                prop_assert_eq!(hash, rss.hash_headers(&after));
                let new = match v6 {
                    true => IpAddr::V6(source.rotate_left(9).into()),
                    false => IpAddr::V4((source as u32).rotate_left(9).into()),
                };
                renumbering.redirect(&mut frame, new);
                let redirected = parse(&frame).unwrap();
                prop_assert_ne!(verify_network(&frame, &redirected), Checksum::Wrong);
                prop_assert_eq!(verify_transport(&frame, &redirected), Checksum::Correct);
                prop_assert_eq!(redirected.key.destination(), new);
                prop_assert_eq!(redirected.key.source(), after.key.source());
                renumbered.push(after.key);
            }
            prop_assert_eq!(renumbered[0].reversed(), renumbered[1]);
        }
    }
}
