//! `spec.match`: filter of a chain's packets, applied before the trace NIC.

use crate::progress::Loading;
use std::net::IpAddr;
use tailwater_functions::spec::Match;
use tailwater_net::parse::{Network, parse};
use tailwater_net::vlan::tags;
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Returns `true` if a packet is for the chain: it matches every non-empty list.
///
/// Of several VLAN tags, the outermost one with a VLAN identifier counts (identifier 0 only carries a priority).
/// Malformed and non-IP packets match neither prefixes nor protocols.
pub fn matches(wanted: &Match, frame: &[u8]) -> bool {
    let vlan = || tags(frame).map(|tag| tag.id).find(|id| *id != 0);
    if !wanted.vlans.is_empty() && !vlan().is_some_and(|id| wanted.vlans.contains(&id)) {
        return false;
    }
    if wanted.sources.is_empty() && wanted.destinations.is_empty() && wanted.protocols.is_empty() {
        return true;
    }
    let Ok(headers) = parse(frame) else {
        return false;
    };
    let holds = |prefixes: &[ipnet::IpNet], address: IpAddr| {
        prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains(&address))
    };
    headers.network != Network::NotIp
        && holds(&wanted.sources, headers.key.source())
        && holds(&wanted.destinations, headers.key.destination())
        && (wanted.protocols.is_empty() || wanted.protocols.contains(&headers.key.protocol()))
}

/// Source without the packets that the chain does not match.
pub struct Matching<'a> {
    source: Box<dyn PacketSource>,
    /// `None` if all packets match.
    wanted: Option<&'a Match>,
    /// Copy of the last packet. A lent packet cannot be both inspected and returned from a loop.
    frame: Vec<u8>,
    loading: Loading,
    matched: u64,
    /// Packets excluded so far.
    pub not_matched: u64,
}

impl<'a> Matching<'a> {
    /// Filters a source by `wanted`.
    pub fn new(source: Box<dyn PacketSource>, wanted: &'a Match) -> Self {
        Matching {
            loading: Loading::new(source.name()),
            source,
            wanted: (*wanted != Match::default()).then_some(wanted),
            frame: Vec::new(),
            matched: 0,
            not_matched: 0,
        }
    }

    /// Returns the next packet's time and wire length; its bytes are in `frame`.
    fn advance(&mut self) -> Result<Option<(tailwater_net::Nanos, u32)>, TrafficError> {
        while let Some(packet) = self.source.next_packet()? {
            self.loading.tell(self.matched + self.not_matched);
            if self.wanted.is_none_or(|wanted| matches(wanted, packet.data)) {
                self.matched += 1;
                self.frame.clear();
                self.frame.extend_from_slice(packet.data);
                return Ok(Some((packet.timestamp, packet.wire_length)));
            }
            self.not_matched += 1;
        }
        Ok(None)
    }
}

impl PacketSource for Matching<'_> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        Ok(self.advance()?.map(|(timestamp, wire_length)| Packet {
            timestamp,
            data: &self.frame,
            wire_length,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::vlan::VlanTag;
    use tailwater_net::{FlowKey, protocol};

    fn frame(source: &str, destination: &str, vlans: &[u16]) -> Vec<u8> {
        let key = match (source.parse().unwrap(), destination.parse().unwrap()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => FlowKey::v4(s, d, protocol::UDP, 1000, 53),
            (IpAddr::V6(s), IpAddr::V6(d)) => FlowKey::v6(s, d, protocol::UDP, 1000, 53),
            _ => unreachable!("addresses of one version"),
        };
        let builder = FrameBuilder::new(&key).payload(b"query");
        let tagged = vlans
            .iter()
            .fold(builder, |builder, id| builder.vlan(VlanTag::customer(*id)));
        tagged.to_vec().unwrap()
    }

    fn prefixes(list: &[&str]) -> Vec<ipnet::IpNet> {
        list.iter().map(|prefix| prefix.parse().unwrap()).collect()
    }

    #[test]
    fn every_list_must_match() {
        let wanted = Match {
            sources: prefixes(&["10.0.0.0/8", "2001:db8::/32"]),
            destinations: prefixes(&["192.0.2.0/24", "::/0"]),
            protocols: vec![protocol::TCP, protocol::UDP],
            vlans: Vec::new(),
        };
        for (source, destination, expected) in [
            ("10.1.2.3", "192.0.2.1", true),
            ("11.1.2.3", "192.0.2.1", false),
            ("10.1.2.3", "192.0.3.1", false),
            ("2001:db8::1", "fe80::1", true),
            ("2001:db9::1", "fe80::1", false),
        ] {
            let found = matches(&wanted, &frame(source, destination, &[]));
            assert_eq!(found, expected, "{source} > {destination}");
        }
        let icmp_only = Match {
            protocols: vec![protocol::ICMP],
            ..Match::default()
        };
        assert!(!matches(&icmp_only, &frame("10.0.0.1", "10.0.0.2", &[])));
    }

    #[test]
    fn the_outermost_vlan_counts() {
        let wanted = Match {
            vlans: vec![7],
            ..Match::default()
        };
        for (vlans, expected) in [
            (&[][..], false),
            (&[7], true),
            (&[8], false),
            (&[7, 8], true),
            (&[8, 7], false),
            (&[0, 7], true),
        ] {
            assert_eq!(
                matches(&wanted, &frame("10.0.0.1", "10.0.0.2", vlans)),
                expected,
                "{vlans:?}"
            );
        }
    }

    #[test]
    fn malformed_packets_match_only_what_can_be_told() {
        let mut broken = frame("10.0.0.1", "10.0.0.2", &[7]);
        broken.truncate(24);
        assert!(parse(&broken).is_err());
        assert!(matches(&Match::default(), &broken));
        assert!(matches(
            &Match {
                vlans: vec![7],
                ..Match::default()
            },
            &broken
        ));
        assert!(!matches(
            &Match {
                sources: prefixes(&["0.0.0.0/0"]),
                ..Match::default()
            },
            &broken
        ));
    }
}
