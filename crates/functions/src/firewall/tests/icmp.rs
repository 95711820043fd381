//! Tests of ICMP and fragments.

use super::*;
use std::net::Ipv6Addr;
use tailwater_net::icmp::{v4, v6};

const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

/// Returns a router's error about a packet, addressed to `to`.
pub(super) fn error_about(packet: &[u8], to: Ipv4Addr, kind: u8) -> Vec<u8> {
    let key = FlowKey::v4(ROUTER, to, protocol::ICMP, 0, 0);
    let quote = &packet[14..(14 + 28).min(packet.len())];
    let frame = FrameBuilder::new(&key).icmp(kind, 1, [0; 4]).payload(quote);
    frame.to_vec().unwrap()
}

fn echo(key: &FlowKey, kind: u8) -> Vec<u8> {
    let [high, low] = key.source_port().to_be_bytes();
    let frame = FrameBuilder::new(key).icmp(kind, 0, [high, low, 0, 1]);
    frame.payload(b"ping").to_vec().unwrap()
}

#[test]
fn errors_pass_if_they_are_about_a_connection() {
    let (_, mut rig) = firewall("allow from lan to wan", Options::default());
    let (known, unknown) = (udp(&key(UDP, 1)), udp(&key(UDP, 2)));
    assert_eq!(passing(&mut rig, std::slice::from_ref(&known), seconds(1)), 1);
    let good = error_about(&known, LAN, v4::UNREACHABLE);
    assert_eq!(passing(&mut rig, std::slice::from_ref(&good), seconds(1)), 1);
    let answer = udp(&key(UDP, 1).reversed());
    let bad = [
        error_about(&unknown, LAN, v4::UNREACHABLE),
        // Addressed to a host that did not send the quoted packet.
        error_about(&known, Ipv4Addr::new(10, 0, 0, 2), v4::UNREACHABLE),
        error_about(&answer, LAN, v4::TIME_EXCEEDED),
        // The quote is too short.
        error_about(&known[..14 + 20], LAN, v4::UNREACHABLE),
    ];
    assert_eq!(passing(&mut rig, &bad, seconds(1)), 0);
    assert_eq!(rig.count("firewall/icmp-unrelated"), 4);
    assert_eq!(rig.count("firewall/related"), 1);
    // About a packet of the responder, addressed to the responder.
    let far = error_about(&answer, WAN, v4::UNREACHABLE);
    assert_eq!(passing(&mut rig, &[far], seconds(1)), 1);
    // Not after the connection has ended.
    expire(&mut rig, seconds(50));
    expire(&mut rig, seconds(70));
    assert_eq!(passing(&mut rig, &[good], seconds(71)), 0);
}

#[test]
fn errors_of_version_6_and_its_neighbours() {
    let lan: Ipv6Addr = "fd00::1".parse().unwrap();
    let wan: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let router: Ipv6Addr = "2001:db8::9".parse().unwrap();
    let (_, mut rig) = firewall("allow from lan to wan", Options::default());
    let sent = udp(&FlowKey::v6(lan, wan, UDP, 1, 443));
    assert_eq!(passing(&mut rig, std::slice::from_ref(&sent), seconds(1)), 1);
    let message = |from, to, kind, ttl, body: &[u8]| {
        let key = FlowKey::v6(from, to, protocol::ICMPV6, 0, 0);
        let frame = FrameBuilder::new(&key).icmp(kind, 0, [0; 4]).ttl(ttl);
        frame.payload(body).to_vec().unwrap()
    };
    let too_big = |to| message(router, to, v6::PACKET_TOO_BIG, 64, &sent[14..14 + 48]);
    assert_eq!(passing(&mut rig, &[too_big(lan)], seconds(1)), 1);
    assert_eq!(
        passing(
            &mut rig,
            &["fd00::2"].map(|to| too_big(to.parse().unwrap())),
            seconds(1)
        ),
        0
    );
    // A neighbour solicitation must come from the link.
    let solicitation = |ttl| message(router, lan, 135, ttl, &lan.octets());
    assert_eq!(passing(&mut rig, &[solicitation(255), solicitation(64)], seconds(1)), 1);
    let (_, mut strict) = firewall(
        "allow from lan to wan",
        Options {
            neighbour_discovery: false,
            ..Options::default()
        },
    );
    assert_eq!(passing(&mut strict, &[solicitation(255)], seconds(1)), 0);
}

