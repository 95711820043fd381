//! Tests against a reference implementation that collects the stream byte by byte in a map, and parses all of it after
//! each packet.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns `true` if the requests at the start of a stream contain a match. Records the ranges of bodies.
fn naive(stream: &[u8], bodies: &mut Vec<Range<usize>>) -> bool {
    let text = String::from_utf8_lossy(stream).into_owned();
    let mut rest = text.as_str();
    loop {
        rest = rest.trim_start_matches(['\r', '\n']);
        let Some((line, mut after)) = rest.split_once("\r\n") else {
            return false;
        };
        let target = line.split(' ').nth(1).unwrap();
        let (uri_host, path) = match target.strip_prefix("http://") {
            Some(uri) => uri.split_at(uri.find('/').unwrap()),
            None => ("", target),
        };
        let path = path.replace("%65", "e").replace("/a/../", "/").replace("//", "/");
        if path.starts_with("/evil") || path.to_lowercase().contains("needle") {
            return true;
        }
        if host_matches(uri_host, &path) {
            return true;
        }
        let (mut length, mut chunked) = (0, false);
        loop {
            let Some((field, next)) = after.split_once("\r\n") else {
                return false;
            };
            after = next;
            if field.is_empty() {
                break;
            }
            let (name, value) = field.split_once(':').unwrap();
            match name.to_lowercase().as_str() {
                "host" if host_matches(value.trim(), &path) => return true,
                "content-length" => length = value.trim().parse().unwrap(),
                "transfer-encoding" => chunked = true,
                _ => {}
            }
        }
        if chunked {
            loop {
                let Some((size, data)) = after.split_once("\r\n") else {
                    return false;
                };
                let size = usize::from_str_radix(size, 16).unwrap();
                let at = text.len() - data.len();
                bodies.push(at..at + size);
                let Some(next) = data.get(size + 2..) else {
                    return false;
                };
                after = next;
                if size == 0 {
                    break;
                }
            }
        } else {
            let at = text.len() - after.len();
            bodies.push(at..at + length);
            match after.get(length..) {
                Some(next) => after = next,
                None => return false,
            }
        }
        rest = after;
    }
}

fn host_matches(host: &str, path: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "80"));
    let name = name.to_lowercase();
    let within = |zone: &str| name == zone || name.ends_with(&format!(".{zone}"));
    within("bad.example")
        || name == "exact.example"
        || (within("ok.example") && path.starts_with("/secret"))
        || (within("port.example") && port == "8080")
        || name.contains("needle")
}

