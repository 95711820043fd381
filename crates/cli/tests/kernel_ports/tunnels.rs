//! Tunnels between Tailwater and the kernel's IPsec: host 0 sends plain traffic, Tailwater in the middle encrypts it,
//! and host 1's kernel decrypts it; and vice versa.

use super::programs::streams;
use super::{PACKET, body};
use crate::common::namespaces::{Hosts, Program, skipped, wait_for};
use crate::common::*;

/// The hosts' addresses inside the tunnel, by IP version.
const INSIDE: [[&str; 2]; 2] = [["10.10.0.1", "10.20.0.1"], ["fd0a::1", "fd14::1"]];

/// Tunnel endpoints, Tailwater's and host 1's, by IP version.
const OUTSIDE: [[&str; 2]; 2] = [["10.9.0.100", "10.9.0.2"], ["fd09::100", "fd09::2"]];

/// A cipher: its names in a spec and in the kernel, and the bytes of its key and salt.
type Cipher = (&'static str, &'static str, usize);

const CIPHERS: [Cipher; 3] = [
    ("aes-128-gcm", "rfc4106(gcm(aes))", 20),
    ("aes-256-gcm", "rfc4106(gcm(aes))", 36),
    ("chacha20-poly1305", "rfc7539esp(chacha20,poly1305)", 36),
];

/// Parameters of a tunnel.
#[derive(Clone, Copy, Debug)]
struct Way {
    v6: bool,
    udp: bool,
    extended: bool,
}

const WAYS: [Way; 5] = [
    Way {
        v6: false,
        udp: false,
        extended: false,
    },
    Way {
        v6: false,
        udp: false,
        extended: true,
    },
    Way {
        v6: false,
        udp: true,
        extended: true,
    },
    Way {
        v6: true,
        udp: false,
        extended: true,
    },
    Way {
        v6: true,
        udp: true,
        extended: false,
    },
];

impl Way {
    /// Returns Tailwater's endpoint, and the kernel's.
    fn ends(self) -> [&'static str; 2] {
        OUTSIDE[usize::from(self.v6)]
    }
}

/// Returns a key that differs between directions.
fn key(bytes: usize, direction: u8) -> String {
    (0..bytes)
        .map(|byte| format!("{:02x}", byte as u8 ^ direction))
        .collect()
}

fn set(hosts: &Hosts, host: usize, line: &str) {
    let output = hosts.on(host, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
}

/// Sets the hosts' inside addresses, routes and neighbours.
fn inside(hosts: &Hosts) {
    for host in 0..2 {
        set(hosts, host, "ip link set dev lo up");
        set(
            hosts,
            host,
            "sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0",
        );
        for (inside, bits) in INSIDE.iter().zip([32, 128]) {
            set(hosts, host, &format!("ip addr add {}/{bits} dev lo", inside[host]));
        }
    }
    for (inside, outside) in INSIDE.iter().zip(OUTSIDE) {
        // The tunnel makes host 0's packets longer; host 1's kernel accounts for it by itself.
        let route = format!(
            "ip route add {} via {} src {} mtu 1380",
            inside[1], outside[1], inside[0]
        );
        set(hosts, 0, &route);
        set(
            hosts,
            1,
            &format!("ip route add {} dev eth0 src {}", inside[0], inside[1]),
        );
        hosts.neighbour(1, outside[0], &hosts.mac(0));
        hosts.neighbour(0, outside[1], &hosts.mac(1));
    }
}

/// Configures host 1's endpoint. Returns the kernel's error if that fails.
fn kernels_end(hosts: &Hosts, way: Way, (_, cipher, bytes): Cipher) -> Result<(), String> {
    let [near, far] = way.ends();
    let any = if way.v6 { "::" } else { "0.0.0.0" };
    let encap = if way.udp {
        format!("encap espinudp 4500 4500 {any}")
    } else {
        String::new()
    };
    let extended = if way.extended { "flag esn" } else { "" };
    for (source, destination, spi, direction) in [(near, far, 0x1001, 1), (far, near, 0x2001, 2)] {
        let key = key(bytes, direction);
        let state = format!(
            "ip xfrm state add src {source} dst {destination} proto esp spi {spi} reqid 1 mode tunnel flag af-unspec \
             {extended} replay-window 1024 aead '{cipher}' 0x{key} 128 {encap}"
        );
        let output = hosts.on(1, &state);
        if !output.status.success() {
            return Err(text(&output.stderr).trim().to_owned());
        }
    }
    for inside in INSIDE {
        for (source, destination, direction, ends) in [
            (inside[0], inside[1], "in", [near, far]),
            (inside[1], inside[0], "out", [far, near]),
        ] {
            let policy = format!(
                "ip xfrm policy add src {source} dst {destination} dir {direction} \
                 tmpl src {} dst {} proto esp reqid 1 mode tunnel",
                ends[0], ends[1]
            );
            set(hosts, 1, &policy);
        }
    }
    Ok(())
}

/// Writes the chain of Tailwater's endpoint.
fn chain(folder: &Folder, way: Way, (cipher, _, bytes): Cipher) -> std::path::PathBuf {
    let [near, far] = way.ends();
    let more = format!("cipher: {cipher}, esn: {}, udp: {}", way.extended, way.udp);
    let [there, back] = [1, 2].map(|direction| key(bytes, direction));
    let functions = format!(
        "[{{ipsec: {{
          outbound: [{{name: there, spi: 0x1001, key: '{there}', source: '{near}', destination: '{far}', {more}}}],
          inbound: [{{name: back, spi: 0x2001, key: '{back}', destination: '{near}', {more},
                     allow: [{{source: {}, destination: {}}}, {{source: '{}', destination: '{}'}}]}}],
          policies: [{{destination: {}, protect: there}}, {{destination: '{}', protect: there}}],
          default: pass}}}}]",
        INSIDE[0][1], INSIDE[0][0], INSIDE[1][1], INSIDE[1][0], INSIDE[0][1], INSIDE[1][1]
    );
    folder.spec("tunnel.yaml", &functions, "")
}

