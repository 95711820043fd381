//! Tests of one endpoint: policies, associations, shared instances, and exhausted sequence numbers.

use super::*;
use crate::acl::Rule;
use std::collections::BTreeSet;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, protocol};

fn udp(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let key = FlowKey::v4(source.into(), destination.into(), protocol::UDP, ports.0, ports.1);
    FrameBuilder::new(&key).payload(payload).to_vec().unwrap()
}

fn packet(last: u8) -> Vec<u8> {
    udp([10, 0, 0, 1], [10, 9, 0, last], (1, 2), b"payload")
}

fn to(prefix: &str) -> Rule {
    Rule {
        destination: Some(prefix.parse().unwrap()),
        ..any_packet()
    }
}

/// Returns SPI and sequence number.
fn esp_of(frame: &[u8]) -> (u32, u32) {
    let esp = parse(frame).unwrap().payload(frame).to_vec();
    let word = |at: usize| u32::from_be_bytes(esp[at..at + 4].try_into().unwrap());
    (word(0), word(4))
}

#[test]
fn policies_are_tried_in_order() {
    let ends = Ends::new(Cipher::Aes128Gcm, false);
    let second = Outbound {
        association: Association {
            spi: 0x2002,
            ..association(Cipher::Aes256Gcm, false)
        },
        destination: address("192.0.2.3"),
        ..ends.out.clone()
    };
    let policy = |prefix: &str, action| Policy {
        rule: to(prefix),
        action,
    };
    let rules = IpsecRules {
        outbound: vec![ends.out.clone(), second],
        policies: vec![
            policy("10.9.0.1/32", PolicyAction::Drop),
            policy("10.9.0.2/32", PolicyAction::Pass),
            policy("10.9.0.0/30", PolicyAction::Protect(1)),
            policy("10.9.0.0/24", PolicyAction::Protect(0)),
        ],
        ..ends.receiving_nothing()
    };
    // Few policies are scanned linearly, many use the classifier.
    for others in [0, 30] {
        let others = (0..others).map(|last| policy(&format!("10.8.0.{last}/32"), PolicyAction::Drop));
        let policies = others.chain(rules.policies.clone()).collect();
        try_policies(&IpsecRules {
            policies,
            ..rules.clone()
        });
    }
}

fn try_policies(rules: &IpsecRules) {
    let mut rig = rig(rules);
    assert_dropped(&mut rig, &packet(1), "policy");
    assert_eq!(run(&mut rig, &packet(2)).unwrap(), packet(2));
    // Within one batch each association has its own sequence numbers.
    let sent = rig.run(&[packet(3), packet(4), packet(3), packet(5)], Nanos::from_secs(1));
    let found: Vec<_> = sent.iter().map(|frame| esp_of(frame)).collect();
    assert_eq!(found, [(0x2002, 1), (0x1001, 1), (0x2002, 2), (0x1001, 2)]);
    let outside = udp([10, 0, 0, 1], [172, 16, 0, 1], (1, 2), b"");
    assert_dropped(&mut rig, &outside, "policy");
    let mut passing = instance(&table(&IpsecRules {
        default: PolicyAction::Pass,
        ..rules.clone()
    }));
    assert_eq!(run(&mut passing, &outside).unwrap(), outside);
}

#[test]
fn an_association_lets_out_what_it_allows() {
    let mut ends = Ends::new(Cipher::Aes128Gcm, false);
    ends.back.allow = vec![to("10.9.0.1/32"), to("10.9.0.128/25")];
    let (mut sender, mut receiver) = ends.rigs();
    for (last, allowed) in [(1, true), (2, false), (127, false), (128, true)] {
        let sent = run(&mut sender, &packet(last)).unwrap();
        match allowed {
            true => assert_eq!(run(&mut receiver, &sent).unwrap(), packet(last)),
            false => assert_dropped(&mut receiver, &sent, "not-allowed"),
        }
    }
}

