//! Tests of the rule language, of reported mistakes and shadowed rules, and of the deciding rule.

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;

#[test]
fn a_rule_of_everything() {
    let text = "# comment\n\n  deny udp to servers source 10.1.0.0/16 destination 10.9.0.53 \
                sourcePorts 1024-65535 ports 53 from lan state new,invalid # why\n";
    let rules = language::parse(text, &zones()).unwrap();
    let expected = Rule {
        action: Action::Deny,
        from: Some(0),
        to: Some(2),
        source: Some("10.1.0.0/16".parse().unwrap()),
        destination: Some("10.9.0.53/32".parse().unwrap()),
        source_ports: 1024..=65535,
        destination_ports: 53..=53,
        protocol: Some(17),
        states: States::NONE.with(State::New).with(State::Invalid),
        line: 3,
    };
    assert_eq!(rules, [expected]);
    assert_eq!(
        language::parse("allow", &[]).unwrap(),
        [Rule {
            action: Action::Allow,
            line: 1,
            ..language::parse_rule("deny any", &[]).unwrap()
        }]
    );
}

#[test]
fn mistakes_say_where_and_what() {
    for (text, expected) in [
        ("permit tcp", "1:1: expected allow, deny or reject, found \"permit\""),
        (
            "alow tcp",
            "1:1: expected allow, deny or reject, found \"alow\"; did you mean \"allow\"?",
        ),
        (
            "allow tpc",
            "1:7: expected a protocol such as tcp, or one of from, to, source, destination, \
                       sourcePorts, ports, state, found \"tpc\"; did you mean \"tcp\"?",
        ),
        (
            "allow tcp from lann",
            "1:16: expected a zone, found \"lann\"; did you mean \"lan\"?",
        ),
        (
            "allow tcp port 80",
            "1:11: expected one of from, to, source, destination, sourcePorts, ports, \
                               state, found \"port\"; did you mean \"ports\"?",
        ),
        (
            "allow tcp ports 80 ports 81",
            "1:20: expected ports once, found it twice",
        ),
        ("allow tcp ports", "1:16: expected a value after ports, found nothing"),
        (
            "allow tcp ports 90-80",
            "1:17: expected a range of ports from low to high, found \"90-80\"; \
                                   did you mean \"80-90\"?",
        ),
        (
            "allow source 10.0.0.1/8",
            "1:14: expected no address bits beyond the prefix length 8, found \
                                     \"10.0.0.1/8\"; did you mean \"10.0.0.0/8\"?",
        ),
        (
            "allow source 10.0.0.0/8 destination fd00::/8",
            "1:1: expected source and destination of one \
                                                          IP version, found both versions",
        ),
        (
            "allow icmp ports 80",
            "1:7: expected ports only with tcp, udp or sctp, found them with icmp",
        ),
        (
            "allow state newest",
            "1:13: expected states out of new, established, related, invalid, with \
                                commas, found \"newest\"",
        ),
    ] {
        let (mistakes, more) = language::parse(text, &zones()).unwrap_err();
        assert_eq!(more, 0);
        assert_eq!(mistakes.iter().map(|m| m.to_string()).collect::<Vec<_>>(), [expected]);
    }
}

/// A file of 35,000 lines with fifty mistakes: all fifty are reported with their lines.
#[test]
fn all_mistakes_of_a_long_file_are_told_at_once() {
    let wrong = |line: usize| line % 700 == 13;
    let text: String = (1..=35_000)
        .map(|line| match wrong(line) {
            true => format!("allow tcp from lan to wan ports {}\n", 65_536 + line),
            false => format!(
                "allow tcp from lan to wan destination 198.{}.{}.{} ports {}\n",
                18 + line / 60_000,
                line / 256 % 256,
                line % 256,
                1 + line % 60_000
            ),
        })
        .collect();
    let (mistakes, more) = language::parse(&text, &zones()).unwrap_err();
    assert_eq!((mistakes.len(), more), (50, 0));
    for (mistake, line) in mistakes.iter().zip((1..=35_000).filter(|line| wrong(*line))) {
        assert_eq!((mistake.line, mistake.column), (line, 33));
        assert!(mistake.message.contains(&(65_536 + line).to_string()), "{mistake}");
    }
    // Without the mistakes, the rules compile within the memory limit.
    let good: String = text
        .lines()
        .enumerate()
        .filter(|(i, _)| !wrong(i + 1))
        .map(|(_, line)| format!("{line}\n"))
        .collect();
    let rules = language::parse(&good, &zones()).unwrap();
    assert_eq!(rules.len(), 34_950);
    rule_set::RuleSet::new(&zones(), &rules, Action::Deny).unwrap();
    assert_eq!(shadowed(&rules).unwrap(), []);
    // Mistakes beyond the limit are counted.
    let (mistakes, more) = language::parse(&"x\n".repeat(1500), &[]).unwrap_err();
    assert_eq!((mistakes.len(), more), (1000, 500));
}

