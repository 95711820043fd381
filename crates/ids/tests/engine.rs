//! Tests of packets and streams through an inspector: alerts, drops and counters.

mod common;

use common::rig::{HOME, Rig, Tcp, WORLD, rules, udp};
use std::sync::Arc;
use tailwater_ids::inspector::{Reason, Settings, Verdict};
use tailwater_ids::ruleset::{BitNames, RuleSet};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

#[test]
fn packets_by_protocol_addresses_ports_and_headers() {
    let mut rig = Rig::of(
        "alert udp $HOME_NET any -> $EXTERNAL_NET 53 (content:\"abc\"; nocase; depth:4; dsize:<9; sid:1;)\n\
         alert icmp any any -> any any (itype:8; icode:0; content:\"ping\"; sid:2;)\n\
         alert tcp any any -> any 22 (flags:S,12; sid:3;)\n\
         alert ip [198.51.100.0/24] any -> any any (sid:4;)\n\
         alert udp any any <> any 99 (content:\"x\"; sid:5;)\n\
         alert udp any any -> any any (ttl:64; content:\"t\"; sid:6;)",
    );
    assert_eq!(rig.packet(&udp(1, 53, b"xABCd")).1, [1]);
    assert_eq!(rig.packet(&udp(1, 53, b"xxABC")).1, []);
    assert_eq!(rig.packet(&udp(1, 53, b"ABCabcabc")).1, []);
    assert_eq!(rig.packet(&udp(1, 54, b"abc")).1, []);
    assert_eq!(rig.packet(&udp(99, 1, b"x")).1, [5]);
    assert_eq!(rig.packet(&udp(1, 99, b"x")).1, [5]);
    let icmp = FlowKey::v4(HOME.into(), WORLD.into(), protocol::ICMP, 0, 0);
    let ping = |kind| {
        let frame = FrameBuilder::new(&icmp).icmp(kind, 0, [0; 4]).payload(b"a ping");
        frame.to_vec().unwrap()
    };
    assert_eq!(rig.packet(&ping(8)).1, [2]);
    assert_eq!(rig.packet(&ping(0)).1, []);
    let tcp = Tcp::outward(22);
    assert_eq!(rig.packet(&tcp.frames[0]).1, [3]);
    // Rules on addresses only match the first packet of each direction.
    assert_eq!(rig.packet(&tcp.frames[1]).1, [4]);
    assert_eq!(rig.packet(&tcp.segment(1, 5001, TcpFlags::ACK, b"")).1, []);
    assert_eq!(rig.packet(&udp(1, 2, b"t")).1, [6]);
}

#[test]
fn contents_are_found_wherever_segments_end() {
    let text = "alert tcp any any -> any any (flow:established,to_server; content:\"attack\"; \
                content:\"now\"; distance:1; within:8; sid:1;)";
    let payload = b"an attack by now, and nothing else";
    for cut in 0..payload.len() {
        let mut rig = Rig::of(text);
        let tcp = Tcp::outward(99).client(&payload[..cut]).client(&payload[cut..]);
        assert_eq!(rig.packets(&tcp.frames), [1], "{cut}");
    }
    // Byte by byte, in any order.
    let mut rig = Rig::of(text);
    let tcp = Tcp::outward(99);
    let mut frames = tcp.frames.clone();
    for i in (0..8).chain((8..16).rev()).chain(16..payload.len()) {
        frames.push(tcp.segment(0, 1001 + i as u32, TcpFlags::ACK, &payload[i..=i]));
    }
    assert_eq!(rig.packets(&frames), [1]);
    // Not to the client, and not before both ends have sent packets.
    let mut rig = Rig::of(text);
    assert_eq!(rig.packets(&Tcp::outward(99).server(payload).frames), []);
    let one_way: Vec<_> = Tcp::outward(99).client(payload).frames.into_iter().skip(1).collect();
    let mut rig = Rig::of("alert tcp any any -> any any (flow:not_established; content:\"attack\"; sid:1;)");
    assert_eq!(rig.packets(&one_way), []);
}

