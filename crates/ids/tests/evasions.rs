//! Test of malformed HTTP responses: the body is seen however a receiver reads it, or an anomaly is counted.

mod common;

use common::evasions::{MARKER, responses};
use common::rig::{Rig, Tcp};
use tailwater_ids::inspector::COUNTERS;

#[test]
fn malformed_responses_hide_no_body_without_a_note() {
    let rule =
        format!("alert http any any -> any any (flow:established,to_client; file.data; content:\"{MARKER}\"; sid:1;)");
    let (mut seen, mut noted, mut neither) = (0, Vec::new(), Vec::new());
    let all = responses();
    for (name, response) in &all {
        let mut rig = Rig::of(&rule);
        let tcp = Tcp::outward(80)
            .client(b"GET /x HTTP/1.1\r\nHost: www.example\r\n\r\n")
            .server(response)
            .close();
        let found = rig.packets(&tcp.frames).contains(&1);
        let counters = COUNTERS.iter().zip(rig.inspector.counters());
        let anomalies = counters.filter(|(counter, count)| counter.starts_with("http-") && **count > 0);
        match (found, anomalies.count()) {
            (true, _) => seen += 1,
            (false, 0) => neither.push(name),
            (false, _) => noted.push(name),
        }
    }
    eprintln!(
        "{} responses: {seen} seen, {} only noted: {noted:#?}",
        all.len(),
        noted.len()
    );
    assert_eq!(neither, [""; 0], "hidden without a note");
    // Bodies cut into pieces by malformed chunks cannot be put together in every case.
    assert!(noted.len() * 33 <= all.len(), "{} of {}", noted.len(), all.len());
}

/// Well-formed responses have no anomalies.
#[test]
fn ordinary_responses_have_no_anomalies() {
    let text = "alert http any any -> any any (file.data; content:\"hello\"; sid:1;)";
    let responses: [&[u8]; 5] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ];
    for response in responses {
        let mut rig = Rig::of(text);
        let tcp = Tcp::outward(80)
            .client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .server(response)
            .close();
        assert_eq!(rig.packets(&tcp.frames), [1], "{}", String::from_utf8_lossy(response));
        for (name, count) in COUNTERS.iter().zip(rig.inspector.counters()) {
            assert!(
                *name == "alerts" || *count == 0,
                "{name}: {}",
                String::from_utf8_lossy(response)
            );
        }
    }
}

#[test]
fn events_of_malformed_messages_can_be_rules() {
    let mut rig = Rig::of(
        "alert http any any -> any any (app-layer-event:http.invalid_transfer_encoding_value_in_request; sid:1;)\n\
         alert http any any -> any any (app-layer-event:http.invalid_response_chunk_len; sid:2;)\n\
         alert http any any -> any any (app-layer-event:http.abnormal_ce_header; sid:3;)",
    );
    let tcp = Tcp::outward(80)
        .client(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n")
        .server(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nhello")
        .close();
    assert_eq!(rig.packets(&tcp.frames), [1, 2]);
    let tcp = Tcp::outward(81)
        .client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .server(b"HTTP/1.1 200 OK\r\nContent-Encoding: zip\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(rig.packets(&tcp.frames), [3]);
}
