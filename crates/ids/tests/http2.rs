//! HTTP/2 in cleartext: rules see its messages as those of HTTP/1.

mod common;

use common::rig::{Rig, Tcp};
use tailwater_ids::inspector::Settings;
use tailwater_ids::slots::OwnSlots;
use tailwater_net::Nanos;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frame of empty settings.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns a header block of literals, which are added to the dynamic table.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0x40);
        for text in [name, value] {
            match text.len() {
                length @ 0..127 => block.push(length as u8),
                length => {
                    let rest = length - 127;
                    block.extend([127, rest as u8 & 0x7f | 0x80, (rest >> 7) as u8]);
                }
            }
            block.extend(text.bytes());
        }
    }
    block
}

fn request(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "A.example:8080"),
        (":path", path),
        ("user-agent", "probe/1"),
    ];
    block(&[&fields, more].concat())
}

fn response(more: &[(&str, &str)]) -> Vec<u8> {
    block(&[&[(":status", "404"), ("server", "s")], more].concat())
}

const RULES: &str = "alert http any any -> any any (flow:established,to_server; http.method; content:\"POST\"; \
     http.uri; content:\"/a/evil\"; http.host; content:\"a.example\"; bsize:9; http.user_agent; content:\"probe\"; \
     sid:1;)\n\
     alert http2 any any -> any any (http.cookie; content:\"k=1|3b| l=2\"; sid:2;)\n\
     alert http any any -> any any (http.request_body; content:\"needle\"; sid:3;)\n\
     alert http any any -> any any (http.stat_code; content:\"404\"; http.header; content:\"x-a: b|0d 0a|\"; sid:4;)\n\
     alert tcp any any -> any any (flow:to_client; file.data; content:\"haystack\"; sid:5;)\n\
     alert http1 any any -> any any (http.uri; content:\"evil\"; sid:6;)\n\
     alert http2 any any -> any any (http.header; content:\":path: /a//evil\"; sid:7;)\n\
     alert http2 any any -> any any (http.response_body; content:\"haystack\"; sid:8;)";

/// Returns a conversation's two directions.
fn conversation() -> [Vec<u8>; 2] {
    let (head, rest) = (
        request("/a//evil", &[("cookie", "k=1"), ("cookie", "l=2")]),
        response(&[("x-a", "b")]),
    );
    let (one, two) = head.split_at(30);
    let client = [
        PREFACE.to_vec(),
        SETTINGS.to_vec(),
        frame(HEADERS, 0, 1, one),
        frame(CONTINUATION, END_HEADERS, 1, two),
        frame(DATA, 8, 1, b"\x04nee\0\0\0\0"),
        frame(DATA, END_STREAM, 1, b"dle"),
    ];
    let server = [
        SETTINGS.to_vec(),
        frame(HEADERS, END_HEADERS, 1, &rest),
        frame(DATA, 0, 1, b"hay"),
        frame(DATA, END_STREAM, 1, b"stack"),
    ];
    [client.concat(), server.concat()]
}

#[test]
fn rules_see_messages_of_http2_in_segments_of_any_size() {
    let [client, server] = conversation();
    for piece in [1, 2, 7, 50, 1000] {
        let mut rig = Rig::of(RULES);
        let mut tcp = Tcp::outward(8080);
        tcp = client.chunks(piece).fold(tcp, Tcp::client);
        tcp = server.chunks(piece).fold(tcp, Tcp::server);
        let mut found = rig.packets(&tcp.frames);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 4, 5, 7, 8], "{piece}");
        assert_eq!((rig.note("http2-malformed"), rig.note("http2-overflow")), (0, 0));
    }
}

/// A client upgrades from HTTP/1.1 with `Upgrade: h2c`; the server's first response is HTTP/2's.
#[test]
fn http2_behind_an_upgrade_is_seen() {
    let [client, server] = conversation();
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n";
    let accepts = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let mut rig = Rig::of(RULES);
    let tcp = Tcp::outward(80)
        .client(upgrade)
        .server(&[accepts, &server[..]].concat())
        .client(&client);
    let mut found = rig.packets(&tcp.frames);
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 4, 5, 7, 8]);
}

