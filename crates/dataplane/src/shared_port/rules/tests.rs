use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_api::chain::MatchKey;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::vlan::VlanTag;
use tailwater_net::{FlowKey, protocol};

fn frame(source: IpAddr, destination: IpAddr, protocol: u8, vlans: &[u16]) -> Vec<u8> {
    let key = match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => FlowKey::v4(s, d, protocol, 1000, 53),
        (IpAddr::V6(s), IpAddr::V6(d)) => FlowKey::v6(s, d, protocol, 1000, 53),
        _ => unreachable!("addresses of one version"),
    };
    let builder = FrameBuilder::new(&key).payload(b"query");
    let tagged = vlans
        .iter()
        .fold(builder, |builder, id| builder.vlan(VlanTag::customer(*id)));
    tagged.to_vec().unwrap()
}

fn prefixes(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|prefix| prefix.parse().unwrap()).collect()
}

fn to(list: &[&str]) -> Match {
    Match {
        destinations: prefixes(list),
        ..Match::default()
    }
}

/// Slot of a UDP packet to this address.
fn slot(rules: &ChainRules, destination: &str) -> Option<u8> {
    let destination: IpAddr = destination.parse().unwrap();
    let source = match destination {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
    };
    rules.chain_of(&frame(source, destination, protocol::UDP, &[]))
}

#[test]
fn the_longest_destination_prefix_gets_the_packet() {
    let matches = [to(&[]), to(&["10.0.0.0/8", "2001:db8::/32"]), to(&["10.1.0.0/16"])];
    let rules = ChainRules::new(matches.iter().enumerate());
    for (destination, expected) in [
        ("9.255.255.255", Some(0)),
        ("10.0.0.0", Some(1)),
        ("10.1.0.0", Some(2)),
        ("10.1.255.255", Some(2)),
        ("10.2.0.0", Some(1)),
        ("10.255.255.255", Some(1)),
        ("11.0.0.0", Some(0)),
        ("255.255.255.255", Some(0)),
        ("2001:db8::7", Some(1)),
        ("2001:db9::", Some(0)),
    ] {
        assert_eq!(slot(&rules, destination), expected, "{destination}");
    }
    // A prefix of all addresses is longer than none, wherever the chain is listed.
    let wide = [to(&[]), to(&["0.0.0.0/0"])];
    for order in [[0, 1], [1, 0]] {
        let rules = ChainRules::new(order.map(|at: usize| &wide[at]).into_iter().enumerate());
        assert_eq!(slot(&rules, "10.0.0.0").map(|slot| order[usize::from(slot)]), Some(1));
        assert_eq!(slot(&rules, "2001:db8::").map(|slot| order[usize::from(slot)]), Some(0));
    }
    let only = ChainRules::new([(7, &matches[2])]);
    assert_eq!(slot(&only, "10.1.2.3"), Some(7));
    assert_eq!(slot(&only, "10.2.2.3"), None);
    assert_eq!(slot(&ChainRules::new([]), "10.2.2.3"), None);
}

#[test]
fn packets_without_ip_go_to_chains_without_prefixes() {
    let matches = [
        to(&["0.0.0.0/0"]),
        Match {
            vlans: vec![7],
            ..Match::default()
        },
        to(&[]),
    ];
    let rules = ChainRules::new(matches.iter().enumerate());
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(rules.chain_of(&arp), Some(2));
    arp[12..18].copy_from_slice(&[0x81, 0x00, 0x00, 0x07, 0x08, 0x06]);
    assert_eq!(rules.chain_of(&arp), Some(1));
    assert_eq!(rules.chain_of(&[]), Some(2));
    assert_eq!(ChainRules::new([(0, &matches[0])]).chain_of(&arp), None);
}

#[test]
fn a_malformed_packet_goes_to_the_chain_of_its_ip_header() {
    let matches = [to(&["192.0.2.0/24"]), to(&[])];
    let rules = ChainRules::new(matches.iter().enumerate());
    let (source, destination) = ([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
    for vlans in [&[][..], &[5], &[5, 6]] {
        let mut broken = frame(source, destination, protocol::UDP, vlans);
        broken.truncate(14 + 4 * vlans.len() + 20);
        assert!(parse(&broken).is_err());
        assert_eq!(rules.chain_of(&broken), Some(0), "{vlans:?}");
        broken.pop();
        assert_eq!(rules.chain_of(&broken), Some(1), "{vlans:?}");
    }
}

#[test]
fn the_outermost_vlan_with_an_identifier_counts() {
    let wanted = Match {
        vlans: vec![7],
        ..Match::default()
    };
    let rules = ChainRules::new([(0, &wanted)]);
    for (vlans, expected) in [
        (&[][..], None),
        (&[7], Some(0)),
        (&[8], None),
        (&[7, 8], Some(0)),
        (&[8, 7], None),
        (&[0, 7], Some(0)),
    ] {
        let frame = frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP, vlans);
        assert_eq!(rules.chain_of(&frame), expected, "{vlans:?}");
    }
}

/// Few addresses, so that prefixes and packets often meet.
fn address() -> impl Strategy<Value = IpAddr> {
    let byte = || prop_oneof![Just(0u8), Just(1), Just(2), Just(255)];
    prop_oneof![
        (byte(), byte()).prop_map(|(a, b)| IpAddr::from([a, 0, 0, b])),
        (byte(), byte()).prop_map(|(a, b)| {
            let mut bytes = [0; 16];
            (bytes[0], bytes[15]) = (a, b);
            IpAddr::from(bytes)
        }),
    ]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let length = prop_oneof![1 => Just(0u8), 9 => 0u8..=128];
    (address(), length).prop_map(|(address, length)| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, length.min(most)).unwrap().trunc()
    })
}

