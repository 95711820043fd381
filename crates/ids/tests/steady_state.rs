//! Test of allocations per packet: none, whatever the packet, except for matches of regular expressions.

mod common;

use common::rig::{Rig, Tcp, udp};
use tailwater_ids::inspector::Settings;
use tailwater_ids::language::{Reader, Variables};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Returns rules of all kinds, with those of a published set if available.
fn rules() -> Vec<tailwater_ids::rule::Rule> {
    let own = "alert http any any -> any any (http.uri; content:\"/never\"; http.header; content:\"nothing\"; nocase; sid:1;)\n\
               alert tcp any any -> any any (content:\"x-x-\"; content:\"never\"; distance:0; sid:2;)\n\
               alert http any any -> any any (file.data; content:\"never\"; nocase; sid:3;)\n\
               alert dns any any -> any any (dns.query; content:\"never.example\"; nocase; sid:4;)\n\
               alert udp any any -> any any (content:\"zz\"; nocase; content:\"never\"; sid:5;)";
    let files = common::et_open().map_or(Vec::new(), |(files, _)| files);
    let texts = files.into_iter().map(|(_, text)| text).chain([own.to_owned()]);
    let mut reader = Reader::new(&Variables::default()).unwrap();
    texts.flat_map(|text| reader.read(&text).rules).collect()
}

#[test]
fn no_packet_without_a_match_allocates() {
    let mut rig = Rig::new(rules(), Settings::default());
    let mut body = b"x-x- some text, zz. ".repeat(300);
    body.truncate(5000);
    let request = b"GET /index.html?q=x-x-%20 HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n";
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend(&body);
    let conversation = |port: u16| {
        let key = FlowKey::v4([10, 0, 0, 1].into(), [198, 51, 100, 1].into(), protocol::TCP, port, 80);
        Tcp::open(key)
            .client(request)
            .server(&answer)
            .client(request)
            .server(&answer)
            .close()
            .frames
    };
    // Creates the per-thread state of expressions beforehand.
    let _ = rig.packets(&conversation(1));
    let mut frames = conversation(2);
    let tcp = Tcp::outward(4000);
    frames.extend(tcp.frames.clone());
    for i in (0..20u32).rev() {
        frames.push(tcp.segment(0, 1001 + 4 * i, TcpFlags::ACK, b"x-x-"));
    }
    frames.push(udp(1, 2, b"a zz in a datagram"));
    frames.push(udp(
        1,
        53,
        b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03org\0\0\x01\0\x01",
    ));
    let icmp = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::ICMP, 0, 0);
    frames.push(
        FrameBuilder::new(&icmp)
            .icmp(8, 0, [0; 4])
            .payload(b"hello")
            .to_vec()
            .unwrap(),
    );
    // The rig's own connection table has room.
    for frame in &frames {
        let (key, _) = parse(frame).unwrap().key.of_connection();
        rig.connections.entry(key).or_default();
    }
    for (i, frame) in frames.iter().enumerate() {
        let headers = parse(frame).unwrap();
        let (key, reversed) = headers.key.of_connection();
        let connection = rig.connections.get_mut(&key).unwrap();
        let input = tailwater_ids::packet::Input {
            frame,
            headers: &headers,
            arrival: rig.now,
            reversed,
        };
        let mut alerts = 0;
        let counted = allocation_counter::measure(|| {
            let _ = rig.inspector.packet(&input, connection, &mut rig.slots);
            alerts = rig.inspector.alerts().len();
        });
        assert_eq!((counted.count_total, alerts), (0, 0), "packet {i}");
    }
}
