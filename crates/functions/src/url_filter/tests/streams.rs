//! Tests of sequence numbers, buffers, connection ends and limits.

use super::*;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n";

fn with(change: impl FnOnce(&mut FilterConfig)) -> Rig {
    let mut config = config();
    change(&mut config);
    let mut rig = Rig::new(config);
    rig.syn();
    rig
}

#[test]
fn retransmissions_and_later_packets() {
    let mut rig = with(|_| {});
    assert!(rig.data(0, &REQUEST[..20]));
    assert!(rig.data(0, &REQUEST[..20]));
    assert!(!rig.data(0, REQUEST));
    assert!(!rig.data(0, REQUEST));
    assert!(!rig.data(500, b"more"));
    assert_eq!((rig.count("url-blocked"), rig.count("flow-blocked")), (1, 2));
}

#[test]
fn the_rest_of_the_flow_may_pass_but_never_the_byte() {
    let mut rig = with(|config| config.rest = Rest::Pass);
    assert!(!rig.data(0, REQUEST));
    assert!(!rig.data(0, REQUEST), "sent again");
    // Up to the end of the Host field, then the rest.
    assert!(rig.data(0, &REQUEST[..34]));
    assert!(!rig.data(34, &REQUEST[34..35]));
    assert!(rig.data(35, &REQUEST[35..]));
    assert!(rig.send_flags(38, TcpFlags::FIN, b""));
    assert_eq!(rig.count("url-blocked"), 3);
}

#[test]
fn alerts_count_and_pass() {
    let mut rig = with(|config| config.action = Action::Alert);
    let twice = b"GET http://bad.example/evil HTTP/1.1\r\nHost: bad.example\r\n\r\n\
                  GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n";
    assert!(rig.stream(&[&twice[..], REQUEST].concat(), 10));
    assert_eq!((rig.count("url-matched"), rig.count("url-blocked")), (2, 0));
    let mut rig = with(|config| config.action = Action::Alert);
    assert!(rig.stream(&records(&client_hello("bad.example"), 100), 100));
    assert_eq!(rig.count("sni-matched"), 1);
}

#[test]
fn data_on_the_syn() {
    let mut rig = Rig::new(config());
    assert!(rig.send_flags(0, TcpFlags::SYN, &REQUEST[..10]));
    assert!(!rig.data(10, &REQUEST[10..]));
}

#[test]
fn a_connection_after_another_on_the_same_ports() {
    let mut rig = with(|_| {});
    assert!(rig.data(0, b"\x00not http"));
    assert!(rig.data(9, REQUEST));
    rig.first = 77;
    assert!(rig.syn());
    assert!(!rig.data(0, REQUEST));
    // A retransmitted SYN does not reopen the flow.
    assert!(!rig.syn());
    assert!(!rig.data(0, b"x"));
    rig.first = 99_999;
    assert!(rig.syn());
    assert!(rig.data(0, b"GET / HTTP/1.1\r\n\r\n"));
    assert_eq!(rig.count("stream-restarted"), 0);
}

#[test]
fn a_syn_within_a_stream() {
    for (fate, pass) in [(PacketAction::Pass, true), (PacketAction::Drop, false)] {
        let mut rig = with(|config| config.on_overflow = fate);
        assert!(rig.data(0, &REQUEST[..20]));
        let first = std::mem::replace(&mut rig.first, 12_345);
        assert_eq!(rig.syn(), pass);
        rig.first = first;
        assert_eq!(rig.data(20, &REQUEST[20..]), pass);
    }
}

#[test]
fn ends_free_buffers() {
    let mut rig = with(|config| config.streams = 1);
    for port in 1..20 {
        // With a single buffer, each stream must release it.
        rig.key = key(port, 80);
        rig.syn();
        assert!(rig.data(0, &REQUEST[..20]));
        let flags = if port % 2 == 0 { TcpFlags::FIN } else { TcpFlags::RST };
        assert!(rig.send_flags(21, flags, b""));
    }
    assert_eq!(rig.count("overflow-passed"), 0);
    // An expired flow releases its buffer, too.
    rig.key = key(100, 80);
    rig.syn();
    assert!(rig.data(0, &REQUEST[..20]));
    for second in [62, 130] {
        (0..512).for_each(|_| rig.rig.chain.expire(Nanos::from_secs(second)));
    }
    assert_eq!(rig.rig.chain.flows(), 0);
    rig.key = key(101, 80);
    rig.syn();
    assert!(rig.data(0, &REQUEST[..20]));
    assert!(!rig.data(20, &REQUEST[20..]));
}

#[test]
fn no_buffer_is_left() {
    for (fate, passes) in [(PacketAction::Pass, true), (PacketAction::Drop, false)] {
        let mut rig = with(|config| {
            config.streams = 1;
            config.on_overflow = fate;
        });
        assert!(rig.data(0, &REQUEST[..20]));
        rig.key = key(2, 80);
        rig.syn();
        assert_eq!(rig.data(0, &REQUEST[..20]), passes);
        assert_eq!(rig.data(20, &REQUEST[20..]), passes);
        // A request in one segment needs no buffer.
        rig.key = key(3, 80);
        rig.syn();
        assert!(!rig.data(0, REQUEST));
        // An idle stream loses its buffer to another, and can then not be followed.
        rig.now = Nanos::from_secs(20);
        rig.key = key(4, 80);
        rig.syn();
        assert!(rig.data(0, &REQUEST[..20]));
        rig.key = key(40_000, 80);
        assert_eq!(rig.data(20, &REQUEST[20..]), passes);
    }
}

