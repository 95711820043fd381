//! Tests of `onOverflow: drop`: nothing passes that evades inspection.

use super::*;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n";

fn strict(change: impl FnOnce(&mut FilterConfig)) -> Rig {
    let mut config = config();
    config.on_overflow = PacketAction::Drop;
    change(&mut config);
    Rig::new(config)
}

/// Sends a SYN of another connection with the same addresses and ports.
fn forged_syn(rig: &mut Rig, ahead: u32) -> bool {
    let first = rig.first;
    rig.first = first.wrapping_add(ahead);
    let passes = rig.syn();
    rig.first = first;
    passes
}

/// Regression: a SYN within a connection restarted the filter mid-request, so that the rest was not recognised. SYNs
/// far from the window count as well, since a second one could lead back.
#[test]
fn a_forged_syn_does_not_restart_a_live_connection() {
    for ahead in [5, 15, 1 << 20, 1 << 30, 1 << 31, 3 << 30, u32::MAX] {
        let mut rig = strict(|_| {});
        rig.syn();
        assert!(rig.data(0, &REQUEST[..20]));
        assert!(!forged_syn(&mut rig, ahead));
        assert!(rig.syn(), "its own, again");
        assert!(!rig.data(20, &REQUEST[20..]), "{ahead}");
        let counts = ["overflow", "url-blocked", "stream-restarted"].map(|name| rig.count(name));
        assert_eq!(counts, [1, 1, 0]);
    }
}

#[test]
fn a_forged_syn_does_not_restart_a_blocked_connection() {
    for ahead in [5, 15, 1 << 20, 1 << 30, 1 << 31, 3 << 30, u32::MAX] {
        let mut rig = strict(|_| {});
        rig.syn();
        assert!(rig.data(0, &REQUEST[..20]));
        assert!(!rig.data(20, &REQUEST[20..]));
        assert!(!forged_syn(&mut rig, ahead));
        assert!(!rig.data(20, &REQUEST[20..]), "{ahead}");
        assert_eq!(rig.count("flow-blocked"), 2);
        // The rest of the flow may pass, but never the matched byte.
        let mut rig = strict(|config| config.rest = Rest::Pass);
        rig.syn();
        assert!(rig.data(0, &REQUEST[..20]));
        assert!(!rig.data(20, &REQUEST[20..]));
        assert!(!forged_syn(&mut rig, ahead));
        assert!(!rig.data(20, &REQUEST[20..]), "{ahead}");
        assert_eq!(rig.count("url-blocked"), 2);
    }
}

#[test]
fn a_forged_syn_does_not_restart_a_lost_connection() {
    let mut rig = strict(|_| {});
    rig.syn();
    // Contradictory framing.
    let head = b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
    assert!(!rig.data(0, head));
    assert!(!forged_syn(&mut rig, head.len() as u32));
    assert!(!rig.data(head.len(), b"x"));
    assert_eq!(rig.count("overflow"), 3);
}

/// After a connection has ended, the next one on its ports is inspected.
#[test]
fn a_connection_after_one_that_ended() {
    let mut rig = strict(|_| {});
    rig.syn();
    assert!(rig.data(0, b"GET / HTTP/1.1\r\n\r\n"));
    assert!(rig.send_flags(19, TcpFlags::FIN, b""));
    rig.first = 77;
    assert!(rig.syn());
    assert!(!rig.data(0, REQUEST));
    assert_eq!(rig.count("url-blocked"), 1);
}

/// Regression: the rest of a request passed after its start was forgotten.
#[test]
fn bytes_midstream_that_begin_no_request_are_lost() {
    let hello = records(&client_hello("bad.example"), 16_000);
    let midstream: [&[u8]; 5] = [
        &REQUEST[25..],
        b"\0binary",
        &hello[100..],
        // TLS, but not a ClientHello.
        &[22, 3, 3, 0, 4, 16, 0, 0, 0],
        &[23, 3, 3, 0, 1, 0],
    ];
    for bytes in midstream {
        let mut rig = strict(|_| {});
        assert!(!rig.stream(bytes, 1400));
        assert!(!rig.data(bytes.len(), b"more"));
        assert!(rig.count("overflow") >= 2);
        // Without `drop`, or from the connection's start on, such bytes are not of interest.
        let mut rig = Rig::new(config());
        assert!(rig.stream(bytes, 1400) && rig.data(bytes.len(), b"more"));
        let mut rig = strict(|_| {});
        rig.syn();
        assert!(rig.stream(bytes, 1400) && rig.data(bytes.len(), b"more"));
    }
}

#[test]
fn requests_midstream_are_looked_at() {
    let ok = b"GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n";
    let hello = records(&client_hello("ok.example"), 300);
    let application_data = [23, 3, 3, 0, 1, 0];
    // Bytes after a complete request are not the rest of one.
    for bytes in [
        [&ok[..], ok, b"\0websocket"].concat(),
        [&hello[..], &application_data].concat(),
        b"GET /\r\n\0".to_vec(),
    ] {
        for size in [1, 7, 1400] {
            let mut rig = strict(|_| {});
            assert!(rig.stream(&bytes, size), "{size}");
        }
    }
    let mut rig = strict(|_| {});
    assert!(rig.data(0, ok));
    assert!(!rig.data(ok.len(), REQUEST));
    assert_eq!(rig.count("url-blocked"), 1);
    // A bare acknowledgment decides nothing.
    let mut rig = strict(|_| {});
    assert!(rig.data(0, b"") && rig.data(0, ok));
}
