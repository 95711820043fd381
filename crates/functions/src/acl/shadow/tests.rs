use super::*;
use crate::acl::generate::{RuleSetSpec, matching_keys};
use crate::acl::{Action, linear};
use proptest::prelude::*;
use std::ops::RangeInclusive;

/// Generates few distinct values, so that rules shadow each other.
fn rule() -> impl Strategy<Value = Rule> {
    let prefix = prop_oneof![
        2 => Just(None),
        2 => (0..4_u8, prop_oneof![Just(8), Just(9), Just(32)])
            .prop_map(|(a, length)| Some(format!("10.{}.0.0/{length}", a * 64).parse().unwrap())),
        1 => Just(Some("0.0.0.0/0".parse().unwrap())),
        1 => prop_oneof![Just("::/0"), Just("2001:db8::/32")].prop_map(|t| Some(t.parse().unwrap())),
    ];
    let ports = prop_oneof![Just(0..=u16::MAX), Just(0..=80), Just(80..=80), Just(70..=90)];
    let protocol = prop_oneof![Just(None), Just(Some(6)), Just(Some(0)), Just(Some(255))];
    let sides = (prefix.clone(), prefix);
    (sides, ports.clone(), ports, protocol).prop_map(|(sides, sources, destinations, protocol)| Rule {
        source: sides.0,
        destination: sides.1,
        source_ports: sources,
        destination_ports: destinations,
        protocol,
        action: Action::Allow,
    })
}

/// Oracle: returns `true` if `outer` matches everything that `inner` matches. `inner` must match something.
fn holds(outer: &Rule, inner: &Rule) -> bool {
    let version = [inner.source, inner.destination].into_iter().flatten().next();
    let versions = version.map_or(vec![true, false], |net: IpNet| vec![net.addr().is_ipv4()]);
    let side = |outer: Option<IpNet>, inner: Option<IpNet>| {
        versions.iter().all(|v4| {
            let all = if *v4 { "0.0.0.0/0" } else { "::/0" };
            let inner = inner.unwrap_or(all.parse().unwrap());
            outer.is_none_or(|outer| outer.contains(&inner))
        })
    };
    let ports = |outer: &RangeInclusive<u16>, inner: &RangeInclusive<u16>| {
        outer.contains(inner.start()) && outer.contains(inner.end())
    };
    side(outer.source, inner.source)
        && side(outer.destination, inner.destination)
        && ports(&outer.source_ports, &inner.source_ports)
        && ports(&outer.destination_ports, &inner.destination_ports)
        && (outer.protocol.is_none() || outer.protocol == inner.protocol)
}

proptest! {
    #[test]
    fn as_each_rule_compared_with_each(
        rules in prop::collection::vec((rule(), 0..3_u16), 0..120),
    ) {
        let (rules, classes): (Vec<Rule>, Vec<u16>) = rules.into_iter().unzip();
        // Class 0 contains all classes.
        let wider = |a: u16, b: u16| a == 0 || a == b;
        let mut expected = Vec::new();
        for (i, rule) in rules.iter().enumerate() {
            let versions = [rule.source, rule.destination].map(|n| n.map(|n| n.addr().is_ipv4()));
            if matches!(versions, [Some(a), Some(b)] if a != b) {
                continue;
            }
            let by = (0..i).find(|by| wider(classes[*by], classes[i]) && holds(&rules[*by], rule));
            expected.extend(by.map(|by| ShadowedRule { rule: i, by }));
        }
        prop_assert_eq!(find_shadowed(&rules, (&classes, 3), wider).unwrap(), expected);
    }
}

/// Checks that reported rules are never decisive, in lists of realistic length and in lists longer than one part.
#[test]
fn long_lists() {
    let spec = RuleSetSpec {
        rules: 30_000,
        seed: 3,
        sources: vec!["10.0.0.0/8".parse().unwrap()],
        destinations: vec!["198.18.0.0/15".parse().unwrap()],
    };
    let mut rules = spec.generate();
    let classes = vec![0; rules.len()];
    let found = find_shadowed(&rules, (&classes, 1), |_, _| true).unwrap();
    assert!(found.len() > 10, "{}", found.len());
    for ShadowedRule { rule, by } in found.iter().step_by(found.len() / 10) {
        assert!(holds(&rules[*by], &rules[*rule]));
        for key in matching_keys(&rules[*rule..=*rule], 10, 1) {
            assert!(linear::classify(&rules, &key).unwrap() as usize <= *by);
        }
    }
    // Thousands of rules that differ only in their ports, and a shadowed rule in another part.
    rules.clear();
    let ports = |port: u16| Rule {
        source: None,
        destination: None,
        source_ports: 0..=u16::MAX,
        destination_ports: port..=port,
        protocol: Some(6),
        action: Action::Allow,
    };
    rules.extend((0..PART as u32).map(|port| ports(port as u16)));
    rules.push(ports(443));
    let classes = vec![0; rules.len()];
    let found = find_shadowed(&rules, (&classes, 1), |_, _| true).unwrap();
    assert_eq!(found, [ShadowedRule { rule: PART, by: 443 }]);
}
