//! Malformed and unusual HTTP responses that some receiver shows nevertheless: in framing, line ends, chunks, codings,
//! versions and status codes.

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use std::io::Write;

/// Text that a rule finds in the body, when it is read as a receiver would.
pub const MARKER: &str = "EVASION-TEST-MARKER";

/// Returns a body with the marker.
fn content() -> Vec<u8> {
    format!("<p>Some text, so that the body is longer.</p>\r\n<p>{MARKER}</p>\r\n<p>And more text behind it.</p>\r\n")
        .into_bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a body in chunks of `size` bytes. `line` writes the line with a chunk's size.
fn chunked(bytes: &[u8], size: usize, line: impl Fn(usize) -> String, end: &str, last: &str) -> Vec<u8> {
    let chunks = bytes.chunks(size).flat_map(|chunk| {
        let head = line(chunk.len()).into_bytes();
        [&head[..], chunk, end.as_bytes()].concat()
    });
    chunks.chain(last.bytes()).collect()
}

fn plain_chunks(bytes: &[u8]) -> Vec<u8> {
    chunked(bytes, 5, |size| format!("{size:x}\r\n"), "\r\n", "0\r\n\r\n")
}

fn response(line: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{line}\r\nContent-Type: text/html\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    response("HTTP/1.1 200 OK", fields, body)
}

/// Returns responses by name. All bytes are those of one response up to the connection's end.
pub fn responses() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    framing(&mut all);
    lengths(&mut all);
    chunks(&mut all);
    transfer_codings(&mut all);
    content_codings(&mut all);
    first_lines(&mut all);
    line_ends(&mut all);
    all
}

type All = Vec<(String, Vec<u8>)>;
/// Writes the line with a size.
type Line = fn(usize) -> String;

fn framing(all: &mut All) {
    let body = content();
    let mut add = |name: &str, bytes: Vec<u8>| all.push((name.to_owned(), bytes));
    add("no head", body.clone());
    add("until close", ok("", &body));
    for code in ["100", "101", "102", "204", "205", "206", "304", "401", "407", "500"] {
        let line = format!("HTTP/1.1 {code} OK");
        let length = format!("Content-Length: {}\r\n", body.len());
        add(&format!("code {code} with length"), response(&line, &length, &body));
        add(&format!("code {code}"), response(&line, "", &body));
        add(
            &format!("code {code} with gzip"),
            response(&line, "Content-Encoding: gzip\r\n", &gzip(&body)),
        );
    }
}

fn lengths(all: &mut All) {
    let body = content();
    let (full, half, double) = (body.len(), body.len() / 2, body.len() * 2);
    let junk = [&body[..], &vec![b'X'; full]].concat();
    let values = [
        format!("{full}"),
        format!("{half}"),
        format!("{double}"),
        format!("{half}\r\nContent-Length: {full}"),
        format!("{full}\r\nContent-Length: {half}"),
        format!("{double}\r\nContent-Length: {full}"),
        format!("{half}\r\n {full}"),
        format!("{half} {full}"),
        format!("{half} ({full})"),
        format!("{full} {half}"),
        format!("({full}) {half}"),
        format!(";{full}"),
        format!("{full};"),
        format!(",{full}"),
        format!("{full},{full}"),
        format!("\"{full}\""),
        format!("{full}A"),
        format!("A{full}"),
        format!("\u{a0}{full}"),
        format!("{full}.0"),
        format!("+{full}"),
        format!("-{full}"),
        "99999999999999999999999".to_owned(),
        "x".to_owned(),
        String::new(),
    ];
    for value in values {
        for (behind, body) in [("", &body), (", junk behind", &junk)] {
            let fields = format!("Content-Length: {value}\r\nConnection: close\r\n");
            all.push((format!("length {value:?}{behind}"), ok(&fields, body)));
        }
        let fields = format!("Content-Length: {value}\r\nTransfer-Encoding: lalala\r\n");
        all.push((format!("length {value:?}, unknown transfer coding"), ok(&fields, &body)));
    }
}

