use super::maglev::{Candidate, populate};
use super::*;
use crate::accounting::{Accounting, AccountingTable};
use crate::acl::{Acl, AclTable, Action, Rule};
use ipnet::IpNet;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};

const SECOND: Nanos = Nanos::from_secs(1);
/// Table size in tests: a small prime, for speed.
const SIZE: u32 = 2003;

/// Maglev's pseudo code 1 as printed: whole permutations, a cursor per backend, one entry per turn.
fn as_in_the_paper(size: usize, candidates: &[Candidate]) -> Vec<u16> {
    let permutation: Vec<Vec<usize>> = candidates
        .iter()
        .map(|c| {
            let (offset, skip) = (c.offset as usize, c.skip as usize);
            (0..size).map(|j| (offset + j * skip) % size).collect()
        })
        .collect();
    let mut next = vec![0; candidates.len()];
    let mut entry = vec![-1i32; size];
    let mut filled = 0;
    loop {
        for i in 0..candidates.len() {
            let mut c = permutation[i][next[i]];
            while entry[c] >= 0 {
                next[i] += 1;
                c = permutation[i][next[i]];
            }
            entry[c] = i as i32;
            next[i] += 1;
            filled += 1;
            if filled == size {
                return entry.into_iter().map(|backend| backend as u16).collect();
            }
        }
    }
}

fn candidates(names: impl IntoIterator<Item = u32>, size: u32) -> Vec<Candidate> {
    names
        .into_iter()
        .map(|name| Candidate::new(&name.to_be_bytes(), 1, size))
        .collect()
}

fn counts(table: &[u16], backends: usize) -> Vec<usize> {
    let mut counts = vec![0; backends];
    table.iter().for_each(|backend| counts[usize::from(*backend)] += 1);
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tables_are_the_papers(
        size in prop::sample::select(vec![101u32, 211, 1009, SIZE]),
        names in prop::collection::hash_set(any::<u32>(), 1..20),
    ) {
        let candidates = candidates(names, size);
        let table = populate(size, &candidates);
        prop_assert_eq!(&table, &as_in_the_paper(size as usize, &candidates));
        let counts = counts(&table, candidates.len());
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn shares_follow_the_weights(weights in prop::collection::vec(1u32..=100, 1..12)) {
        let mut candidates = candidates(0..weights.len() as u32, 10_007);
        candidates.iter_mut().zip(&weights).for_each(|(c, weight)| c.weight = *weight);
        let counts = counts(&populate(10_007, &candidates), weights.len());
        let sum: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let share = 10_007.0 * f64::from(*weight) / f64::from(sum);
            // During filling each count stays within one turn of its share, except in the last round.
            prop_assert!((*count as f64 - share).abs() <= 2.0 + share * 0.01, "{count} of {share}");
        }
    }
}

/// The paper's Figure 12: with 65,537 entries few entries move other than those of the backend added or removed.
#[test]
fn other_backends_hardly_notice_a_change() {
    let names: Vec<u32> = (0..100).collect();
    let all = populate(
        DEFAULT_TABLE_SIZE,
        &candidates(names.iter().copied(), DEFAULT_TABLE_SIZE),
    );
    for gone in [0, 37, 99] {
        let rest: Vec<u32> = names.iter().copied().filter(|name| *name != gone).collect();
        let fewer = populate(
            DEFAULT_TABLE_SIZE,
            &candidates(rest.iter().copied(), DEFAULT_TABLE_SIZE),
        );
        let of_gone = all.iter().filter(|backend| u32::from(**backend) == gone).count();
        let moved = all
            .iter()
            .zip(&fewer)
            .filter(|(before, after)| u32::from(**before) != gone && u32::from(**before) != rest[usize::from(**after)])
            .count();
        assert!((of_gone as i64 - 655).abs() <= 1, "{of_gone}");
        // Read in reverse, this counts the entries that adding a backend moves.
        assert!(moved < DEFAULT_TABLE_SIZE as usize / 50, "{moved} others moved");
    }
}