#[test]
fn messages_of_http() {
    let text = "alert http $HOME_NET any -> $EXTERNAL_NET any (flow:established,to_server; http.method; content:\"POST\"; \
                http.uri; content:\"/a/b.php?x=\"; startswith; http.host; content:\"evil.org\"; endswith; sid:1;)\n\
                alert http any any -> any any (http.request_body; content:\"secret\"; sid:2;)\n\
                alert http any any -> any any (flow:to_client; http.stat_code; content:\"200\"; file.data; content:\"MZ\"; startswith; sid:3;)\n\
                alert http any any -> any any (http.user_agent; content:\"bot\"; nocase; bsize:<9; sid:4;)\n\
                alert http any any -> any any (http.header_names; content:!\"|0d 0a|Referer|0d 0a|\"; content:\"|0d 0a|X-A|0d 0a|\"; sid:5;)\n\
                alert tcp any any -> any any (http.uri; urilen:2; pcre:\"/^\\/[a-z]$/\"; sid:6;)";
    let request = b"POST /a/./%62.php?x=1 HTTP/1.1\r\nHost: www.Evil.org:80\r\nUser-Agent: a Bot\r\nX-A: b\r\n\
                    Transfer-Encoding: chunked\r\n\r\n3\r\nsec\r\n3\r\nret\r\n0\r\n\r\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, b"MZ and more").unwrap();
    let body = gzip.finish().unwrap();
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend(&body);
    let mut rig = Rig::of(text);
    let tcp = Tcp::outward(8080).client(request).server(&response);
    let frames = tcp.client(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n").frames;
    assert_eq!(rig.packets(&frames[..3]), []);
    assert_eq!(rig.packets(&frames[3..4]), [1, 4, 5, 2]);
    assert_eq!(rig.packets(&frames[4..5]), [3]);
    assert_eq!(rig.packets(&frames[5..]), [6]);
}

#[test]
fn names_in_tls_and_dns() {
    let mut rig = Rig::of(
        "alert dns $HOME_NET any -> any any (dns.query; dotprefix; content:\".evil.org\"; nocase; endswith; sid:1;)\n\
         alert dns any any -> any any (dns.query; content:\"a.b\"; bsize:3; sid:2;)\n\
         alert tls $HOME_NET any -> $EXTERNAL_NET any (flow:established,to_server; tls.sni; content:\"bad.example\"; bsize:11; sid:3;)",
    );
    let query = |name: &str| {
        let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
        for label in name.split('.') {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.extend(b"\0\0\x01\0\x01");
        message
    };
    assert_eq!(rig.packet(&udp(1, 53, &query("www.EVIL.org"))).1, [1]);
    assert_eq!(rig.packet(&udp(1, 53, &query("evil.org"))).1, [1]);
    assert_eq!(rig.packet(&udp(1, 53, &query("devil.org"))).1, []);
    assert_eq!(rig.packet(&udp(1, 53, &query("a.b"))).1, [2]);
    assert_eq!(rig.packet(&udp(1, 53, &query("a.bc"))).1, []);
    let mut stream = (query("evil.org").len() as u16).to_be_bytes().to_vec();
    stream.extend(query("evil.org"));
    assert_eq!(rig.packets(&Tcp::outward(53).client(&stream).frames), [1]);
    let hello = |name: &[u8]| {
        let length = |n: usize, bytes: usize| (n as u32).to_be_bytes()[4 - bytes..].to_vec();
        let list = [vec![0], length(name.len(), 2), name.to_vec()].concat();
        let extension = [vec![0, 0], length(list.len() + 2, 2), length(list.len(), 2), list].concat();
        let body = [
            vec![3, 3],
            vec![0; 32],
            vec![0, 0, 2, 0x13, 1, 1, 0],
            length(extension.len(), 2),
            extension,
        ]
        .concat();
        let message = [vec![1], length(body.len(), 3), body].concat();
        // Split over two records.
        let (one, two) = message.split_at(20);
        [
            vec![22, 3, 1],
            length(one.len(), 2),
            one.to_vec(),
            vec![22, 3, 1],
            length(two.len(), 2),
            two.to_vec(),
        ]
        .concat()
    };
    assert_eq!(
        rig.packets(
            &Tcp::outward(443)
                .client(&hello(b"bad.example")[..30])
                .client(&hello(b"bad.example")[30..])
                .frames
        ),
        [3]
    );
    rig.connections.clear();
    assert_eq!(
        rig.packets(&Tcp::outward(443).client(&hello(b"bad.examples")).frames),
        []
    );
}

/// Encodes a DER element.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len();
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, content].concat()
}