fn chunks(all: &mut All) {
    let body = content();
    let fields = "Transfer-Encoding: chunked\r\nConnection: close\r\n";
    let mut add = |name: String, bytes: Vec<u8>| all.push((format!("chunks: {name}"), ok(fields, &bytes)));
    add("plain".to_owned(), plain_chunks(&body));
    let formats: [(&str, Line); 34] = [
        ("0size", |size| format!("0{size:x}\r\n")),
        ("00size", |size| format!("00{size:x}\r\n")),
        ("many zeros", |size| format!("000000000000000000000000000{size:x}\r\n")),
        ("upper case", |size| format!("{size:X}\r\n")),
        ("negative 32", |size| {
            format!("-{:08x}\r\n", (size as u32).wrapping_neg())
        }),
        ("negative 64", |size| {
            format!("-{:016x}\r\n", (size as u64).wrapping_neg())
        }),
        ("size space", |size| format!("{size:x} \r\n")),
        ("size tab", |size| format!("{size:x}\t\r\n")),
        ("size cr", |size| format!("{size:x}\r\r\n")),
        ("size lf", |size| format!("{size:x}\n\r\n")),
        ("size x", |size| format!("{size:x}x\r\n")),
        ("size comma", |size| format!("{size:x},\r\n")),
        ("size nul", |size| format!("{size:x}\0\r\n")),
        ("size vt", |size| format!("{size:x}\x0b\r\n")),
        ("size ff", |size| format!("{size:x}\x0c\r\n")),
        ("size space x", |size| format!("{size:x} x\r\n")),
        ("space size", |size| format!(" {size:x}\r\n")),
        ("tab size", |size| format!("\t{size:x}\r\n")),
        ("cr size", |size| format!("\r{size:x}\r\n")),
        ("lf size", |size| format!("\n{size:x}\r\n")),
        ("crlf size", |size| format!("\r\n{size:x}\r\n")),
        ("crlf crlf size", |size| format!("\r\n\r\n{size:x}\r\n")),
        ("crlf x crlf size", |size| format!("\r\nx\r\n{size:x}\r\n")),
        ("x size", |size| format!("x{size:x}\r\n")),
        ("comma size", |size| format!(",{size:x}\r\n")),
        ("semicolon size", |size| format!(";{size:x}\r\n")),
        ("nul size", |size| format!("\0{size:x}\r\n")),
        ("vt size", |size| format!("\x0b{size:x}\r\n")),
        ("ff size", |size| format!("\x0c{size:x}\r\n")),
        ("x space size", |size| format!("x {size:x}\r\n")),
        ("plus size", |size| format!("+{size:x}\r\n")),
        ("0x size", |size| format!("0x{size:x}\r\n")),
        ("extension", |size| format!("{size:x}; foobar\r\n")),
        ("extension like a chunk", |size| format!("{size:x}; xxx  {size:x}\r\n")),
    ];
    for (name, line) in formats {
        add(name.to_owned(), chunked(&body, 15, line, "\r\n", "0\r\n\r\n"));
    }
    for last in [
        "00\r\n\r\n",
        "00000000000000000000\r\n\r\n",
        "0x\r\n\r\n",
        "Foo\r\n\r\n",
        "0\n",
        "0\r",
        "0",
        "0\n\n",
        "0\n \n",
        "0\n\r\n",
        "0\n\r\r\n",
        "0\r\nfoobar\r\n",
        "",
    ] {
        add(
            format!("last {last:?}"),
            chunked(&body, 5, |size| format!("{size:x}\r\n"), "\r\n", last),
        );
    }
    for end in ["\n", "\r", "\r\r", "\n\n", "\n\r"] {
        let line = |size| format!("{size:x}{end}");
        add(
            format!("line end {end:?}"),
            chunked(&body, 5, line, end, &format!("0{end}{end}")),
        );
    }
    for junk in ["\0", "\n", "\r", " ", "\t", "x"] {
        let end = format!("{junk}\r\n");
        add(
            format!("{junk:?} behind data"),
            chunked(&body, 5, |size| format!("{size:x}\r\n"), &end, "0\r\n\r\n"),
        );
    }
    for before in [" ", "\n", "\r", "\r\n"] {
        add(
            format!("{before:?} before"),
            [before.as_bytes(), &plain_chunks(&body)].concat(),
        );
    }
    for by in [1usize, 0] {
        let line = |size: usize| format!("{:x}\r\n", if by == 1 { size + 1 } else { size - 1 });
        add(
            format!("size off by one ({by})"),
            chunked(&body, 5, line, "\r\n", "0\r\n\r\n"),
        );
    }
    add("not chunked".to_owned(), body.clone());
    add(
        "not chunked, starts with digits".to_owned(),
        [b"12 ", &body[..]].concat(),
    );
}

