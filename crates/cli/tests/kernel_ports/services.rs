//! Functions between real programs: pages by HTTP and TLS, translated connections, a service's backends.

use super::{PACKET, body};
use crate::common::namespaces::{HOSTS, HOSTS_V6, Hosts, Program, SERVICE, skipped, wait_for};
use crate::common::*;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

/// Returns a count of `report.packets.reasons`.
fn reason(report: &serde_json::Value, name: &str) -> u64 {
    report["packets"]["reasons"][name].as_u64().unwrap_or(0)
}

/// Returns both addresses of host 1, and their form in a URL.
fn addresses() -> [(&'static str, String); 2] {
    let [v4, v6] = [HOSTS[1], HOSTS_V6[1]];
    [(v4, v4.to_owned()), (v6, format!("[{v6}]"))]
}

/// Writes a filter that blocks one host name.
fn filter(folder: &Folder) -> std::path::PathBuf {
    let functions = "[{name: filter, urlFilter: {patterns: [blocked.test]}}]";
    folder.spec("filter.yaml", functions, "")
}

/// Fetches pages of an allowed host, then of a blocked one, by both IP versions, with each variant of flags and
/// expected page content.
pub(super) fn pages(hosts: &Hosts, scheme: &str, port: u16, variants: &[(&str, &str)]) {
    let addresses = addresses();
    let get = |host: &str, literal: &str, more: &str| {
        let connect = format!("--connect-to {host}:{port}:{literal}:{port}");
        let url = format!("{scheme}://{host}:{port}/");
        hosts.on(0, &format!("curl -sS {more} {connect} {url}"))
    };
    for ((_, literal), (flags, expected)) in each(&addresses, variants) {
        let allowed = get("allowed.test", literal, &format!("-m 60 {flags}"));
        let page = text(&allowed.stdout);
        assert!(page.contains(expected), "{page}{}", text(&allowed.stderr));
    }
    // Blocked requests get no response and time out. A server may be blocked, too, so they come last.
    std::thread::scope(|scope| {
        for ((_, literal), (flags, _)) in each(&addresses, variants) {
            let get = &get;
            scope.spawn(move || {
                let blocked = get("blocked.test", literal, &format!("-m 2 {flags}"));
                assert_eq!(blocked.status.code(), Some(28), "{}", text(&blocked.stderr));
                assert!(blocked.stdout.is_empty());
            });
        }
    });
}

/// Returns all pairs of `left` and `right`.
fn each<'a, A, B>(left: &'a [A], right: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    let with = move |a| right.iter().map(move |b| (a, b));
    left.iter().flat_map(with)
}

/// IPv6 beside IPv4; requests to one host pass, to another they do not.
fn http() {
    let (hosts, folder) = (Hosts::new(true), Folder::new());
    let mut between = hosts.run(PACKET, &filter(&folder), &[]);
    hosts.assert_pings(0, HOSTS_V6[1], 5);
    for (address, _) in addresses() {
        hosts.serve(1, address, 80, b"a page".to_vec());
    }
    pages(&hosts, "http", 80, &[("", "a page")]);
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(reason(&report, "filter/url-blocked"), 2, "{report}");
}

#[test]
fn ipv6_crosses_and_pages_are_blocked_by_host() {
    if !skipped(&["curl"]) {
        http();
    }
}

/// Starts a server with a new self-signed certificate, for any name.
pub(super) fn tls_server(hosts: &Hosts, folder: &Folder) -> Program {
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| folder.path(name));
    let (key, certificate) = (key.to_str().unwrap(), certificate.to_str().unwrap());
    let made = hosts.on(
        1,
        &format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 \
             -subj /CN=test -addext subjectAltName=DNS:allowed.test,DNS:blocked.test \
             -keyout {key} -out {certificate}"
        ),
    );
    assert!(made.status.success(), "{}", text(&made.stderr));
    let line = ["openssl", "s_server", "-www", "-accept", "443"];
    let server = hosts.start(1, &[&line[..], &["-key", key, "-cert", certificate]].concat());
    hosts.wait_for_listener(1, 443);
    server
}

/// The server's name passes the filter in the clear; the rest is encrypted end to end.
fn tls() {
    let (hosts, folder) = (Hosts::new(true), Folder::new());
    let _server = tls_server(&hosts, &folder);
    let mut between = hosts.run(PACKET, &filter(&folder), &[]);
    let trusted = format!("--cacert {}", folder.path("certificate.pem").display());
    let flags = ["1.2", "1.3"].map(|version| format!("{trusted} --tlsv{version} --tls-max {version}"));
    let variants = [(&*flags[0], "TLSv1.2"), (&*flags[1], "TLSv1.3")];
    pages(&hosts, "https", 443, &variants);
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(reason(&report, "filter/sni-blocked"), 4, "{report}");
}

#[test]
fn tls_is_blocked_by_server_name() {
    if !skipped(&["curl", "openssl"]) {
        tls();
    }
}

/// Captures the packets that host `host` sends and receives.
fn record(hosts: &Hosts, host: usize, to: &Path) -> Program {
    let line = ["dumpcap", "-q", "-P", "-B", "32", "-i", "eth0", "-w"];
    let mut recording = hosts.start(host, &[&line[..], &[to.to_str().unwrap()]].concat());
    wait_for(|| {
        recording.assert_runs();
        recording.said().contains("File: ")
    });
    recording
}

/// Returns the number of complete packets of a capture that is still being written.
fn packets_in(capture: &Path) -> u64 {
    let bytes = std::fs::read(capture).unwrap();
    let (mut rest, mut packets) = (&bytes[24..], 0);
    while let Some(length) = rest.get(8..12) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let Some(after) = rest.get(16 + length..) else {
            break;
        };
        (rest, packets) = (after, packets + 1);
    }
    packets
}

