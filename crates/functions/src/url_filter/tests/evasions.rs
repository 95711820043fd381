//! Tests of each row of the evasion table in the function's documentation.

use super::*;

fn blocked(request: &str) -> bool {
    !passes(request.as_bytes())
}

#[test]
fn plain_requests() {
    assert!(blocked("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n"));
    assert!(blocked("GET / HTTP/1.1\r\nHost: www.bad.example:81\r\n\r\n"));
    assert!(blocked(
        "POST /secret/x HTTP/1.1\r\nHost: ok.example\r\nContent-Length: 3\r\n\r\nabc"
    ));
    assert!(blocked("GET /evil HTTP/1.0\r\n\r\n"));
    assert!(blocked("GET /?q=needle HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
    assert!(blocked("GET / HTTP/1.1\r\nHost: port.example:8080\r\n\r\n"));
    assert!(!blocked("GET / HTTP/1.1\r\nHost: port.example\r\n\r\n"));
    assert!(!blocked("GET / HTTP/1.1\r\nHost: www.exact.example\r\n\r\n"));
    assert!(!blocked(
        "GET / HTTP/1.1\r\nHost: notbad.example\r\nReferer: http://bad.example/\r\n\r\n"
    ));
}

#[test]
fn case() {
    assert!(blocked("GET / HTTP/1.1\r\nhOST: BAD.Example\r\n\r\n"));
    assert!(blocked("GET /?NeEdLe HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
    // Paths are case-sensitive.
    assert!(!blocked("GET /EVIL HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
}

#[test]
fn percent_encoding_and_dot_segments() {
    assert!(blocked("GET /%65v%69l HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
    assert!(blocked(
        "GET /x/..//./%2e%2e/secret HTTP/1.1\r\nHost: ok.example\r\n\r\n"
    ));
    assert!(blocked("GET / HTTP/1.1\r\nHost: b%61d.example\r\n\r\n"));
    // Percent-encoding is decoded once, as servers do.
    assert!(!blocked("GET /%2565vil HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
}

#[test]
fn absolute_uris_and_connect() {
    assert!(blocked("GET http://bad.example/ HTTP/1.1\r\nHost: ok.example\r\n\r\n"));
    assert!(blocked("GET HTTP://u:p@BAD.example:80?x HTTP/1.1\r\n\r\n"));
    assert!(blocked("GET http://ok.example/secret HTTP/1.1\r\n\r\n"));
    assert!(blocked("CONNECT bad.example:443 HTTP/1.1\r\n\r\n"));
    assert!(!blocked("CONNECT ok.example:443 HTTP/1.1\r\n\r\n"));
    let tunnel = b"CONNECT ok.example:443 HTTP/1.1\r\n\r\n".to_vec();
    let hello = records(&client_hello("bad.example"), 16_000);
    assert!(!passes(&[tunnel, hello].concat()));
}

#[test]
fn trailing_dots_user_information_and_ports() {
    assert!(blocked("GET / HTTP/1.1\r\nHost: bad.example.\r\n\r\n"));
    assert!(blocked("GET / HTTP/1.1\r\nHost: bad.example.:80\r\n\r\n"));
    assert!(blocked("GET / HTTP/1.1\r\nHost: ok.example@bad.example\r\n\r\n"));
}

#[test]
fn pipelining_and_bodies() {
    let hidden = "GET /evil HTTP/1.1\r\nHost: bad.example\r\n\r\n";
    let first = "GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n";
    assert!(blocked(&format!("{first}{first}{hidden}")));
    let length = hidden.len();
    let body = format!("POST / HTTP/1.1\r\nHost: ok.example\r\nContent-Length: {length}\r\n\r\n{hidden}");
    assert!(!blocked(&body));
    assert!(blocked(&format!("{body}\r\n{hidden}")));
    let chunked = format!(
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\nHost: ok.example\r\n\r\n\
         {length:X};x=y\r\n{hidden}\r\n3\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n"
    );
    assert!(!blocked(&chunked));
    assert!(blocked(&format!("{chunked}{hidden}")));
}

#[test]
fn header_obfuscation() {
    for head in [
        "GET / HTTP/1.1\r\nHost:\tbad.example\t\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:bad.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : bad.example\r\n\r\n",
        // Folded line.
        "GET / HTTP/1.1\r\nHost:\r\n bad.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: bad.\r\n\texample\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n z\r\nHost: bad.example\r\n\r\n",
        // Several Host fields.
        "GET / HTTP/1.1\r\nHost: ok.example\r\nHost: bad.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: bad.example\r\nHost: ok.example\r\n\r\n",
        // Bare line feeds, blanks, leading empty lines.
        "GET / HTTP/1.1\nHost: bad.example\n\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n",
        "GET \t /  HTTP/1.1\r\nHost: bad.example\r\n\r\n",
        "GET\t/evil\tHTTP/1.1\r\n\r\n",
        "FOO-BAR / http/1.1\r\nHost: bad.example\r\n\r\n",
        // No version.
        "GET /evil\r\n",
    ] {
        assert!(blocked(head), "{head}");
    }
    // Other fields of any length in front.
    let long = "y".repeat(20_000);
    assert!(blocked(&format!(
        "GET / HTTP/1.1\r\nX: {long}\r\nHost: bad.example\r\n\r\n"
    )));
}

#[test]
fn server_names() {
    let hello = client_hello("www.BAD.example");
    assert!(!passes(&records(&hello, 16_000)));
    // Split over records, down to one byte each.
    for size in [1, 3, 50, 700] {
        assert!(!passes(&records(&hello, size)), "{size}");
    }
    let pass = records(&client_hello("ok.example"), 16_000);
    assert!(passes(&pass));
    let line = b"PROXY TCP4 10.0.0.1 10.0.0.2 4000 443\r\n";
    assert!(!passes(&[&line[..], &records(&hello, 300)].concat()));
    // A second ClientHello, after a HelloRetryRequest.
    let change = [20, 3, 3, 0, 1, 1];
    assert!(!passes(&[&pass[..], &change, &records(&hello, 300)].concat()));
    assert!(passes(
        &[&pass[..], &change, &[23, 3, 3, 1, 0], &records(&hello, 300)].concat()
    ));
    assert!(!passes(&records(&client_hello("x.needle.example"), 5)));
}

#[test]
fn odd_ports() {
    for port in [80, 443, 4711] {
        let mut rig = Rig::new(config());
        rig.key = key(40_000, port);
        rig.syn();
        assert!(!rig.data(0, b"GET /evil HTTP/1.1\r\n\r\n"));
    }
    let mut rig = Rig::new(FilterConfig {
        http_ports: Ports(vec![81..=90]),
        ..config()
    });
    rig.syn();
    assert!(rig.data(0, b"GET /evil HTTP/1.1\r\n\r\n"));
    let mut rig = Rig::new(config());
    rig.key = key(40_000, 8080);
    rig.syn();
    assert!(!rig.data(0, b"GET / HTTP/1.1\r\nHost: port.example\r\n\r\n"));
}

/// Regression: Content-Length was ignored beside a chunked coding, so a server that uses the length could be sent a
/// hidden request.
#[test]
fn a_request_with_two_framings_is_not_followed() {
    let config = FilterConfig {
        on_overflow: PacketAction::Drop,
        ..config()
    };
    let mut rig = Rig::new(config);
    rig.syn();
    let head = "POST / HTTP/1.1\r\nHost: ok.example\r\nContent-Length: 5\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    let hidden = "2A\r\n \r\nGET /evil HTTP/1.1\r\nHost: bad.example\r\n\r\n";
    assert!(!rig.data(0, format!("{head}{hidden}").as_bytes()));
    assert_eq!(rig.count("overflow"), 1);
}

#[test]
fn out_of_order_and_overlaps() {
    let request = b"GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n";
    let mut rig = Rig::new(config());
    rig.syn();
    assert!(rig.data(30, &request[30..]));
    assert!(rig.data(10, &request[10..32]));
    // The last gap: it completes the match.
    assert!(!rig.data(0, &request[..12]));
    assert!(!rig.data(0, request));
    assert_eq!((rig.count("url-blocked"), rig.count("flow-blocked")), (1, 1));
    assert_eq!(rig.count("overlap-conflict"), 0);
    // The first copy counts, in either direction, and the conflict is counted.
    for (first, second, pass) in [("bad", "xyz", false), ("xyz", "bad", true)] {
        let mut rig = Rig::new(config());
        rig.syn();
        assert!(rig.data(22, first.as_bytes()));
        let whole = format!("GET / HTTP/1.1\r\nHost: {second}.example\r\n\r\n");
        assert_eq!(rig.data(0, whole.as_bytes()), pass, "{first}");
        assert_eq!(rig.count("overlap-conflict"), 1);
    }
}

/// Documents evasions that are not caught, so that the documentation stays true.
#[test]
fn not_caught() {
    // An encrypted server name, or no name at all; numeric addresses.
    assert!(passes(&records(&client_hello("cover.example"), 16_000)));
    assert!(!blocked("GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n"));
    // HTTP/2 without TLS.
    assert!(!blocked("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nHost: bad.example\r\n"));
    // TLS started by another protocol.
    let hello = records(&client_hello("bad.example"), 16_000);
    assert!(passes(&[b"EHLO x\r\nSTARTTLS\r\n", &hello[..]].concat()));
    // A stream whose first packet seen is not its first segment.
    let request = b"GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n";
    let mut rig = Rig::new(config());
    assert!(rig.data(20, &request[20..]));
    assert!(rig.data(0, &request[..20]));
}
