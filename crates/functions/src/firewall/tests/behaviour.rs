//! Connections through a chain: which packets pass, for how long, and the effect of new rules.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const OUTWARD: &str = "allow from lan to wan";

#[test]
fn only_what_a_rule_allows_opens_a_connection_and_its_answers_pass() {
    let (_, mut rig) = firewall(OUTWARD, Options::default());
    let (out, stranger) = (key(UDP, 1), key(UDP, 2).reversed());
    assert_eq!(passing(&mut rig, &[udp(&stranger)], seconds(1)), 0);
    assert_eq!(passing(&mut rig, &[udp(&out), udp(&out.reversed())], seconds(1)), 2);
    // A denial of one direction does not deny the other, whichever packet comes first.
    assert_eq!(passing(&mut rig, &[udp(&stranger.reversed())], seconds(1)), 1);
    assert_eq!(passing(&mut rig, &[udp(&stranger)], seconds(1)), 1);
    assert_eq!(rig.count("firewall/denied"), 1);
    assert_eq!(rig.count("firewall/opened"), 2);
    assert_eq!(rig.chain.flows(), 2);
}

#[test]
fn a_tcp_connection_from_its_handshake_to_its_end() {
    let (table, mut rig) = firewall(OUTWARD, Options::default());
    let key = key(TCP, 1);
    let back = key.reversed();
    assert_eq!(passing(&mut rig, &handshake(&key)[..1], seconds(1)), 1);
    assert_eq!(table.handshakes.count(), 1);
    assert_eq!(passing(&mut rig, &handshake(&key)[1..], seconds(1)), 2);
    assert_eq!(table.handshakes.count(), 0);
    let good = [
        tcp_frame(&key, ACK, (1001, 5001), b"question"),
        tcp_frame(&back, ACK, (5001, 1009), b"answer"),
    ];
    assert_eq!(passing(&mut rig, &good, seconds(2)), 2);
    let bad = [
        // Sequence number beyond the acknowledged data and the window, a very old one, and an acknowledgment of unsent
        // data.
        tcp_frame(&key, ACK, (1009 + 65_536, 5007), b"x"),
        tcp_frame(&key, ACK, (1009u32.wrapping_sub(70_000), 5007), b"x"),
        tcp_frame(&back, ACK, (5007, 1010), b"x"),
        tcp_frame(&key, RST, (1009 + 70_000, 0), b""),
        tcp_frame(&back, TcpFlags(0), (5007, 1009), b""),
        tcp_frame(&back, TcpFlags(0x3f), (5007, 1009), b""),
    ];
    assert_eq!(passing(&mut rig, &bad, seconds(2)), 0);
    assert_eq!(rig.count("firewall/out-of-window"), 3);
    assert_eq!(rig.count("firewall/reset-out-of-window"), 1);
    assert_eq!(rig.count("firewall/tcp-flags"), 2);
    // A reset in the window, but not at the receiver's next number: the ends resolve it, and the connection stays.
    assert_eq!(
        passing(&mut rig, &[tcp_frame(&back, RST, (5010, 0), b"")], seconds(2)),
        1
    );
    assert_eq!(rig.count("firewall/tolerated"), 1);
    let end = [
        tcp_frame(&key, FIN_ACK, (1009, 5007), b""),
        tcp_frame(&back, FIN_ACK, (5007, 1010), b""),
        tcp_frame(&key, ACK, (1010, 5008), b""),
    ];
    assert_eq!(passing(&mut rig, &end, seconds(3)), 3);
    // After the timeout no packet of the connection passes: without a SYN it belongs to none.
    assert_eq!(passing(&mut rig, &end[2..], seconds(64)), 0);
    assert_eq!(rig.count("firewall/no-connection"), 1);
}

#[test]
fn ports_of_an_ended_connection_may_be_used_again_by_who_may_open_one() {
    let (_, mut rig) = firewall(OUTWARD, Options::default());
    let key = key(TCP, 1);
    assert_eq!(passing(&mut rig, &handshake(&key), seconds(1)), 3);
    let reset = tcp_frame(&key, RST, (1001, 0), b"");
    assert_eq!(passing(&mut rig, &[reset], seconds(1)), 1);
    let inward = tcp_frame(&key.reversed(), SYN, (9000, 0), b"");
    assert_eq!(passing(&mut rig, &[inward], seconds(1)), 0);
    assert_eq!(passing(&mut rig, &handshake(&key), seconds(2)), 3);
    assert_eq!(rig.count("firewall/opened"), 2);
    assert_eq!(rig.count("firewall/denied"), 1);
}