fn wanted() -> impl Strategy<Value = Match> {
    use proptest::collection::vec;
    let few = || prop_oneof![Just(protocol::TCP), Just(protocol::UDP)];
    (
        vec((0u8..3).prop_map(|last| [2, 0, 0, 0, 0, last]), 0..2),
        vec(prefix(), 0..4),
        vec(prefix(), 0..4),
        vec(few(), 0..2),
        vec(1u16..4, 0..2),
    )
        .prop_map(|(macs, sources, destinations, protocols, vlans)| Match {
            macs,
            sources,
            destinations,
            protocols,
            vlans,
        })
}

/// Chain by comparing the packet with each chain's match. Of equally specific ones the first wins.
fn oracle(chains: &[Match], packet: &MatchKey) -> Option<usize> {
    let accepting = chains.iter().enumerate().filter_map(|(slot, wanted)| {
        let specificity = wanted.specificity(packet)?;
        Some((specificity, std::cmp::Reverse(slot)))
    });
    accepting.max().map(|(_, slot)| slot.0)
}

/// Addresses, protocol, VLAN and last byte of the MAC address of a packet.
fn packet() -> impl Strategy<Value = (IpAddr, IpAddr, bool, Option<u16>, u8)> {
    (
        address(),
        address(),
        any::<bool>(),
        proptest::option::of(1u16..5),
        0u8..4,
    )
}

proptest! {
    #[test]
    fn rules_decide_as_a_comparison_with_each_chain(
        chains in proptest::collection::vec(wanted(), 0..6),
        packets in proptest::collection::vec(packet(), 1..40),
    ) {
        let rules = ChainRules::new(chains.iter().enumerate());
        for (source, destination, is_tcp, vlan, last) in packets {
            let mac = [2, 0, 0, 0, 0, last];
            let destination = match (source, destination) {
                (IpAddr::V4(_), IpAddr::V6(_)) => IpAddr::from([2, 0, 0, 1]),
                (IpAddr::V6(_), IpAddr::V4(_)) => IpAddr::from([0; 16]),
                _ => destination,
            };
            let protocol = if is_tcp { protocol::TCP } else { protocol::UDP };
            let tags: Vec<u16> = vlan.into_iter().collect();
            let ip = Some((source, destination, protocol));
            let expected = oracle(&chains, &MatchKey { mac, ip, vlan });
            let mut frame = frame(source, destination, protocol, &tags);
            frame[..6].copy_from_slice(&mac);
            let found = rules.chain_of(&frame);
            prop_assert_eq!(found.map(usize::from), expected);
        }
    }
}

#[test]
fn adjacent_prefixes_of_a_chain_are_one_interval() {
    let adjacent: Vec<String> = (0..16).map(|network| format!("10.{network}.0.0/16")).collect();
    let adjacent: Vec<&str> = adjacent.iter().map(String::as_str).collect();
    let rules = ChainRules::new([(3, &to(&adjacent))]);
    let AddressSearch::Table(table) = &rules.destinations.search else {
        panic!()
    };
    let blocks = table.chains.iter().filter(|chains| **chains == 1 << 3);
    assert_eq!((table.shift, blocks.count()), (20, 1));
    for (destination, expected) in [
        ("9.255.255.255", None),
        ("10.0.0.0", Some(3)),
        ("10.7.255.255", Some(3)),
        ("10.15.255.255", Some(3)),
        ("10.16.0.0", None),
    ] {
        assert_eq!(slot(&rules, destination), expected, "{destination}");
    }
}

/// Prefixes close together, far from each other, and at the ends of the address space.
#[test]
fn tables_decide_as_intervals() {
    for (list, has_table) in [
        (&[][..], true),
        (&["0.0.0.0/0"], true),
        (&["10.0.0.0/9", "10.192.0.0/10"], true),
        (&["10.0.0.0/24", "10.0.2.0/23", "10.0.126.0/24"], true),
        (&["10.0.0.0/24", "10.0.128.0/24"], false),
        (&["0.0.0.0/2", "192.168.0.0/16"], false),
        (&["0.0.0.0/1", "128.0.0.0/1"], true),
        (&["0.0.0.0/1", "192.0.0.0/4"], false),
        (&["128.0.0.0/1"], false),
        (&["10.1.2.3/32", "10.1.2.5/32"], true),
    ] {
        let matches = [to(list), to(&["10.0.0.0/24"])];
        let rules = ChainRules::new(matches.iter().enumerate());
        let alone = ChainRules::new([(5, &matches[0])]);
        let is_searched = matches!(alone.destinations.search, AddressSearch::Intervals);
        assert_eq!(is_searched, !has_table, "{list:?}");
        for rules in [rules, alone] {
            let destinations = &rules.destinations;
            let bounds = destinations.v4.firsts.iter().copied().chain([0, 0x0a80_0000]);
            for address in bounds.flat_map(|bound| [bound.wrapping_sub(1), bound, bound.wrapping_add(1)]) {
                let address = std::net::Ipv4Addr::from(address);
                let found = destinations.find(address.into());
                assert_eq!(found, destinations.v4.find(address.into()), "{list:?} {address}");
            }
        }
    }
}
