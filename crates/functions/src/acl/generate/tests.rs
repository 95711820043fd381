//! Tests of the generator.

use super::*;
use crate::acl::{Classifier, classbench, linear};
use std::collections::HashMap;

fn nets(prefixes: &[&str]) -> Vec<Ipv4Net> {
    prefixes.iter().map(|p| p.parse().expect("a prefix")).collect()
}

fn spec(rules: usize, seed: u64) -> RuleSetSpec {
    RuleSetSpec {
        rules,
        seed,
        sources: nets(&["10.0.0.0/8"]),
        destinations: nets(&["198.18.0.0/15", "203.0.113.0/24"]),
    }
}

const EXAMPLES: [(usize, u64, &str); 2] = [
    (1500, 1, include_str!("../../../../../examples/rules/acl-1500.rules")),
    (8000, 2, include_str!("../../../../../examples/rules/acl-8000.rules")),
];

#[test]
fn the_example_files_are_what_the_generator_makes() {
    for (rules, seed, file) in EXAMPLES {
        let parsed = classbench::parse_rules(file.as_bytes(), Action::Allow);
        assert_eq!(parsed, Ok(spec(rules, seed).generate()), "{rules}");
    }
}

#[test]
fn one_seed_gives_one_output() {
    assert_eq!(spec(500, 7).generate(), spec(500, 7).generate());
    assert_ne!(spec(500, 7).generate(), spec(500, 8).generate());
    let rules = spec(50, 7).generate();
    assert_eq!(matching_keys(&rules, 50, 1), matching_keys(&rules, 50, 1));
    assert_ne!(matching_keys(&rules, 50, 1), matching_keys(&rules, 50, 2));
    // The first output of SplitMix64 for seed 0 is published and holds on every machine.
    assert_eq!(SplitMix64::new(0).next(), 0xe220_a839_7b1d_cdaf);
}

#[test]
fn any_size_and_any_network_will_do() {
    for rules in [0, 1, 2, 99, 101] {
        assert_eq!(spec(rules, 1).generate().len(), rules);
    }
    for prefix in ["0.0.0.0/0", "192.0.2.1/32", "192.0.2.2/31", "10.1.2.3/8"] {
        let spec = RuleSetSpec {
            rules: 200,
            seed: 1,
            sources: nets(&[prefix]),
            destinations: nets(&[prefix]),
        };
        let whole: IpNet = prefix.parse().expect("a prefix");
        for rule in spec.generate() {
            let source = rule.source.expect("a source");
            assert!(whole.contains(&source), "{source} not in {prefix}");
        }
    }
}

#[test]
fn keys_match() {
    let rules = spec(300, 4).generate();
    let keys = matching_keys(&rules, 2000, 5);
    assert_eq!(keys.len(), 2000);
    let found: Vec<_> = keys.iter().map(|k| linear::classify(&rules, k)).collect();
    assert!(found.iter().all(Option::is_some));
    let distinct: std::collections::HashSet<_> = found.iter().collect();
    assert!(distinct.len() > 200, "{} rules decide", distinct.len());
}

#[test]
fn no_key_is_made_for_rules_that_nothing_matches() {
    let mut rule = spec(1, 1).generate().remove(0);
    rule.destination = "2001:db8::/32".parse().ok();
    assert!(matching_keys(&[rule.clone()], 10, 1).is_empty());
    assert!(mixed_keys(&[rule], 10, 1).is_empty());
    assert!(matching_keys(&[], 10, 1).is_empty());
    assert!(client_keys(&[], &[], 10, 1).is_empty());
}

/// The examples fulfil their purpose: many different rules decide the traffic between their networks, and some traffic
/// matches none.
#[test]
fn the_examples_decide_demo_traffic_by_many_rules() {
    for (rules, seed, _) in EXAMPLES {
        let spec = spec(rules, seed);
        let list = spec.generate();
        let classifier = Classifier::new(&list).expect("it fits");
        let keys = client_keys(&spec.sources, &spec.destinations, 20_000, 9);
        let mut by_rule: HashMap<Option<u32>, usize> = HashMap::new();
        for key in &keys {
            *by_rule.entry(classifier.classify(key)).or_default() += 1;
        }
        let unmatched = by_rule.remove(&None).unwrap_or_default();
        let broad: usize = (rules - rules / 100..rules)
            .filter_map(|rule| by_rule.get(&Some(rule as u32)))
            .sum();
        let most = by_rule.values().max().copied().unwrap_or_default();
        eprintln!(
            "{rules} rules: {} decide, {unmatched} unmatched, {broad} by the broad rules, \
             {most} by one rule",
            by_rule.len()
        );
        assert!((200..8_000).contains(&unmatched), "{unmatched} unmatched");
        assert!(broad < 6_000, "{broad} by the broad rules");
        assert!(most < 3_000, "{most} by one rule");
        assert!(by_rule.len() > 100, "{} rules decide", by_rule.len());
    }
}

/// The same seed gives the same rules, and styles differ in how many fields they leave open.
#[test]
fn styles() {
    let spec = RuleSetSpec {
        rules: 3000,
        seed: 5,
        sources: vec!["10.0.0.0/8".parse().unwrap()],
        destinations: vec!["198.18.0.0/15".parse().unwrap()],
    };
    let open = |style| {
        let rules = spec.generate_as(style);
        assert_eq!(rules, spec.generate_as(style));
        assert_eq!(rules.len(), 3000);
        rules.iter().filter(|rule| rule.source.is_none()).count()
    };
    assert_eq!(spec.generate_as(Style::Access), spec.generate());
    let (firewall, mixed) = (open(Style::Firewall), open(Style::Mixed));
    assert!((1000..1600).contains(&firewall), "{firewall}");
    assert!((300..600).contains(&mixed), "{mixed}");
    // No rule matches every packet.
    for style in [Style::Firewall, Style::Mixed] {
        let is_open =
            |rule: &Rule| rule.source.is_none() && rule.destination.is_none() && rule.destination_ports == ANY_PORT;
        assert!(!spec.generate_as(style).iter().any(is_open));
    }
}
