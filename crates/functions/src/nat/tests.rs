use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use tailwater_chain::live::Live;
use tailwater_chain::rig::{ChainRig, INPUT};
use tailwater_net::Nanos;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;

const SECOND: Nanos = Nanos::from_secs(1);

fn rules() -> NatRules {
    NatRules {
        external: vec![Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2)],
        internal: vec!["10.0.0.0/8".parse().unwrap()],
        ports: 1024..=u16::MAX,
        drop_others: true,
        drop_inbound: true,
    }
}

fn rig(rules: NatRules) -> ChainRig {
    let table = Arc::new(Live::new(NatTable::new(rules, RssHasher::default())));
    ChainRig::new(vec![Box::new(Nat::new(table))], INPUT)
}

fn frame(key: &FlowKey, payload: &[u8]) -> Vec<u8> {
    FrameBuilder::new(key).payload(payload).to_vec().unwrap()
}

/// Returns the key of a connection from an internal host.
fn outward(host: u8, port: u16, remote: u8, tcp: bool) -> FlowKey {
    let protocol = if tcp { protocol::TCP } else { protocol::UDP };
    let ends = (Ipv4Addr::new(10, 0, 0, host), Ipv4Addr::new(198, 18, 0, remote));
    FlowKey::v4(ends.0, ends.1, protocol, port, 443)
}

fn key_of(frame: &[u8]) -> FlowKey {
    let headers = parse(frame).unwrap();
    assert_eq!(verify_network(frame, &headers), Checksum::Correct);
    assert_ne!(verify_transport(frame, &headers), Checksum::Wrong);
    headers.key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Compared with a map from connection to binding: bindings are stable and unique outside, both directions share a
    /// bucket, and replies return to the host. Only addresses, ports and checksums change.
    #[test]
    fn translates_as_a_map_does(
        packets in prop::collection::vec((0u8..4, 0u16..40, 0u8..3, any::<bool>(), any::<bool>()), 1..120),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut rig = rig(rules());
        let rss = RssHasher::default();
        let mut bindings: HashMap<FlowKey, FlowKey> = HashMap::new();
        for (host, port, remote, tcp, answer) in packets {
            let inside = outward(host, 5000 + port, remote, tcp);
            let sent = rig.run(&[frame(&inside, &payload)], SECOND);
            let outside = key_of(&sent[0]);
            prop_assert_eq!(*bindings.entry(inside).or_insert(outside), outside);
            prop_assert_eq!(&sent[0], &frame(&outside, &payload));
            let external = rules().external.into_iter().map(IpAddr::V4);
            prop_assert!(external.into_iter().any(|address| address == outside.source()));
            prop_assert_eq!(
                (outside.destination(), outside.destination_port()),
                (inside.destination(), inside.destination_port())
            );
            prop_assert_eq!(
                bucket_of(rss.hash(&outside.reversed())),
                bucket_of(rss.hash(&inside))
            );
            if answer {
                let back = rig.run(&[frame(&outside.reversed(), &payload)], SECOND);
                prop_assert_eq!(&back[0], &frame(&inside.reversed(), &payload));
            }
        }
        let mut outsides: Vec<_> = bindings.values().map(|key| key.to_string()).collect();
        let all = outsides.len();
        outsides.sort();
        outsides.dedup();
        prop_assert_eq!(outsides.len(), all, "two connections share an outside");
    }
}

