//! Functions whose workers share more than rules: streams, sessions, caches, and an output file.

use crate::common::*;
use crate::same::{assert_as, traffic};
use crate::{alone, process, reason, run_isolated, ways};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::Path;
use tailwater_dataplane::cores::available;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, protocol};

/// Returns the cores of runs: one, and two if there are two.
fn cores() -> Vec<String> {
    let all = available();
    let two = match all[..] {
        [.., one, other] => Some(format!("{one},{other}")),
        _ => None,
    };
    all.last().map(usize::to_string).into_iter().chain(two).collect()
}

/// Runs a chain in one process and isolated, and compares reports, packets and what `read` makes of the output file.
/// Returns the last isolated run's report.
fn assert_same_output<T: PartialEq>(
    chain: &Path,
    traffic: &Path,
    file: &Path,
    (cores, ways): (&str, &[&str]),
    read: impl Fn(&str) -> T,
) -> Value {
    let output = || {
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::remove_file(file).unwrap();
        text
    };
    let (one, sent) = run_isolated(chain, traffic, "none", cores);
    let expected = output();
    let mut last = one.clone();
    for way in ways {
        last = assert_as((&one, &sent), chain, traffic, (cores, way));
        let found = output();
        assert!(read(&expected) == read(&found), "{way}: {expected}\n{found}");
    }
    last
}

/// An HTTP request in two segments, in a connection of its own; the rule's pattern is in both.
fn request(from: Ipv4Addr, port: u16) -> Vec<Vec<u8>> {
    let segment = |flags, sequence, acknowledgment, reversed, payload: &[u8]| {
        let key = FlowKey::v4(from, SERVER, protocol::TCP, port, 80);
        let key = if reversed { key.reversed() } else { key };
        let fields = TcpFields {
            flags,
            sequence,
            acknowledgment,
            ..TcpFields::default()
        };
        FrameBuilder::new(&key).tcp(fields).payload(payload).to_vec().unwrap()
    };
    let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
    let [first, second] = [b"GET /att".as_slice(), b"ack HTTP/1.1\r\nHost: a.test\r\n\r\n"];
    vec![
        segment(syn, 100, 0, false, b""),
        segment(syn | ack, 700, 101, true, b""),
        segment(ack, 101, 701, false, first),
        segment(ack, 101 + first.len() as u32, 701, false, second),
    ]
}

/// A datagram in MPLS, which is not IP.
fn in_mpls(frame: &[u8]) -> Vec<u8> {
    let label = 100 << 12 | 1 << 8 | 64u32;
    [&frame[..12], &[0x88, 0x47], &label.to_be_bytes(), &frame[14..]].concat()
}

/// Streams span packets, thresholds span connections, and the alerts go to one file. Tunnels that are not IP are
/// inspected, too.
#[test]
fn detection_finds_in_processes_what_it_finds_in_one() {
    let _alone = alone();
    let folder = Folder::new();
    let mut packets = Vec::new();
    for n in 0..120u32 {
        let (from, port) = (client((n % 6) as u8 + 1), 2000 + n as u16);
        let asks = udp(from, port, SERVER, 53);
        let mut frames = request(from, port);
        frames.extend([in_mpls(&asks), asks]);
        let start = u64::from(n) * 300_000;
        packets.extend((start..).step_by(2_000_000).zip(frames));
    }
    packets.sort_by_key(|(time, _)| *time);
    let traffic = folder.capture("requests.pcap", &packets);
    let eve = folder.path("eve.json");
    let rules = "['alert http any any -> any any (msg: \"split\"; flow: established,to_server; http.uri; content: \
                 \"/attack\"; sid: 1;)', 'drop udp any any -> any 53 (msg: \"asks\"; content: \"query\"; \
                 threshold: type limit, track by_src, count 2, seconds 600; sid: 2;)']";
    let functions = format!(
        "[{{name: counted, accounting: }}, {{ids: {{mode: drop, eve: {}, rules: {rules}}}}}]",
        eve.display()
    );
    let chain = folder.spec("detection.yaml", &functions, "  flows: {capacity: 4096}\n");
    for cores in cores() {
        let several = cores.contains(',');
        let ways = if several { vec![process()] } else { ways() };
        // With two cores a source's first two matches are on either.
        let alerts = |text: &str| {
            let line = |line: &str| {
                let mut alert: Value = serde_json::from_str(line).unwrap();
                let kept = alert.as_object_mut().unwrap();
                assert!(kept.remove("timestamp").is_some());
                let ports = ["flow_id", "src_port"].into_iter().filter(|_| several);
                ports.for_each(|name| drop(kept.remove(name)));
                alert.to_string()
            };
            let mut lines: Vec<_> = text.lines().map(line).collect();
            lines.sort_unstable();
            lines
        };
        let report = assert_same_output(&chain, &traffic, &eve, (&cores, &ways), |text| {
            let alerts = alerts(text);
            assert_eq!(alerts.len(), 120 + 6 * 2, "{text}");
            alerts
        });
        assert_eq!(reason(&report, "ids/alerts"), 120 + 6 * 2, "{report}");
        assert_eq!(reason(&report, "ids/dropped"), 2 * 120, "{report}");
    }
}