fn vip() -> IpNet {
    "203.0.113.10/32".parse().unwrap()
}

fn server(last: u8) -> Destination {
    Destination::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), Some(8443))
}

fn backend(destination: Destination, state: BackendState) -> Backend {
    Backend {
        destination,
        weight: 1,
        state,
    }
}

fn service(backends: Vec<Backend>) -> Service {
    Service {
        address: vip(),
        port: Some(443),
        protocol: protocol::TCP,
        backends,
    }
}

fn up(count: u8) -> Vec<Backend> {
    (1..=count)
        .map(|last| backend(server(last), BackendState::Up))
        .collect()
}

fn rig(services: &[Service], drop_others: bool) -> (Arc<LoadBalancerTable>, ChainRig) {
    let table = Arc::new(LoadBalancerTable::new(services, SIZE, drop_others).unwrap());
    let balancer = Box::new(LoadBalancer::new(Arc::clone(&table)));
    (table, ChainRig::new(vec![balancer], INPUT))
}

fn client(n: u32) -> FlowKey {
    let source = Ipv4Addr::from_bits(0x0a00_0001 + n / 100);
    let port = 1024 + (n % 100) as u16;
    FlowKey::v4(source, Ipv4Addr::new(203, 0, 113, 10), protocol::TCP, port, 443)
}

fn frame(key: &FlowKey) -> Vec<u8> {
    FrameBuilder::new(key)
        .payload(b"hello, whoever you are")
        .to_vec()
        .unwrap()
}

/// Returns the address a packet of the flow is sent to, and asserts that nothing else changed.
fn backend_of(rig: &mut ChainRig, key: &FlowKey) -> Option<IpAddr> {
    let sent = rig.run(&[frame(key)], SECOND);
    let sent = sent.first()?;
    let headers = parse(sent).unwrap();
    assert_eq!(verify_network(sent, &headers), Checksum::Correct);
    assert_eq!(verify_transport(sent, &headers), Checksum::Correct);
    let IpAddr::V4(source) = key.source() else {
        panic!("IPv4 only");
    };
    let IpAddr::V4(destination) = headers.key.destination() else {
        panic!("IPv4 only");
    };
    let expected = FlowKey::v4(source, destination, protocol::TCP, key.source_port(), 8443);
    assert_eq!(*sent, frame(&expected), "only the destination changes");
    Some(destination.into())
}

