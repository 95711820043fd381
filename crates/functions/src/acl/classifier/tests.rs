//! Tests of the classifier against the linear scan, on rules made to collide and on ClassBench's.

use super::*;
use crate::acl::dispatch::ByWord;
use crate::acl::generate::{self, RuleSetSpec};
use crate::acl::{Action, classbench, linear};
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

/// The default limits, and two shapes that a small set would not take by default: several parts, and no combinations of
/// ports and protocol.
fn shapes(rules: usize) -> [Limits; 3] {
    let default = Limits::DEFAULT;
    [
        default,
        Limits {
            part_rules: rules / 3 + 1,
            ..default
        },
        Limits {
            combination_words: 0,
            ..default
        },
    ]
}

/// Compares every shape, batched and single, with the linear scan.
fn check(rules: &[Rule], keys: &[FlowKey]) {
    let expected: Vec<_> = keys.iter().map(|k| linear::classify(rules, k)).collect();
    for limits in shapes(rules.len()) {
        let classifier = Classifier::with_limits(rules, limits).expect("it fits");
        // Earlier contents of the result slice have no effect.
        let mut found = vec![Some(7); keys.len()];
        classifier.classify_batch(keys, &mut found);
        for ((key, found), expected) in keys.iter().zip(&found).zip(&expected) {
            assert_eq!(found, expected, "{key} {limits:?}");
        }
        for (form, found) in all_forms(&classifier, keys) {
            assert_eq!(found, expected, "{form} {limits:?}");
        }
        for (key, expected) in keys.iter().zip(&expected).step_by(5) {
            assert_eq!(classifier.classify(key), *expected, "{key} alone");
        }
    }
}

/// Returns the results of every variant of the search that this machine supports.
fn all_forms(classifier: &Classifier, keys: &[FlowKey]) -> Vec<(&'static str, Vec<Option<u32>>)> {
    let mut forms = Vec::new();
    let mut found = vec![None; keys.len()];
    classifier.find(ByWord, keys, &mut found);
    forms.push(("portable", found.clone()));
    #[cfg(target_arch = "x86_64")]
    {
        use crate::acl::dispatch::x86::{Bits, ByEight};
        if let Some(bits) = Bits::detect() {
            bits.find(classifier, keys, &mut found);
            forms.push(("AVX2", found.clone()));
        }
        if let Some(by_eight) = ByEight::detect() {
            by_eight.find(classifier, keys, &mut found);
            forms.push(("AVX-512", found));
        }
    }
    forms
}

/// Generates few distinct addresses, so that prefixes nest and repeat.
fn v4_address() -> impl Strategy<Value = Ipv4Addr> {
    let byte = || prop::sample::select(vec![0_u8, 1, 2, 127, 128, 255]);
    (prop::sample::select(vec![0_u8, 10, 255]), byte(), byte(), byte())
        .prop_map(|(a, b, c, d)| Ipv4Addr::new(a, b, c, d))
}

fn v6_address() -> impl Strategy<Value = Ipv6Addr> {
    let part = || prop::sample::select(vec![0_u16, 1, 0x8000, 0xffff]);
    (
        prop::sample::select(vec![0_u16, 0x2001, 0xffff]),
        part(),
        part(),
        part(),
    )
        .prop_map(|(a, b, c, d)| Ipv6Addr::new(a, b, 0, 0, c, 0, 0, d))
}

fn prefix() -> impl Strategy<Value = Option<IpNet>> {
    // Host bits are not cleared: the classifier must ignore them.
    let v4 = (v4_address(), 0_u8..=32).prop_map(|(address, length)| Ipv4Net::new(address, length).ok().map(IpNet::V4));
    let v6 = (v6_address(), 0_u8..=128).prop_map(|(address, length)| Ipv6Net::new(address, length).ok().map(IpNet::V6));
    prop_oneof![4 => v4, 2 => v6, 1 => Just(None)]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        prop::sample::select(vec![0_u16, 1, 79, 80, 81, 443, 1023, 1024, 65534, 65535]),
        any::<u16>()
    ]
}

