//! Choice between chains whose `spec.match` overlap: the more specific match of a packet wins.
//!
//! Matches that list MAC addresses are more specific; then longer destination prefixes; then longer source prefixes;
//! then matches that list protocols, and then matches that list VLANs. Two matches are ambiguous if they are equally
//! specific for a packet of both.

use super::settings::Match;
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use tailwater_net::ethernet::MacAddress;

/// Fields of a packet that matches are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchKey {
    /// Destination MAC address.
    pub mac: [u8; 6],
    /// Source address, destination address and protocol number, if the packet is an IP packet that is not malformed.
    pub ip: Option<(IpAddr, IpAddr, u8)>,
    /// VLAN identifier of the outermost tag that has one.
    pub vlan: Option<u16>,
}

/// Specificity of a match for one packet. The greater one wins. Prefix lengths are one more than written, and 0 for a
/// list that is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    /// `true` if MAC addresses are listed.
    macs: bool,
    /// Longest destination prefix that contains the packet's.
    destination: u8,
    /// Longest source prefix that contains the packet's.
    source: u8,
    /// `true` if protocols are listed.
    protocols: bool,
    /// `true` if VLANs are listed.
    vlans: bool,
}

/// Packets for which two matches are equally specific: one of possibly several such parts. `None` stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonPart {
    /// Destination MAC address that both list.
    pub mac: Option<MacAddress>,
    /// Destination prefix that both list. More specific prefixes within it may decide for one of the chains.
    pub destination: Option<IpNet>,
    /// Source prefix that both list, likewise.
    pub source: Option<IpNet>,
    /// Protocol number that both list.
    pub protocol: Option<u8>,
    /// VLAN identifier that both list.
    pub vlan: Option<u16>,
}

impl Match {
    /// Returns the specificity of the match for a packet; `None` if the packet does not match.
    ///
    /// ```
    /// use tailwater_api::chain::{Match, MatchKey};
    /// let of = |prefix: &str| Match { destinations: vec![prefix.parse().unwrap()], ..Match::default() };
    /// let ip = Some(("192.0.2.1".parse().unwrap(), "10.1.2.3".parse().unwrap(), 6));
    /// let packet = MatchKey { mac: [0; 6], ip, vlan: None };
    /// assert!(of("10.1.0.0/16").specificity(&packet) > of("10.0.0.0/8").specificity(&packet));
    /// assert_eq!(of("10.2.0.0/16").specificity(&packet), None);
    /// ```
    pub fn specificity(&self, packet: &MatchKey) -> Option<Specificity> {
        let macs = !self.macs.is_empty();
        if macs && !self.macs.contains(&packet.mac) {
            return None;
        }
        let vlans = match self.vlans.is_empty() {
            true => false,
            false => packet
                .vlan
                .is_some_and(|vlan| self.vlans.contains(&vlan))
                .then_some(true)?,
        };
        let Some((source, destination, protocol)) = packet.ip else {
            let any = self.sources.is_empty() && self.destinations.is_empty() && self.protocols.is_empty();
            return any.then_some(Specificity {
                macs,
                destination: 0,
                source: 0,
                protocols: false,
                vlans,
            });
        };
        if !self.protocols.is_empty() && !self.protocols.contains(&protocol) {
            return None;
        }
        Some(Specificity {
            macs,
            destination: longest(&self.destinations, destination)?,
            source: longest(&self.sources, source)?,
            protocols: !self.protocols.is_empty(),
            vlans,
        })
    }
}

/// Length of the longest of these prefixes that contains an address, plus 1; 0 if there are none.
fn longest(prefixes: &[IpNet], address: IpAddr) -> Option<u8> {
    if prefixes.is_empty() {
        return Some(0);
    }
    let containing = prefixes.iter().filter(|prefix| prefix.contains(&address));
    containing.map(|prefix| prefix.prefix_len() + 1).max()
}

