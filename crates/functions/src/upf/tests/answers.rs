//! Tests of messages to this endpoint, and its responses.

use super::*;
use tailwater_net::builder::fragment;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};

#[track_caller]
fn assert_sound(frame: &[u8]) {
    let headers = parse(frame).unwrap();
    assert_ne!(verify_network(frame, &headers), Checksum::Wrong);
    assert_eq!(verify_transport(frame, &headers), Checksum::Correct);
}

fn core() -> ChainRig {
    rig(&table(
        options(Role::Core),
        &[profile("all", None)],
        &[session(1, false)],
    ))
}

/// Swaps the Ethernet addresses of a frame.
fn turned(frame: &[u8]) -> Vec<u8> {
    [&frame[6..12], &frame[..6]].concat()
}

#[test]
fn echo_requests_are_answered() {
    let mut rig = core();
    let request = [0x32, 1, 0, 4, 0, 0, 0, 0, 0xab, 0xcd, 0, 0];
    let mut over_v6 = Vec::new();
    let (IpAddr::V6(from), IpAddr::V6(to)) = (address(STATION[1]), address(CORE[1])) else {
        unreachable!();
    };
    let key = FlowKey::v6(from, to, protocol::UDP, 40_000, gtp::PORT);
    over_v6.extend(FrameBuilder::new(&key).payload(&request).to_vec().unwrap());
    // A request longer than the response, with a private extension.
    let long = [
        0x32, 1, 0, 24, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 255, 0, 17, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16,
    ];
    for frame in [to_core(&request), over_v6, to_core(&long)] {
        let answer = run(&mut rig, &frame).unwrap();
        assert_sound(&answer);
        let (asked, headers) = (parse(&frame).unwrap(), parse(&answer).unwrap());
        assert_eq!(headers.key, asked.key.reversed());
        assert_eq!(answer[..12], turned(&frame));
        let expected = [0x32, 2, 0, 6, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 14, 0];
        assert_eq!(headers.payload(&answer), expected);
        assert_eq!(answer.len(), usize::from(headers.end));
    }
    assert_eq!(rig.count("upf/echo-answered"), 3);
}

#[test]
fn senders_to_unknown_tunnels_are_told_at_a_rate() {
    let options = Options {
        errors_per_second: 3,
        ..options(Role::Core)
    };
    let mut rig = rig(&table(options, &[profile("all", None)], &[session(1, false)]));
    let frame = tunnelled(0xbeef, datagram(&down(1, 200)));
    let key = parse(&frame).unwrap().key;
    for second in 1..4 {
        let frames = vec![frame.clone(); 10];
        let told = rig.run(&frames, Nanos::from_secs(10 * second));
        assert_eq!(told.len(), 3);
        for answer in told {
            assert_sound(&answer);
            let headers = parse(&answer).unwrap();
            let ports = (headers.key.source_port(), headers.key.destination_port());
            assert_eq!(ports, (gtp::PORT, gtp::PORT));
            assert_eq!(headers.key.destination(), key.source());
            assert_eq!(answer[..12], turned(&frame));
            let mut expected = [0; gtp::ERROR_INDICATION];
            let length = gtp::error_indication(&mut expected, 0x1000 + 0xbeef, &[192, 0, 2, 1], 40_000);
            assert_eq!(headers.payload(&answer), &expected[..length]);
        }
    }
    assert_eq!(rig.count("upf/error-indications"), 9);
    assert_eq!(rig.count("upf/unknown-teid"), 21);
}

#[test]
fn messages_for_this_end_go_no_further() {
    let mut rig = core();
    let of = |kind: u8, teid: u32| {
        let mut payload = vec![0x30, kind, 0, 0];
        payload.extend(teid.to_be_bytes());
        to_core(&payload)
    };
    assert_dropped(&mut rig, &of(254, 0x1001), "signalling");
    assert_dropped(&mut rig, &of(254, 0x1002), "unknown-teid");
    assert_dropped(&mut rig, &of(26, 0), "signalling");
    assert_dropped(&mut rig, &of(2, 0), "signalling");
    assert_dropped(&mut rig, &of(31, 0), "signalling");
    assert_dropped(&mut rig, &of(4, 0), "unsupported");
    assert_eq!(rig.count("upf/end-markers"), 1);
    assert_eq!(rig.count("upf/peer-errors"), 1);
}

