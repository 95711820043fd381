//! Rows as rules: priorities, parts of matches, cookies; and an oracle that reads the rules as a switch does.

use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn row(destination: &str) -> Row {
    Row::of_prefix(net(destination))
}

fn part_row(destination: &str, source: (u8, u8)) -> Row {
    Row {
        source,
        ..row(destination)
    }
}

fn to(server: u32) -> Action {
    Action::Server {
        mac: [2, 0, 0, 0, 0, server as u8],
        port: server,
    }
}

/// Chains with their rows, as rules.
fn rules(chains: &[(&Match, &[(Row, Action)])]) -> RuleSet {
    let ranks = Ranks::new(chains.iter().map(|(matching, _)| *matching)).unwrap();
    let mut rules = RuleSet::new();
    for (number, (matching, rows)) in chains.iter().enumerate() {
        add_rows(&mut rules, (3, number as u32), matching, &ranks, rows);
    }
    rules
}

/// Matches of rules, by falling priority.
fn shown(rules: &RuleSet) -> Vec<String> {
    rules
        .values()
        .rev()
        .map(|rule| {
            let Action::Server { port, .. } = rule.action else {
                return rule.matching.to_string();
            };
            format!("{} -> {port}", rule.matching)
        })
        .collect()
}

/// Packet as a rule sees it.
#[derive(Clone, Copy, Debug)]
struct Packet {
    source: u32,
    destination: u32,
    protocol: u8,
}

/// Action of a switch that has these rules.
fn applies(rules: &RuleSet, packet: Packet) -> Option<&Action> {
    let matches = |matching: &FlowMatch| {
        let is_in = |address: &Option<MaskedAddress>, value: u32| match address {
            None => true,
            Some(MaskedAddress::V4 { value: wanted, mask }) => value & mask == *wanted,
            Some(MaskedAddress::V6 { .. }) => false,
        };
        matching.eth_type.is_none_or(|kind| kind == ETH_V4)
            && matching.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && matching.vlan.is_none()
            && matching.in_port.is_none()
            && is_in(&matching.source, packet.source)
            && is_in(&matching.destination, packet.destination)
    };
    let rule = rules.values().rev().find(|rule| matches(&rule.matching));
    rule.map(|rule| &rule.action)
}

#[test]
fn longer_rows_win_and_matches_decide_first() {
    let any = Match::default();
    let rows = [
        (Row::DEFAULT, to(1)),
        (row("10.0.0.0/8"), to(2)),
        (row("10.1.0.0/16"), to(3)),
        (part_row("10.1.2.3/32", (0b10, 2)), to(4)),
        (row("2001:db8::/32"), to(5)),
    ];
    assert_eq!(
        shown(&rules(&[(&any, &rows)])),
        [
            "ip,nw_src=0.0.0.8/0.0.0.12,nw_dst=10.1.2.3/32 -> 4",
            "ipv6,nw_dst=2001:db8::/32 -> 5",
            "ip,nw_dst=10.1.0.0/16 -> 3",
            "ip,nw_dst=10.0.0.0/8 -> 2",
            "any -> 1",
        ]
    );
    // A chain with a longer prefix gets its packets, whatever rows another has.
    let web = Match {
        destinations: vec![net("10.1.0.0/16")],
        protocols: vec![6],
        ..Match::default()
    };
    let both = rules(&[(&any, &rows), (&web, &[(Row::DEFAULT, to(9))])]);
    let packet = Packet {
        source: 8,
        destination: 0x0a01_0203,
        protocol: 6,
    };
    assert_eq!(applies(&both, packet), Some(&to(9)));
    assert_eq!(applies(&both, Packet { protocol: 17, ..packet }), Some(&to(4)));
    assert_eq!(shown(&both)[0], "ip,nw_proto=6,nw_dst=10.1.0.0/16 -> 9");
}