/// Returns packets for which both matches are equally specific, if there are any. Two chains with such matches cannot
/// share a port.
pub fn ambiguity(one: &Match, two: &Match) -> Option<CommonPart> {
    let mac = common(&one.macs, &two.macs)?.map(MacAddress);
    let protocol = common(&one.protocols, &two.protocols)?;
    let vlan = common(&one.vlans, &two.vlans)?;
    let destinations = undecided(&one.destinations, &two.destinations);
    let sources = undecided(&one.sources, &two.sources);
    for &destination in &destinations {
        for &source in &sources {
            let one_family = match (destination, source) {
                (Some(destination), Some(source)) => is_v4(&destination) == is_v4(&source),
                _ => true,
            };
            if one_family {
                return Some(CommonPart {
                    mac,
                    destination,
                    source,
                    protocol,
                    vlan,
                });
            }
        }
    }
    None
}

/// Returns an element of both lists, or `Some(None)` if both are empty. Returns `None` if only one is empty, which is
/// less specific, or if they have nothing in common.
fn common<T: Copy + PartialEq>(one: &[T], two: &[T]) -> Option<Option<T>> {
    match (one.is_empty(), two.is_empty()) {
        (true, true) => Some(None),
        (false, false) => one.iter().copied().find(|item| two.contains(item)).map(Some),
        _ => None,
    }
}

/// Returns the prefixes of both lists that contain an address without a longer prefix in either list; `[None]` if both
/// lists are empty. For such addresses, and no others, the longest prefixes of both lists have the same length.
fn undecided(one: &[IpNet], two: &[IpNet]) -> Vec<Option<IpNet>> {
    if one.is_empty() && two.is_empty() {
        return vec![None];
    }
    let in_both = |prefix: &&IpNet| two.contains(prefix);
    let has_rest = |prefix: &&IpNet| {
        let longer = one.iter().chain(two);
        let mut longer: Vec<IpNet> = longer
            .filter(|other| other.prefix_len() > prefix.prefix_len() && prefix.contains(*other))
            .copied()
            .collect();
        longer.sort_unstable();
        !are_covering(**prefix, &longer)
    };
    one.iter().filter(in_both).filter(has_rest).copied().map(Some).collect()
}

/// Returns `true` if prefixes within `whole`, sorted by address, cover all of it.
fn are_covering(whole: IpNet, prefixes: &[IpNet]) -> bool {
    let mut next = Some(number(whole.network()));
    for prefix in prefixes {
        match next {
            // The last address is covered.
            None => return true,
            Some(next) if number(prefix.network()) > next => return false,
            Some(first) => {
                let after = number(prefix.broadcast()).checked_add(1);
                next = after.map(|after| after.max(first));
            }
        }
    }
    next.is_none_or(|next| next > number(whole.broadcast()))
}

/// Address as a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn is_v4(prefix: &IpNet) -> bool {
    matches!(prefix, IpNet::V4(_))
}