/// The chain looks up a whole batch before the first function opens a connection: the answer's flow exists by then.
#[test]
fn an_answer_in_the_batch_of_its_opener_returns_to_the_host() {
    let inside = outward(7, 5000, 1, true);
    let outside = key_of(&rig(rules()).run(&[frame(&inside, b"")], SECOND)[0]);
    let (opener, answer) = (frame(&inside, b""), frame(&outside.reversed(), b""));
    let mut together = rig(rules());
    let sent = together.run(&[opener.clone(), answer.clone(), answer.clone()], SECOND);
    assert_eq!(
        sent.iter().map(|sent| key_of(sent)).collect::<Vec<_>>(),
        [outside, inside.reversed(), inside.reversed(),]
    );
    assert_eq!(together.count("nat/no-binding"), 0);
    // One that comes first is refused, and does not take the port from the connection.
    let mut before = rig(rules());
    let sent = before.run(&[answer.clone(), opener.clone(), answer.clone()], SECOND);
    assert_eq!(
        sent.iter().map(|sent| key_of(sent)).collect::<Vec<_>>(),
        [outside, inside.reversed()]
    );
    assert_eq!(before.count("nat/no-binding"), 1);
    // Two connections never share a port: the second one's answer is another's.
    let mut many = rig(rules());
    let ends = (0..200).map(|port| outward(7, 5000 + port, 1, true));
    let outsides: std::collections::HashSet<_> = ends
        .map(|inside| key_of(&many.run(&[frame(&inside, b"")], SECOND)[0]).to_string())
        .collect();
    assert_eq!(outsides.len(), 200);
}

#[test]
fn every_bucket_has_ports_under_every_key() {
    for rss in [RssHasher::default(), RssHasher::symmetric()] {
        let classes = PortClasses::new(1024..=u16::MAX, &rss);
        let sizes = (0..BUCKETS as u16).map(|class| classes.of(class).len());
        assert!(sizes.clone().min() >= Some(100), "{:?}", sizes.min());
        assert_eq!(sizes.sum::<usize>(), 65_536 - 1024);
    }
}

#[test]
fn a_host_keeps_its_external_address() {
    let mut rig = rig(rules());
    for host in 0..20 {
        let addresses: Vec<_> = (0..10)
            .map(|port| key_of(&rig.run(&[frame(&outward(host, port, 1, true), b"")], SECOND)[0]))
            .map(|key| key.source())
            .collect();
        assert!(addresses.iter().all(|address| *address == addresses[0]));
    }
}

/// Established connections continue unchanged in both directions, whatever is added to or withdrawn from the pool, even
/// if a remote end's address enters it. No new connection to such an address is opened.
#[test]
fn changes_of_the_pool_lose_no_connection() {
    let with = |external: &[Ipv4Addr]| {
        let external = external.to_vec();
        NatTable::new(NatRules { external, ..rules() }, RssHasher::default())
    };
    let first = rules().external;
    let table = Arc::new(Live::new(with(&first)));
    let mut rig = ChainRig::new(vec![Box::new(Nat::new(Arc::clone(&table)))], INPUT);
    let inside: Vec<FlowKey> = (0..200_u8)
        .map(|host| outward(host, 5000, host % 7, host % 2 == 0))
        .collect();
    let opened = |key| key_of(&rig.run(&[frame(key, b"")], SECOND)[0]);
    let outside: Vec<FlowKey> = inside.iter().map(opened).collect();
    let added = [1, 2].map(|last| Ipv4Addr::new(192, 0, 3, last));
    let remote = [Ipv4Addr::new(198, 18, 0, 1)];
    let both = [&first[..], &added[..]].concat();
    for pool in [&both[..], &added[..], &remote[..], &first[..]] {
        table.replace(with(pool));
        for (inside, outside) in inside.iter().zip(&outside) {
            let sent = rig.run(&[frame(inside, b"on")], SECOND);
            assert_eq!(sent, [frame(outside, b"on")], "{inside} with {pool:?}");
            let back = rig.run(&[frame(&outside.reversed(), b"back")], SECOND);
            assert_eq!(back, [frame(&inside.reversed(), b"back")], "{inside} with {pool:?}");
        }
    }
    table.replace(with(&remote));
    let new = outward(1, 6000, 1, true);
    assert!(rig.run(&[frame(&new, b"")], SECOND).is_empty());
    assert_eq!(rig.count("nat/no-binding"), 1);
}

