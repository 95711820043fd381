//! Tunnels between two Tailwater instances: host 0 and host 1 send plain traffic, each to its own endpoint, and the
//! traffic between the endpoints is encrypted.

use super::programs::{assert_answers, name_server, streams};
use super::{PACKET, body};
use crate::common::namespaces::{HOSTS, HOSTS_V6, Hosts, skipped};
use crate::common::*;
use std::path::PathBuf;

/// Endpoint addresses, by IP version.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];

/// A tunnel's cipher, key length (with salt), and inner and outer IP version.
struct Way {
    cipher: &'static str,
    key_bytes: usize,
    v6: bool,
    udp: bool,
    esn: bool,
}

/// Writes the chain of a host's endpoint: packets for the other host enter a tunnel, packets from one go to this host.
fn chain(folder: &Folder, host: usize, way: &Way) -> PathBuf {
    let ends = ENDS[usize::from(way.v6)];
    let (own, other) = (ends[host], ends[1 - host]);
    let key = |sender: usize| format!("{:02x}", 0x11 * (sender + 1)).repeat(way.key_bytes);
    let more = format!("cipher: {}, esn: {}, udp: {}", way.cipher, way.esn, way.udp);
    let functions = format!(
        "[{{ipsec: {{
          outbound: [{{name: there, spi: {}, key: '{}', source: '{own}', destination: '{other}', {more}}}],
          inbound: [{{name: back, spi: {}, key: '{}', destination: '{own}', {more},
                     allow: [{{destination: '{}'}}, {{destination: '{}'}}]}}],
          policies: [{{destination: '{}', protect: there}}, {{destination: '{}', protect: there}}],
          default: pass}}}}]",
        0x1000 + host,
        key(host),
        0x1000 + (1 - host),
        key(1 - host),
        HOSTS[host],
        HOSTS_V6[host],
        HOSTS[1 - host],
        HOSTS_V6[1 - host],
    );
    folder.spec(&format!("end-{host}.yaml"), &functions, "")
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    let reasons = &report["packets"]["reasons"];
    reasons[format!("ipsec/{name}")].as_u64().unwrap_or(0)
}

/// Pings, a page, a name and streams, by both IP versions where a program supports both.
fn everything_goes(way: &Way) {
    if skipped(&["curl"]) {
        return;
    }
    let (mut hosts, folder) = (Hosts::new(true), Folder::new());
    let far = hosts.cut_middle();
    for host in 0..2 {
        // The tunnel makes packets longer.
        hosts.must_on(host, "ip link set dev eth0 mtu 1380");
    }
    let chains = [0, 1].map(|host| chain(&folder, host, way));
    let mut ends = hosts.run_pair(PACKET, far, [&chains[0], &chains[1]]);
    let page = &body()[..100_000];
    for [near, far] in [HOSTS, HOSTS_V6] {
        hosts.assert_pings(0, far, 5);
        hosts.assert_pings(1, near, 5);
        hosts.serve(1, far, 80, page.to_vec());
        let address = match far.contains(':') {
            true => format!("[{far}]"),
            false => far.to_owned(),
        };
        let curl = hosts.on(0, &format!("curl -sS -g -m 60 'http://{address}/'"));
        assert!(curl.status.success(), "{}", text(&curl.stderr));
        assert!(curl.stdout == page);
        name_server(&hosts, far);
        assert_answers(&hosts, [near, far], "www.allowed.test");
    }
    streams(&hosts, HOSTS[0], HOSTS[1]);
    for report in ends.each_mut().map(|end| end.stop()) {
        assert_identity(&report);
        for way in ["encapsulated", "decapsulated"] {
            assert!(reason(&report, way) > 100, "{way}: {report}");
        }
        for wrong in ["not-authentic", "replayed", "too-old", "not-allowed", "inner-malformed"] {
            assert_eq!(reason(&report, wrong), 0, "{wrong}: {report}");
        }
    }
}

#[test]
fn everything_goes_through_tunnels_of_aes_128_gcm() {
    everything_goes(&Way {
        cipher: "aes-128-gcm",
        key_bytes: 20,
        v6: false,
        udp: false,
        esn: true,
    });
}

#[test]
fn everything_goes_through_tunnels_of_aes_256_gcm_over_ipv6() {
    everything_goes(&Way {
        cipher: "aes-256-gcm",
        key_bytes: 36,
        v6: true,
        udp: false,
        esn: false,
    });
}

#[test]
fn everything_goes_through_tunnels_of_chacha20_poly1305_over_udp() {
    everything_goes(&Way {
        cipher: "chacha20-poly1305",
        key_bytes: 36,
        v6: false,
        udp: true,
        esn: true,
    });
}