/// Generates random rules over few values, so that they overlap.
fn rule() -> impl Strategy<Value = Rule> {
    let prefix = || {
        prop_oneof![
            Just(None),
            (0u8..4, 8u8..=32).prop_map(|(host, length)| {
                let address = IpAddr::V4(Ipv4Addr::new(10, host * 5, host, host));
                Some(ipnet::IpNet::new(address, length).unwrap().trunc())
            }),
        ]
    };
    let ports = || (0u16..4, 0u16..4).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let ports = || prop_oneof![Just(0..=u16::MAX), ports()];
    let zone = || prop::option::of(0u8..3);
    let action = prop_oneof![Just(Action::Allow), Just(Action::Deny), Just(Action::Reject)];
    let states = prop_oneof![
        3 => Just(States::NEW),
        1 => (0usize..4).prop_map(|i| States::NONE.with(State::ALL[i].1)),
        1 => Just(States::NEW.with(State::Invalid)),
    ];
    let protocol = prop_oneof![Just(None), Just(Some(6u8)), Just(Some(17u8))];
    (
        action,
        (zone(), zone()),
        (prefix(), prefix()),
        (ports(), ports()),
        protocol,
        states,
    )
        .prop_map(
            |(action, (from, to), (source, destination), (source_ports, destination_ports), protocol, states)| Rule {
                action,
                from,
                to,
                source,
                destination,
                source_ports,
                destination_ports,
                protocol,
                states,
                line: 0,
            },
        )
}

/// Finds the zone of an address, prefix by prefix.
fn zone_of(zones: &[Zone], address: IpAddr) -> Option<u8> {
    let holding = zones.iter().enumerate().flat_map(|(i, zone)| {
        let prefixes = zone.prefixes.iter().filter(|prefix| prefix.contains(&address));
        prefixes.map(move |prefix| (prefix.prefix_len(), i as u8))
    });
    holding.max_by_key(|(length, _)| *length).map(|(_, zone)| zone)
}

fn matches(rule: &Rule, zones: &[Zone], key: &FlowKey, state: State) -> bool {
    rule.states.has(state)
        && rule.from.is_none_or(|zone| zone_of(zones, key.source()) == Some(zone))
        && rule
            .to
            .is_none_or(|zone| zone_of(zones, key.destination()) == Some(zone))
        && rule.source.is_none_or(|prefix| prefix.contains(&key.source()))
        && rule
            .destination
            .is_none_or(|prefix| prefix.contains(&key.destination()))
        && rule.source_ports.contains(&key.source_port())
        && rule.destination_ports.contains(&key.destination_port())
        && rule.protocol.is_none_or(|protocol| protocol == key.protocol())
}