/// The sender of a packet that is too big gets the MTU, if an ICMP error may be sent.
#[test]
fn senders_are_told_what_fits() {
    let sources = [Some(address("203.0.113.1")), Some(address("2001:db8:f::1"))];
    let options = Options {
        error_sources: sources,
        errors_per_second: 2,
        ..options(Role::Core)
    };
    let sessions = [session(1, false), session(2, true)];
    let mut rig = rig(&table(options, &[profile("all", Some(1))], &sessions));
    let v4 = |number: u32, length: usize, whole: bool| {
        let key = FlowKey::v4(SERVER, user(number), protocol::UDP, 53, 4000);
        let payload = vec![1; length - 28];
        let builder = FrameBuilder::new(&key).dont_fragment(whole);
        builder.payload(&payload).to_vec().unwrap()
    };
    let mut now = 1;
    let mut told = |frame: &[u8], rig: &mut ChainRig| {
        now += 10;
        run_at(rig, frame, Nanos::from_secs(now))
    };
    // 20 + 8 + 16 bytes of headers are added, or 40 + 8 + 16.
    for (number, fits) in [(1, 1456), (2, 1436)] {
        let sent = told(&v4(number, fits, true), &mut rig).unwrap();
        assert_eq!(sent.len(), 14 + 1500);
        let frame = v4(number, fits + 1, true);
        let answer = told(&frame, &mut rig).unwrap();
        assert_sound(&answer);
        let headers = parse(&answer).unwrap();
        assert_eq!(headers.key.source(), address("203.0.113.1"));
        assert_eq!(headers.key.destination(), IpAddr::V4(SERVER));
        assert_eq!(answer[..12], turned(&frame));
        assert_eq!(answer[34..36], [3, 4]);
        assert_eq!(answer[40..42], (fits as u16).to_be_bytes());
        assert_eq!(answer[42..], frame[14..14 + 548]);
        assert_eq!(answer.len(), 14 + 576);
    }
    let host = (u128::from(prefix(1)) << 64 | 5).into();
    let server = "2001:db8:ffff::1".parse().unwrap();
    let key = FlowKey::v6(server, host, protocol::UDP, 53, 4000);
    let frame = FrameBuilder::new(&key).payload(&[2; 1409]).to_vec().unwrap();
    let answer = told(&frame, &mut rig).unwrap();
    assert_sound(&answer);
    assert_eq!(answer.len(), 14 + 1280);
    assert_eq!(answer[54..56], [2, 0]);
    assert_eq!(answer[58..62], 1456u32.to_be_bytes());
    assert_eq!(answer[62..], frame[14..14 + 1232]);
    // No error is sent for packets that may be fragmented, are errors themselves, or have no unicast source.
    let key = FlowKey::v4(SERVER, user(1), protocol::ICMP, 0, 0);
    let error = FrameBuilder::new(&key)
        .icmp(3, 1, [0; 4])
        .dont_fragment(true)
        .payload(&[0; 1440]);
    let nobody = FlowKey::v4([255; 4].into(), user(1), protocol::UDP, 53, 4000);
    let nobody = FrameBuilder::new(&nobody).dont_fragment(true).payload(&[0; 1440]);
    let long = v4(1, 4000, false);
    let pieces = fragment(&long, 1480, 7).unwrap();
    for frame in [
        v4(1, 1457, false),
        error.to_vec().unwrap(),
        nobody.to_vec().unwrap(),
        pieces[0].clone(),
        pieces[1].clone(),
    ] {
        now += 10;
        let before = rig.count("upf/too-big");
        assert_eq!(run_at(&mut rig, &frame, Nanos::from_secs(now)), None);
        assert_eq!(rig.count("upf/too-big"), before + 1);
    }
    // Errors are rate-limited.
    let frames = vec![v4(1, 1457, true); 10];
    assert_eq!(rig.run(&frames, Nanos::from_secs(now + 10)).len(), 2);
    assert_eq!(rig.count("upf/too-big-told"), 5);
}

/// Without a source address no ICMP error is sent.
#[test]
fn without_a_source_nobody_is_told() {
    let mut rig = core();
    let key = FlowKey::v4(SERVER, user(1), protocol::UDP, 53, 4000);
    let frame = FrameBuilder::new(&key).dont_fragment(true).payload(&[0; 1460]);
    assert_dropped(&mut rig, &frame.to_vec().unwrap(), "too-big");
}
