//! Tests of single packets of all kinds.

use super::*;
use tailwater_net::builder::fragment;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::vlan::VlanTag;

/// Packets the base station encapsulates are restored at the other end, and the reverse.
#[test]
fn two_ends_restore_every_byte() {
    for (over_v6, qfi, checksums, cached) in [
        (false, None, false, false),
        (false, Some(9), true, true),
        (true, Some(63), false, false),
        (true, None, true, true),
    ] {
        let ours = session(7, over_v6);
        let profiles = [profile("all", qfi)];
        let make = |role, session: &Session| {
            let options = Options {
                checksums,
                cached,
                flow_ports: cached,
                ..options(role)
            };
            rig(&table(options, &profiles, &[*session]))
        };
        let mut core = make(Role::Core, &ours);
        let mut station = make(Role::Access, &at_station(&ours));
        let host = (u128::from(prefix(7)) << 64 | 5).into();
        let server = "2001:db8:ffff::1".parse().unwrap();
        for up in [
            FlowKey::v4(user(7), SERVER, protocol::TCP, 4000, 80),
            FlowKey::v4(user(7), SERVER, protocol::UDP, 4000, 53),
            FlowKey::v4(user(7), SERVER, protocol::ICMP, 3, 3),
            FlowKey::v6(host, server, protocol::TCP, 4000, 80),
            FlowKey::v6(host, server, protocol::ICMPV6, 3, 3),
        ] {
            for length in [0, 1, 17, 1300] {
                let payload = vec![0x5a; length];
                for upwards in [true, false] {
                    let (key, first, second) = match upwards {
                        true => (up, &mut station, &mut core),
                        false => (up.reversed(), &mut core, &mut station),
                    };
                    let frame = FrameBuilder::new(&key)
                        .vlan(VlanTag::customer(42))
                        .payload(&payload)
                        .pad_to_minimum();
                    let frame = frame.to_vec().unwrap();
                    let between = run(first, &frame).unwrap();
                    let headers = parse(&between).unwrap();
                    assert_eq!(headers.key.destination_port(), gtp::PORT);
                    assert_eq!(headers.key.is_v4(), !over_v6);
                    if !over_v6 {
                        assert_eq!(verify_network(&between, &headers), Checksum::Correct);
                    }
                    let expected = match over_v6 || checksums {
                        true => Checksum::Correct,
                        false => Checksum::Absent,
                    };
                    assert_eq!(verify_transport(&between, &headers), expected);
                    let back = run(second, &between).unwrap();
                    let end = usize::from(parse(&frame).unwrap().end);
                    assert_eq!(back, frame[..end]);
                }
            }
        }
        assert_eq!(core.count("upf/decapsulated"), 20);
        assert_eq!(core.count("upf/encapsulated"), 20);
    }
}

#[test]
fn packets_that_are_nobodys_are_dropped_with_a_reason() {
    let table = table(
        Options {
            errors_per_second: 0,
            check_qfi: true,
            ..options(Role::Core)
        },
        &[profile("all", Some(9))],
        &[
            session(1, false),
            Session {
                tunnel: None,
                ..session(2, false)
            },
        ],
    );
    let mut rig = rig(&table);
    let up = |number: u32, from: u32| {
        let key = FlowKey::v4(user(from), SERVER, protocol::UDP, 4000, 53);
        let frame = FrameBuilder::new(&key).payload(b"question").to_vec();
        tunnelled(number, datagram(&frame.unwrap()))
    };
    assert!(run(&mut rig, &up(1, 1)).is_some());
    assert!(run(&mut rig, &down(1, 100)).is_some());
    assert_dropped(&mut rig, &up(3, 3), "unknown-teid");
    assert_dropped(&mut rig, &down(3, 100), "unknown-user");
    assert_dropped(&mut rig, &down(2, 100), "no-tunnel");
    assert_dropped(&mut rig, &up(1, 2), "not-its-address");
    assert!(run(&mut rig, &up(2, 2)).is_some());
    // For another endpoint it is not treated as tunnelled.
    let mut elsewhere = up(1, 1);
    elsewhere[33] ^= 0x40;
    assert_dropped(&mut rig, &elsewhere, "unknown-user");
    // The first and the second fragment of an outer packet.
    let frame = up(1, 1);
    for piece in fragment(&frame, 32, 7).unwrap() {
        assert_dropped(&mut rig, &piece, "fragment");
    }
    let with = |at: usize, byte: u8| {
        let mut frame = up(1, 1);
        frame[at] = byte;
        frame
    };
    const GTP: usize = 42;
    assert_dropped(&mut rig, &with(GTP, 0x50), "malformed");
    assert_dropped(&mut rig, &with(39, 20), "malformed");
    assert_dropped(&mut rig, &with(GTP + 3, 200), "malformed");
    assert_dropped(&mut rig, &with(GTP + 1, 5), "unsupported");
    assert_dropped(&mut rig, &with(GTP + 8, 0x65), "inner-malformed");
    assert_dropped(&mut rig, &with(GTP + 8, 0x55), "inner-malformed");
    assert_dropped(&mut rig, &with(GTP + 11, 200), "inner-malformed");
    assert_dropped(&mut rig, &tunnelled(1, &[]), "inner-malformed");
    // Containers with the right QFI, and with another.
    let inner = datagram(&up(1, 1))[36..].to_vec();
    for (qfi, passes) in [(9, true), (8, false)] {
        let mut payload = vec![0; 16];
        gtp::write(&mut payload, 0x1001, Some(qfi), true, inner.len()).unwrap();
        payload.extend(&inner);
        match passes {
            true => assert!(run(&mut rig, &to_core(&payload)).is_some()),
            false => assert_dropped(&mut rig, &to_core(&payload), "wrong-qfi"),
        }
    }
    // An unknown extension header that must be understood.
    let mut payload = vec![0x34, 255, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 0xc0, 1, 0, 0, 0];
    payload[3] = 8 + inner.len() as u8;
    payload.extend(&inner);
    assert_dropped(&mut rig, &to_core(&payload), "unsupported");
    // Congestion marked outside, with an inner packet that is not ECN-capable.
    let mut frame = up(1, 1);
    frame[15] |= 3;
    assert_dropped(&mut rig, &frame, "congestion");
    let mut capable = up(1, 1);
    capable[15] |= 3;
    capable[GTP + 8 + 1] |= 2;
    let sent = run(&mut rig, &capable).unwrap();
    assert_eq!(sent[15] & 3, 3);
}