#[test]
fn rows_are_written_within_the_parts_of_a_match() {
    let matching = Match {
        macs: Vec::new(),
        destinations: vec![net("10.0.0.0/8"), net("192.0.2.0/24"), net("2001:db8::/32")],
        sources: vec![net("172.16.0.0/12"), net("fd00::/8")],
        protocols: vec![6, 17],
        vlans: vec![7],
    };
    let rows = [
        (Row::DEFAULT, to(1)),
        (row("10.0.0.0/7"), to(2)),
        (row("10.2.0.0/16"), to(3)),
        (row("198.51.100.0/24"), to(4)),
    ];
    let mut found = shown(&rules(&[(&matching, &rows)]));
    found.retain(|rule| rule.contains("nw_proto=6,"));
    found.sort();
    assert_eq!(
        found,
        [
            // 10.0.0.0/7 covers 10.0.0.0/8, so the default row has nothing there.
            "ip,dl_vlan=7,nw_proto=6,nw_src=172.16.0.0/12,nw_dst=10.0.0.0/8 -> 2",
            "ip,dl_vlan=7,nw_proto=6,nw_src=172.16.0.0/12,nw_dst=10.2.0.0/16 -> 3",
            "ip,dl_vlan=7,nw_proto=6,nw_src=172.16.0.0/12,nw_dst=192.0.2.0/24 -> 1",
            "ipv6,dl_vlan=7,nw_proto=6,nw_src=fd00::/8,nw_dst=2001:db8::/32 -> 1",
        ]
    );
    assert_eq!(parts_of(&matching), 12);
    assert_eq!(rules_of_row(&matching, rows[2].0), 2);
    assert_eq!(rules_of_row(&matching, rows[3].0), 0);
    // A protocol without addresses is one of both families.
    let udp = Match {
        protocols: vec![17],
        ..Match::default()
    };
    let both = shown(&rules(&[(&udp, &[(Row::DEFAULT, to(1))])]));
    assert_eq!(both, ["ipv6,nw_proto=17 -> 1", "ip,nw_proto=17 -> 1"]);
}

#[test]
fn a_source_prefix_and_source_bits_match_together_or_not_at_all() {
    let matching = Match {
        sources: vec![net("192.0.2.8/29"), net("192.0.2.0/24")],
        ..Match::default()
    };
    let rows = [
        (part_row("10.0.0.1/32", (0, 1)), to(1)),
        (part_row("10.0.0.1/32", (1, 1)), to(2)),
    ];
    assert_eq!(
        shown(&rules(&[(&matching, &rows)])),
        [
            "ip,nw_src=192.0.2.8/29,nw_dst=10.0.0.1/32 -> 2",
            "ip,nw_src=192.0.2.8/255.255.255.8,nw_dst=10.0.0.1/32 -> 2",
            "ip,nw_src=192.0.2.0/255.255.255.8,nw_dst=10.0.0.1/32 -> 1",
        ]
    );
}

#[test]
fn rows_are_read_back_from_cookies_and_matches() {
    let matching = Match {
        destinations: vec![net("10.0.0.0/8"), net("2001:db8::/32")],
        ..Match::default()
    };
    let rows = [
        (Row::DEFAULT, to(1)),
        (row("10.0.0.0/7"), to(2)),
        (row("10.1.0.0/16"), to(3)),
        (row("::/0"), to(4)),
        (part_row("2001:db8:0:1::/64", (0b0110, 4)), to(5)),
        (part_row("10.1.2.3/32", (0, 1)), to(6)),
    ];
    let rules = rules(&[(&Match::default(), &[]), (&matching, &rows)]);
    let mut found: Vec<_> = rules.values().map(|rule| row_of(rule, 3).unwrap()).collect();
    found.sort();
    let mut expected: Vec<_> = rows[1..].iter().map(|(row, _)| (1, *row)).collect();
    expected.sort();
    assert_eq!(found, expected);
    let rule = rules.values().next().unwrap();
    assert!(is_owned(rule, 3) && !is_owned(rule, 4));
    assert_eq!(row_of(rule, 4), None);
    assert_eq!(Mark::of(0, 0), None);
    for mark in [Mark::FromServer, Mark::Unmatched] {
        assert_eq!(Mark::of(mark.cookie(255), 255), Some(mark));
    }
    let identity = chain_identity("edge");
    assert!(identity < 1 << 31 && identity != chain_identity("edgf"));
}

#[test]
fn too_many_ranks_are_refused() {
    let of_length = |length: usize| Match {
        destinations: vec![IpNet::new(Ipv4Addr::UNSPECIFIED.into(), (length % 33) as u8).unwrap()],
        sources: vec![IpNet::new(Ipv4Addr::UNSPECIFIED.into(), (length / 33) as u8).unwrap()],
        ..Match::default()
    };
    let matches: Vec<Match> = (0..=MAX_RANKS).map(of_length).collect();
    assert!(Ranks::new(&matches[1..]).is_some());
    assert_eq!(Ranks::new(&matches), None);
    let highest = Ranks::new(&matches[1..]).unwrap();
    let part = &parts(&matches[MAX_RANKS])[0];
    let longest = part_row("::/64", (0, 4));
    assert!(highest.priority(part, longest) < PORT_PRIORITY);
    assert!(highest.priority(part, row("::1/128")) < PORT_PRIORITY);
}