/// Builds a certificate from a serial number, the issuer's organisation and the subject's name.
fn certificate(serial: &[u8], issuer: &str, subject: &str) -> Vec<u8> {
    let name = |attribute: u8, value: &str| {
        let object = der(0x06, &[&[0x55, 4, attribute]]);
        let pair = der(0x30, &[&object, &der(0x0c, &[value.as_bytes()])]);
        der(0x30, &[&der(0x31, &[&pair])])
    };
    let body = [
        der(0xa0, &[&der(0x02, &[&[2]])]),
        der(0x02, &[serial]),
        der(0x30, &[&der(0x06, &[&[0x2a, 0x86, 0x48]])]),
        name(10, issuer),
        der(
            0x30,
            &[&der(0x17, &[b"240101000000Z"]), &der(0x17, &[b"340101000000Z"])],
        ),
        name(3, subject),
        der(0x30, &[&[0; 200]]),
    ];
    let body: Vec<&[u8]> = body.iter().map(Vec::as_slice).collect();
    der(0x30, &[&der(0x30, &body), &der(0x03, &[&[0; 64]])])
}

/// Builds a server's handshake up to its certificates, in records of at most `record` bytes.
fn certificates(certificates: &[Vec<u8>], record: usize) -> Vec<u8> {
    let of_three = |length: usize| (length as u32).to_be_bytes()[1..].to_vec();
    let list: Vec<u8> = certificates
        .iter()
        .flat_map(|certificate| [of_three(certificate.len()), certificate.clone()].concat())
        .collect();
    let hello = [vec![3, 3], vec![0; 32], vec![0, 0x13, 1, 0]].concat();
    let messages = [
        vec![2],
        of_three(hello.len()),
        hello,
        vec![11],
        of_three(list.len() + 3),
        of_three(list.len()),
        list,
    ];
    let records = messages.concat();
    let records = records.chunks(record).flat_map(|part| {
        let length = (part.len() as u16).to_be_bytes();
        [&[22, 3, 3][..], &length, part].concat()
    });
    records.collect()
}