#[test]
fn an_echo_is_asked_for_by_who_may() {
    let (_, mut rig) = firewall("allow icmp from lan to wan", Options::default());
    let out = FlowKey::v4(LAN, WAN, protocol::ICMP, 7, 7);
    let back = out.reversed();
    let frames = [
        // A reply without a request, and a request from outside.
        echo(&back, v4::ECHO_REPLY),
        echo(&back, v4::ECHO_REQUEST),
        echo(&out, v4::ECHO_REQUEST),
        echo(&back, v4::ECHO_REPLY),
        // Neither end may send the other's message type.
        echo(&back, v4::ECHO_REQUEST),
        echo(&out, v4::ECHO_REPLY),
    ];
    let sent = rig.run(&frames, seconds(1));
    assert_eq!(sent, frames[2..4]);
    // A message that is neither an echo nor an error needs a rule each time.
    let timestamp = |key: &FlowKey, kind| {
        let frame = FrameBuilder::new(key).icmp(kind, 0, [0; 4]).payload(&[0; 12]);
        frame.to_vec().unwrap()
    };
    let plain = FlowKey::v4(LAN, WAN, protocol::ICMP, 0, 0);
    let frames = [timestamp(&plain, 13), timestamp(&plain.reversed(), 14)];
    assert_eq!(rig.run(&frames, seconds(1)), frames[..1]);
}

/// Returns the two fragments of a datagram: the first 8 × `cut` bytes and the rest.
fn fragments(key: &FlowKey, identification: u16, cut: usize) -> [Vec<u8>; 2] {
    let payload = [7u8; 600];
    let whole = FrameBuilder::new(key)
        .identification(identification)
        .payload(&payload)
        .to_vec()
        .unwrap();
    let part = |from: usize, to: usize, more: bool| {
        let mut frame = whole[..34].to_vec();
        frame.extend(&whole[34 + from..34 + to]);
        let total = (20 + to - from) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let bits = (from / 8) as u16 | if more { 0x2000 } else { 0 };
        frame[20..22].copy_from_slice(&bits.to_be_bytes());
        frame
    };
    let all = whole.len() - 34;
    [part(0, 8 * cut, true), part(8 * cut, all, false)]
}

#[test]
fn the_first_fragment_decides_about_the_others() {
    let (_, mut rig) = firewall("allow udp from lan to wan ports 443", Options::default());
    let [first, rest] = fragments(&key(UDP, 1), 1, 10);
    // Not before the first fragment, and afterwards in any order.
    assert_eq!(passing(&mut rig, std::slice::from_ref(&rest), seconds(1)), 0);
    assert_eq!(rig.count("firewall/fragment-unknown"), 1);
    let both = [first, rest.clone(), rest];
    assert_eq!(passing(&mut rig, &both, seconds(1)), 3);
    let other = FlowKey::v4(LAN, WAN, UDP, 1, 444);
    assert_eq!(passing(&mut rig, &fragments(&other, 2, 10), seconds(1)), 0);
    assert_eq!(rig.count("firewall/denied"), 2);
    // A fragmented answer, in a connection opened by unfragmented packets.
    let back = key(UDP, 9).reversed();
    assert_eq!(passing(&mut rig, &fragments(&back, 3, 10), seconds(1)), 0);
    assert_eq!(passing(&mut rig, &[udp(&back.reversed())], seconds(1)), 1);
    assert_eq!(passing(&mut rig, &fragments(&back, 4, 10), seconds(1)), 2);
    // A TCP connection cannot begin with fragments.
    let syn = FlowKey::v4(LAN, WAN, TCP, 1, 443);
    assert_eq!(passing(&mut rig, &fragments(&syn, 5, 10), seconds(1)), 0);
}

/// A later fragment that would overwrite the ports of the first one is dropped.
#[test]
fn fragments_do_not_overlap_the_first() {
    let (_, mut rig) = firewall("allow udp from lan to wan ports 443", Options::default());
    let [first, rest] = fragments(&key(UDP, 1), 1, 10);
    let [_, overlapping] = fragments(&key(UDP, 1), 1, 9);
    assert_eq!(passing(&mut rig, &[first, overlapping, rest], seconds(1)), 1);
    assert_eq!(rig.count("firewall/fragment-overlap"), 1);
    assert_eq!(rig.count("firewall/denied"), 1);
}

#[test]
fn fragments_may_all_pass_or_all_be_dropped() {
    let frames = fragments(&key(UDP, 1).reversed(), 1, 10);
    for (fragments, expected) in [(Fragments::Pass, 2), (Fragments::Drop, 0)] {
        let options = Options {
            fragments,
            ..Options::default()
        };
        let (_, mut rig) = firewall("allow udp from lan", options);
        assert_eq!(passing(&mut rig, &frames, seconds(1)), expected);
        assert_eq!(rig.count("firewall/fragment"), 2 - expected as u64);
    }
}
