//! Tests of application protocols without buffers of their own: detection by content, rules by message, data on a SYN,
//! packets inside tunnels.

mod common;

use common::rig::{HOME, Rig, Tcp, WORLD, rules, udp};
use tailwater_ids::inspector::{Reason, Settings, Verdict};
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Returns an SMB message in its NetBIOS header.
fn smb(command: u8, rest: &[u8]) -> Vec<u8> {
    let body = [&b"\xffSMB"[..], &[command], rest].concat();
    let length = (body.len() as u32).to_be_bytes();
    [&length[..], &body].concat()
}

/// Positions of a rule count from the start of each message, not only from that of the stream.
#[test]
fn positions_count_from_each_smb_message() {
    let text = "alert smb any any -> any any (flow:to_client,established; content:\"|ff|SMB|25 05 02 00 c0|\"; offset:4; \
                depth:9; sid:1;)\n\
                alert smb any any -> any any (flow:to_server; content:\"|00|\"; depth:1; content:\"|a2|\"; distance:7; \
                within:1; sid:2;)";
    let hit = smb(0x25, b"\x05\x02\x00\xc0\x98");
    let request = [smb(0x72, b"request"), smb(0xa2, b"next")].concat();
    // In a segment of its own, behind another one in the same segment, and cut at any byte.
    let mut rig = Rig::of(text);
    let tcp = Tcp::outward(445)
        .client(&smb(0x72, b"request"))
        .server(&smb(0x72, b"answer"))
        .server(&hit);
    assert_eq!(rig.packets(&tcp.frames), [1]);
    for cut in 0..=hit.len() {
        let mut rig = Rig::of(text);
        let bytes = [smb(0x72, &[0; 50]), hit.clone()].concat();
        let (one, two) = bytes.split_at(58 + cut - 3);
        let tcp = Tcp::outward(4711).client(&request).server(one).server(two);
        assert_eq!(rig.packets(&tcp.frames), [2, 1], "{cut}");
    }
    // Not in the middle of a message.
    let mut rig = Rig::of(text);
    let tcp = Tcp::outward(445)
        .client(&smb(0x72, b"request"))
        .server(&smb(0x72, &hit));
    assert_eq!(rig.packets(&tcp.frames), []);
}

#[test]
fn positions_count_from_each_line_of_ftp_and_smtp() {
    let text = "alert ftp any any -> any any (flow:to_server; content:\"SITE \"; depth:5; content:\"EXEC\"; distance:0; sid:1;)\n\
                alert smtp any any -> any any (flow:to_server; content:\"VRFY root\"; startswith; sid:2;)\n\
                alert ftp any any -> any any (flow:to_client; content:\"530 \"; depth:4; sid:3;)";
    let mut rig = Rig::of(text);
    // Several lines in one segment, and one line over two.
    let tcp = Tcp::outward(2121)
        .server(b"220 ready\r\n")
        .client(b"USER a\r\nPASS b\r\nSITE EXEC x\r\n")
        .server(b"331 ok\r\n530 no\r\n")
        .client(b"NOOP\r\nSI")
        .client(b"TE EXEC y\r\n");
    assert_eq!(rig.packets(&tcp.frames), [1, 3, 1]);
    // The text of a mail has no commands.
    let tcp = Tcp::outward(2525)
        .server(b"220 mx\r\n")
        .client(b"EHLO a\r\nDATA\r\n")
        .client(b"hello\r\nVRFY root\r\n.\r\nVRFY root\r\n");
    assert_eq!(rig.packets(&tcp.frames), [2]);
    let tcp = Tcp::outward(26)
        .client(b"EHLO a\r\nDATA\r\n")
        .client(b"x\r\nVRFY root\r\n");
    assert_eq!(rig.packets(&tcp.frames), []);
}

/// The cost of a packet of many lines is bounded, and what is left out is counted.
#[test]
fn lines_of_one_packet_are_bounded() {
    let mut rig = Rig::of("alert ftp any any -> any any (content:\"X\"; depth:1; sid:1;)");
    let mut text = b"USER a\r\n".to_vec();
    text.extend(b"\n".repeat(1000));
    text.extend(b"X\n");
    assert_eq!(rig.packets(&Tcp::outward(21).client(&text).frames), []);
    assert!(rig.note("budget-spent") > 0);
}

