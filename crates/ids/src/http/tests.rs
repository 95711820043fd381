//! Tests of buffers and bodies.

use super::*;
use proptest::prelude::*;
use std::io::Write;
use tailwater_streams::http::head::Framing;
use tailwater_streams::http::messages::{Cursor, HEAD, Step};
use tailwater_streams::window::InOrder;

fn normal(target: &str) -> String {
    let mut out = Vec::new();
    normalize(target.as_bytes(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn targets_are_normalised() {
    assert_eq!(normal("/a/b?c=%2f+%252f\\#%41"), "/a/b?c=/+%2f\\#%41");
    assert_eq!(normal("/%61//b/./c/../d"), "/a/b/d");
    assert_eq!(normal("\\a\\..\\..\\b"), "/b");
    assert_eq!(normal("/a/%2e%2e/b"), "/b");
    assert_eq!(normal("/a/.."), "/");
    assert_eq!(normal("/..a/.b/...//"), "/..a/.b/.../");
    assert_eq!(normal("/%zz%4"), "/%zz%4");
    assert_eq!(normal("%2fa"), "/a");
    assert_eq!(normal("*"), "*");
    assert_eq!(normal("%61/b/../..//c/."), "a/c/");
    assert_eq!(normal("%2e/../a"), "./a");
    assert_eq!(normal("a/.//../b?/../c#d"), "a/./../b?/../c#d");
}

proptest! {
    /// Compared with a reference implementation on lists of segments.
    #[test]
    fn normalising_is_what_lists_of_segments_say(segments in prop::collection::vec("(\\.|\\.\\.|a|b\\.|%2e|%2E\\.|)", 0..8)) {
        let target = format!("/{}", segments.join("/"));
        let mut stack: Vec<String> = Vec::new();
        let plain: Vec<String> = segments.iter().map(|s| s.replace("%2e", ".").replace("%2E", ".")).collect();
        let mut trailing = true;
        for segment in &plain {
            trailing = matches!(segment.as_str(), "" | "." | "..");
            match segment.as_str() {
                "" | "." => {}
                ".." => drop(stack.pop()),
                other => stack.push(other.to_owned()),
            }
        }
        let mut expected = format!("/{}", stack.join("/"));
        if trailing && !stack.is_empty() {
            expected.push('/');
        }
        prop_assert_eq!(normal(&target), expected);
    }

    /// No bytes cause a panic, in any phase.
    #[test]
    fn any_bytes_are_followed(bytes in "[ -~\r\n]{0,200}", to_server in any::<bool>()) {
        let direction = if to_server { Direction::ToServer } else { Direction::ToClient };
        let mut cursor = Cursor::default();
        cursor.begin(0, HEAD);
        let stream = InOrder { base: 0, bytes: bytes.as_bytes() };
        let (mut head, mut made) = (Head::new(), DerivedBuffers::with_room(256));
        for _ in 0..20 {
            match cursor.advance(stream, direction) {
                Step::More | Step::Lost => break,
                Step::Head => {
                    let text = &stream.bytes[cursor.start as usize..cursor.head_end as usize];
                    head.read(text, direction);
                    let mut unit = Unit::new();
                    fill(&head, text, direction, &mut made, &mut unit);
                    cursor.begin_body(head.framing(text, direction, false).unwrap_or(Framing::None));
                }
                Step::Headless => {}
                Step::End => cursor.next_message(),
            }
        }
    }
}

#[test]
fn buffers_of_a_request() {
    let text = b"GET http://User@WWW.Ex.org:81/a%20b?q=%20 HTTP/1.1\r\nHost: other\r\nUser-Agent:  x y \r\n\
                 Cookie: c=1\r\nX-Folded: a\r\n b\r\nAccept: */*\r\n\r\n";
    let (mut head, mut made, mut unit) = (Head::new(), DerivedBuffers::with_room(1024), Unit::new());
    head.read(text, Direction::ToServer);
    fill(&head, text, Direction::ToServer, &mut made, &mut unit);
    let get = |buffer: Buffer| {
        let bytes = unit.get(buffer.into()).unwrap();
        String::from_utf8_lossy(bytes).into_owned()
    };
    assert_eq!(get(Buffer::Uri), "/a b?q= ");
    assert_eq!(get(Buffer::RawUri), "http://User@WWW.Ex.org:81/a%20b?q=%20");
    assert_eq!(get(Buffer::Host), "www.ex.org");
    assert_eq!(get(Buffer::RawHost), "other");
    assert_eq!(get(Buffer::UserAgent), "x y");
    assert_eq!(get(Buffer::Cookie), "c=1");
    assert_eq!(get(Buffer::ProtocolLine), "HTTP/1.1");
    let header = "Host: other\r\nUser-Agent: x y\r\nX-Folded: a\r\n b\r\nAccept: */*\r\n";
    assert_eq!(get(Buffer::Header), header);
    assert_eq!(
        get(Buffer::HeaderNames),
        "\r\nHost\r\nUser-Agent\r\nCookie\r\nX-Folded\r\nAccept\r\n\r\n"
    );
    assert!(get(Buffer::Start).starts_with("GET http://User@WWW.Ex.org:81/a%20b?q=%20 HTTP/1.1\r\nHost: other\r\n"));
    assert!(get(Buffer::RawHeader).contains("User-Agent:  x y \r\n"));
    assert!(unit.get(Buffer::Referer.into()).is_none());
    let dotted = crate::buffer::BufferKey {
        buffer: Buffer::Host,
        dotted: true,
    };
    assert_eq!(unit.get(dotted), Some(&b".www.ex.org"[..]));
}

#[test]
fn content_codings_come_off() {
    let text: Vec<u8> = (0..5000u32).flat_map(|i| i.to_string().into_bytes()).collect();
    let mut inflater = body::Inflater::new(8192);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&text).unwrap();
    let gzip = gzip.finish().unwrap();
    let named = |name: &str| {
        let mut head = Head::new();
        let text = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {name}\r\n\r\n");
        head.read(text.as_bytes(), Direction::ToClient);
        body::codings(&head, text.as_bytes())
    };
    let (gzip_only, deflate_only) = (named("gzip").0, named("deflate").0);
    assert!(!named("gzip").1 && named("br").1 && named("gzip x").1 && !named("identity").1);
    assert_eq!(inflater.decode(&gzip_only, &gzip), (Some(&text[..8192]), false));
    // Truncated input is decoded as far as it goes.
    let half = inflater.decode(&named(" GZIP").0, &gzip[..1000]).0.unwrap();
    assert!(!half.is_empty() && text.starts_with(half));
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    zlib.write_all(&text[..100]).unwrap();
    assert_eq!(
        inflater.decode(&deflate_only, &zlib.finish().unwrap()),
        (Some(&text[..100]), false)
    );
    assert_eq!(inflater.decode(&named("br").0, &gzip), (None, false));
    assert_eq!(inflater.decode(&gzip_only, b"no gzip at all"), (None, true));
    assert_eq!(inflater.guess(&gzip), Some(&text[..8192]));
    assert_eq!(inflater.guess(b"no gzip at all"), None);
    // A decompression bomb fills the output and no more.
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&vec![0; 1 << 20]).unwrap();
    assert_eq!(
        inflater.decode(&gzip_only, &bomb.finish().unwrap()).0.map(<[u8]>::len),
        Some(8192)
    );
}
