//! Tests with random rules, conversations and segmentations: alerts equal the reference evaluator's.

mod common;

use common::oracle::Oracle;
use common::rig::{Rig, Tcp, rules, udp};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tailwater_ids::inspector::Settings;
use tailwater_net::tcp::TcpFlags;

/// Strategy for contents of few letters with all position options.
fn content() -> impl Strategy<Value = String> {
    let places = prop_oneof![
        4 => Just(String::new()),
        1 => (0..6u32).prop_map(|n| format!(" offset:{n};")),
        1 => (3..9u32).prop_map(|n| format!(" depth:{n};")),
        2 => (-3..4i32).prop_map(|n| format!(" distance:{n};")),
        1 => (0..3i32, 3..8u32).prop_map(|(d, w)| format!(" distance:{d}; within:{w};")),
        1 => Just(" startswith;".to_owned()),
        1 => Just(" endswith;".to_owned()),
    ];
    (prop::bool::weighted(0.15), "[abA]{1,3}", any::<bool>(), places).prop_map(|(negated, text, nocase, place)| {
        let (negated, nocase) = (if negated { "!" } else { "" }, if nocase { " nocase;" } else { "" });
        format!("content:{negated}\"{text}\";{nocase}{place} ")
    })
}

fn contents() -> impl Strategy<Value = String> {
    let other = prop_oneof![
        3 => Just(String::new()),
        1 => Just("isdataat:1,relative; ".to_owned()),
        1 => Just("isdataat:!2; ".to_owned()),
        1 => Just("pcre:\"/a.?b/\"; ".to_owned()),
        1 => Just("pcre:\"/^b/R\"; ".to_owned()),
        1 => Just("pcre:!\"/bb$/i\"; ".to_owned()),
    ];
    (prop::collection::vec(content(), 1..4), other).prop_map(|(contents, other)| contents.concat() + &other)
}

/// Strategy for rules on streams, packets or messages.
fn rule() -> impl Strategy<Value = (String, String)> {
    let buffers = prop_oneof![
        Just("http.uri; "),
        Just("http.host; "),
        Just("http.user_agent; "),
        Just("http.header; "),
        Just("http.cookie; "),
        Just("http.request_body; "),
        Just("http.request_line; "),
        Just("http.start; "),
        Just("http.header_names; "),
    ];
    let answers = prop_oneof![
        Just("file.data; "),
        Just("http.response_body; "),
        Just("http.header; "),
        Just("http.stat_msg; ")
    ];
    prop_oneof![
        3 => contents().prop_map(|c| ("tcp".to_owned(), c)),
        1 => contents().prop_map(|c| ("tcp".to_owned(), format!("flow:established,to_server; {c}"))),
        1 => contents().prop_map(|c| ("tcp-pkt".to_owned(), c)),
        1 => contents().prop_map(|c| ("tcp".to_owned(), format!("flow:only_stream; {c}"))),
        1 => (contents(), 1..20u32).prop_map(|(c, n)| ("tcp".to_owned(), format!("dsize:<{n}; {c}"))),
        1 => contents().prop_map(|c| ("udp".to_owned(), c)),
        3 => (buffers.clone(), contents()).prop_map(|(b, c)| ("http".to_owned(), format!("flow:to_server; {b}{c}"))),
        2 => (buffers.clone(), contents(), buffers, contents()).prop_map(|(b, c, d, e)| ("http".to_owned(), format!("flow:to_server; {b}{c}{d}{e}"))),
        2 => (answers, contents()).prop_map(|(b, c)| ("http".to_owned(), format!("flow:to_client; {b}{c}"))),
    ]
}

/// Strategy for rules' ports and the arrow between them. Connections here go from 40000 to 4711, datagrams from 7 to 8.
fn ports() -> impl Strategy<Value = [&'static str; 3]> {
    let set = || {
        prop_oneof![
            4 => Just("any"),
            1 => Just("4711"),
            1 => Just("40000"),
            1 => Just("!4711"),
            1 => Just("[1:8,4000:5000]"),
            1 => Just("[7,4712,30000:]"),
            1 => Just("80"),
        ]
    };
    (set(), prop_oneof![3 => Just("->"), 1 => Just("<>")], set()).prop_map(|(a, b, c)| [a, b, c])
}

