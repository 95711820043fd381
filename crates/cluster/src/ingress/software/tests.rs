//! The software data plane beside the rules as they are written, without the kernel.

mod forwarding;
mod storing;

use super::counters::RuleCounters;
use super::key::PacketKey;
use super::table::{Counters, FlowTable, Target};
use crate::ingress::rows::{Ranks, Row, RuleSet, add_from_server, add_rows, add_unmatched};
use crate::ingress::rule::{Action, FlowMatch, FlowRule, MaskedAddress, PortNumber};
use ipnet::IpNet;
use proptest::prelude::*;
use std::net::IpAddr;
use std::sync::Arc;
use tailwater_api::chain::Match;

const PORTS: usize = 6;

fn to(server: u8) -> Action {
    Action::Server {
        mac: [2, 0, 0, 0, 0, server],
        port: PortNumber::from(server % PORTS as u8) + 1,
    }
}

fn compiled(rules: &RuleSet) -> FlowTable {
    let counters: Counters = rules
        .keys()
        .map(|key| (key.clone(), Arc::new(RuleCounters::new(1))))
        .collect();
    FlowTable::compile(rules, &counters, PORTS).unwrap()
}

/// Packet as rules see it.
#[derive(Clone, Copy, Debug)]
struct Packet {
    in_port: PortNumber,
    vlan: Option<u16>,
    protocol: u8,
    /// `None` if it is none of IP.
    addresses: Option<(IpAddr, IpAddr)>,
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 0xff];
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        match self.addresses {
            Some((IpAddr::V4(source), IpAddr::V4(destination))) => {
                frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend([0, 7, 0, 9, 0, 8, 0, 0]);
            }
            Some((IpAddr::V6(source), IpAddr::V6(destination))) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, self.protocol, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend([0, 7, 0, 9, 0, 8, 0, 0]);
            }
            _ => frame.extend([8, 6].iter().chain(&[0; 46])),
        }
        frame
    }

    fn matches(&self, matching: &FlowMatch) -> bool {
        let eth_type = self
            .addresses
            .map(|(source, _)| if source.is_ipv4() { 0x0800 } else { 0x86dd });
        let is_in = |wanted: Option<MaskedAddress>, address: Option<IpAddr>| match (wanted, address) {
            (None, _) => true,
            (Some(MaskedAddress::V4 { value, mask }), Some(IpAddr::V4(address))) => address.to_bits() & mask == value,
            (Some(MaskedAddress::V6 { value, mask }), Some(IpAddr::V6(address))) => address.to_bits() & mask == value,
            _ => false,
        };
        matching.in_port.is_none_or(|port| port == self.in_port)
            && matching.vlan.is_none_or(|vlan| self.vlan == Some(vlan))
            && matching.eth_type.is_none_or(|kind| eth_type == Some(kind))
            && matching
                .protocol
                .is_none_or(|protocol| eth_type.is_some() && protocol == self.protocol)
            && is_in(matching.source, self.addresses.map(|(source, _)| source))
            && is_in(matching.destination, self.addresses.map(|(_, destination)| destination))
    }
}

/// Targets of the rules that a switch could apply: those of the highest priority that match.
fn applies(rules: &RuleSet, packet: &Packet) -> Vec<Target> {
    let mut matching: Vec<&FlowRule> = rules.values().filter(|rule| packet.matches(&rule.matching)).collect();
    let highest = matching.iter().map(|rule| rule.priority).max();
    matching.retain(|rule| Some(rule.priority) == highest);
    let targets = matching
        .iter()
        .map(|rule| super::table::target(&rule.action, PORTS).unwrap());
    targets.collect()
}

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (0_u32..4, 0_u32..4, 8_u8..=32).prop_map(|(a, b, length)| {
            let address = 0x0a00_0000 | a << 16 | b;
            IpNet::new(IpAddr::from(address.to_be_bytes()), length).unwrap().trunc()
        }),
        (0_u128..4, 32_u8..=128).prop_map(|(a, length)| {
            let address = 0x2001_0db8_u128 << 96 | a << 64 | a;
            IpNet::new(IpAddr::from(address.to_be_bytes()), length).unwrap().trunc()
        }),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let divided = |net: IpNet, (value, count): (u8, u8)| {
        let is_host = net.prefix_len() == net.max_prefix_len();
        let source = if is_host {
            (value & ((1 << count) - 1), count)
        } else {
            (0, 0)
        };
        Row {
            destination: Some(net),
            source,
        }
    };
    prop_oneof![
        1 => Just(Row::DEFAULT),
        6 => (net(), (0_u8..16, 0_u8..=4)).prop_map(move |(net, source)| divided(net, source)),
    ]
}