fn transfer_codings(all: &mut All) {
    let body = content();
    let names = [
        "Transfer-Encoding: chUnked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r\n ",
        "Transfer-Encoding:\r\n \r\n chunked",
        "Transfer-Encoding: chunked;",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunkedx",
        "Transfer-Encoding: chunked x",
        "Transfer-Encoding: x chunked",
        "Transfer-Encoding: x\r\n chunked",
        "Transfer-Encoding: chunked\r\n x",
        "Transfer-Encoding: chu",
        "Transfer-Encoding: =?UTF-8?B?Y2h1bmtlZAo=?=",
        "Transfer-Encoding:\rchunked",
        "Transfer-Encoding:\r chunked",
        "Transfer-Encoding: chunked\r ",
        "Content-Encoding: chunked",
        "Transfer-Encoding: lalala\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: lalala",
        "Transfer-Encoding: lalala\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: lalala",
        "Transfer-Encoding: \r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding\r: chunked",
        "Transfer-Encoding:: chunked",
        "X-Foo: bar\rTransfer-Encoding: chunked",
        "X-Foo: bar\rxTransfer-Encoding: chunked",
        "X-Foo: bar\nTransfer-Encoding: chunked",
        "X-Foo: bar\r\n Transfer-Encoding: chunked",
        "X-Foo: bar\r\n\tTransfer-Encoding: chunked",
        "\x7f\r\nTransfer-Encoding: chunked",
        "junk line\r\nTransfer-Encoding: chunked",
        ": foo\r\nTransfer-Encoding: chunked",
        "L\u{f6}chriger: x\r\nTransfer-Encoding: chunked",
        "\r\r\nTransfer-Encoding: chunked",
        "\r\r\r\nTransfer-Encoding: chunked",
        "\n\r\r\nTransfer-Encoding: chunked",
        "\n\r\nTransfer-Encoding: chunked",
    ];
    for name in names {
        let fields = format!("{name}\r\nConnection: close\r\n");
        all.push((format!("{name:?}, chunked"), ok(&fields, &plain_chunks(&body))));
        all.push((format!("{name:?}, not chunked"), ok(&fields, &body)));
        let zipped = format!("{fields}Content-Encoding: gzip\r\n");
        all.push((
            format!("{name:?}, chunked and gzip"),
            ok(&zipped, &plain_chunks(&gzip(&body))),
        ));
        let length = format!("{fields}Content-Length: {}\r\n", body.len());
        all.push((format!("{name:?} and length, not chunked"), ok(&length, &body)));
        all.push((
            format!("{name:?} and length, chunked"),
            ok(&length, &plain_chunks(&body)),
        ));
    }
}

fn content_codings(all: &mut All) {
    let body = content();
    let mut add = |name: &str, bytes: &[u8]| {
        let field = format!("{name}\r\nContent-Length: {}\r\n", bytes.len());
        let served = match bytes {
            [0x1f, ..] => "gzip",
            _ if bytes == content() => "plain",
            _ => "deflate",
        };
        all.push((format!("{name:?}, served {served}"), ok(&field, bytes)));
    };
    let fields = [
        "Content-Encoding: gzip",
        "Content-Encoding: GZip",
        "Content-Encoding: x-gzip",
        "Content-Encoding: xgzip",
        "Content-Encoding: gzipx",
        "Content-Encoding: gzip x",
        "Content-Encoding:\r\n gzip",
        "Content-Encoding:\rgzip",
        "Content-Encoding:\r gzip",
        "Content-Encoding : gzip",
        "Content-Encoding:: gzip",
        "X-Foo: bar\rContent-Encoding: gzip",
        "X-Foo: bar\rxContent-Encoding: gzip",
        "X-Foo: bar\nContent-Encoding: gzip",
        "Content-Encoding: identity, gzip",
        "Content-Encoding: gzip, identity",
        "Content-Encoding: gzip\r\nContent-Encoding: gzip",
        "Content-Encoding: gzip, deflate",
        "Transfer-Encoding: gzip",
        "Content-Encoding: deflate",
        "Content-Encoding: deflate,",
        "Content-Encoding: deflate\r\n ,\r\n ",
        "Content-Encoding: x-deflate",
        "Content-Encoding: deflate, gzip",
        "Content-Encoding: identity",
        "Content-Encoding: foo",
        "Content-Encoding: =?UTF-8?B?ZGVmbGF0ZQo=?=",
    ];
    for field in fields {
        add(field, &body);
        if !field.ends_with(": identity") {
            // No receiver decodes the identity.
            add(field, &gzip(&body));
            add(field, &deflate(&body));
            add(field, &zlib(&body));
        }
    }
    for (name, bytes) in [
        ("gzip, gzip", gzip(&gzip(&body))),
        ("deflate, gzip", gzip(&deflate(&body))),
        ("gzip, deflate", deflate(&gzip(&body))),
        ("gzip, deflate, gzip", gzip(&deflate(&gzip(&body)))),
        ("gzip, deflate", gzip(&deflate(&body))),
    ] {
        add(&format!("Content-Encoding: {name}"), &bytes);
    }
    let whole = gzip(&body);
    let (head, data) = whole.split_at(10);
    let flagged = |flags: u8, more: &[u8]| {
        let mut head = head.to_vec();
        head[3] |= flags;
        [&head[..], more, data].concat()
    };
    let mut changed = |name: &str, bytes: Vec<u8>| {
        for field in [
            "Content-Encoding: gzip",
            "Content-Encoding:\r gzip",
            "Content-Encoding : gzip",
        ] {
            all.push((format!("{field:?}: {name}"), ok(&format!("{field}\r\n"), &bytes)));
        }
    };
    let mut magic = whole.clone();
    magic[1] = 0x8c;
    changed("wrong signature", magic);
    let mut method = whole.clone();
    method[2] = 0x88;
    changed("wrong method", method);
    changed("FTEXT", flagged(1, b""));
    changed("FHCRC without checksum", flagged(2, b""));
    changed("FHCRC", flagged(2, b"\0\0"));
    changed("FEXTRA empty", flagged(4, b"\0\0"));
    changed("FEXTRA", flagged(4, b"\x05\0Ap\x01\0\0"));
    changed("FNAME", flagged(8, b" \0"));
    changed("FCOMMENT", flagged(16, b" \0"));
    changed("reserved 5", flagged(32, b""));
    changed("reserved 6", flagged(64, b""));
    changed("reserved 7", flagged(128, b""));
    let mut sum = whole.clone();
    let end = sum.len();
    sum[end - 8..end - 4].iter_mut().for_each(|byte| *byte ^= 0xff);
    changed("wrong checksum", sum);
    changed("without length", whole[..end - 4].to_vec());
    changed("without checksum and length", whole[..end - 8].to_vec());
    changed("zlib within gzip", [head, &zlib(&body)].concat());
    changed("line end before", [b"\n", &whole[..]].concat());
    let (one, two) = body.split_at(60);
    changed("two members", [gzip(one), gzip(two)].concat());
    all.push((
        "two deflate streams".to_owned(),
        ok("Content-Encoding: deflate\r\n", &[deflate(one), deflate(two)].concat()),
    ));
}