/// Returns `true` if every packet that matches `inner` also matches `outer`.
fn covers(outer: &Rule, inner: &Rule) -> bool {
    fn same<T: PartialEq>(outer: &Option<T>, inner: &Option<T>) -> bool {
        outer.is_none() || outer == inner
    }
    // A prefix on one side restricts the other side to the same IP version.
    let of_version = |net: Option<ipnet::IpNet>, other: Option<ipnet::IpNet>| {
        net.or(other.map(|other| match other {
            ipnet::IpNet::V4(_) => "0.0.0.0/0".parse().unwrap(),
            ipnet::IpNet::V6(_) => "::/0".parse().unwrap(),
        }))
    };
    let wider = |outer: Option<ipnet::IpNet>, inner: Option<ipnet::IpNet>| match (outer, inner) {
        (None, _) => true,
        (Some(outer), Some(inner)) => outer.contains(&inner),
        (Some(_), None) => false,
    };
    let ports = |outer: &std::ops::RangeInclusive<u16>, inner: &std::ops::RangeInclusive<u16>| {
        outer.contains(inner.start()) && outer.contains(inner.end())
    };
    same(&outer.from, &inner.from)
        && same(&outer.to, &inner.to)
        && same(&outer.protocol, &inner.protocol)
        && wider(outer.source, of_version(inner.source, inner.destination))
        && wider(outer.destination, of_version(inner.destination, inner.source))
        && ports(&outer.source_ports, &inner.source_ports)
        && ports(&outer.destination_ports, &inner.destination_ports)
        && outer.states.contain(inner.states)
}

fn world() -> Vec<FlowKey> {
    let mut keys = Vec::new();
    let address = |n: u8| Ipv4Addr::new(if n == 3 { 198 } else { 10 }, n * 5, n, n);
    for n in 0..5 * 5 * 2 * 16u16 {
        let (a, b) = ((n % 5) as u8, (n / 5 % 5) as u8);
        let protocol = if n / 25 % 2 == 0 { 6 } else { 17 };
        keys.push(FlowKey::v4(address(a), address(b), protocol, n / 50 % 4, n / 200 % 4));
    }
    keys
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_first_rule_that_matches_decides(
        rules in prop::collection::vec(rule(), 0..30),
        bounds in prop::collection::vec((0usize..3, 0u8..5, 6u8..=32), 0..6),
    ) {
        let mut zones: Vec<Zone> = ["a", "b", "c"].iter().map(|name| Zone {
            name: (*name).to_owned(), prefixes: vec![], port: None,
        }).collect();
        let mut taken = std::collections::HashSet::new();
        for (zone, n, length) in bounds {
            let address = IpAddr::V4(Ipv4Addr::new(10, n * 5, n, n));
            let prefix = ipnet::IpNet::new(address, length).unwrap().trunc();
            if taken.insert(prefix) {
                zones[zone].prefixes.push(prefix);
            }
        }
        let set = rule_set::RuleSet::new(&zones, &rules, Action::Reject).unwrap();
        let keys = world();
        for keys in keys.chunks(100) {
            let mut actions = vec![Action::Deny; keys.len()];
            set.decide_new(keys, &vec![0; keys.len()], &mut actions);
            for (key, action) in keys.iter().zip(actions) {
                for (_, state) in State::ALL {
                    let first = rules.iter().find(|rule| matches(rule, &zones, key, state));
                    let expected = first.map(|rule| rule.action);
                    prop_assert_eq!(set.find(key, 0, state), expected, "{:?} {:?}", key, state);
                    if state == State::New {
                        prop_assert_eq!(action, expected.unwrap_or(Action::Reject));
                        prop_assert_eq!(set.decide(key, 0), action);
                    }
                }
            }
        }
    }

    /// Rules reported as shadowed never decide, and every rule shadowed by a single other one is reported.
    #[test]
    fn shadowed_rules_are_those_that_an_earlier_one_covers(
        mut rules in prop::collection::vec(rule(), 0..40),
    ) {
        for (i, rule) in rules.iter_mut().enumerate() {
            rule.line = i as u32 + 1;
        }
        let found = shadowed(&rules).unwrap();
        let mut expected = Vec::new();
        for (i, rule) in rules.iter().enumerate() {
            if let Some(by) = rules[..i].iter().find(|earlier| covers(earlier, rule)) {
                expected.push((rule.line, by.line, by.action != rule.action));
            }
        }
        let found: Vec<_> =
            found.iter().map(|s| (s.line, s.by, s.conflict.is_some())).collect();
        prop_assert_eq!(found, expected);
    }
}