#[test]
fn exhausted_ports_are_counted_and_come_back() {
    // One address and one port per bucket: a bucket's second connection to a remote fails.
    let mut rules = rules();
    rules.external.truncate(1);
    rules.ports = 1024..=1535;
    let rss = RssHasher::default();
    let mut per_bucket: HashMap<u16, u64> = HashMap::new();
    let mut rig = rig(rules);
    let mut delivered = 0;
    for port in 0..2000 {
        let key = outward(1, port, 1, false);
        *per_bucket.entry(bucket_of(rss.hash(&key))).or_default() += 1;
        delivered += rig.run(&[frame(&key, b"")], SECOND).len() as u64;
    }
    assert_eq!(delivered, per_bucket.len() as u64, "one connection a bucket");
    assert_eq!(rig.count("nat/ports-exhausted"), 2000 - delivered);
    assert_eq!(rig.chain.lost(), 2000 - delivered, "no room is a loss, not a decision");
    // The same ports are free for another remote.
    assert_eq!(rig.run(&[frame(&outward(1, 7, 2, false), b"")], SECOND).len(), 1);
    // Once the bindings have expired, the ports are free for the first remote again.
    let later = Nanos::from_secs(200);
    (0..512).for_each(|_| rig.chain.expire(later));
    assert_eq!(rig.chain.flows(), 0);
    assert_eq!(rig.run(&[frame(&outward(1, 1999, 1, false), b"")], later).len(), 1);
}

#[test]
fn a_zero_udp_checksum_stays_zero() {
    let key = outward(1, 1, 1, false);
    let packet = FrameBuilder::new(&key)
        .without_udp_checksum()
        .payload(b"x")
        .to_vec()
        .unwrap();
    let sent = rig(rules()).run(&[packet], SECOND);
    let headers = parse(&sent[0]).unwrap();
    let checksum = usize::from(headers.transport_offset) + 6;
    assert_eq!(sent[0][checksum..checksum + 2], [0, 0]);
    assert_eq!(verify_network(&sent[0], &headers), Checksum::Correct);
}

#[test]
fn what_cannot_be_translated_is_dropped_or_passed() {
    let ping = FlowKey::v4([10, 0, 0, 1].into(), [198, 18, 0, 1].into(), protocol::ICMP, 7, 7);
    let stray = outward(1, 1, 1, true);
    let stray = FlowKey::v4(
        [198, 18, 0, 9].into(),
        [203, 0, 113, 1].into(),
        protocol::TCP,
        stray.source_port(),
        80,
    );
    let transit = FlowKey::v4([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), protocol::TCP, 1, 2);
    let v6 = FlowKey::v6(1u128.into(), 2u128.into(), protocol::TCP, 1, 2);
    // A datagram's second fragment: offset 8 bytes, more fragments follow.
    let mut fragment = frame(&outward(1, 9, 1, false), &[0; 64]);
    fragment[20..22].copy_from_slice(&0x2001u16.to_be_bytes());
    let frames = [
        frame(&ping, b"ping"),
        frame(&stray, b""),
        fragment,
        frame(&transit, b""),
        frame(&v6, b""),
    ];
    let mut dropping = rig(rules());
    assert_eq!(dropping.run(&frames, SECOND), frames[3..]);
    assert_eq!(dropping.count("nat/not-translatable"), 2);
    assert_eq!(dropping.count("nat/no-binding"), 1);
    let mut passing = rig(NatRules {
        drop_others: false,
        drop_inbound: false,
        ..rules()
    });
    assert_eq!(passing.run(&frames, SECOND), frames);
}

/// Regression: a fragment could find its connection's own table entry when both hashed to one bucket, and was then
/// translated as if it had ports.
#[test]
fn fragments_never_share_a_flow_with_whole_packets() {
    let mut rig = rig(NatRules {
        drop_others: false,
        ..rules()
    });
    for port in 0..3000 {
        let key = outward(1, port, 1, false);
        let mut first = frame(&key, &[0; 64]);
        first[20..22].copy_from_slice(&0x2000u16.to_be_bytes());
        // Old flows expire as time passes and make room in the one bucket these fragments share.
        let now = SECOND + Nanos::from_millis(port.into());
        let sent = rig.run(&[frame(&key, b""), first.clone()], now);
        assert_eq!(sent[1], first, "port {port}");
    }
}