#[test]
fn certificates_of_servers() {
    const CUT: usize = 41;
    let text = "alert tls any any -> any any (flow:to_client; tls.cert_subject; content:\"CN=bad.example\"; bsize:14; sid:1;)\n\
                alert tls any any -> any any (tls.cert_issuer; content:\"o=evil corp\"; nocase; sid:2;)\n\
                alert tls any any -> any any (flow:to_client; tls.cert_serial; content:\"0A:FF:01\"; startswith; endswith; sid:3;)\n\
                alert tls any any -> any any (flow:to_client; tls.certs; content:\"bad.example\"; sid:4;)\n\
                alert tls any any -> any any (flow:to_client; tls.cert_subject; content:\"Middle\"; sid:5;)\n\
                alert tls any any -> any any (flow:to_client; tls.certs; content:\"Middle\"; sid:6;)\n\
                alert tls any any -> any any (flow:to_client; tls.cert_subject; content:\"CN=bad\"; content:!\"example\"; sid:7;)";
    let told = |bytes: &[u8], cut: usize| {
        let mut rig = Rig::of(text);
        let (one, two) = bytes.split_at(cut);
        let tcp = Tcp::outward(443).server(one).server(two);
        let mut found = rig.packets(&tcp.frames);
        found.sort_unstable();
        found
    };
    let chain = [
        certificate(&[0x0a, 0xff, 1], "Evil Corp", "bad.example"),
        certificate(&[1], "Evil Corp", "Middle"),
    ];
    for record in [100, 16_000] {
        let bytes = certificates(&chain, record);
        // Cut at any byte. Subject, issuer and serial number are those of the server's own certificate.
        for cut in (1..bytes.len()).step_by(CUT) {
            assert_eq!(told(&bytes, cut), [1, 2, 3, 4, 6], "{record} {cut}");
        }
        // Nothing is known before the last certificate is complete.
        assert_eq!(told(&bytes[..bytes.len() - 1], 9), []);
    }
    let other = [certificate(&[0x0a, 0xff, 1, 2], "Evil", "bad.examples")];
    assert_eq!(told(&certificates(&other, 16_000), CUT), [4]);
    // Nothing is parsed after ChangeCipherSpec, whatever it resembles.
    let mut encrypted = vec![20, 3, 3, 0, 1, 1];
    encrypted.extend(certificates(&chain, 16_000));
    let hello = certificates(&[], 38);
    let bytes = [&hello[..43], &encrypted].concat();
    assert_eq!(told(&bytes, CUT), []);
}

#[test]
fn bits_of_connections_and_thresholds() {
    let mut rig = Rig::of(
        "alert tcp any any -> any any (content:\"two\"; flowbits:isset,one; flowbits:unset,one; sid:2;)\n\
         alert tcp any any -> any any (content:\"one\"; flowbits:set,one; flowbits:noalert; sid:1;)\n\
         alert tcp any any -> any any (content:\"two\"; flowbits:isnotset,one; sid:3;)\n\
         alert udp any any -> any any (content:\"x\"; threshold:type limit, track by_src, count 2, seconds 60; sid:4;)\n\
         alert udp any any -> any any (content:\"x\"; detection_filter:track by_dst, count 3, seconds 60; sid:5;)",
    );
    assert_eq!(rig.packets(&Tcp::outward(1).client(b"two").frames), [3]);
    assert_eq!(
        rig.packets(&Tcp::outward(2).client(b"one").client(b"two").frames),
        [2, 3]
    );
    assert_eq!(rig.packets(&Tcp::outward(3).client(b"one two").frames), [2, 3]);
    let told: Vec<_> = (0..5).map(|_| rig.packet(&udp(1, 2, b"x")).1).collect();
    assert_eq!(told, [vec![4], vec![4], vec![], vec![5], vec![5]]);
    rig.now += Nanos::from_secs(60);
    assert_eq!(rig.packet(&udp(1, 2, b"x")).1, [4]);
}

fn drops(strict: bool) -> Settings {
    Settings {
        drops: true,
        strict,
        ..Settings::default()
    }
}

const DROP: &str = "drop tcp any any -> any 80 (content:\"attack\"; sid:1;)\n\
                    reject tcp any any -> any 81 (content:\"attack\"; sid:2;)\n\
                    drop udp any any -> any any (content:\"attack\"; sid:3;)\n\
                    pass tcp any any -> any any (content:\"friend\"; sid:4;)\n\
                    alert tcp any any -> any any (content:\"attack\"; sid:5;)";