fn ports() -> impl Strategy<Value = RangeInclusive<u16>> {
    prop_oneof![
        3 => Just(0..=65535),
        2 => port().prop_map(|p| p..=p),
        // Some ranges are empty.
        3 => (port(), port()).prop_map(|(a, b)| a..=b),
        2 => (port(), port()).prop_map(|(a, b)| a.min(b)..=a.max(b)),
    ]
}

fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![0_u8, 1, 6, 17, 58, 255])
}

fn rule() -> impl Strategy<Value = Rule> {
    let protocol = prop_oneof![Just(None), protocol().prop_map(Some)];
    (prefix(), prefix(), ports(), ports(), protocol).prop_map(
        |(source, destination, source_ports, destination_ports, protocol)| Rule {
            source,
            destination,
            source_ports,
            destination_ports,
            protocol,
            action: Action::Allow,
        },
    )
}

/// Returns the first or last address of a prefix, or the address before or after it.
fn edge(prefix: IpNet, which: u8) -> IpAddr {
    let step = |first: u128, last: u128| match which % 4 {
        0 => first,
        1 => last,
        2 => first.wrapping_sub(1),
        _ => last.wrapping_add(1),
    };
    match prefix {
        IpNet::V4(net) => {
            let [first, last] = [net.network(), net.broadcast()].map(|a| a.to_bits().into());
            Ipv4Addr::from_bits(step(first, last) as u32).into()
        }
        IpNet::V6(net) => {
            let [first, last] = [net.network(), net.broadcast()].map(|a| a.to_bits());
            Ipv6Addr::from_bits(step(first, last)).into()
        }
    }
}

fn port_edge(range: &RangeInclusive<u16>, which: u8) -> u16 {
    match which % 4 {
        0 => *range.start(),
        1 => *range.end(),
        2 => range.start().wrapping_sub(1),
        _ => range.end().wrapping_add(1),
    }
}

/// Returns a key at the edges of the fields of five rules (often the same one). Returns `None` if these mix IP
/// versions.
fn edge_key(rules: &[Rule], picks: [u8; 5], edges: [u8; 4], other: u8) -> Option<FlowKey> {
    let at = |i: usize| rules.get(usize::from(picks[i]) % rules.len().max(1));
    let source_net = at(0)?.source.or(at(1)?.destination);
    let source_net = source_net.unwrap_or(IpNet::V4(Ipv4Net::default()));
    let destination_net = at(1)?.destination.unwrap_or(source_net);
    let source_port = port_edge(&at(2)?.source_ports, edges[2]);
    let destination_port = port_edge(&at(3)?.destination_ports, edges[3]);
    let protocol = at(4)?.protocol.unwrap_or(other);
    match (edge(source_net, edges[0]), edge(destination_net, edges[1])) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Some(FlowKey::v4(
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        )),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Some(FlowKey::v6(
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        )),
        _ => None,
    }
}