/// Makes host 1's kernel decapsulate ESP from UDP, and sends a keep-alive.
fn take_udp(hosts: &Hosts, way: Way) -> Program {
    let (near, family) = (way.ends()[0], if way.v6 { "AF_INET6" } else { "AF_INET" });
    let program = format!(
        "import socket, time\n\
         s = socket.socket(socket.{family}, socket.SOCK_DGRAM)\n\
         s.bind(('', 4500))\n\
         s.setsockopt(17, 100, 2)\n\
         s.sendto(b'\\xff', ('{near}', 4500))\n\
         print('ready', flush=True)\n\
         time.sleep(600)\n"
    );
    let mut socket = hosts.start(1, &["python3", "-c", &program]);
    wait_for(|| {
        socket.assert_runs();
        socket.printed().contains("ready")
    });
    socket
}

/// Returns `true` if this kernel lacks a feature that the tests require.
fn kernel_lacks(hosts: &Hosts, cipher: Cipher, ways: &[Way]) -> bool {
    for way in ways {
        let lacks = kernels_end(hosts, *way, cipher);
        set(hosts, 1, "ip xfrm state flush");
        set(hosts, 1, "ip xfrm policy flush");
        if let Err(error) = lacks {
            println!("skipped: this kernel has no {} in ESP: {error}", cipher.0);
            return true;
        }
    }
    false
}

/// Returns the non-zero error counters of host 1's kernel.
fn refused(hosts: &Hosts) -> Vec<String> {
    let counts = hosts.on(1, "cat /proc/net/xfrm_stat");
    let counts = text(&counts.stdout);
    let wrong = counts
        .lines()
        .filter(|line| line.split_whitespace().last() != Some("0"));
    wrong.map(str::to_owned).collect()
}

/// Runs a task through each kind of tunnel; all packets that enter one leave it.
fn through_tunnels(cipher: Cipher, ways: &[Way], mut task: impl FnMut(&Hosts)) {
    for &way in ways {
        let (hosts, folder) = (Hosts::new(true), Folder::new());
        inside(&hosts);
        if kernel_lacks(&hosts, cipher, &[way]) {
            return;
        }
        kernels_end(&hosts, way, cipher).unwrap();
        let mut between = hosts.run(PACKET, &chain(&folder, way, cipher), &[]);
        let _socket = way.udp.then(|| take_udp(&hosts, way));
        task(&hosts);
        let report = between.stop();
        assert_identity(&report);
        let reasons = &report["packets"]["reasons"];
        let count = |name: &str| reasons[format!("ipsec/{name}")].as_u64().unwrap_or(0);
        assert!(
            count("encapsulated") > 20 && count("decapsulated") > 20,
            "{way:?}: {report}"
        );
        assert_eq!(count("keep-alive"), u64::from(way.udp), "{way:?}: {report}");
        let dropped = report["packets"]["dropped_by_nf"].as_u64();
        assert_eq!(dropped, Some(u64::from(way.udp)), "{way:?}: {report}");
        assert_eq!(refused(&hosts), Vec::<String>::new(), "{way:?}");
    }
}

/// Pings of all sizes that fit, and a page, by both IP versions.
fn pings_and_pages(cipher: Cipher) {
    if skipped(&["curl", "python3"]) {
        return;
    }
    through_tunnels(cipher, &WAYS, |hosts| {
        for inside in INSIDE {
            for (host, other) in [(0, inside[1]), (1, inside[0])] {
                for size in [1, 2, 3, 1200] {
                    let from = inside[host];
                    let ping = format!("ping -q -c 2 -i 0.02 -w 30 -s {size} -I {from} {other}");
                    set(hosts, host, &ping);
                }
            }
            let page = &body()[..100_000];
            hosts.serve(1, inside[1], 80, page.to_vec());
            let address = if inside[1].contains(':') {
                format!("[{}]", inside[1])
            } else {
                inside[1].to_owned()
            };
            let curl = hosts.on(0, &format!("curl -sS -g -m 60 'http://{address}/'"));
            assert!(curl.status.success(), "{}", text(&curl.stderr));
            assert!(curl.stdout == page);
        }
    });
}

#[test]
fn tunnels_of_aes_128_gcm_end_at_the_kernel() {
    pings_and_pages(CIPHERS[0]);
}

#[test]
fn tunnels_of_aes_256_gcm_end_at_the_kernel() {
    pings_and_pages(CIPHERS[1]);
}

#[test]
fn tunnels_of_chacha20_poly1305_end_at_the_kernel() {
    pings_and_pages(CIPHERS[2]);
}

/// Streams of TCP and UDP through a tunnel, of which only the size is asserted.
#[test]
fn streams_go_through_tunnels_both_ways() {
    if skipped(&["iperf3", "python3"]) {
        return;
    }
    for cipher in CIPHERS {
        through_tunnels(cipher, &WAYS[1..3], |hosts| {
            streams(hosts, INSIDE[0][0], INSIDE[0][1]);
        });
    }
}