/// Strategy for the data both ends send, the client's first.
fn says() -> impl Strategy<Value = [Vec<u8>; 2]> {
    let body = "[abA]{0,8}";
    let request = ("[abA/.]{0,6}", "[abA]{1,4}", "[abA]{1,4}", body).prop_map(|(uri, host, agent, body)| {
        format!("POST /{uri} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nCookie: {agent}{host}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    let chunked = ("[abA]{1,6}", body).prop_map(|(name, body)| {
        let chunk = if body.is_empty() {
            String::new()
        } else {
            format!("{:x}\r\n{body}\r\n", body.len())
        };
        format!("HTTP/1.1 200 {name}\r\n{name}: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n")
    });
    prop_oneof![
        2 => ("[abA]{0,30}", "[abA]{0,30}").prop_map(|(one, other)| [one.into_bytes(), other.into_bytes()]),
        3 => (prop::collection::vec(request, 1..3), prop::collection::vec(chunked, 0..3)).prop_map(|(requests, answers)| [requests.concat().into_bytes(), answers.concat().into_bytes()]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn what_is_told_is_what_a_plain_evaluator_finds(
        bodies in prop::collection::vec((rule(), ports()), 1..6),
        odd in prop_oneof![Just(0u32), 1..80u32],
        [client, server] in says(),
        cuts in prop::collection::vec((1usize..40, any::<bool>(), any::<bool>()), 40),
        datagram in "[abA]{0,20}",
    ) {
        let text = bodies.iter().enumerate().map(|(i, ((protocol, body), [from, arrow, to]))| {
            format!("alert {protocol} any {from} {arrow} any {to} ({body}sid:{};)\n", i + 1)
        });
        // More port sets than can be distinguished, and contents of rules for other ports.
        let others = (0..odd).map(|i| format!("alert tcp any {} -> any {} (content:\"ab\"; content:\"{i}\"; sid:{};)\n", 20_000 + 3 * (i % 9), 4_700 + i, 100 + i));
        let text: String = text.chain(others).collect();
        let reader = tailwater_ids::language::Reader::new(&tailwater_ids::language::Variables::default());
        let parsed = reader.unwrap().read(&text);
        // Impossible positions, such as a range shorter than the content, are mistakes.
        prop_assume!(parsed.mistakes.is_empty());
        let rules = parsed.rules;
        let mut tcp = Tcp::outward(4711);
        let mut left = [&client[..], &server[..]];
        let mut waiting: Option<Vec<u8>> = None;
        for (length, from_server, swap) in cuts {
            // The client starts, as in all of these protocols.
            let side = usize::from(from_server && tcp.next[0] > 1001);
            let (piece, rest) = left[side].split_at(length.min(left[side].len()));
            left[side] = rest;
            if piece.is_empty() {
                continue;
            }
            tcp.send(side, TcpFlags::ACK, piece);
            // A segment may arrive one position late, or twice.
            let late = waiting.take();
            if swap && tcp.frames.len() > 4 {
                waiting = tcp.frames.pop();
            }
            tcp.frames.extend(late);
        }
        tcp.frames.extend(waiting);
        let mut frames = tcp.close().frames;
        frames.push(udp(7, 8, datagram.as_bytes()));
        let mut rig = Rig::new(rules.clone(), Settings::default());
        let (mut streams, mut datagrams) = (Oracle::default(), Oracle::default());
        let (mut told, mut found) = (BTreeSet::new(), BTreeSet::new());
        for frame in &frames {
            told.extend(rig.packet(frame).1);
            let oracle = if frame[23] == 17 { &mut datagrams } else { &mut streams };
            found.extend(oracle.packet(&rules, frame));
        }
        prop_assert_eq!(rig.note("pending-full"), 0);
        // Contents with hundreds of positions may exceed a rule's budget.
        prop_assume!(rig.note("budget-spent") == 0);
        prop_assert_eq!(told, found, "{}", text);
    }
}

/// Checks the reference evaluator on examples.
#[test]
fn the_evaluator_knows_what_is_there() {
    let rules = rules("alert http any any -> any any (http.uri; content:\"/a\"; http.host; content:\"b\"; sid:1;)");
    let frames = Tcp::outward(80).client(b"GET /a HTTP/1.1\r\nHost: b\r\n\r\n").frames;
    let mut oracle = Oracle::default();
    let found: Vec<_> = frames.iter().map(|frame| oracle.packet(&rules, frame).len()).collect();
    assert_eq!(found, [0, 0, 0, 1]);
}
