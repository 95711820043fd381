//! Connections that pass to another process.

use super::icmp::error_about;
use super::*;
use tailwater_net::icmp::v4;

const ORIGIN: Nanos = Nanos::from_secs(1_700_000_000);
const OUTWARD: &str = "allow from lan to wan";

/// Firewall of another process, with the connections of this one.
fn pass_over(old: &mut ChainRig, rules: &str, options: Options, now: Nanos) -> (Arc<FirewallTable>, ChainRig) {
    let (bytes, flows) = old.chain.export_flows(now, ORIGIN, 1 << 20).unwrap();
    let (table, mut new) = firewall(rules, options);
    let imported = new.chain.import_flows(&bytes, now, ORIGIN).unwrap();
    assert_eq!((imported.flows, imported.refused), (flows, 0));
    (table, new)
}

/// A connection goes on within its window and its direction, and others need a rule as before.
#[test]
fn connections_go_on_in_another_process() {
    let (_, mut old) = firewall(OUTWARD, Options::default());
    let (known, other) = (key(TCP, 1), key(TCP, 2));
    assert_eq!(passing(&mut old, &handshake(&known), seconds(1)), 3);
    assert_eq!(passing(&mut old, &[udp(&key(UDP, 3))], seconds(1)), 1);
    let (_, mut new) = pass_over(&mut old, OUTWARD, Options::default(), seconds(2));
    // Errors about a connection, before any of its packets.
    let error = error_about(&udp(&key(UDP, 3)), LAN, v4::UNREACHABLE);
    assert_eq!(passing(&mut new, &[error], seconds(2)), 1);
    let back = known.reversed();
    let fitting = [
        tcp_frame(&back, ACK, (5001, 1001), b"answer"),
        tcp_frame(&known, ACK, (1001, 5007), b"question"),
        udp(&key(UDP, 3).reversed()),
    ];
    assert_eq!(passing(&mut new, &fitting, seconds(3)), 3);
    let wrong = [
        // Far out of the window, of no connection, and from outside.
        tcp_frame(&back, ACK, (0x5000_0000, 1001), b"forged"),
        tcp_frame(&other, ACK, (1001, 5001), b""),
        udp(&key(UDP, 4).reversed()),
    ];
    assert_eq!(passing(&mut new, &wrong, seconds(3)), 0);
    assert_eq!(new.count("firewall/out-of-window"), 1);
    assert_eq!(new.count("firewall/opened"), 0);
    assert_eq!(passing(&mut new, &handshake(&other), seconds(3)), 3);
    assert_eq!(new.count("firewall/opened"), 1);
}

/// Rules of the new process that differ end the connections that they deny.
#[test]
fn connections_that_new_rules_deny_end() {
    let (_, mut old) = firewall(OUTWARD, Options::default());
    let (tcp, datagrams) = (key(TCP, 1), key(UDP, 2));
    assert_eq!(passing(&mut old, &handshake(&tcp), seconds(1)), 3);
    assert_eq!(passing(&mut old, &[udp(&datagrams)], seconds(1)), 1);
    let (_, mut new) = pass_over(&mut old, "allow tcp from lan to wan", Options::default(), seconds(2));
    let answers = [
        tcp_frame(&tcp.reversed(), ACK, (5001, 1001), b""),
        udp(&datagrams.reversed()),
    ];
    assert_eq!(passing(&mut new, &answers, seconds(2)), 1);
    assert_eq!(new.count("firewall/ended-by-rules"), 1);
}

/// Handshakes in progress are counted there, time out there, and are complete with the segments that are missing.
#[test]
fn handshakes_in_progress_are_counted_in_the_other_process() {
    let (table, mut old) = firewall(OUTWARD, Options::default());
    for port in 1..=3 {
        assert_eq!(passing(&mut old, &handshake(&key(TCP, port))[..1], seconds(1)), 1);
    }
    assert_eq!(table.handshakes.count(), 3);
    let (table, mut new) = pass_over(&mut old, OUTWARD, Options::default(), seconds(2));
    assert_eq!(table.handshakes.count(), 3);
    assert_eq!(passing(&mut new, &handshake(&key(TCP, 1))[1..], seconds(2)), 2);
    assert_eq!(table.handshakes.count(), 2);
    // Once more, and times go on.
    let (table, mut next) = pass_over(&mut new, OUTWARD, Options::default(), seconds(3));
    assert_eq!(table.handshakes.count(), 2);
    expire(&mut next, seconds(40));
    expire(&mut next, seconds(60));
    assert_eq!(table.handshakes.count(), 0);
    assert_eq!(next.chain.flows(), 1);
}