#[test]
fn liberal_and_midstream_let_more_pass() {
    let options = Options {
        liberal: true,
        midstream: true,
        ..Options::default()
    };
    let (_, mut rig) = firewall(OUTWARD, options);
    let key = key(TCP, 1);
    assert_eq!(passing(&mut rig, &[tcp_frame(&key, ACK, (7, 9), b"x")], seconds(1)), 1);
    // Only an end that may open a connection can have it picked up.
    let stray = tcp_frame(&super::key(TCP, 2).reversed(), ACK, (7, 9), b"x");
    assert_eq!(passing(&mut rig, &[stray], seconds(1)), 0);
    let other = super::key(TCP, 3);
    assert_eq!(passing(&mut rig, &handshake(&other), seconds(1)), 3);
    let far = tcp_frame(&other, ACK, (900_000, 5001), b"x");
    assert_eq!(passing(&mut rig, &[far], seconds(1)), 1);
    assert_eq!(rig.count("firewall/out-of-window-passed"), 1);
    let reset = tcp_frame(&other, RST, (900_000, 0), b"");
    assert_eq!(passing(&mut rig, &[reset], seconds(1)), 0);
}

#[test]
fn half_open_connections_are_limited_and_their_places_come_back() {
    let options = Options {
        half_open: Some(HalfOpen {
            total: 30,
            per_destination: 20,
        }),
        ..Options::default()
    };
    let (table, mut rig) = firewall(OUTWARD, options);
    let to = |destination: u8, port| {
        let far = Ipv4Addr::new(198, 18, 0, destination);
        FlowKey::v4(LAN, far, TCP, port, 80)
    };
    let syns = |destination| {
        let syn = |port| tcp_frame(&to(destination, port), SYN, (1000, 0), b"");
        (0..40).map(syn).collect::<Vec<_>>()
    };
    assert_eq!(passing(&mut rig, &syns(1), seconds(1)), 20);
    assert_eq!(passing(&mut rig, &syns(2), seconds(1)), 10);
    assert_eq!(rig.count("firewall/half-open-limit"), 50);
    assert_eq!(rig.chain.lost(), 50);
    // An established connection makes room for another half-open one.
    assert_eq!(passing(&mut rig, &handshake(&to(1, 0))[1..], seconds(2)), 2);
    assert_eq!(table.handshakes.count(), 29);
    assert_eq!(passing(&mut rig, &syns(1), seconds(2)), 20 + 1);
    // So do unanswered ones that time out.
    expire(&mut rig, seconds(40));
    expire(&mut rig, seconds(60));
    assert_eq!(table.handshakes.count(), 0);
    assert_eq!(passing(&mut rig, &syns(3), seconds(61)), 20);
}

#[test]
fn new_rules_are_asked_about_old_connections() {
    let (table, mut rig) = firewall("allow tcp from lan to wan\nallow udp from lan", Options::default());
    let (tcp, udp_key) = (key(TCP, 1), key(UDP, 1));
    assert_eq!(passing(&mut rig, &handshake(&tcp), seconds(1)), 3);
    assert_eq!(passing(&mut rig, &[udp(&udp_key)], seconds(1)), 1);
    let data = |from: u32| tcp_frame(&tcp.reversed(), ACK, (5001 + from, 1001), b"data");
    // The connection is allowed by a different rule: nothing changes, not even the window.
    let replace = |text| {
        let rules = language::parse(text, &table.zones).unwrap();
        table.replace(&rules).unwrap()
    };
    replace("deny udp from lan\nallow tcp ports 443");
    assert_eq!(passing(&mut rig, &[data(0)], seconds(2)), 1);
    let far = tcp_frame(&tcp, ACK, (900_000, 5001), b"x");
    assert_eq!(passing(&mut rig, &[far], seconds(2)), 0);
    // The initiator's direction decides for both.
    assert_eq!(passing(&mut rig, &[udp(&udp_key.reversed())], seconds(2)), 0);
    assert_eq!(rig.count("firewall/ended-by-rules"), 1);
    replace("reject");
    assert_eq!(passing(&mut rig, &[data(4), udp(&udp_key)], seconds(3)), 0);
    // The responder's packets no longer belong to a connection.
    assert_eq!(rig.count("firewall/rejected"), 1);
    assert_eq!(rig.count("firewall/no-connection"), 1);
    // Under the first rules again, the connection is gone and must begin with a SYN.
    replace(OUTWARD);
    assert_eq!(passing(&mut rig, &[data(8)], seconds(4)), 0);
    assert_eq!(passing(&mut rig, &handshake(&tcp), seconds(4)), 3);
    assert_eq!(passing(&mut rig, &[udp(&udp_key)], seconds(4)), 1);
}