#[test]
fn rules_are_tried_in_order() {
    let rule = |flows: &str, treatment: Treatment| Rule {
        flows: parse_flows(flows).unwrap(),
        treatment,
    };
    let profile = Profile {
        rules: vec![
            rule(
                "permit out udp from any 53 to assigned",
                Treatment {
                    dscp: Some(46),
                    ..treatment(Some(5))
                },
            ),
            rule(
                "permit out udp from any to assigned",
                Treatment {
                    open: [false, true],
                    ..treatment(None)
                },
            ),
        ],
        rest: None,
        ..profile("ruled", None)
    };
    for cached in [false, true] {
        let options = Options {
            cached,
            ..options(Role::Core)
        };
        let mut rig = rig(&table(options, std::slice::from_ref(&profile), &[session(1, false)]));
        let key = |kind, port| FlowKey::v4(SERVER, user(1), kind, port, 4000);
        let frame = |key: &FlowKey| FrameBuilder::new(key).payload(b"data").to_vec().unwrap();
        // Twice each, so that the second uses the cached decision, if caching is on.
        for _ in 0..2 {
            let dns = run(&mut rig, &frame(&key(protocol::UDP, 53))).unwrap();
            assert_eq!((dns[15] >> 2, dns[42], dns[56]), (46, 0x34, 5));
            let other = run(&mut rig, &frame(&key(protocol::UDP, 54))).unwrap();
            assert_eq!((other[15] >> 2, other[42]), (0, 0x30));
            assert_dropped(&mut rig, &frame(&key(protocol::TCP, 53)), "no-rule");
        }
        let up = |port| {
            let frame = frame(&key(protocol::UDP, port).reversed());
            tunnelled(1, datagram(&frame))
        };
        assert!(run(&mut rig, &up(53)).is_some());
        assert_dropped(&mut rig, &up(54), "gate-closed");
    }
}

/// Packets of no session pass if configured; so do GTP-U messages to other endpoints.
#[test]
fn others_pass_if_they_may() {
    let options = Options {
        others: PacketAction::Pass,
        ..options(Role::Core)
    };
    let mut rig = rig(&table(options, &[profile("all", None)], &[]));
    let frame = down(9, 60);
    assert_eq!(run(&mut rig, &frame), Some(frame));
}

#[test]
fn dont_fragment_and_time_to_live_are_as_configured() {
    for (dont_fragment, inner, expected) in [
        (DontFragment::Copy, true, true),
        (DontFragment::Copy, false, false),
        (DontFragment::Set, false, true),
        (DontFragment::Clear, true, false),
    ] {
        let options = Options {
            dont_fragment,
            ttl: 7,
            ..options(Role::Core)
        };
        let mut rig = rig(&table(options, &[profile("all", None)], &[session(1, false)]));
        let key = FlowKey::v4(SERVER, user(1), protocol::UDP, 53, 4000);
        let frame = FrameBuilder::new(&key).dont_fragment(inner).to_vec();
        let sent = run(&mut rig, &frame.unwrap()).unwrap();
        assert_eq!((sent[20] & 0x40 != 0, sent[22]), (expected, 7));
    }
}