fn first_lines(all: &mut All) {
    let body = content();
    for line in [
        "HTTP/1.1 200",
        "http/1.1 200 ok",
        "HTTP/0.9 200 ok",
        "HTTP/1.0 200 ok",
        "HTTP/1.10 200 ok",
        "HTTP/1.00 200 ok",
        "HTTP/1.01 200 ok",
        "HTTP/1.2 200 ok",
        "HTTP/2.0 200 ok",
        "HTTP/9.9 200 ok",
        "HTTP/1.1  200 ok",
        "HTTP/1.1\t200 ok",
        "HTTP/1.1\r 200 ok",
        " HTTP/1.1 200 ok",
        "\0HTTP/1.1 200 ok",
        "FTP/1.1 200 ok",
        "HTTP/1.1 2xx ok",
        "HTTP/1.1 20x ok",
        "HTTP/1.1 2 ok",
        "HTTP/1.1 2000 ok",
        "HTTP/1.1 0200 ok",
        "HTTP/1.1 -200 ok",
        "HTTP/11.01 200 ok",
        "HTTP 200 ok",
    ] {
        let length = format!("Content-Length: {}\r\n", body.len());
        all.push((format!("{line:?}"), response(line, &length, &body)));
        let fields = "Transfer-Encoding: chunked\r\n";
        all.push((
            format!("{line:?}, chunked"),
            response(line, fields, &plain_chunks(&body)),
        ));
        all.push((format!("{line:?}, not chunked"), response(line, fields, &body)));
        let fields = "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n";
        all.push((
            format!("{line:?}, chunked and gzip"),
            response(line, fields, &plain_chunks(&gzip(&body))),
        ));
    }
}

fn line_ends(all: &mut All) {
    let body = content();
    for end in ["\r", "\n", "\r\r", "\n\r"] {
        let head = format!(
            "HTTP/1.1 200 OK{end}Content-Type: text/html{end}Content-Length: {}{end}{end}",
            body.len()
        );
        all.push((format!("line end {end:?}"), [head.as_bytes(), &body].concat()));
        let head = format!("HTTP/1.1 200 OK{end}Transfer-Encoding: chunked{end}{end}");
        all.push((
            format!("line end {end:?}, chunked"),
            [head.as_bytes(), &plain_chunks(&body)].concat(),
        ));
        let head = format!("HTTP/1.1 200 OK{end}Content-Encoding: gzip{end}{end}");
        all.push((
            format!("line end {end:?}, gzip"),
            [head.as_bytes(), &gzip(&body)].concat(),
        ));
    }
    for line in ["Foo: bar\r\n ", "\r", "\n", "\r\r", "\n\r", ": foo", "\x7f", "junk"] {
        all.push((format!("line {line:?}"), ok(&format!("{line}\r\n"), &body)));
        all.push((
            format!("line {line:?}, gzip"),
            ok(&format!("{line}\r\nContent-Encoding: gzip\r\n"), &gzip(&body)),
        ));
    }
}