#[test]
fn classes_follow_the_source_bits_of_rows() {
    for last in 0..=255_u8 {
        let class = class_of([192, 0, 2, last].into(), [10, 0, 0, 1].into());
        let wanted = part_row("10.0.0.1/32", (last >> 2 & 3, 2));
        assert!(wanted.to_row_match().unwrap().matches(class));
        let Some(MaskedAddress::V4 { value, mask }) = wanted.source_match() else {
            panic!("no source");
        };
        assert_eq!(u32::from(last) & mask, value);
        assert_eq!(Row::from(wanted.to_row_match().unwrap()), wanted);
    }
    assert_eq!(
        part_row("10.0.0.1/32", (0b01, 2)).to_string(),
        "10.0.0.1/32 source 0b01"
    );
    assert_eq!(row("10.0.0.0/8").to_string(), "10.0.0.0/8");
    assert_eq!(Row::DEFAULT.to_string(), "any");
}

proptest! {
    /// The rules send every packet where the most specific chain's longest row does.
    #[test]
    fn rules_do_what_rows_say(
        prefixes in proptest::collection::vec((any::<u8>(), 0_u8..9), 0..8),
        chains in proptest::collection::vec((any::<u8>(), 0_u8..9, proptest::option::of(0_u8..9), any::<bool>()), 1..4),
        packets in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<bool>()), 1..20),
    ) {
        // Prefixes within one byte of the addresses, so that they overlap often.
        let prefix = |byte: u8, length: u8| {
            IpNet::new(Ipv4Addr::new(10, 0, 0, byte).into(), 24 + length.min(8)).unwrap().trunc()
        };
        let mut matches: Vec<Match> = Vec::new();
        for (byte, length, source, tcp) in chains {
            let matching = Match {
                destinations: vec![prefix(byte, length)],
                sources: source.map(|length| prefix(byte, length)).into_iter().collect(),
                protocols: tcp.then_some(6).into_iter().collect(),
                ..Match::default()
            };
            let ambiguous = |other: &Match| tailwater_api::chain::ambiguity(other, &matching).is_some();
            if !matches.iter().any(ambiguous) {
                matches.push(matching);
            }
        }
        let mut rows: BTreeMap<Row, Action> = BTreeMap::from([(Row::DEFAULT, to(99))]);
        for (number, (byte, length)) in prefixes.into_iter().enumerate() {
            rows.insert(Row::of_prefix(prefix(byte, length)), to(number as u32));
        }
        // Every chain has the same rows, to servers of its own.
        let of_chain = |chain: usize| -> Vec<(Row, Action)> {
            let own = |action: &Action| match action {
                Action::Server { mac, port } => Action::Server { mac: *mac, port: port + 1000 * chain as u32 },
                other => other.clone(),
            };
            rows.iter().map(|(row, action)| (*row, own(action))).collect()
        };
        let all: Vec<Vec<(Row, Action)>> = (0..matches.len()).map(of_chain).collect();
        let chains: Vec<(&Match, &[(Row, Action)])> =
            matches.iter().zip(&all).map(|(matching, rows)| (matching, rows.as_slice())).collect();
        let rules = rules(&chains);
        for (source, destination, tcp) in packets {
            let address = |last: u8| Ipv4Addr::new(10, 0, 0, last);
            let protocol = if tcp { 6 } else { 17 };
            let key = tailwater_api::chain::MatchKey {
                mac: [0; 6],
                ip: Some((address(source).into(), address(destination).into(), protocol)),
                vlan: None,
            };
            let packet = Packet {
                source: address(source).to_bits(),
                destination: address(destination).to_bits(),
                protocol,
            };
            let chain = (0..matches.len())
                .filter_map(|chain| Some((matches[chain].specificity(&key)?, chain)))
                .max();
            let expected = chain.map(|(_, chain)| {
                let matching = all[chain].iter().filter(|(row, _)| {
                    row.destination.is_none_or(|prefix| prefix.contains(&IpAddr::from(address(destination))))
                });
                matching.max_by_key(|(row, _)| row.length()).map(|(_, action)| action).unwrap()
            });
            prop_assert_eq!(applies(&rules, packet), expected);
        }
    }
}