/// Fields that repeat come from the dynamic table.
#[test]
fn indexed_fields_are_seen_and_streams_told_apart() {
    let mut rig = Rig::of(RULES);
    // The five fields of the first request again: indices 66 to 62, with another path.
    let mut again = vec![0xc2, 0xc1, 0xc0, 0xbe];
    again.extend(block(&[(":path", "/a/evil")]));
    let client = [
        PREFACE.to_vec(),
        frame(HEADERS, END_HEADERS, 1, &request("/", &[])),
        frame(HEADERS, END_HEADERS, 3, &again),
        frame(DATA, 0, 1, b"nee"),
        frame(DATA, END_STREAM, 3, b"xyz"),
        frame(DATA, END_STREAM, 1, b"dle"),
    ];
    let tcp = Tcp::outward(8080).client(&client.concat());
    assert_eq!(rig.packets(&tcp.frames), [1, 3]);
}

/// Bodies that are not complete are inspected when their stream or the connection ends, or is full.
#[test]
fn incomplete_bodies_are_inspected() {
    let start = [PREFACE.to_vec(), frame(HEADERS, END_HEADERS, 1, &request("/", &[]))].concat();
    let data = frame(DATA, 0, 1, b"a needle");
    let reset = frame(3, 0, 1, &[0; 4]);
    let fill = frame(DATA, 0, 1, &[b'x'; 9000]);
    for (last, close) in [(&reset, false), (&fill, false), (&Vec::new(), true)] {
        let mut rig = Rig::of(RULES);
        let mut tcp = Tcp::outward(8080).client(&[&start[..], &data, last].concat());
        if close {
            tcp = tcp.close();
        }
        assert_eq!(rig.packets(&tcp.frames), [3]);
    }
}

/// Messages that cannot be followed are counted, with bounded memory, and without a panic.
#[test]
fn evasions_are_counted() {
    let start = |rest: &[Vec<u8>]| [PREFACE, &rest.concat()].concat();
    let many: Vec<_> = (0..40)
        .map(|i| frame(HEADERS, END_HEADERS, 2 * i + 1, &request("/", &[])))
        .collect();
    let flood: Vec<_> = std::iter::once(frame(HEADERS, 0, 1, b""))
        .chain((0..100).map(|_| frame(CONTINUATION, 0, 1, b"")))
        .collect();
    let long = "x".repeat(6000);
    for (text, malformed, overflow) in [
        (start(&[frame(HEADERS, END_HEADERS, 1, &[0x80])]), 1, 0),
        (start(&[frame(CONTINUATION, END_HEADERS, 1, b"")]), 1, 0),
        (start(&[frame(DATA, 8, 1, b"\xff")]), 1, 0),
        // A table of a megabyte.
        (
            start(&[frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe1, 0xff, 0x3f])]),
            0,
            1,
        ),
        (start(&flood), 0, 1),
        (start(&many), 0, 24),
        (
            start(&[frame(HEADERS, END_HEADERS, 1, &request("/", &[("a", &long)]))]),
            0,
            1,
        ),
        (start(&[frame(HEADERS, 0, 1, &[0x82; 20_000])]), 0, 1),
    ] {
        let mut rig = Rig::of(RULES);
        rig.packets(&Tcp::outward(8080).client(&text).close().frames);
        assert_eq!(
            (rig.note("http2-malformed"), rig.note("http2-overflow")),
            (malformed, overflow)
        );
    }
}

/// Sixty-four connections have memory; an older one that continues is counted, and the others are followed.
#[test]
fn connections_beyond_the_table_are_counted() {
    let mut rig = Rig::of(RULES);
    rig.slots = OwnSlots::new(100, Settings::default().window);
    let start = [
        PREFACE.to_vec(),
        frame(HEADERS, END_HEADERS, 1, &request("/a/evil", &[])),
    ]
    .concat();
    let mut tcps: Vec<_> = (0..100).map(|i| Tcp::outward(8080 + i).client(&start)).collect();
    for tcp in &mut tcps {
        rig.now += Nanos::from_millis(1);
        assert_eq!(rig.packets(&std::mem::take(&mut tcp.frames)), [1]);
    }
    let data = frame(DATA, END_STREAM, 1, b"needle");
    let found = tcps.into_iter().map(|tcp| rig.packets(&tcp.client(&data).frames).len());
    let found: usize = found.sum();
    assert_eq!((found, rig.note("http2-overflow")), (64, 36));
}