#[test]
fn flows_go_where_the_papers_table_says() {
    let backends = up(7);
    let (_, mut rig) = rig(&[service(backends.clone())], false);
    let candidates: Vec<Candidate> = backends
        .iter()
        .map(|backend| {
            let Destination::Address(IpAddr::V4(address), Some(port)) = backend.destination else {
                panic!("as made above");
            };
            let name = [&address.octets()[..], &port.to_be_bytes()].concat();
            Candidate::new(&name, 1, SIZE)
        })
        .collect();
    let table = as_in_the_paper(SIZE as usize, &candidates);
    let mut seen: HashMap<IpAddr, u32> = HashMap::new();
    for n in 0..2000 {
        let place = client(n).hash(0x6261_6c61_6e63_6572) % u64::from(SIZE);
        let Destination::Address(expected, _) = backends[usize::from(table[place as usize])].destination else {
            panic!("as made above");
        };
        assert_eq!(backend_of(&mut rig, &client(n)), Some(expected));
        *seen.entry(expected).or_default() += 1;
    }
    // 2,000 flows over 7 backends: 286 each, with a standard deviation of 16.
    assert!(seen.values().all(|flows| (200..380).contains(flows)), "{seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Compared with a map from flow to backend: a flow leaves its backend only when that is down or gone, and for one
    /// that is up.
    #[test]
    fn flows_stay_with_their_backends(
        changes in prop::collection::vec(prop::collection::vec(0u8..5, 6), 1..12),
    ) {
        let (table, mut rig) = rig(&[service(up(6))], false);
        let mut homes: HashMap<u32, IpAddr> = HashMap::new();
        let states = [BackendState::Up, BackendState::Up, BackendState::Drain, BackendState::Down];
        for (round, change) in changes.iter().enumerate() {
            // 4: absent from the list.
            let list: Vec<Backend> = (1u8..)
                .zip(change)
                .filter_map(|(last, state)| {
                    states.get(usize::from(*state)).map(|state| backend(server(last), *state))
                })
                .collect();
            table.replace(&[service(list.clone())]).unwrap();
            let with = |keeps: fn(BackendState) -> bool| -> HashSet<IpAddr> {
                list.iter()
                    .filter(|backend| keeps(backend.state))
                    .map(|backend| match backend.destination {
                        Destination::Address(address, _) => address,
                        Destination::Mac(_) => panic!("none of these"),
                    })
                    .collect()
            };
            let (up, keeping) =
                (with(|s| s == BackendState::Up), with(|s| s != BackendState::Down));
            for flow in 0..30 + 10 * round as u32 {
                let found = backend_of(&mut rig, &client(flow));
                match homes.get(&flow).filter(|home| keeping.contains(home)) {
                    Some(home) => prop_assert_eq!(found, Some(*home)),
                    None if up.is_empty() => prop_assert_eq!(found, None),
                    None => prop_assert!(up.contains(&found.unwrap())),
                }
                match found {
                    Some(found) => homes.insert(flow, found),
                    None => homes.remove(&flow),
                };
            }
        }
    }
}

#[test]
fn no_backend_is_a_reason_until_there_is_one() {
    let down = vec![backend(server(1), BackendState::Down)];
    let (table, mut rig) = rig(&[service(down)], false);
    assert_eq!(backend_of(&mut rig, &client(1)), None);
    assert_eq!(backend_of(&mut rig, &client(1)), None);
    assert_eq!(rig.count("loadbalancer/no-backend"), 2);
    assert_eq!(table.replace(&[service(up(1))]), Ok(2));
    assert!(backend_of(&mut rig, &client(1)).is_some());
    // A refused list changes nothing.
    let mut wrong = up(1);
    wrong[0].weight = 0;
    let error = TableError::Weight { service: 0, weight: 0 };
    assert_eq!(table.replace(&[service(wrong)]), Err(error));
    assert_eq!(table.version(), 2);
    assert!(backend_of(&mut rig, &client(2)).is_some());
}

#[test]
fn what_is_for_no_service_passes_or_is_dropped() {
    let other_port = FlowKey::v4([10, 0, 0, 1].into(), [203, 0, 113, 10].into(), 6, 1, 80);
    let other_protocol = FlowKey::v4([10, 0, 0, 1].into(), [203, 0, 113, 10].into(), 17, 1, 443);
    let ping = FlowKey::v4([10, 0, 0, 1].into(), [203, 0, 113, 10].into(), 1, 443, 443);
    let mut fragment = FrameBuilder::new(&client(1)).payload(&[0; 68]).to_vec().unwrap();
    fragment[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
    let frames = [frame(&other_port), frame(&other_protocol), frame(&ping), fragment];
    let (_, mut passing) = rig(&[service(up(3))], false);
    assert_eq!(passing.run(&frames, SECOND), frames);
    let (_, mut dropping) = rig(&[service(up(3))], true);
    assert!(dropping.run(&frames, SECOND).is_empty());
    assert_eq!(dropping.count("loadbalancer/no-service"), 4);
    assert_eq!(dropping.chain.lost(), 0);
}

#[test]
fn the_most_specific_service_decides_and_ports_stay_if_none_is_given() {
    let to = |last| {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
        vec![backend(Destination::Address(address, None), BackendState::Up)]
    };
    let wide = |address: &str, port, backends| Service {
        address: address.parse().unwrap(),
        port,
        protocol: protocol::TCP,
        backends,
    };
    let services = [
        wide("203.0.113.0/24", None, to(1)),
        wide("203.0.113.10/32", Some(443), to(2)),
        wide("0.0.0.0/0", Some(80), to(3)),
    ];
    let (_, mut rig) = rig(&services, true);
    let mut sent_to = |last, port| {
        let key = FlowKey::v4([10, 0, 0, 1].into(), [203, 0, 113, last].into(), 6, 7, port);
        let sent = rig.run(&[frame(&key)], SECOND);
        let key = parse(&sent[0]).unwrap().key;
        assert_eq!(key.destination_port(), port);
        key.destination()
    };
    assert_eq!(sent_to(10, 443), IpAddr::from([192, 0, 2, 2]));
    assert_eq!(sent_to(10, 444), IpAddr::from([192, 0, 2, 1]));
    assert_eq!(sent_to(11, 80), IpAddr::from([192, 0, 2, 1]));
    let away = FlowKey::v4([10, 0, 0, 1].into(), [198, 51, 100, 1].into(), 6, 7, 80);
    let sent = rig.run(&[frame(&away)], SECOND);
    let destination = parse(&sent[0]).unwrap().key.destination();
    assert_eq!(destination, IpAddr::from([192, 0, 2, 3]));
}

#[test]
fn direct_server_return_changes_the_mac_address_only() {
    let mac = [2, 0, 0, 0, 0, 9];
    let backends = vec![backend(Destination::Mac(mac), BackendState::Up)];
    let (_, mut rig) = rig(&[service(backends)], true);
    let packet = frame(&client(1));
    let sent = rig.run(std::slice::from_ref(&packet), SECOND);
    assert_eq!(sent[0][..6], mac);
    assert_eq!(sent[0][6..], packet[6..]);
}

#[test]
fn ipv6_destinations_are_rewritten() {
    let [client, vip, server] = [1u128, 0x2001_0db8 << 96 | 10, 0xfd00 << 112 | 77];
    let backends = vec![backend(
        Destination::Address(IpAddr::V6(server.into()), Some(5353)),
        BackendState::Up,
    )];
    let services = [Service {
        address: IpAddr::V6(vip.into()).into(),
        port: Some(53),
        protocol: protocol::UDP,
        backends,
    }];
    let (_, mut rig) = rig(&services, true);
    let key = FlowKey::v6(client.into(), vip.into(), protocol::UDP, 4000, 53);
    let expected = FlowKey::v6(client.into(), server.into(), protocol::UDP, 4000, 5353);
    let sent = rig.run(&[frame(&key)], SECOND);
    assert_eq!(sent, [frame(&expected)]);
    // Inserts a hop-by-hop header: eight bytes of padding options.
    let mut extended = frame(&key);
    extended[20] = 0;
    let length = u16::from_be_bytes([extended[18], extended[19]]) + 8;
    extended[18..20].copy_from_slice(&length.to_be_bytes());
    extended.splice(54..54, [protocol::UDP, 0, 1, 4, 0, 0, 0, 0]);
    assert!(rig.run(&[extended], SECOND).is_empty());
    assert_eq!(rig.count("loadbalancer/not-rewritable"), 1);
}

#[test]
fn tables_out_of_range_are_refused() {
    let refused = |services: &[Service], size| LoadBalancerTable::new(services, size, false).err();
    assert_eq!(refused(&[], 65_536), Some(TableError::Size(65_536)));
    assert_eq!(refused(&[], 97), Some(TableError::Size(97)));
    let too_many = TableError::Backends {
        service: 1,
        most: 1,
        found: 2,
    };
    assert_eq!(refused(&[service(up(1)), service(up(2))], 101), Some(too_many));
    let address = IpAddr::V6(1u128.into());
    let mixed = vec![backend(Destination::Address(address, None), BackendState::Up)];
    let error = TableError::Version { service: 0, address };
    assert_eq!(refused(&[service(mixed)], SIZE), Some(error));
}

/// Regression: destinations were counted once per listing, even those already numbered, so a table replaced repeatedly
/// was refused in the end.
#[test]
fn the_limit_counts_distinct_destinations() {
    let other = |backends| Service {
        port: Some(80),
        ..service(backends)
    };
    let make = |services: &[Service]| LoadBalancerTable::with_most(4, services, SIZE, false);
    // Listed twice, each destination counts once. A backend that is down gets neither flows nor a number.
    let table = make(&[service(up(3)), other(up(3))]).unwrap();
    let mut four = up(5);
    four[4].state = BackendState::Down;
    for version in 2..10 {
        assert_eq!(table.replace(&[service(four.clone()), other(up(3))]), Ok(version));
    }
    let full = Some(TableError::Destinations(4));
    assert_eq!(table.replace(&[service(up(5))]).err(), full);
    assert_eq!(table.version(), 9);
    assert_eq!(table.replace(&[service(up(4))]), Ok(10));
    assert_eq!(make(&[service(up(5))]).err(), full);
}

/// Workers keep processing while their table is replaced.
#[test]
fn the_table_changes_while_packets_flow() {
    let (table, mut rig) = rig(&[service(up(6))], false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for round in 0..200u8 {
                table.replace(&[service(up(1 + round % 6))]).unwrap();
            }
        });
        let mut rounds = 0;
        while !changing.is_finished() || rounds < 3 {
            for flow in 0..50 {
                assert!(backend_of(&mut rig, &client(flow)).is_some());
            }
            rounds += 1;
        }
    });
    assert_eq!(table.version(), 201);
}