/// A GTP-U message from the base station.
fn gtp(kind: u8, teid: u32, content: &[u8]) -> Vec<u8> {
    let station = Ipv4Addr::new(192, 0, 2, 10);
    let key = FlowKey::v4(station, Ipv4Addr::new(192, 0, 2, 1), protocol::UDP, 2152, 2152);
    let flags = if kind == 0xff { 0x30 } else { 0x32 };
    let length = content.len() as u16;
    let message = [&[flags, kind], &length.to_be_bytes()[..], &teid.to_be_bytes(), content].concat();
    FrameBuilder::new(&key).payload(&message).to_vec().unwrap()
}

/// Sessions, their rates and their usage belong to all processes. Responses go back.
#[test]
fn a_user_plane_is_in_processes_what_it_is_in_one() {
    let _alone = alone();
    let folder = Folder::new();
    let packets = (0..400u32).flat_map(|n| {
        let user = Ipv4Addr::new(10, 60, 0, (n % 5) as u8 + 1);
        let port = 1000 + (n % 23) as u16;
        let other = match n % 40 {
            0 => Some(gtp(1, 0, &[0, 7, 0, 0])),
            1 => Some(gtp(0xff, 99, &udp(user, port, SERVER, 53)[14..])),
            _ => None,
        };
        let up = gtp(0xff, n % 5 + 1, &udp(user, port, SERVER, 53)[14..]);
        let frames = [up, udp(SERVER, 53, user, port)].into_iter().chain(other);
        (u64::from(n) * 100_000..).step_by(30_000).zip(frames)
    });
    let traffic = folder.capture("users.pcap", &packets.collect::<Vec<_>>());
    let usage = folder.path("usage.csv");
    let sessions = (1..=5).map(|n| format!("{n} ue 10.60.0.{n} teid {n} peer 192.0.2.10 peerTeid {n} profile slow"));
    let functions = format!(
        "[{{upf: {{addresses: [192.0.2.1], profiles: {{slow: {{qfi: 9, sessionRates: {{up: 100kbps, down: 100kbps, \
         burst: 1500}}, usage: {{volume: 1000}}}}}}, sessions: [{}], usage: {{file: {}}}, mtu: 9000}}}}]",
        sessions.collect::<Vec<_>>().join(", "),
        usage.display()
    );
    let chain = folder.spec("upf.yaml", &functions, "  flows: {capacity: 4096}\n");
    for cores in cores() {
        let several = cores.contains(',');
        let ways = if several { vec![process()] } else { ways() };
        if several {
            // Which packets exceed a rate depends on the cores' pace, so only the totals are compared.
            let (report, _) = run_isolated(&chain, &traffic, process(), &cores);
            let text = std::fs::read_to_string(&usage).unwrap();
            let last = text.lines().filter(|line| line.contains(",end,"));
            let packets = last.flat_map(|line| line.rsplit(',').take(2).map(|field| field.parse::<u64>().unwrap()));
            let passed = ["encapsulated", "decapsulated"].map(|name| reason(&report, &format!("upf/{name}")));
            assert_eq!(packets.sum::<u64>(), passed.iter().sum::<u64>(), "{report}");
            continue;
        }
        let report = assert_same_output(&chain, &traffic, &usage, (&cores, &ways), |text| {
            // All fields but the time; volume reports come when the thread looks.
            let line = |line: &str| {
                let fields: Vec<_> = line.split(',').collect();
                [&fields[..3], &fields[4..]].concat().join(",")
            };
            let mut lines: Vec<_> = text.lines().filter(|it| !it.contains(",volume,")).map(line).collect();
            lines.sort_unstable();
            assert_eq!(lines.len(), 1 + 5, "{text}");
            lines
        });
        for (name, least) in [
            ("upf/over-session-rate", 100),
            ("upf/decapsulated", 50),
            ("upf/encapsulated", 50),
            ("upf/echo-answered", 10),
            ("upf/error-indications", 10),
        ] {
            assert!(reason(&report, name) >= least, "{name}: {report}");
        }
    }
}

/// Both ends in one chain: what the first one removes, the second restores.
#[test]
fn an_optimizer_is_in_processes_what_it_is_in_one() {
    let _alone = alone();
    let folder = Folder::new();
    let traffic = traffic(&folder);
    let end = |name, local, remote, more| {
        format!(
            "{{name: {name}, wanOptimizer: {{local: 192.0.2.{local}, remote: 192.0.2.{remote}, cache: 1MiB, \
             streams: 2, mtu: 9000{more}}}}}"
        )
    };
    let functions = format!(
        "[{}, {}]",
        end("near", 1, 2, ", destinations: [0.0.0.0/0, '::/0']"),
        end("far", 2, 1, "")
    );
    let chain = folder.spec("optimizer.yaml", &functions, "");
    for cores in cores() {
        let ways = if cores.contains(',') { vec![process()] } else { ways() };
        let (one, sent) = run_isolated(&chain, &traffic, "none", &cores);
        for way in ways {
            let report = assert_as((&one, &sent), &chain, &traffic, (&cores, way));
            assert!(reason(&report, "near/shortened") > 100, "{report}");
            assert_eq!(reason(&report, "far/decoded"), reason(&report, "near/encoded"));
        }
    }
}
