//! `Encrypt`, `LoadBalancer` and `Nat`: packets rewritten by different instances.

use super::INSTANCES;
use super::rig::{CLIENT, Rig, SECOND, SERVER, frame, segment, sums};
use proptest::prelude::*;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailwater_chain::live::Live;
use tailwater_functions::encrypt::{Direction, Encrypt, EncryptRules, PacketNumbers};
use tailwater_functions::load_balancer::{
    Backend, BackendState, Destination, LoadBalancer, LoadBalancerTable, Service,
};
use tailwater_functions::nat::{Nat, NatRules, NatTable};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

fn encryption(instances: usize, direction: Direction) -> Rig {
    let rules = Arc::new(Live::new(EncryptRules {
        key: [7; 32],
        direction,
        mtu: 1500,
        midstream: false,
        drop_others: true,
    }));
    let numbers = Arc::new(PacketNumbers::starting_now());
    Rig::new((0..instances).map(|_| Encrypt::new(Arc::clone(&rules), Arc::clone(&numbers))))
}

fn service(states: &[u8]) -> Service {
    let backend = |(place, state): (usize, &u8)| Backend {
        destination: Destination::Address(IpAddr::from([192, 0, 2, place as u8 + 1]), Some(8443)),
        weight: 1,
        state: match state {
            0 => BackendState::Down,
            1 => BackendState::Drain,
            _ => BackendState::Up,
        },
    };
    Service {
        address: "203.0.113.10/32".parse().unwrap(),
        port: Some(443),
        protocol: protocol::TCP,
        backends: states.iter().enumerate().map(backend).collect(),
    }
}

fn balancing(instances: usize) -> (Arc<LoadBalancerTable>, Rig) {
    let table = Arc::new(LoadBalancerTable::new(&[service(&[2; 5])], 2003, true).unwrap());
    let rig = Rig::new((0..instances).map(|_| LoadBalancer::new(Arc::clone(&table))));
    (table, rig)
}