#[test]
fn connections_and_datagrams_are_translated_in_both_directions() {
    if skipped(&["curl"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let functions = "[{nat: {external: [10.9.0.100], internal: [10.9.0.1]}}]";
    let chain = folder.spec("nat.yaml", functions, "");
    // The host behind the translation receives packets to the external address.
    hosts.neighbour(1, "10.9.0.100", &hosts.mac(0));
    let mut between = hosts.run(PACKET, &chain, &[]);
    let tshark = tshark_is_there() && !skipped(&["dumpcap"]);
    if !tshark {
        println!("skipped: without tshark and dumpcap nobody else looks at checksums");
    }
    let captures = ["a.pcap", "b.pcap"].map(|name| folder.path(name));
    let before = [0, 1].map(|host| hosts.counted(host).iter().sum::<u64>());
    let recordings = [0, 1].map(|host| tshark.then(|| record(&hosts, host, &captures[host])));
    hosts.serve(1, HOSTS[1], 80, body());
    let page = folder.path("page");
    let url = format!("http://{}/", HOSTS[1]);
    let curl = hosts.on(0, &format!("curl -sS -m 60 -o {} {url}", page.display()));
    assert!(curl.status.success(), "{}", text(&curl.stderr));
    assert!(std::fs::read(&page).unwrap() == body());
    // Datagrams of any length, including odd ones and zero.
    let (ready, is_ready) = std::sync::mpsc::channel();
    hosts.within(1, move || {
        let socket = UdpSocket::bind((HOSTS[1], 53)).unwrap();
        ready.send(()).unwrap();
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
    is_ready.recv().unwrap();
    let senders = hosts.within(0, || {
        let mut senders = BTreeSet::new();
        for length in 0..40 {
            let socket = UdpSocket::bind((HOSTS[0], 0)).unwrap();
            senders.insert(socket.local_addr().unwrap().port());
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let query = vec![length as u8; length];
            socket.send_to(&query, (HOSTS[1], 53)).unwrap();
            let mut buffer = [0; 2048];
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(
                (&buffer[..length], from.ip().to_string()),
                (&query[..], HOSTS[1].into())
            );
        }
        senders.len() as u64
    });
    let senders = senders.join().unwrap();
    let packets = [0, 1].map(|host| hosts.counted(host).iter().sum::<u64>() - before[host]);
    for ((recording, capture), packets) in recordings.into_iter().zip(&captures).zip(packets) {
        let Some(mut recording) = recording else {
            continue;
        };
        wait_for(|| packets_in(capture) >= packets);
        recording.interrupt();
        let with = |status: &str| {
            let protocols = ["ip", "tcp", "udp"];
            protocols.map(|protocol| tshark_frames(capture, &format!("{protocol}.checksum.status == {status}")))
        };
        assert_eq!(with("Bad"), [0; 3], "{}", capture.display());
        let [ip, tcp, udp] = with("Good");
        assert!(ip == tcp + udp && tcp > 100 && udp >= 80, "{ip} {tcp} {udp}");
    }
    let report = between.stop();
    assert_identity(&report);
    // One flow per direction.
    assert_eq!(report["flows"]["opened"], 2 * (1 + senders), "{report}");
}

#[test]
fn a_service_is_answered_by_three_backends() {
    if skipped(&["curl"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(false), Folder::new());
    let Some(macs) = hosts.add_backends(3) else {
        println!("skipped: this kernel has no macvlan");
        return;
    };
    let backends: Vec<String> = macs.iter().map(|mac| format!("{{mac: '{mac}'}}")).collect();
    let functions = format!(
        "[{{loadBalancer: {{services: [{{address: {SERVICE}, port: 80, protocol: tcp, mode: mac, backends: [{}]}}]}}}}]",
        backends.join(", ")
    );
    let chain = folder.spec("balance.yaml", &functions, "");
    // The service's MAC address is arbitrary: the balancer replaces it.
    hosts.neighbour(0, SERVICE, "02:00:00:00:00:09");
    for backend in 0..3 {
        let host = 3 + backend;
        hosts.neighbour(host, HOSTS[0], &hosts.mac(0));
        hosts.serve(host, SERVICE, 80, format!("backend {backend}\n").into());
    }
    let mut between = hosts.run(PACKET, &chain, &[]);
    let get = |flags: &str, requests: u32| {
        let url = format!("'http://{SERVICE}/[1-{requests}]'");
        let curl = hosts.on(
            0,
            &format!("curl -sS -m 60 -w 'connects %{{num_connects}}\\n' {flags} {url}"),
        );
        assert!(curl.status.success(), "{}", text(&curl.stderr));
        let printed = text(&curl.stdout);
        let (mut answers, mut connects) = (Vec::new(), 0);
        for line in printed.lines() {
            match line.strip_prefix("connects ") {
                None => answers.push(line.to_owned()),
                Some(number) => connects += number.parse::<u32>().unwrap(),
            }
        }
        assert_eq!(answers.len(), requests as usize);
        (answers, connects)
    };
    // It is extremely unlikely that one of three backends gets none of so many connections.
    let (answers, connects) = get("--http1.0", 90);
    let reached: BTreeSet<String> = answers.into_iter().collect();
    assert_eq!((reached.len(), connects), (3, 90), "{reached:?}");
    let mut opened = 90;
    for _ in 0..4 {
        let (answers, connects) = get("", 30);
        let reached: BTreeSet<String> = answers.into_iter().collect();
        assert_eq!((reached.len(), connects), (1, 1), "{reached:?}");
        opened += 1;
    }
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(count(&report, "dropped_by_nf"), 0, "{report}");
    // One flow per direction.
    assert_eq!(report["flows"]["opened"], 2 * opened, "{report}");
}