/// Rules with a protocol and without tests alert when the protocol is known, once in each direction.
#[test]
fn rules_with_only_a_protocol_alert_once_in_each_direction() {
    let conversations: [(&str, &[u8], &[u8]); 8] = [
        (
            "http",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            "tls",
            b"\x16\x03\x01\0\x05\x01\0\0\x01\0",
            b"\x16\x03\x01\0\x05\x02\0\0\x01\0",
        ),
        ("smtp", b"EHLO a\r\n", b"250 ok\r\n"),
        ("ftp", b"USER a\r\n", b"331 ok\r\n"),
        ("ssh", b"SSH-2.0-a\r\n", b"SSH-2.0-b\r\n"),
        ("smb", b"\0\0\0\x05\xffSMBr", b"\0\0\0\x05\xffSMBr"),
        (
            "dcerpc",
            b"\x05\0\x0b\x03\x10\0\0\0\x10\0\0\0\0\0\0\0",
            b"\x05\0\x0c\x03\x10\0\0\0\x10\0\0\0\0\0\0\0",
        ),
        (
            "dns",
            b"\0\x11\x12\x34\x01\0\0\x01\0\0\0\0\0\0\0\0\x01\0\x01",
            b"\0\x11\x12\x34\x81\0\0\x01\0\0\0\0\0\0\0\0\x01\0\x01",
        ),
    ];
    for (name, request, answer) in conversations {
        let port = if name == "dns" { 53 } else { 4711 };
        let mut rig = Rig::of(&format!(
            "alert {name} any any -> any any (flow:established,to_server; sid:1;)\n\
             alert {name} any any -> any any (flow:to_client; sid:2;)\n\
             alert {name} any any -> any any (sid:3;)"
        ));
        let tcp = Tcp::outward(port)
            .client(request)
            .server(answer)
            .client(request)
            .server(answer)
            .close();
        assert_eq!(rig.packets(&tcp.frames), [1, 3, 2, 3], "{name}");
        let other = Tcp::outward(4712)
            .client(b"\x01\x02\x03\x04\x05\x06")
            .server(b"\x01\x02\x03\x04\x05\x06")
            .close();
        assert_eq!(rig.packets(&other.frames), [], "{name}");
    }
    let mut rig = Rig::of("alert dns any any -> any 53 (sid:1;)");
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\0\0\x01\0\x01";
    assert_eq!(rig.packet(&udp(1, 53, query)).1, [1]);
    assert_eq!(rig.packet(&udp(1, 53, query)).1, []);
}

#[test]
fn ftp_and_others_are_recognised_on_any_port() {
    let text = "alert ftp any any -> any any (flow:to_server; content:\"PASS secret\"; sid:1;)\n\
                alert smtp any any -> any any (flow:to_server; content:\"MAIL FROM\"; sid:2;)\n\
                alert pop3 any any -> any any (flow:to_server; content:\"PASS secret\"; sid:3;)";
    let mut rig = Rig::of(text);
    let ftp = |port: u16, greeting: &[u8]| {
        Tcp::outward(port)
            .server(greeting)
            .client(b"USER a\r\n")
            .client(b"PASS secret\r\n")
    };
    assert_eq!(rig.packets(&ftp(40_001, b"220 hello\r\n").frames), [1]);
    assert_eq!(rig.packets(&ftp(40_002, b"220 FTP service\r\n").frames), [1]);
    // The server's greeting tells POP3, which has the same commands.
    assert_eq!(rig.packets(&ftp(40_003, b"+OK hello\r\n").frames), [3]);
    let smtp = Tcp::outward(40_004)
        .server(b"220 a\r\n")
        .client(b"EHLO b\r\n")
        .client(b"MAIL FROM:<x>\r\n");
    assert_eq!(rig.packets(&smtp.frames), [2]);
}

