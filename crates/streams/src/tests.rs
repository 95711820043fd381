//! Tests that the parsers in pieces and those of complete heads agree on well-formed messages.

use crate::direction::Direction;
use crate::http::Reading;
use crate::http::head::Head;
use crate::http::host::{Host, MAX_HOST, split_authority};
use crate::http::messages::{Cursor, HEAD, Step};
use crate::http::target::{authority, normalize_path};
use crate::state::{Event, MessageHandler, Parser, Text};
use crate::tls::handshake::{handshake, server_name};
use crate::window::InOrder;
use proptest::prelude::*;

/// Handler that records everything and never stops.
#[derive(Default)]
struct Recorder {
    begun: usize,
    paths: Vec<Vec<u8>>,
    hosts: Vec<Vec<u8>>,
    names: Vec<Vec<u8>>,
}

impl MessageHandler for Recorder {
    fn inspects_http(&self) -> bool {
        true
    }

    fn inspects_tls(&self) -> bool {
        true
    }

    fn on_begin(&mut self) {
        self.begun += 1;
    }

    fn on_path(&mut self, path: &[u8]) -> bool {
        self.paths.push(path.to_vec());
        false
    }

    fn on_host(&mut self, host: &Host, path: Option<&[u8]>) -> bool {
        assert_eq!(path, self.paths.last().map(Vec::as_slice));
        self.hosts.push(host.name().to_vec());
        false
    }

    fn on_server_name(&mut self, name: &[u8]) -> bool {
        self.names.push(name.to_vec());
        false
    }
}

/// Parses a stream in pieces, as long as anything of interest may follow.
fn in_pieces(bytes: &[u8], mut sizes: impl Iterator<Item = usize>) -> Recorder {
    let (mut parser, mut recorder) = (Parser::default(), Recorder::default());
    let (mut target, mut host) = (vec![0; 4096], [0; MAX_HOST]);
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at + sizes.next().unwrap_or(usize::MAX / 2));
        while at < end {
            let mut text = Text {
                target: &mut target,
                host: &mut host,
            };
            let (used, event) = parser.feed(&bytes[at..end], &mut text, &mut recorder);
            at += used;
            match event {
                Event::More => assert_eq!(at, end),
                Event::Skip(length) => at += length as usize,
                Event::Finished => return recorder,
                event => panic!("{event:?} after {at} bytes"),
            }
        }
    }
    recorder
}

/// Parses the requests of a stream by their complete heads, and returns paths and hosts.
fn by_heads(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut cursor, mut head) = (Cursor::default(), Head::new());
    let (mut paths, mut hosts) = (Vec::new(), Vec::new());
    cursor.begin(0, HEAD);
    let stream = InOrder { base: 0, bytes };
    loop {
        match cursor.advance(stream, Direction::ToServer) {
            Step::More => return (paths, hosts),
            Step::Lost | Step::Headless => panic!("no HTTP after {} bytes", cursor.parsed),
            Step::End => cursor.next_message(),
            Step::Head => {
                let text = &bytes[cursor.start as usize..cursor.head_end as usize];
                head.read(text, Direction::ToServer);
                let target = head.target(text);
                let named = authority(target, Reading::Suricata);
                let mut path = target[named.as_ref().map_or(0, |range| range.end)..].to_vec();
                let query = path.iter().position(|b| *b == b'?').map(|at| path.split_off(at));
                let length = normalize_path(&mut path, Reading::Suricata);
                path.truncate(length);
                path.extend(query.unwrap_or_default());
                paths.push(path);
                let named = named.map(|range| &target[range]);
                for authority in [named, head.field(text, "host")].into_iter().flatten() {
                    let (name, _) = split_authority(authority, Reading::Suricata);
                    hosts.push(name.to_ascii_lowercase());
                }
                cursor.begin_body(head.framing(text, Direction::ToServer, false).expect("a clear framing"));
            }
        }
    }
}

/// Strategy for a well-formed request.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let target = (
        "(http://[a-c]{1,3}(:8[01])?)?",
        "(/(a|%62|\\.\\.?|%2e|\\\\)?){1,5}",
        "(\\?[a-z/.=]{0,5})?",
    );
    let body = prop::option::of((any::<bool>(), prop::collection::vec(any::<u8>(), 0..30), 1usize..9));
    (
        target,
        "[A-Ca-c.]{1,5}[a-c](:8[01])?",
        "(X-[a-z]: [a-z:]{0,5}\r\n){0,2}",
        body,
    )
        .prop_map(|((scheme, path, query), host, fields, body)| {
            let head = format!("POST {scheme}{path}{query} HTTP/1.1\r\n{fields}Host: {host}\r\n");
            let mut bytes = head.into_bytes();
            match body {
                None => bytes.extend(b"\r\n"),
                Some((false, body, _)) => {
                    bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
                    bytes.extend(body);
                }
                Some((true, body, size)) => {
                    bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                    for chunk in body.chunks(size) {
                        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                        bytes.extend(chunk);
                        bytes.extend(b"\r\n");
                    }
                    bytes.extend(b"0\r\n\r\n");
                }
            }
            bytes
        })
}

/// Prepends a length of `width` bytes.
fn vector(width: usize, bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_be_bytes()[size_of::<usize>() - width..], bytes].concat()
}

/// Creates a ClientHello with extensions before and after the server name.
fn client_hello(name: &[u8], extensions: [&[(u16, Vec<u8>)]; 2], lists: [&[u8]; 3]) -> Vec<u8> {
    let extension = |(kind, data): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &vector(2, data)].concat();
    let names = vector(2, &[&[0][..], &vector(2, name)].concat());
    let [before, after] = extensions.map(|list| list.iter().flat_map(extension).collect::<Vec<_>>());
    let all = [before, extension(&(0, names)), after].concat();
    let [session, suites, compression] = lists;
    let body = [
        &[3; 34][..],
        &vector(1, session),
        &vector(2, suites),
        &vector(1, compression),
        &vector(2, &all),
    ]
    .concat();
    [&[1][..], &vector(3, &body)].concat()
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=most)
}

proptest! {
    #[test]
    fn requests(
        requests in prop::collection::vec(request(), 1..4),
        sizes in prop::collection::vec(1usize..40, 0..60),
    ) {
        let stream = requests.concat();
        let found = in_pieces(&stream, sizes.into_iter());
        prop_assert_eq!(found.begun, requests.len());
        prop_assert_eq!((found.paths, found.hosts), by_heads(&stream));
    }

    #[test]
    fn server_names(
        name in "[a-z.]{1,40}",
        before in prop::collection::vec((1u16..50, bytes(20)), 0..4),
        after in prop::collection::vec((1u16..50, bytes(20)), 0..4),
        lists in (bytes(32), bytes(40), bytes(3)),
        record in 1usize..200,
        sizes in prop::collection::vec(1usize..40, 0..60),
    ) {
        let lists = [&lists.0[..], &lists.1, &lists.2];
        let hello = client_hello(name.as_bytes(), [&before, &after], lists);
        let record_of = |part: &[u8]| [&[22, 3, 1][..], &vector(2, part)].concat();
        let stream: Vec<u8> = hello.chunks(record).flat_map(record_of).collect();
        let mut message = Vec::new();
        prop_assert!(!handshake(&stream, &mut message).ended);
        prop_assert_eq!(server_name(&message), Some(name.as_bytes()));
        let found = in_pieces(&stream, sizes.into_iter());
        prop_assert_eq!((found.begun, found.names), (1, vec![name.into_bytes()]));
    }
}