#[test]
fn beyond_the_bounds() {
    // A segment too far ahead is dropped; its retransmission fits later.
    let mut rig = with(|config| config.on_overflow = PacketAction::Drop);
    assert!(!rig.data(5000, b"x"));
    assert!(rig.data(4000, b"x"));
    assert!(!rig.data(0, REQUEST));
    let mut rig = with(|_| {});
    assert!(rig.data(5000, b"x"));
    assert!(rig.data(0, REQUEST), "given up");
    assert_eq!(rig.count("overflow-passed"), 1);
    // A target that is too long, and a host that is.
    for long in [
        format!("GET /{} HTTP/1.1\r\n", "x".repeat(5000)),
        format!("GET / HTTP/1.1\r\nHost: {}.bad.example\r\n", "x".repeat(600)),
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
    ] {
        for (fate, passes) in [(PacketAction::Pass, true), (PacketAction::Drop, false)] {
            let mut rig = with(|config| config.on_overflow = fate);
            assert_eq!(rig.stream(long.as_bytes(), 1000), passes);
            assert_eq!(rig.data(long.len(), b"x"), passes);
        }
    }
    // More ranges than are tracked.
    let mut rig = with(|config| config.on_overflow = PacketAction::Drop);
    assert!((1..=16).all(|i| rig.data(i * 10, b"x")));
    assert!(!rig.data(200, b"x"));
}

#[test]
fn bodies_are_passed_over_without_room() {
    let mut rig = with(|config| {
        config.streams = 1;
        config.on_overflow = PacketAction::Drop;
    });
    let head = b"PUT / HTTP/1.1\r\nHost: ok.example\r\nContent-Length: 5000000000\r\n\r\n";
    assert!(rig.data(0, head));
    let mut at = head.len();
    let end = head.len() + 5_000_000_000;
    // Losses and reordering within the body do not matter.
    while at + 900_000_000 < end {
        at += 900_000_000;
        let offset = at as u32;
        assert!(rig.send_flags(offset.wrapping_add(1), TcpFlags::ACK, &[b'x'; 1000]));
        assert!(rig.send_flags(offset.wrapping_sub(5000), TcpFlags::ACK, &[b'x'; 1000]));
    }
    let offset = (end - 10) as u32;
    let tail = [&[b'x'; 10][..], REQUEST].concat();
    assert!(!rig.send_flags(offset.wrapping_add(1), TcpFlags::ACK, &tail));
    assert_eq!(rig.count("url-blocked"), 1);
}

#[test]
fn fragments() {
    for (fate, passes) in [(PacketAction::Pass, true), (PacketAction::Drop, false)] {
        let mut rig = with(|config| config.fragments = fate);
        // A fragment's data is a multiple of 8 bytes.
        let frame = rig.segment(1, TcpFlags::ACK, &REQUEST[..36]);
        let mut fragment = frame.clone();
        // More fragments follow.
        fragment[20] = 0x20;
        fragment[24..26].fill(0);
        let sum = tailwater_net::checksum::sum(&fragment[14..34]);
        fragment[24..26].copy_from_slice(&(!sum).to_be_bytes());
        let sent = rig.rig.run(&[fragment], rig.now);
        assert_eq!(!sent.is_empty(), passes);
    }
}

#[test]
fn other_traffic_passes() {
    let mut rig = with(|_| {});
    assert!(rig.stream(b"SSH-2.0-OpenSSH\r\nHost: bad.example\r\n", 9));
    rig.key = FlowKey::v4(
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(1, 1, 1, 1),
        protocol::UDP,
        1,
        80,
    );
    let frame = FrameBuilder::new(&rig.key).payload(REQUEST).to_vec().unwrap();
    assert_eq!(rig.rig.run(&[frame], rig.now).len(), 1);
    // A server's response.
    rig.key = key(80, 50_000);
    rig.syn();
    assert!(rig.data(0, b"HTTP/1.1 200 OK\r\nHost: bad.example\r\n\r\n"));
}

/// New patterns apply to later lookups, also in existing streams. Blocked flows remain blocked.
#[test]
fn patterns_are_replaced_under_streams() {
    let table = |names: &[&str]| {
        let patterns: Vec<_> = names.iter().map(|name| Pattern::parse(name).unwrap()).collect();
        FilterTable::new(&patterns, config()).unwrap()
    };
    let shared = Arc::new(table(&["first.example"]));
    let mut rig = ChainRig::new(vec![Box::new(UrlFilter::new(Arc::clone(&shared)))], INPUT);
    let mut send = |port: u16, sequence: u32, host: &str| {
        let fields = TcpFields {
            sequence,
            flags: TcpFlags::ACK,
            ..TcpFields::default()
        };
        let request = format!("GET / HTTP/1.1\r\nHost: {host}.example\r\n\r\n");
        let frame = FrameBuilder::new(&key(port, 80))
            .tcp(fields)
            .payload(request.as_bytes())
            .to_vec();
        let sent = rig.run(&[frame.unwrap()], Nanos::from_secs(1)).len();
        (sent == 1, sequence + request.len() as u32)
    };
    let (passed, next) = send(1, 100, "second");
    assert!(passed);
    assert!(!send(2, 100, "first").0);
    let new = [Pattern::parse("second.example").unwrap()];
    shared.live().replace(UrlTable::new(&new).unwrap());
    assert!(!send(1, next, "second").0);
    assert!(send(3, 100, "first").0);
    assert!(!send(2, 200, "third").0, "it was blocked");
}