fn translation(instances: usize) -> Rig {
    let rules = NatRules {
        external: vec![Ipv4Addr::new(203, 0, 113, 1)],
        internal: vec!["10.0.0.0/8".parse().unwrap()],
        // One port for each bucket.
        ports: 1024..=1535,
        drop_others: true,
        drop_inbound: true,
    };
    let table = Arc::new(Live::new(NatTable::new(rules, RssHasher::default())));
    Rig::new((0..instances).map(|_| Nat::new(Arc::clone(&table))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// The highest position in a stream is in the flow's state: key streams continue across the wrap of sequence
    /// numbers, in any instance.
    #[test]
    fn streams_are_encrypted_the_same(
        initial in prop_oneof![any::<u32>(), (u32::MAX - 2000)..=u32::MAX],
        pieces in prop::collection::vec((0u32..7, 1usize..100, 0..INSTANCES), 1..60),
    ) {
        let mut one = encryption(1, Direction::Encrypt);
        let mut relay = encryption(INSTANCES, Direction::Encrypt);
        let mut back = encryption(INSTANCES, Direction::Decrypt);
        let syn = [segment(1, initial, TcpFlags::SYN, b"")];
        for rig in [&mut one, &mut relay, &mut back] {
            prop_assert_eq!(rig.run(&syn, SECOND), &syn);
        }
        let mut sequence = initial.wrapping_add(1);
        for (ahead, length, turn) in pieces {
            let frames = [segment(1, sequence, TcpFlags::ACK, &vec![0; length])];
            sequence = sequence.wrapping_add(ahead << 27);
            relay.turn_to(turn);
            if ahead % 2 == 0 {
                relay.show_again();
            }
            back.turn_to((turn + 1) % INSTANCES);
            let sent = relay.run(&frames, SECOND);
            prop_assert_eq!(&sent, &one.run(&frames, SECOND));
            prop_assert_eq!(back.run(&sent, SECOND), frames);
        }
    }

    /// No two instances assign the same number to a packet.
    #[test]
    fn datagrams_are_encrypted_under_numbers_of_their_own(turns in prop::collection::vec(0..INSTANCES, 1..60)) {
        let mut relay = encryption(INSTANCES, Direction::Encrypt);
        let mut back = encryption(INSTANCES, Direction::Decrypt);
        let mut seen = HashSet::new();
        let frames = [frame(&FlowKey::v4(CLIENT, SERVER, protocol::UDP, 1, 2))];
        for turn in turns {
            relay.turn_to(turn);
            back.turn_to((turn + 1) % INSTANCES);
            relay.show_again();
            let sent = relay.run(&frames, SECOND);
            prop_assert!(seen.insert(sent[0][42..].to_vec()));
            prop_assert_eq!(back.run(&sent, SECOND), &frames);
        }
    }

    /// The number in a flow's state has the same meaning in all instances, even in one that last used an older table.
    #[test]
    fn flows_go_to_the_same_backends(
        changes in prop::collection::vec(prop::collection::vec(0u8..4, 1..8), 1..8),
        turns in prop::collection::vec(0..INSTANCES, 40),
    ) {
        let ((one_table, mut one), (table, mut relay)) = (balancing(1), balancing(INSTANCES));
        let frames: Vec<_> = (1..40)
            .map(|port| FlowKey::v4(CLIENT, Ipv4Addr::new(203, 0, 113, 10), 6, port, 443))
            .map(|key| frame(&key))
            .collect();
        let mut turns = turns.into_iter().cycle();
        for states in changes {
            let services = [service(&states)];
            prop_assert_eq!(one_table.replace(&services), table.replace(&services));
            for _ in 0..4 {
                relay.turn_to(turns.next().unwrap());
                prop_assert_eq!(relay.run(&frames, SECOND), one.run(&frames, SECOND));
            }
        }
        prop_assert_eq!(sums(&relay), sums(&one));
    }

    /// Connections are opened at the first instance; any instance may translate their packets, in either direction.
    #[test]
    fn connections_are_translated_the_same(
        packets in prop::collection::vec((0u16..40, any::<bool>(), 0..INSTANCES), 1..150),
    ) {
        let (mut one, mut relay) = (translation(1), translation(INSTANCES));
        for (port, answer, turn) in packets {
            relay.turn_to(turn);
            if port % 3 == 0 {
                relay.show_again();
            }
            let frames = [frame(&FlowKey::v4(CLIENT, SERVER, protocol::UDP, 5000 + port, 53))];
            let sent = relay.run(&frames, SECOND);
            prop_assert_eq!(&sent, &one.run(&frames, SECOND));
            if let (Some(sent), true) = (sent.first(), answer) {
                let answers = [frame(&parse(sent).unwrap().key.reversed())];
                relay.turn_to((turn + 1) % INSTANCES);
                let back = relay.run(&answers, SECOND);
                prop_assert_eq!(&back, &one.run(&answers, SECOND));
                let key = FlowKey::v4(SERVER, CLIENT, protocol::UDP, 53, 5000 + port);
                prop_assert_eq!(back, [frame(&key)]);
            }
        }
        prop_assert_eq!(sums(&relay), sums(&one));
    }
}

/// A port is free again when its connection ends, whichever instance translated its last packet: only the flow itself
/// holds the port.
#[test]
fn ports_come_back_when_a_connection_ends_elsewhere() {
    let mut relay = translation(INSTANCES);
    let key = |port| FlowKey::v4(CLIENT, SERVER, protocol::UDP, port, 53);
    let mut bound = Vec::new();
    for round in 0..5u64 {
        let now = Nanos::from_secs(1 + 100 * round);
        relay.expire(now);
        assert_eq!(relay.flows(), 0);
        let mut sent = 0;
        for port in 1..1000 {
            relay.turn_to((usize::from(port) + round as usize) % INSTANCES);
            sent += relay.run(&[frame(&key(port))], now).len();
        }
        bound.push(sent);
    }
    assert!(bound[0] < 999, "the ports are not exhausted");
    assert_eq!(bound, [bound[0]; 5]);
    assert_eq!(relay.count("ports-exhausted"), 5 * (999 - bound[0] as u64));
}