#[test]
fn what_rules_say_happens() {
    let mut rig = Rig::new(rules(DROP), drops(false));
    let verdicts = |rig: &mut Rig, tcp: Tcp| {
        let frames = &tcp.frames[3..];
        tcp.frames[..3]
            .iter()
            .for_each(|frame| assert_eq!(rig.packet(frame).0, Verdict::Pass));
        frames.iter().map(|frame| rig.packet(frame).0).collect::<Vec<_>>()
    };
    use Reason::{Dropped, FlowBlocked, Rejected};
    use Verdict::{Drop, Pass};
    let tcp = |port| {
        Tcp::outward(port)
            .client(b"hello")
            .client(b"attack")
            .client(b"more")
            .server(b"more")
    };
    assert_eq!(
        verdicts(&mut rig, tcp(80)),
        [Pass, Drop(Dropped), Drop(FlowBlocked), Drop(FlowBlocked)]
    );
    assert_eq!(
        verdicts(&mut rig, tcp(81)),
        [Pass, Drop(Rejected), Drop(FlowBlocked), Drop(FlowBlocked)]
    );
    assert_eq!(verdicts(&mut rig, tcp(82)), [Pass; 4]);
    assert_eq!(rig.packet(&udp(1, 2, b"attack")).0, Drop(Dropped));
    assert_eq!(rig.packet(&udp(1, 2, b"hello")).0, Pass);
    let friend = Tcp::inward(80).client(b"friend").client(b"attack");
    assert_eq!(rig.packets(&friend.frames), []);
    // The ports of a blocked connection may be reused.
    let mut again = Tcp::outward(80);
    again.next = [7000, 9000];
    again.frames.clear();
    again.send(0, TcpFlags::SYN, b"");
    assert_eq!(rig.packet(&again.frames[0]).0, Pass);
    // Alert only.
    let mut rig = Rig::new(rules(DROP), Settings::default());
    assert_eq!(verdicts(&mut rig, tcp(80)), [Pass; 4]);
}

#[test]
fn memory_is_bounded_and_what_finds_no_room_is_counted() {
    let text = "alert tcp any any -> any any (content:\"attack\"; sid:1;)";
    for strict in [false, true] {
        let mut rig = Rig::new(rules(text), drops(strict));
        let open = |port: u16| Tcp::open(FlowKey::v4(HOME.into(), WORLD.into(), protocol::TCP, port, 80)).client(b"x");
        let total = rig.slots.free() as u16;
        (0..total).for_each(|port| drop(rig.packets(&open(port).frames)));
        assert_eq!(rig.slots.free(), 0);
        let verdict = rig.packet(&open(999).frames[3]).0;
        let expected = if strict {
            Verdict::Drop(Reason::Overflow)
        } else {
            Verdict::Pass
        };
        assert_eq!((verdict, rig.note("no-room")), (expected, 1));
        // A connection that ends frees memory for another, which is followed once its sender retransmits.
        rig.packets(&open(0).close().frames[4..]);
        assert_eq!(rig.slots.free(), 1);
        let late = Tcp::open(FlowKey::v4(HOME.into(), WORLD.into(), protocol::TCP, 998, 80)).client(b"attack");
        assert_eq!(rig.packets(&late.frames), [1]);
    }
}

#[test]
fn segments_that_differ_or_come_too_early_are_counted() {
    let text = "alert tcp any any -> any any (content:\"attack\"; sid:1;)";
    let mut rig = Rig::new(rules(text), drops(true));
    let tcp = Tcp::outward(80).client(b"att");
    assert_eq!(rig.packets(&tcp.frames), []);
    // Bytes already received, and different ones: the first copy counts, and the segment is dropped.
    let evasion = tcp.segment(0, 1002, TcpFlags::ACK, b"xxack");
    assert_eq!(rig.packet(&evasion).0, Verdict::Drop(Reason::Overflow));
    assert_eq!(rig.note("overlap-conflict"), 1);
    let far = tcp.segment(0, 1001 + 10_000, TcpFlags::ACK, b"x");
    assert_eq!(rig.packet(&far).0, Verdict::Drop(Reason::Overflow));
    assert_eq!(rig.note("no-room"), 1);
    let mut wrong = tcp.segment(0, 1004, TcpFlags::ACK, b"zzz");
    *wrong.last_mut().unwrap() ^= 1;
    assert_eq!(rig.packet(&wrong), (Verdict::Pass, vec![]));
    assert_eq!(rig.note("checksum-wrong"), 1);
}

