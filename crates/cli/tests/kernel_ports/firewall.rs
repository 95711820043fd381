//! A firewall between real programs: permission to open connections, and rules reloaded during traffic.

use super::PACKET;
use super::programs::streams;
use crate::common::namespaces::{HOSTS, HOSTS_V6, Hosts, skipped, wait_for};
use crate::common::*;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

const RULES: &str = "\
allow icmp   from lan to wan
allow icmpv6 from lan to wan
allow tcp    from lan to wan ports 80
allow tcp    from lan to wan ports 5201
allow udp    from lan to wan ports 53
allow udp    from lan to wan ports 5201
";

/// Writes a chain with host 0 inside and host 1 outside, by their ports.
fn chain(folder: &Folder) -> std::path::PathBuf {
    folder.write("firewall.rules", RULES);
    let functions = "[{firewall: {rulesFile: firewall.rules, zones: {lan: {port: entry, prefixes: \
                     [10.9.0.1/32, 'fd09::1/128']}, wan: {port: exit, prefixes: any}}}}]";
    folder.spec("firewall.yaml", functions, "")
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    let reasons = &report["packets"]["reasons"];
    reasons[format!("firewall/{name}")].as_u64().unwrap_or(0)
}

fn page(hosts: &Hosts, from: usize, address: &str, seconds: u32) -> Option<i32> {
    let curl = format!("curl -sS -o /dev/null -m {seconds} http://{address}/");
    hosts.on(from, &curl).status.code()
}

/// All allowed traffic passes one way, none the other way.
fn one_way() {
    let (hosts, folder) = (Hosts::new(true), Folder::new());
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    let both = [0, 1].map(|i| [HOSTS[i].to_owned(), format!("[{}]", HOSTS_V6[i])]);
    for host in [0, 1] {
        for address in [HOSTS[host], HOSTS_V6[host]] {
            hosts.serve(host, address, 80, vec![7; 100_000]);
        }
    }
    hosts.assert_pings(0, HOSTS[1], 5);
    hosts.assert_pings(0, HOSTS_V6[1], 5);
    for address in &both[1] {
        assert_eq!(page(&hosts, 0, address, 60), Some(0), "{address}");
    }
    // From outside: neither pings nor pages, which time out.
    for address in [HOSTS[0], HOSTS_V6[0]] {
        let ping = hosts.on(1, &format!("ping -q -c 2 -i 0.2 -W 1 {address}"));
        assert_eq!(ping.status.code(), Some(1), "{address}");
    }
    for address in &both[0] {
        assert_eq!(page(&hosts, 1, address, 1), Some(28), "{address}");
    }
    // Another port is refused, too.
    hosts.serve(1, HOSTS[1], 8080, vec![7]);
    assert_eq!(page(&hosts, 0, &format!("{}:8080", HOSTS[1]), 1), Some(28));
    names(&hosts);
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(count(&report, "lost"), 0, "{report}");
    // Two pings of two packets, two pages and another port, each with one packet or more.
    assert!(reason(&report, "denied") > 4 + 2, "{report}");
    assert_eq!(reason(&report, "out-of-window"), 0, "{report}");
    assert_eq!(reason(&report, "related"), 1, "{report}");
}

/// Requests and responses by UDP, and the ICMP error that reports a closed port.
fn names(hosts: &Hosts) {
    let ask = |wait| {
        move || {
            let socket = UdpSocket::bind((HOSTS[0], 0)).unwrap();
            socket.connect((HOSTS[1], 53)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(wait))).unwrap();
            let mut answer = [0; 64];
            socket.send(b"name?").unwrap();
            socket.recv(&mut answer).map_err(|error| error.kind())
        }
    };
    let nobody = hosts.within(0, ask(20)).join().unwrap();
    assert_eq!(nobody, Err(ErrorKind::ConnectionRefused));
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
    assert_eq!(hosts.within(0, ask(20)).join().unwrap(), Ok(5));
}

#[test]
fn connections_open_one_way() {
    if !skipped(&["curl"]) {
        one_way();
    }
}

/// Real stacks use windows, scaling and selective acknowledgments freely in their streams.
#[test]
fn streams_of_real_stacks_fit_their_windows() {
    if skipped(&["iperf3"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    streams(&hosts, HOSTS[0], HOSTS[1]);
    let report = between.stop();
    assert_identity(&report);
    for refused in ["out-of-window", "reset-out-of-window", "tcp-flags", "denied"] {
        assert_eq!(reason(&report, refused), 0, "{refused}: {report}");
    }
}

/// The rule file is rewritten with an error, then correctly. Only the latter changes the rules in force, and no packet
/// is lost.
#[test]
fn rules_change_while_packets_pass() {
    if skipped(&["curl"]) {
        return;
    }
    let (hosts, folder) = (Hosts::new(false), Folder::new());
    let mut between = hosts.run(PACKET, &chain(&folder), &[]);
    hosts.serve(1, HOSTS[1], 80, vec![7; 1000]);
    assert_eq!(page(&hosts, 0, HOSTS[1], 60), Some(0));
    let told = |between: &crate::common::namespaces::Program, what: &str| {
        wait_for(|| between.said().contains(what));
    };
    folder.write("firewall.rules", "allow icmp from lam\nallow\npermit\n");
    told(
        &between,
        "firewall.rules:3:1: expected allow, deny or reject, found \"permit\"",
    );
    assert!(
        between
            .said()
            .contains("firewall.rules:1:17: expected a zone, found \"lam\"")
    );
    assert_eq!(page(&hosts, 0, HOSTS[1], 60), Some(0));
    // Now in the other direction, and no more pages.
    folder.write("firewall.rules", "allow icmp from wan to lan\nreject\n");
    told(&between, "2 rules in force");
    hosts.assert_pings(1, HOSTS[0], 5);
    assert_eq!(page(&hosts, 0, HOSTS[1], 1), Some(28));
    let report = between.stop();
    assert_identity(&report);
    assert_eq!(count(&report, "lost"), 0, "{report}");
    assert!(reason(&report, "rejected") > 0, "{report}");
}