impl fmt::Display for CommonPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.mac.map(|mac| format!("MAC address {mac}")),
            self.destination.map(|prefix| format!("destination {prefix}")),
            self.source.map(|prefix| format!("source {prefix}")),
            self.protocol.map(|protocol| format!("protocol {protocol}")),
            self.vlan.map(|vlan| format!("VLAN {vlan}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => f.write_str("all packets"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Addresses that differ in their first four bits, of both families.
    fn addresses(bits: u8) -> [IpAddr; 2] {
        let v4 = Ipv4Addr::from(u32::from(bits) << 28);
        let v6 = Ipv6Addr::from(u128::from(bits) << 124);
        [v4.into(), v6.into()]
    }

    fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
        let prefix = (0..16_u8, 0..=4_u8, prop::bool::weighted(0.8)).prop_map(|(bits, length, v4)| {
            let address = addresses(bits)[usize::from(!v4)];
            IpNet::new(address, length).unwrap().trunc()
        });
        prop::collection::vec(prefix, 0..5)
    }

    fn any_match() -> impl Strategy<Value = Match> {
        let protocols = prop::sample::subsequence(vec![6, 17], 0..=2);
        let vlans = prop::sample::subsequence(vec![1, 2], 0..=2);
        let macs = proptest::collection::vec((0u8..2).prop_map(|last| [2, 0, 0, 0, 0, last]), 0..2);
        (macs, prefixes(), prefixes(), protocols, vlans).prop_map(|(macs, sources, destinations, protocols, vlans)| {
            Match {
                macs,
                sources,
                destinations,
                protocols,
                vlans,
            }
        })
    }

    /// All packets that the matches can tell apart.
    fn packets() -> Vec<MatchKey> {
        let mut packets = Vec::new();
        // MAC addresses, 0 and 1 of which are listed, decide before all else.
        let kinds = [None, Some(1), Some(2)]
            .into_iter()
            .flat_map(|vlan| [0, 1, 2].map(|last| (vlan, last)));
        for (vlan, last) in kinds {
            let mac = [2, 0, 0, 0, 0, last];
            packets.push(MatchKey { mac, ip: None, vlan });
            for bits in 0..=255 {
                for family in 0..2 {
                    let (source, destination) = (addresses(bits >> 4)[family], addresses(bits & 15)[family]);
                    packets.extend([1, 6, 17].map(|protocol| MatchKey {
                        mac,
                        ip: Some((source, destination, protocol)),
                        vlan,
                    }));
                }
            }
        }
        packets
    }

    /// Packets of both matches for which neither is more specific.
    fn equal<'a>(one: &'a Match, two: &'a Match, packets: &'a [MatchKey]) -> impl Iterator<Item = &'a MatchKey> {
        packets.iter().filter(|packet| {
            let specificity = one.specificity(packet);
            specificity.is_some() && specificity == two.specificity(packet)
        })
    }

    fn contains(part: &CommonPart, packet: &MatchKey) -> bool {
        let in_prefix = |prefix: Option<IpNet>, address: IpAddr| prefix.is_none_or(|prefix| prefix.contains(&address));
        let ip = match packet.ip {
            None => part.destination.is_none() && part.source.is_none() && part.protocol.is_none(),
            Some((source, destination, protocol)) => {
                in_prefix(part.destination, destination)
                    && in_prefix(part.source, source)
                    && part.protocol.is_none_or(|common| common == protocol)
            }
        };
        ip && part.vlan.is_none_or(|vlan| packet.vlan == Some(vlan))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn ambiguous_matches_are_those_with_a_packet_that_neither_decides(one in any_match(), two in any_match()) {
            let packets = packets();
            let mut undecided = equal(&one, &two, &packets);
            match ambiguity(&one, &two) {
                None => prop_assert_eq!(undecided.next(), None),
                Some(part) => prop_assert!(undecided.any(|packet| contains(&part, packet)), "{}", part),
            }
            prop_assert_eq!(ambiguity(&one, &two).is_some(), ambiguity(&two, &one).is_some());
        }
    }

    fn destinations(prefixes: &[&str]) -> Match {
        Match {
            destinations: prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            ..Match::default()
        }
    }

    #[test]
    fn longer_prefixes_in_either_list_decide() {
        let wide = destinations(&["10.0.0.0/8"]);
        assert_eq!(ambiguity(&wide, &destinations(&["10.1.0.0/16", "0.0.0.0/0"])), None);
        let part = ambiguity(&wide, &destinations(&["10.1.0.0/16", "10.0.0.0/8"])).unwrap();
        assert_eq!(part.to_string(), "destination 10.0.0.0/8");
        let halves = destinations(&["10.0.0.0/9", "10.128.0.0/9", "10.0.0.0/8"]);
        assert_eq!(ambiguity(&wide, &halves), None);
        let top = destinations(&["255.0.0.0/8", "255.128.0.0/9", "255.0.0.0/9"]);
        assert_eq!(ambiguity(&destinations(&["255.0.0.0/8"]), &top), None);
        let six = destinations(&["ff00::/8", "ff80::/9", "ff00::/9"]);
        assert_eq!(ambiguity(&destinations(&["ff00::/8"]), &six), None);
    }

    #[test]
    fn a_listed_protocol_or_vlan_decides_between_equal_prefixes() {
        let all = Match::default();
        let tcp = Match {
            protocols: vec![6],
            ..Match::default()
        };
        let tagged = Match {
            protocols: vec![17, 6],
            vlans: vec![7, 9],
            ..Match::default()
        };
        assert_eq!(ambiguity(&all, &tcp), None);
        assert_eq!(ambiguity(&tcp, &tagged), None);
        assert_eq!(ambiguity(&all, &all).unwrap().to_string(), "all packets");
        let part = ambiguity(&tagged, &tagged).unwrap();
        assert_eq!(part.to_string(), "protocol 17, VLAN 7");
        let packet = MatchKey {
            mac: [0; 6],
            ip: None,
            vlan: None,
        };
        assert!(all.specificity(&packet).is_some() && tcp.specificity(&packet).is_none());
    }
}