#[test]
fn rules_about_states() {
    let rules = "allow from lan to wan\n\
                 deny tcp from wan to lan sourcePorts 443 state established\n\
                 allow tcp to wan ports 9999 state invalid";
    let (_, mut rig) = firewall(rules, Options::default());
    let key = key(TCP, 1);
    // The answer belongs to the connection and is forbidden.
    assert_eq!(passing(&mut rig, &handshake(&key)[..2], seconds(1)), 1);
    let stray = FlowKey::v4(LAN, WAN, TCP, 5, 9999);
    let frames = [
        tcp_frame(&stray, ACK, (7, 9), b"x"),
        tcp_frame(&stray.reversed(), ACK, (7, 9), b"x"),
    ];
    assert_eq!(passing(&mut rig, &frames, seconds(1)), 1);
    assert_eq!(rig.count("firewall/denied"), 1);
    assert_eq!(rig.count("firewall/no-connection"), 1);
}

#[test]
fn an_end_that_may_not_answer_does_not_by_segments_out_of_its_window() {
    let rules = "allow from lan to wan\n\
                 deny tcp from wan to lan sourcePorts 443 state established";
    for windows in ["strict", "liberal"] {
        let liberal = windows == "liberal";
        let (_, mut rig) = firewall(
            rules,
            Options {
                liberal,
                ..Options::default()
            },
        );
        let key = key(TCP, 1);
        assert_eq!(passing(&mut rig, &handshake(&key)[..2], seconds(1)), 1);
        let far = tcp_frame(&key.reversed(), ACK, (900_000, 1001), b"x");
        assert_eq!(passing(&mut rig, &[far], seconds(1)), 0, "{windows}");
        // The repeated SYN-ACK would be tolerated from an end that may answer.
        let again = handshake(&key)[1].clone();
        assert_eq!(passing(&mut rig, &[again], seconds(1)), 0, "{windows}");
        assert_eq!(rig.count("firewall/denied"), if liberal { 3 } else { 2 });
    }
}

#[test]
fn zones_by_port_do_not_believe_addresses() {
    let mut zones = zones();
    zones[0].port = Some(ZonePort::Entry);
    zones[1].port = Some(ZonePort::Exit);
    let rules = language::parse("allow from lan to wan", &zones).unwrap();
    let set = rule_set::RuleSet::new(&zones, &rules, Action::Deny).unwrap();
    let (out, spoofed) = (key(UDP, 1), FlowKey::v4(LAN, Ipv4Addr::new(10, 0, 0, 2), UDP, 1, 2));
    assert_eq!(set.decide(&out, 0), Action::Allow);
    // From outside with an inside source address, to either side.
    assert_eq!(set.decide(&out, 1), Action::Deny);
    assert_eq!(set.decide(&spoofed, 1), Action::Deny);
    // From inside with another zone's address.
    let servers = FlowKey::v4(Ipv4Addr::new(10, 9, 0, 1), WAN, UDP, 1, 2);
    assert_eq!(set.decide(&servers, 0), Action::Deny);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compares UDP with an oracle, a map of connections without a flow table, for random packet order, rules and
    /// times.
    #[test]
    fn udp_passes_as_a_map_says(
        packets in prop::collection::vec((0u16..12, any::<bool>(), 0u64..60), 1..200),
        denied in 0u16..12,
    ) {
        let rules = format!("deny udp sourcePorts {denied}\nallow udp from lan to wan");
        let (_, mut rig) = firewall(&rules, Options::default());
        // For each port, the last packet's time and `true` if there was an answer.
        let mut open: HashMap<u16, (u64, bool)> = HashMap::new();
        let mut now = 1;
        for (port, back, pause) in packets {
            now += pause;
            expire(&mut rig, seconds(now));
            let lasts = |answered| if answered { 180 } else { 30 };
            if open.get(&port).is_some_and(|(last, answered)| now - last >= lasts(*answered)) {
                open.remove(&port);
            }
            let passes = open.contains_key(&port) || !back && port != denied;
            let out = key(UDP, port);
            let frame = udp(&if back { out.reversed() } else { out });
            prop_assert_eq!(passing(&mut rig, &[frame], seconds(now)), usize::from(passes));
            if passes {
                let entry = open.entry(port).or_insert((now, false));
                *entry = (now, entry.1 || back);
            }
        }
    }
}