/// Generates edges of one rule's fields, or of different rules' fields.
fn picks() -> impl Strategy<Value = ([u8; 5], [u8; 4], u8)> {
    let same = any::<u8>().prop_map(|i| [i; 5]);
    // Edges 0 and 1 are inside the rule, so that not every key misses.
    let inside = prop::array::uniform4(0_u8..2);
    let around = prop::array::uniform4(any::<u8>());
    (
        prop_oneof![2 => same, 1 => prop::array::uniform5(any::<u8>())],
        prop_oneof![inside, around],
        protocol(),
    )
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    prop_oneof![
        (v4_address(), v4_address(), protocol(), port(), port())
            .prop_map(|(s, d, p, sp, dp)| FlowKey::v4(s, d, p, sp, dp)),
        (v6_address(), v6_address(), protocol(), port(), port())
            .prop_map(|(s, d, p, sp, dp)| FlowKey::v6(s, d, p, sp, dp)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_finds_what_the_linear_scan_finds(
        rules in prop::collection::vec(rule(), 0..40),
        picks in prop::collection::vec(picks(), 100),
        mut keys in prop::collection::vec(any_key(), 20),
    ) {
        keys.extend(picks.iter().filter_map(|&(r, e, o)| edge_key(&rules, r, e, o)));
        keys.push(FlowKey::default());
        check(&rules, &keys);
    }

    /// Uses more rules than one word holds, with duplicates of a few.
    #[test]
    fn it_finds_the_first_of_many_equal_rules(
        rules in prop::collection::vec(rule(), 1..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 300),
        picks in prop::collection::vec(picks(), 50),
    ) {
        let rules: Vec<Rule> = order.iter().map(|i| i.get(&rules).clone()).collect();
        let keys: Vec<_> = picks
            .iter()
            .filter_map(|&(r, e, o)| edge_key(&rules, r, e, o))
            .collect();
        check(&rules, &keys);
    }
}

/// Uses more than 4,096 rules, so that a summary has several words.
#[test]
fn it_agrees_on_large_sets() {
    let spec = RuleSetSpec {
        rules: 9000,
        seed: 11,
        sources: vec![],
        destinations: vec![],
    };
    let rules = spec.generate();
    let mut keys = generate::matching_keys(&rules, 400, 1);
    keys.extend(generate::mixed_keys(&rules, 200, 2));
    check(&rules, &keys);
    // The last rules can be found as well.
    let last = generate::matching_keys(&rules[8500..], 100, 3);
    check(&rules, &last);
}

/// Cuts one /16 into tens of thousands of intervals: a tree of four levels.
#[test]
fn it_agrees_on_many_hosts_of_one_network() {
    let any: Rule = Rule {
        source: None,
        destination: None,
        source_ports: 0..=65535,
        destination_ports: 0..=65535,
        protocol: None,
        action: Action::Allow,
    };
    let rules: Vec<Rule> = (0..3000_u32)
        .map(|i| Rule {
            source: Some(Ipv4Net::from(Ipv4Addr::from_bits(0x0a01_0000 + i * 20)).into()),
            ..any.clone()
        })
        .collect();
    let keys: Vec<FlowKey> = (0..70_000_u32)
        .step_by(7)
        .map(|i| {
            let source = Ipv4Addr::from_bits(0x0a01_0000 - 2000 + i);
            FlowKey::v4(source, Ipv4Addr::LOCALHOST, 6, 1, 2)
        })
        .collect();
    let classifier = Classifier::new(&rules).expect("it fits");
    for key in &keys {
        assert_eq!(classifier.classify(key), linear_host(key), "{key}");
    }
}

/// Computes the expected result of `it_agrees_on_many_hosts_of_one_network`.
fn linear_host(key: &FlowKey) -> Option<u32> {
    let IpAddr::V4(source) = key.source() else {
        return None;
    };
    let host = source.to_bits().checked_sub(0x0a01_0000)?;
    (host % 20 == 0 && host < 60_000).then_some(host / 20)
}

#[test]
fn no_rules_match_nothing() {
    let classifier = Classifier::new(&[]).expect("it fits");
    assert_eq!(classifier.classify(&FlowKey::default()), None);
    classifier.classify_batch(&[], &mut []);
    assert_eq!(classifier.memory_bytes(), 0);
}

#[test]
#[should_panic(expected = "one result per key")]
fn results_must_be_as_many_as_keys() {
    let classifier = Classifier::new(&[]).expect("it fits");
    classifier.classify_batch(&[FlowKey::default()], &mut []);
}

#[test]
fn memory_is_limited() {
    let spec = RuleSetSpec {
        rules: 2000,
        seed: 1,
        sources: vec![],
        destinations: vec![],
    };
    let rules = spec.generate();
    let needed = Classifier::new(&rules).expect("it fits").memory_bytes();
    for (memory_bytes, fits) in [(needed, true), (needed - 4096, false), (0, false)] {
        let limits = Limits {
            memory_bytes,
            ..Limits::DEFAULT
        };
        let built = Classifier::with_limits(&rules, limits);
        assert_eq!(built.is_ok(), fits, "{memory_bytes} of {needed} bytes");
        if let Err(error) = built {
            assert_eq!(
                error,
                ClassifierError::TooLarge {
                    limit_bytes: memory_bytes
                }
            );
        }
    }
    let error = ClassifierError::TooLarge { limit_bytes: 1 << 30 };
    assert_eq!(
        error.to_string(),
        "expected at most 1024 MiB of tables, the rules require more"
    );
}

#[test]
fn the_number_of_rules_is_limited() {
    let spec = RuleSetSpec {
        rules: 1,
        seed: 1,
        sources: vec![],
        destinations: vec![],
    };
    let rules = vec![spec.generate().remove(0); MAX_RULES + 1];
    let error = Classifier::new(&rules).err();
    assert_eq!(error, Some(ClassifierError::TooManyRules { rules: MAX_RULES + 1 }));
}

/// Extracts a file from a ClassBench archive.
fn unpack(data: &Path, archive: &str, file: &str) -> Vec<u8> {
    let archive = data.join(format!("rules/classbench_{archive}.tar.zst"));
    let output = Command::new("tar")
        .args(["--use-compress-program=zstd -d", "-xOf"])
        .arg(archive)
        .arg(format!("Ruleset/{file}"))
        .output()
        .expect("tar and zstd are installed");
    assert!(
        output.status.success(),
        "{file}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Compares the results for a set's headers with the linear scan (every `step`-th header) and with the rule number from
/// the trace generator (all headers).
fn check_classbench(archive: &str, set: &str, take: usize, step: usize) {
    let Some(data) = std::env::var_os("TAILWATER_TEST_DATA") else {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
        return;
    };
    let data = Path::new(&data);
    let rules = unpack(data, archive, &format!("{set}.rules"));
    let trace = unpack(data, archive, &format!("trace_shot/{set}.rules_trace"));
    let all = classbench::parse_rules(&rules, Action::Allow).expect("a rule file");
    let headers = classbench::parse_trace(&trace).expect("a trace");
    assert!(all.len() > 700 && headers.len() > 700, "{set}");
    let rules = &all[..take.min(all.len())];
    let classifier = Classifier::new(rules).expect("it fits");
    let keys: Vec<FlowKey> = headers.iter().map(|header| header.key).collect();
    let mut found = vec![None; keys.len()];
    classifier.classify_batch(&keys, &mut found);
    for (i, (header, found)) in headers.iter().zip(&found).enumerate() {
        let of_header = header.rule as usize;
        assert!(linear::matches(&all[of_header], &header.key), "{set}: {i}");
        // The header's own rule matches, so the first match is not after it.
        if of_header < rules.len() {
            assert!(found.is_some_and(|rule| rule <= header.rule), "{set}: {i}");
        }
        if i % step == 0 {
            assert_eq!(*found, linear::classify(rules, &header.key), "{set}: {i}");
        }
    }
    let mixed = generate::mixed_keys(rules, 200, 1);
    for key in &mixed {
        assert_eq!(classifier.classify(key), linear::classify(rules, key), "{key}");
    }
}

#[test]
fn classbench_1k() {
    for set in ["acl1", "fw1", "ipc1"] {
        check_classbench("1k_2k_all_seeds", &format!("1k_1/{set}_seed_1"), 8000, 1);
    }
}

#[test]
fn classbench_2k() {
    for set in ["acl1", "fw1", "ipc1"] {
        check_classbench("1k_2k_all_seeds", &format!("2k_1/{set}_seed_1"), 8000, 2);
    }
}

#[test]
fn classbench_1500() {
    check_classbench("1k_2k_all_seeds", "2k_1/acl1_seed_1", 1500, 1);
}

#[test]
fn classbench_4k() {
    for set in ["acl1", "fw1", "ipc1"] {
        check_classbench("4k_8k_seed1", &format!("4k_1/{set}_seed_1"), 8000, 4);
    }
}

#[test]
fn classbench_8k() {
    for set in ["acl1", "fw1", "ipc1"] {
        check_classbench("4k_8k_seed1", &format!("8k_1/{set}_seed_1"), 8000, 8);
    }
}