#[test]
fn a_gap_that_the_receiver_does_not_have_is_passed() {
    let text = "alert tcp any any -> any any (content:\"attack\"; sid:1;)";
    let mut rig = Rig::of(text);
    let mut tcp = Tcp::outward(80).client(b"hello");
    rig.packets(&tcp.frames);
    // A gap, bytes after it, and the receiver's acknowledgement of all.
    tcp.next[0] += 100;
    let behind = tcp.segment(0, tcp.next[0], TcpFlags::ACK, b"an attack");
    assert_eq!(rig.packet(&behind).1, []);
    tcp.next[0] += 9;
    let acknowledged = tcp.segment(1, 5001, TcpFlags::ACK, b"");
    assert_eq!(rig.packet(&acknowledged).1, [1]);
    assert_eq!(rig.note("gap"), 1);
}

#[test]
fn long_streams_and_messages_slide_through_the_window() {
    let text = "alert tcp any any -> any any (content:\"attack\"; sid:1;)\n\
                alert http any any -> any any (http.uri; content:\"/last\"; sid:2;)\n\
                alert http any any -> any any (http.request_body; content:\"begins\"; sid:3;)\n\
                alert http any any -> any any (http.header; content:\"never\"; sid:4;)";
    let mut rig = Rig::of(text);
    let mut request = b"POST /first HTTP/1.1\r\nContent-Length: 100000\r\n\r\nbegins".to_vec();
    request.extend(vec![b'x'; 100_000 - 6]);
    request.extend(b"GET /last HTTP/1.1\r\n\r\n");
    let tcp = Tcp::outward(80).client(&request);
    assert_eq!(rig.packets(&tcp.frames), [3, 2]);
    let mut rig = Rig::of(text);
    let mut long = vec![b'x'; 100_003];
    long.extend(b"attack");
    assert_eq!(rig.packets(&Tcp::outward(99).client(&long).frames), [1]);
    // A head that exceeds the window is not parsed, and is counted.
    let mut rig = Rig::of(text);
    let mut head = b"GET / HTTP/1.1\r\nX: ".to_vec();
    head.extend(vec![b'x'; 20_000]);
    head.extend(b"\r\nY: never\r\n\r\nattack");
    assert_eq!(rig.packets(&Tcp::outward(80).client(&head).frames), [1]);
    assert_eq!(rig.note("http-unclear"), 1);
    // Nothing is inspected beyond the depth.
    let settings = Settings {
        depth: 50_000,
        ..Settings::default()
    };
    let mut rig = Rig::new(rules(text), settings);
    assert_eq!(rig.packets(&Tcp::outward(99).client(&long).frames), []);
}

#[test]
fn a_connections_ports_are_looked_up_again_when_rules_change() {
    let first = "alert tcp any any -> any 4711 (content:\"one\"; sid:1;)\n\
                 alert tcp any any -> any 25 (content:\"two\"; sid:2;)";
    let second = "alert tcp any any -> any 80 (content:\"one\"; sid:11;)\n\
                  alert tcp any any -> any 443 (content:\"three\"; sid:12;)\n\
                  alert tcp any 1024: -> any 4711 (content:\"three\"; sid:13;)";
    let mut rig = Rig::of(first);
    let tcp = Tcp::outward(4711).client(b"one two three.");
    assert_eq!(rig.packets(&tcp.frames), [1]);
    let seen = tcp.frames.len();
    rig.rules = Arc::new(RuleSet::new(rules(second), &mut BitNames::default()).unwrap());
    rig.inspector.renew(2, Arc::clone(&rig.rules));
    let tcp = tcp.client(b"one two three.");
    assert_eq!(rig.packets(&tcp.frames[seen..]), [13]);
}