fn chain() -> impl Strategy<Value = (Match, Vec<(Row, Action)>)> {
    let list = |most| proptest::collection::vec(net(), 0..most);
    let protocols = prop_oneof![Just(vec![]), Just(vec![17]), Just(vec![17, 47])];
    let vlans = prop_oneof![Just(vec![]), Just(vec![7])];
    let rows = proptest::collection::vec((row(), (1_u8..20).prop_map(to)), 1..12);
    (list(3), list(2), protocols, vlans, rows).prop_map(|(destinations, sources, protocols, vlans, rows)| {
        let matching = Match {
            destinations,
            sources,
            protocols,
            vlans,
            ..Match::default()
        };
        (matching, rows)
    })
}

fn packet() -> impl Strategy<Value = Packet> {
    let v4 = |a: u32, b: u32| IpAddr::from((0x0a00_0000 | a << 16 | b).to_be_bytes());
    let v6 = |a: u128, b: u128| IpAddr::from((0x2001_0db8_u128 << 96 | a << 64 | b).to_be_bytes());
    let addresses = prop_oneof![
        6 => (0_u32..4, 0_u32..4, 0_u32..4, 0_u32..16).prop_map(move |(a, b, c, d)| Some((v4(c, d), v4(a, b)))),
        3 => (0_u128..4, 0_u128..4, 0_u128..4, 0_u128..16).prop_map(move |(a, b, c, d)| Some((v6(c, d), v6(a, b)))),
        1 => Just(None),
    ];
    let vlan = prop_oneof![3 => Just(None), 1 => Just(Some(7)), 1 => Just(Some(8))];
    let protocol = prop_oneof![Just(17_u8), Just(47), Just(50)];
    (1..=PORTS as PortNumber, vlan, protocol, addresses).prop_map(|(in_port, vlan, protocol, addresses)| Packet {
        in_port,
        vlan,
        protocol,
        addresses,
    })
}

proptest! {
    /// Packets go where the rules say, as a switch reads them, whatever chains and rows there are.
    #[test]
    fn packets_match_the_rules_of_the_rows(
        chains in proptest::collection::vec(chain(), 1..4),
        packets in proptest::collection::vec(packet(), 1..40),
        has_unmatched in any::<bool>(),
    ) {
        let ranks = Ranks::new(chains.iter().map(|(matching, _)| matching)).unwrap();
        let mut rules = RuleSet::new();
        for (number, (matching, rows)) in chains.iter().enumerate() {
            add_rows(&mut rules, (3, number as u32), matching, &ranks, rows);
        }
        add_from_server(&mut rules, 3, 2, Action::Ports(vec![1, 3]));
        if has_unmatched {
            add_unmatched(&mut rules, 3, Action::Normal);
        }
        let table = compiled(&rules);
        for packet in packets {
            let expected = applies(&rules, &packet);
            let found = table.find(&PacketKey::of(&packet.frame(), packet.in_port));
            let target = table.rule(found).map(|rule| rule.target);
            match target {
                Some(target) => prop_assert!(expected.contains(&target), "{:?}: {:?}, {:?}", packet, target, expected),
                None => prop_assert!(expected.is_empty(), "{:?}: {:?}", packet, expected),
            }
        }
    }
}

#[test]
fn malformed_frames_are_none_of_ip() {
    let v4 = Packet {
        in_port: 1,
        vlan: None,
        protocol: 17,
        addresses: Some(("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())),
    };
    let frame = v4.frame();
    let whole = PacketKey::of(&frame, 1);
    assert_eq!(PacketKey::of(&frame[..34], 1), whole, "a complete header counts");
    let of_ip = FlowMatch {
        eth_type: Some(0x0800),
        ..FlowMatch::default()
    };
    let (mask, value) = PacketKey::of_match(&of_ip).unwrap();
    assert_eq!(whole.masked(&mask), value);
    for length in 0..34 {
        let key = PacketKey::of(&frame[..length], 1);
        assert!(key.masked(&mask) != value, "{length} bytes");
    }
    // Fields that are not looked at here are refused, not ignored.
    let other = FlowMatch {
        other: vec![1],
        ..FlowMatch::default()
    };
    assert_eq!(PacketKey::of_match(&other), None);
}