/// Instances share sequence numbers and windows, as workers do.
#[test]
fn instances_give_a_number_once_and_take_it_once() {
    let ends = Ends::new(Cipher::ChaCha20Poly1305, false);
    let (sending, receiving) = (table(&ends.sending()), table(&ends.receiving()));
    let mut senders = [0; 3].map(|_| instance(&sending));
    let mut receivers = [0; 2].map(|_| instance(&receiving));
    let mut numbers = BTreeSet::new();
    for round in 0..60 {
        let frames: Vec<_> = (0..1 + round % 7).map(|last| packet(last as u8)).collect();
        let sent = senders[round % 3].run(&frames, Nanos::from_secs(1));
        for (frame, sent) in frames.iter().zip(&sent) {
            assert!(numbers.insert(esp_of(sent).1));
            assert_eq!(&run(&mut receivers[round % 2], sent).unwrap(), frame);
            for receiver in &mut receivers {
                assert_dropped(receiver, sent, "replayed");
            }
        }
    }
    assert!(numbers.iter().copied().eq(1..=numbers.len() as u32));
}

#[test]
fn late_packets_are_taken_within_the_window() {
    let mut ends = Ends::new(Cipher::Aes128Gcm, false);
    ends.back.window = Some(32);
    let (mut sender, mut receiver) = ends.rigs();
    let frames: Vec<_> = (0..40).map(packet).collect();
    let sent = sender.run(&frames, Nanos::from_secs(1));
    // Newest first: the window covers the last 32 numbers.
    for (i, sent) in sent.iter().enumerate().rev() {
        match i {
            8.. => assert_eq!(run(&mut receiver, sent).unwrap(), frames[i]),
            _ => assert_dropped(&mut receiver, sent, "too-old"),
        }
    }
    // Without a window every packet is accepted, however often it arrives.
    ends.back.window = None;
    let mut careless = rig(&ends.receiving());
    for sent in sent.iter().chain(&sent) {
        assert!(run(&mut careless, sent).is_some());
    }
}

#[test]
fn numbers_of_32_bits_end_and_those_of_64_go_on() {
    for extended in [false, true] {
        let mut ends = Ends::new(Cipher::Aes128Gcm, extended);
        ends.out.first = u64::from(u32::MAX) - 1;
        ends.back.first = ends.out.first;
        let (mut sender, mut receiver) = ends.rigs();
        let frames = [packet(1), packet(2), packet(3), packet(4)];
        let sent = sender.run(&frames, Nanos::from_secs(1));
        let numbers: Vec<u32> = sent.iter().map(|frame| esp_of(frame).1).collect();
        match extended {
            true => assert_eq!(numbers, [u32::MAX - 1, u32::MAX, 0, 1]),
            false => {
                assert_eq!(numbers, [u32::MAX - 1, u32::MAX]);
                assert_eq!(sender.count("ipsec/sequence-exhausted"), 2);
                for last in 0..100 {
                    assert_dropped(&mut sender, &packet(last), "sequence-exhausted");
                }
            }
        }
        assert_eq!(receiver.run(&sent, Nanos::from_secs(1)), frames[..sent.len()]);
    }
}

/// Initialisation vectors are not reused by another run.
#[test]
fn vectors_start_with_the_time() {
    let rules = Ends::new(Cipher::Aes128Gcm, false).sending();
    let vector = || {
        let table = Arc::new(Live::new(IpsecTable::new(&rules).unwrap()));
        let sent = run(&mut instance(&table), &packet(1)).unwrap();
        let esp = parse(&sent).unwrap().payload(&sent).to_vec();
        u64::from_be_bytes(esp[8..16].try_into().unwrap())
    };
    let (before, after) = (vector(), vector());
    assert!(before < after);
    // A time after 2020, in nanoseconds.
    assert!(before > 1_577_836_800_000_000_000);
}