const SYN: TcpFlags = TcpFlags::SYN;
const SYN_ACK: TcpFlags = TcpFlags(0x12);
const REQUEST: &[u8] = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n";
const EVIL: &str = "alert http any any -> any any (flow:established,to_server; http.uri; content:\"/evil\"; sid:1;)";

/// Returns a connection whose SYN has data, without further packets.
fn with_data_on_syn(data: &[u8]) -> Tcp {
    let key = FlowKey::v4(HOME.into(), WORLD.into(), protocol::TCP, 40_000, 80);
    let mut tcp = Tcp {
        key,
        next: [1000, 5000],
        frames: Vec::new(),
    };
    let frame = tcp.segment(0, 1000, SYN, data);
    tcp.frames.push(frame);
    tcp.next[0] = 1001;
    tcp
}

#[test]
fn data_on_a_syn_is_inspected_when_the_server_accepts_it() {
    // The server acknowledges the data (RFC 7413), and answers before the client's next segment.
    let mut rig = Rig::of(&format!(
        "{EVIL}\nalert http any any -> any any (flow:established,to_client; http.stat_code; content:\"404\"; sid:2;)"
    ));
    let mut tcp = with_data_on_syn(REQUEST);
    tcp.next[0] += REQUEST.len() as u32;
    tcp.send(1, SYN_ACK, b"");
    assert_eq!(rig.packets(&tcp.frames), []);
    let mut tcp = Tcp {
        frames: Vec::new(),
        ..tcp
    }
    .server(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    tcp.send(0, TcpFlags::ACK, b"");
    assert_eq!(rig.packets(&tcp.frames), [1, 2]);
    // The client goes on first.
    let mut rig = Rig::of(EVIL);
    let mut tcp = with_data_on_syn(&REQUEST[..10]);
    tcp.next[0] += 10;
    tcp.send(1, SYN_ACK, b"");
    let tcp = tcp.client(&REQUEST[10..]);
    assert_eq!(rig.packets(&tcp.frames), [1]);
}

/// Data that the server does not accept is not the stream's: the client's second copy counts.
#[test]
fn data_on_a_syn_that_the_server_refuses_is_forgotten() {
    let mut rig = Rig::of(EVIL);
    let mut tcp = with_data_on_syn(b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n");
    tcp.send(1, SYN_ACK, b"");
    tcp.send(0, TcpFlags::ACK, b"");
    let tcp = tcp.client(REQUEST);
    assert_eq!(rig.packets(&tcp.frames), [1]);
    assert_eq!(rig.note("overlap-conflict"), 0);
}

#[test]
fn packets_inside_tunnels_are_inspected() {
    let text = "alert http any any -> any any (flow:established,to_server; http.uri; content:\"/evil\"; sid:1;)\n\
                alert udp any any -> any 99 (content:\"deep\"; sid:2;)";
    let over = |number: u8, port: u16, head: &[u8], frame: &[u8], skipped: usize, reversed: bool| {
        let key = FlowKey::v4(
            [203, 0, 113, 1].into(),
            [203, 0, 113, 2].into(),
            number,
            if port > 0 { 50_000 } else { 0 },
            port,
        );
        let key = if reversed && port == 0 { key.reversed() } else { key };
        FrameBuilder::new(&key)
            .payload(&[head, &frame[skipped..]].concat())
            .to_vec()
            .unwrap()
    };
    let tunnels: [(u8, u16, &[u8], usize); 4] = [
        (47, 0, &[0, 0, 8, 0], 14),
        (4, 0, &[], 14),
        (17, 4789, &[8, 0, 0, 0, 0, 0, 1, 0], 0),
        (17, 6081, &[0, 0, 0x65, 0x58, 0, 0, 1, 0], 0),
    ];
    for (number, port, head, skipped) in tunnels {
        let mut rig = Rig::of(text);
        let tcp = Tcp::outward(80).client(&REQUEST[..9]).client(&REQUEST[9..]).close();
        let frames: Vec<_> = tcp
            .frames
            .iter()
            .enumerate()
            .map(|(i, frame)| over(number, port, head, frame, skipped, i == 1))
            .collect();
        assert_eq!(rig.packets(&frames), [1], "{number} {port}");
    }
    // Four tunnels deep, and no deeper.
    let nested = |levels: usize| {
        let mut frame = udp(1, 99, b"deep");
        for _ in 0..levels {
            frame = over(47, 0, &[0, 0, 8, 0], &frame, 14, false);
        }
        frame
    };
    let mut rig = Rig::of(text);
    assert_eq!(rig.packet(&nested(4)).1, [2]);
    assert_eq!(rig.packet(&nested(5)).1, []);
    // A broken one is counted.
    let mut broken = nested(1);
    let at = broken.len() - 30;
    broken[at..].fill(0xff);
    rig.packet(&broken);
    assert_eq!(rig.note("tunnel-unclear"), 1);
}

/// A restart of a connection with data is a new one.
#[test]
fn a_refused_fast_open_does_not_confuse_a_later_connection() {
    let mut rig = Rig::of(EVIL);
    let mut tcp = with_data_on_syn(b"hello");
    // The server never answers; another connection with the same ports follows.
    let fields = TcpFields {
        sequence: 9000,
        flags: SYN,
        ..TcpFields::default()
    };
    tcp.frames
        .push(FrameBuilder::new(&tcp.key).tcp(fields).to_vec().unwrap());
    tcp.next[0] = 9001;
    tcp.send(1, SYN_ACK, b"");
    tcp.send(0, TcpFlags::ACK, b"");
    assert_eq!(rig.packets(&tcp.client(REQUEST).frames), [1]);
}

/// Frames of MPLS and PPPoE are not IP, but what they carry is inspected.
#[test]
fn packets_under_mpls_and_pppoe_are_inspected() {
    let text = "drop http any any -> any any (flow:established,to_server; http.uri; content:\"/evil\"; sid:1;)\n\
                alert udp any any -> any 99 (content:\"deep\"; sid:2;)";
    let under = |kind: u16, head: &[u8], rest: &[u8]| [&[2; 12], &kind.to_be_bytes()[..], head, rest].concat();
    let stack = [0, 1, 0, 64, 0, 2, 1, 64];
    let session = [0x11, 0, 0, 7, 0, 9, 0, 0x21];
    for (kind, head) in [(0x8847, &stack[..]), (0x8848, &stack[4..]), (0x8864, &session[..])] {
        let settings = Settings {
            drops: true,
            ..Settings::default()
        };
        let mut rig = Rig::new(rules(text), settings);
        let tcp = Tcp::outward(80)
            .client(&REQUEST[..9])
            .client(&REQUEST[9..])
            .client(b"more");
        let outcomes: Vec<_> = tcp
            .frames
            .iter()
            .map(|frame| rig.packet(&under(kind, head, &frame[14..])))
            .collect();
        let (last, before) = outcomes.split_last().unwrap();
        assert_eq!(
            before.last(),
            Some(&(Verdict::Drop(Reason::Dropped), vec![1])),
            "{kind:#x}"
        );
        assert_eq!(last.0, Verdict::Drop(Reason::FlowBlocked));
        // A packet cut short, and a stack without an end, are counted.
        for cut in [0, 1, 8, 19] {
            rig.packet(&under(kind, head, &tcp.frames[3][14..14 + cut]));
        }
        let broken = rig.note("tunnel-unclear");
        assert!(broken >= 2, "{kind:#x}: {broken}");
    }
    let mut rig = Rig::of(text);
    // Ethernet under MPLS, and other frames that are not IP.
    assert_eq!(
        rig.packet(&under(0x8847, &stack, &[&[0; 4], &udp(1, 99, b"deep")[..]].concat()))
            .1,
        [2]
    );
    assert_eq!(
        rig.packet(&under(0x88cc, &stack, &udp(1, 99, b"deep"))),
        (Verdict::Pass, vec![])
    );
    assert_eq!(rig.packet(&under(0x8847, &[0; 400], b"")), (Verdict::Pass, vec![]));
    assert_eq!(rig.note("tunnel-unclear"), 1);
}