/// Returns a chain of a balancer and a function that decides by the balanced destination.
fn with_behind(services: &[Service], behind: Box<dyn NetworkFunction>) -> (Arc<LoadBalancerTable>, ChainRig) {
    let table = Arc::new(LoadBalancerTable::new(services, SIZE, false).unwrap());
    let balancer = Box::new(LoadBalancer::new(Arc::clone(&table)));
    (table, ChainRig::new(vec![balancer, behind], INPUT))
}

#[test]
fn an_acl_behind_decides_anew_for_the_new_backend() {
    let only = |last| [service(vec![backend(server(last), BackendState::Up)])];
    let denied = Rule {
        source: None,
        destination: Some("192.0.2.2/32".parse().unwrap()),
        source_ports: 0..=u16::MAX,
        destination_ports: 0..=u16::MAX,
        protocol: None,
        action: Action::Deny,
    };
    let rules = AclTable::new(&[denied], Action::Allow).unwrap();
    let (table, mut rig) = with_behind(&only(1), Box::new(Acl::new(Arc::new(rules))));
    let address = |last| Some(IpAddr::from([192, 0, 2, last]));
    assert_eq!(backend_of(&mut rig, &client(1)), address(1));
    // First to a backend that is denied, then to one that is allowed.
    table.replace(&only(2)).unwrap();
    assert_eq!(backend_of(&mut rig, &client(1)), None);
    assert_eq!(backend_of(&mut rig, &client(1)), None);
    assert_eq!(rig.count("acl/denied"), 2);
    table.replace(&only(3)).unwrap();
    assert_eq!(backend_of(&mut rig, &client(1)), address(3));
}

#[test]
fn accounting_behind_keeps_its_counts_when_flows_move() {
    let only = |last| [service(vec![backend(server(last), BackendState::Up)])];
    let counts = Arc::new(AccountingTable::new());
    let accounting = Accounting::new(Arc::clone(&counts));
    let (table, mut rig) = with_behind(&only(1), Box::new(accounting));
    for last in 1..=4 {
        table.replace(&only(last)).unwrap();
        assert!(backend_of(&mut rig, &client(1)).is_some());
    }
    rig.chain.drain();
    let totals = counts.totals();
    assert_eq!((totals.records, totals.packets), (1, 4));
}