#[test]
fn only_this_ends_esp_is_taken() {
    let ends = Ends::new(Cipher::Aes128Gcm, false);
    let sent = run(&mut rig(&ends.sending()), &packet(1)).unwrap();
    // ESP to other endpoints is handled by policy, like any packet.
    let mut elsewhere = ends.clone();
    elsewhere.back.destination = address("192.0.2.77");
    assert_dropped(&mut rig(&elsewhere.receiving()), &sent, "policy");
    let passing = IpsecRules {
        default: PolicyAction::Pass,
        ..elsewhere.receiving()
    };
    assert_eq!(run(&mut rig(&passing), &sent).unwrap(), sent);
    // Unknown SPI; then plain ESP where UDP is expected, and the reverse.
    let mut other = ends.clone();
    other.back.association.spi = 0x1002;
    assert_dropped(&mut rig(&other.receiving()), &sent, "no-association");
    assert_dropped(&mut rig(&ends.clone().in_udp().receiving()), &sent, "no-association");
    let in_udp = run(&mut rig(&ends.clone().in_udp().sending()), &packet(1)).unwrap();
    assert_dropped(&mut rig(&ends.receiving()), &in_udp, "policy");
    // UDP to a port other than ESP's.
    let mut port = ends.clone().in_udp();
    port.back.udp = Some(4501);
    assert_dropped(&mut rig(&port.receiving()), &in_udp, "policy");
    // Unencrypted packets are not decapsulated.
    assert_dropped(&mut rig(&ends.receiving()), &packet(1), "policy");
}

/// Keep-alives and IKE packets on ESP's port (RFC 3948) follow their settings.
#[test]
fn keep_alives_and_the_key_exchange_go_by_rule() {
    let ends = Ends::new(Cipher::Aes128Gcm, false).in_udp();
    let to_port = |payload: &[u8]| udp([192, 0, 2, 1], [192, 0, 2, 2], (4500, 4500), payload);
    let (keep_alive, ike) = (to_port(&[0xff]), to_port(&[0, 0, 0, 0, 1, 2, 3]));
    let mut usual = rig(&ends.receiving());
    assert_dropped(&mut usual, &keep_alive, "keep-alive");
    assert_eq!(run(&mut usual, &ike).unwrap(), ike);
    let rules = IpsecRules {
        pass_ike: false,
        pass_keep_alives: true,
        ..ends.receiving()
    };
    let mut other = rig(&rules);
    assert_eq!(run(&mut other, &keep_alive).unwrap(), keep_alive);
    assert_dropped(&mut other, &ike, "policy");
    for payload in [&[][..], &[0xff, 0], &[0; 3], &[1; 33]] {
        assert_dropped(&mut usual, &to_port(payload), "malformed");
    }
    assert_dropped(&mut usual, &to_port(&[1; 34]), "no-association");
    // The UDP length is shorter than the IP payload.
    let mut short = run(&mut rig(&ends.sending()), &packet(1)).unwrap();
    short[39] -= 4;
    assert_dropped(&mut usual, &short, "malformed");
}

/// With thousands of associations each SPI finds its own.
#[test]
fn many_associations_are_told_apart() {
    let ends = Ends::new(Cipher::Aes128Gcm, false);
    let count = 3000u32;
    let spi = |i: u32| 256 + i.wrapping_mul(0x9e37_79b1) % 100_000 * 7;
    let indices: BTreeSet<u32> = (0..count).map(spi).collect();
    let key = |i: u32| Keying::new(Cipher::Aes128Gcm, [&i.to_be_bytes()[..], &[1; 16]].concat()).unwrap();
    let association = |i: u32, spi: u32| Association {
        spi,
        keying: key(i),
        ..ends.out.association.clone()
    };
    let numbered = || (0..).zip(&indices);
    let rules = IpsecRules {
        inbound: numbered()
            .map(|(i, spi)| Inbound {
                association: association(i, *spi),
                ..ends.back.clone()
            })
            .collect(),
        ..ends.receiving_nothing()
    };
    let mut receiver = rig(&rules);
    for (i, spi) in numbered().step_by(37) {
        let mut one = ends.clone();
        one.out.association = association(i, *spi);
        let sent = run(&mut rig(&one.sending()), &packet(1)).unwrap();
        assert_eq!(run(&mut receiver, &sent).unwrap(), packet(1));
        one.out.association.spi = (256..).find(|spi| !indices.contains(spi)).unwrap();
        let sent = run(&mut rig(&one.sending()), &packet(1)).unwrap();
        assert_dropped(&mut receiver, &sent, "no-association");
    }
}