fn request() -> impl Strategy<Value = String> {
    let hosts = prop::sample::select(vec![
        "ok.example",
        "OK.example",
        "other.example",
        "www.exact.example",
        "notbad.example",
        "port.example",
        "bad.example",
        "a.b.BAD.Example",
        "exact.example",
        "port.example:8080",
    ]);
    // Few requests match, so that most streams start with some that do not.
    let hosts = (hosts, 0..3u8).prop_map(|(host, dull)| if dull > 0 { "ok.example" } else { host });
    let targets = prop::sample::select(vec![
        "/",
        "/",
        "/index.html",
        "/a/../x",
        "/s",
        "http://other.example/x",
        "/secret",
        "/%65vil",
        "/a/..//evil/x",
        "http://bad.example/",
        "/?NEEDLE",
    ]);
    let targets = (targets, 0..3u8).prop_map(|(target, dull)| if dull > 0 { "/" } else { target });
    (hosts, targets, 0..4u8, 0..60usize).prop_map(|(host, target, body, size)| {
        let decoy = "GET /evil HTTP/1.1\r\nHost: bad.example\r\n\r\n--------------------";
        let body_text = &decoy[..size];
        match body {
            0 => format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n\r\n{body_text}"),
            1 if size > 0 => format!(
                "POST {target} HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: {host}\r\n\r\n\
                 {size:x}\r\n{body_text}\r\n0\r\n\r\n"
            ),
            2 => format!("GET {target} HTTP/1.1\r\nCookie: needle-bad.example\r\nHost: {host}\r\n\r\n"),
            _ => format!("GET {target} HTTP/1.1\r\nhost:{host}\r\n\r\n"),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn as_a_simple_reader(
        requests in prop::collection::vec(request(), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        // Each segment moves back by this many positions, and may be retransmitted longer.
        moves in prop::collection::vec((0..4usize, any::<bool>(), 0..30usize), 13),
        rest_pass in any::<bool>(),
    ) {
        let stream = requests.concat().into_bytes();
        let mut bounds: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        bounds.extend([0, stream.len()]);
        bounds.sort_unstable();
        bounds.dedup();
        let mut segments: Vec<(usize, usize)> = Vec::new();
        for (pair, (back, again, longer)) in bounds.windows(2).zip(moves) {
            let at = segments.len().saturating_sub(back);
            segments.insert(at, (pair[0], pair[1]));
            if again {
                segments.push((pair[0], (pair[1] + longer).min(stream.len())));
            }
        }
        let mut rig = Rig::new(FilterConfig {
            rest: if rest_pass { Rest::Pass } else { Rest::Drop },
            ..config()
        });
        rig.syn();
        let mut seen: BTreeMap<usize, u8> = BTreeMap::new();
        let mut blocked_at = None;
        // End of the first match.
        let match_end = (1..=stream.len()).find(|&end| naive(&stream[..end], &mut Vec::new()));
        let mut bodies = Vec::new();
        naive(&stream, &mut bodies);
        for (start, end) in segments {
            (start..end).for_each(|place| _ = seen.entry(place).or_insert(stream[place]));
            // Bodies do not affect the verdict, so gaps in them need not be filled.
            let missing = (0..stream.len()).find(|place| {
                !seen.contains_key(place) && !bodies.iter().any(|body| body.contains(place))
            });
            if blocked_at.is_none() && match_end.is_some_and(|end| missing.is_none_or(|at| at >= end)) {
                blocked_at = match_end;
            }
            let expected = match blocked_at {
                None => true,
                Some(_) if !rest_pass => false,
                Some(_) if rig.count("url-blocked") == 0 => false,
                Some(end_of_match) => !(start < end_of_match && end_of_match <= end),
            };
            prop_assert_eq!(
                rig.data(start, &stream[start..end]),
                expected,
                "{}..{} of {:?}", start, end, requests
            );
        }
        prop_assert_eq!(rig.count("overlap-conflict"), 0);
        prop_assert_eq!(rig.count("overflow-passed"), 0);
    }

    #[test]
    fn server_names_whatever_the_order(
        name in prop::sample::select(vec!["bad.example", "ok.example", "w.bad.example"]),
        record in 1..900usize,
        order in prop::collection::vec(0..3usize, 40),
    ) {
        let stream = records(&client_hello(name), record);
        let size = stream.len().div_ceil(order.len());
        let mut segments: Vec<_> = Vec::new();
        for (i, piece) in stream.chunks(size).enumerate() {
            let at = segments.len().saturating_sub(order[i]);
            segments.insert(at, (i * size, piece));
        }
        let mut rig = Rig::new(config());
        rig.syn();
        let pass = segments.into_iter().all(|(at, piece)| rig.data(at, piece));
        prop_assert_eq!(pass, name == "ok.example");
    }

    #[test]
    fn any_bytes(pieces in prop::collection::vec(
        (prop_oneof![0..3000u32, any::<u32>()], 0..8u8, prop::collection::vec(any::<u8>(), 0..300)), 0..40)
    ) {
        let mut rig = Rig::new(FilterConfig { streams: 2, buffer_bytes: 1024, ..config() });
        for (offset, flags, bytes) in pieces {
            rig.key = key(u16::from(flags) % 3, 80);
            let flags = if flags == 7 { TcpFlags::SYN } else { TcpFlags::ACK };
            let heads = [
                &b"GET / HTTP/1.1\r\nHost: x"[..],
                b"PUT / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
                &[22, 3, 1],
                b"",
            ];
            let head = heads[offset as usize % heads.len()];
            rig.send_flags(offset, flags, &[head, &bytes].concat());
        }
    }
}
