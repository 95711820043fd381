//! A mobile network: host 0 is a user, host 1 a server on the internet. In the middle are a base station and a user
//! plane function, both Tailwater, with a link between them.

use super::programs::streams;
use super::{PACKET, body};
use crate::common::namespaces::{HOSTS, HOSTS_V6, Hosts, Program, skipped, wait_for};
use crate::common::*;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

/// The user's addresses, and the server's.
const USER: [&str; 2] = ["10.60.0.1", "2001:db8:60:1::1"];
const SERVER: [&str; 2] = ["10.70.0.1", "2001:db8:70::1"];

/// Tunnel endpoints by IP version: the station's and the core's.
const ENDS: [[&str; 2]; 2] = [["192.0.2.10", "192.0.2.1"], ["2001:db8::10", "2001:db8::1"]];

/// Sets the hosts' addresses.
fn set_up(hosts: &Hosts) {
    for host in 0..2 {
        hosts.must_on(host, "ip link set dev lo up");
        let filters = "sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0";
        hosts.must_on(host, filters);
        let own = [USER, SERVER][host];
        for (address, bits) in own.iter().zip([32, 128]) {
            hosts.must_on(host, &format!("ip addr add {address}/{bits} dev lo"));
        }
        let (other, mac) = (1 - host, hosts.mac(1 - host));
        for (version, gateways) in [HOSTS, HOSTS_V6].iter().enumerate() {
            hosts.neighbour(host, gateways[other], &mac);
            let (to, from) = ([USER, SERVER][other][version], own[version]);
            // The tunnel makes the user's packets longer; the server learns the MTU.
            let mtu = if host == 0 { "mtu 1380" } else { "" };
            let route = format!("ip route add {to} via {} src {from} {mtu}", gateways[other]);
            hosts.must_on(host, &route);
        }
    }
}

/// Writes the chain of a tunnel endpoint over an IP version, with further configuration.
fn chain(folder: &Folder, role: &str, own: &str, more: &str) -> std::path::PathBuf {
    let functions =
        format!("[{{upf: {{role: {role}, addresses: ['{own}'], profiles: {{internet: {{qfi: 9}}}}, {more}}}}}]");
    folder.spec(&format!("{role}.yaml"), &functions, "")
}

/// Starts both ends, the core on `far`, without a session.
fn start(hosts: &Hosts, far: usize, folder: &Folder, v6: bool) -> [Program; 2] {
    let [station, core] = ENDS[usize::from(v6)];
    let user = format!("ue {} ue6 2001:db8:60:1::/64", USER[0]);
    let session = format!("sessions: ['1 {user} teid 0x2001 peer {core} peerTeid 0x1001 profile internet']");
    let station = chain(folder, "access", station, &session);
    let socket = folder.path("upf.socket");
    let usage = folder.path("usage.csv");
    let more = format!(
        "api: {}, usage: {{file: {}}}, errorSources: [203.0.113.1, '2001:db8:f::1'], qfi: check",
        socket.display(),
        usage.display()
    );
    let core = chain(folder, "core", core, &more);
    hosts.run_pair(PACKET, far, [&station, &core])
}

/// Sends a line to the core's socket, and returns the response.
fn wish(folder: &Folder, line: &str) -> String {
    let mut socket = UnixStream::connect(folder.path("upf.socket")).unwrap();
    socket.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    answer.trim().to_owned()
}

/// Returns the core's session counters once they are stable: the last packets of a connection may still be in flight
/// when the programs at its ends have finished.
fn settled(folder: &Folder) -> String {
    let mut shown = String::new();
    wait_for(|| {
        std::thread::sleep(Duration::from_millis(300));
        let before = std::mem::replace(&mut shown, wish(folder, "show 1"));
        shown == before
    });
    shown
}

fn reason(report: &serde_json::Value, name: &str) -> u64 {
    let reasons = &report["packets"]["reasons"];
    reasons[format!("upf/{name}")].as_u64().unwrap_or(0)
}

/// Sets up everything over an IP version, runs a task, and checks the counters of both ends. They lose nothing; with
/// `all` nothing is lost on the link either, where sockets may overflow.
fn through_tunnels((v6, all): (bool, bool), task: impl FnOnce(&Hosts, usize)) -> [serde_json::Value; 2] {
    let (mut hosts, folder) = (Hosts::new(true), Folder::new());
    let far = hosts.cut_middle();
    set_up(&hosts);
    let mut ends = start(&hosts, far, &folder, v6);
    let station = ENDS[usize::from(v6)][0];
    // No packet passes before there is a session.
    let ping = format!("ping -q -c 1 -W 1 -I {} {}", USER[0], SERVER[0]);
    assert_eq!(hosts.on(0, &ping).status.code(), Some(1));
    let session = format!(
        "set 1 ue {} ue6 2001:db8:60:1::/64 teid 0x1001 peer {station} peerTeid 0x2001 profile internet",
        USER[0]
    );
    assert_eq!(wish(&folder, &session), "ok added");
    task(&hosts, far);
    let shown = settled(&folder);
    let [station, core] = ends.each_mut().map(|end| end.stop());
    for report in [&station, &core] {
        assert_identity(report);
        assert_eq!(count(report, "lost"), 0, "{report}");
        assert!(reason(report, "encapsulated") > 10, "{report}");
        for wrong in ["malformed", "inner-malformed", "unsupported", "wrong-qfi", "no-room"] {
            assert_eq!(reason(report, wrong), 0, "{wrong}: {report}");
        }
    }
    // One end encapsulates as many packets as the other decapsulates, except for the first ping, which had no session.
    let gone = |from, to| reason(from, "encapsulated") - reason(to, "decapsulated");
    let gone = [gone(&core, &station), gone(&station, &core) - 1];
    assert!(!all || gone == [0; 2], "{gone:?}");
    // The first ping was answered with an error indication, which the station does not forward.
    assert_eq!(reason(&core, "error-indications"), 1, "{core}");
    assert_eq!(reason(&station, "peer-errors"), 1, "{station}");
    let usage = std::fs::read_to_string(folder.path("usage.csv")).unwrap();
    let last = usage.lines().last().unwrap();
    let packets = reason(&core, "decapsulated");
    assert!(last.starts_with(&format!("1,{},end,", USER[0])), "{usage}");
    assert!(last.contains(&format!(",{packets},")), "{packets}: {usage}");
    assert!(shown.contains(&format!("up_packets {packets} ")), "{shown}");
    assert!(!folder.path("upf.socket").exists());
    [station, core]
}

/// Pings of all sizes that fit, in both directions, by both IP versions.
fn pings(hosts: &Hosts) {
    for version in 0..2 {
        for (host, from, to) in [(0, USER, SERVER), (1, SERVER, USER)] {
            for size in [1, 64, 1300] {
                let (from, to) = (from[version], to[version]);
                let ping = format!("ping -q -c 2 -i 0.02 -w 30 -s {size} -I {from} {to}");
                hosts.must_on(host, &ping);
            }
        }
    }
}

/// A page, and DNS requests with their responses.
fn pages_and_names(hosts: &Hosts) {
    let page = &body()[..100_000];
    for address in SERVER {
        hosts.serve(1, address, 80, page.to_vec());
        let literal = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let curl = hosts.on(0, &format!("curl -sS -g -m 60 'http://{literal}/'"));
        assert!(curl.status.success(), "{}", text(&curl.stderr));
        assert!(curl.stdout == page);
    }
    let ask = || {
        let socket = UdpSocket::bind((USER[0], 0)).unwrap();
        socket.connect((SERVER[0], 53)).unwrap();
        let wait = Some(Duration::from_secs(20));
        socket.set_read_timeout(wait).unwrap();
        let mut answer = [0; 64];
        socket.send(b"name?").unwrap();
        socket.recv(&mut answer).map_err(|error| error.kind())
    };
    // First the port is closed, which ICMP reports; then it is open.
    let nobody = hosts.within(0, ask).join().unwrap();
    assert_eq!(nobody, Err(ErrorKind::ConnectionRefused));
    let (ready, is_ready) = std::sync::mpsc::channel();
    hosts.within(1, move || {
        let socket = UdpSocket::bind((SERVER[0], 53)).unwrap();
        ready.send(()).unwrap();
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
    is_ready.recv().unwrap();
    assert_eq!(hosts.within(0, ask).join().unwrap(), Ok(5));
}

/// A packet that is too big for the tunnel: the core reports it to the server, through the server's port.
fn too_big(hosts: &Hosts, v6: bool) {
    let left = if v6 { 1436 } else { 1456 };
    let big = format!("ping -c 1 -W 2 -M do -s 1460 -I {} {}", SERVER[0], USER[0]);
    let output = hosts.on(1, &big);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains(&format!("mtu = {left}")), "{said}");
    assert!(said.contains("203.0.113.1"), "{said}");
    let big = format!("ping -c 1 -W 2 -M do -s 1440 -I {} {}", SERVER[1], USER[1]);
    let output = hosts.on(1, &big);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains(&format!("mtu={left}")), "{said}");
}

/// Sends an echo request to the core, from the server's side.
fn echo(hosts: &Hosts, own: &'static str) {
    let via = if own.contains(':') { HOSTS_V6[0] } else { HOSTS[0] };
    hosts.must_on(1, &format!("ip route add {own} via {via}"));
    let from = if own.contains(':') { HOSTS_V6[1] } else { HOSTS[1] };
    let ask = move || {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.connect((own, 2152)).unwrap();
        let wait = Some(Duration::from_secs(20));
        socket.set_read_timeout(wait).unwrap();
        let request = [0x32, 1, 0, 4, 0, 0, 0, 0, 0xab, 0xcd, 0, 0];
        socket.send(&request).unwrap();
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer).unwrap();
        answer[..length].to_vec()
    };
    let answer = hosts.within(1, ask).join().unwrap();
    assert_eq!(answer, [0x32, 2, 0, 6, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 14, 0]);
}

#[test]
fn users_reach_the_internet_through_tunnels_over_ipv4_and_ipv6() {
    if skipped(&["curl"]) {
        return;
    }
    for v6 in [false, true] {
        let [_, core] = through_tunnels((v6, true), |hosts, _| {
            pings(hosts);
            pages_and_names(hosts);
            too_big(hosts, v6);
            echo(hosts, ENDS[usize::from(v6)][1]);
        });
        assert_eq!(reason(&core, "too-big-told"), 2, "{core}");
        assert_eq!(reason(&core, "echo-answered"), 1, "{core}");
    }
}

/// Streams of TCP and UDP through tunnels, of which only the size is asserted.
#[test]
fn streams_of_users_go_both_ways() {
    if skipped(&["iperf3"]) {
        return;
    }
    through_tunnels((false, false), |hosts, _| {
        streams(hosts, USER[0], SERVER[0]);
    });
}

/// An independent dissector parses the traffic between both ends without errors.
#[test]
fn a_dissector_reads_what_is_in_tunnels() {
    if skipped(&["dumpcap"]) || !tshark_is_there() {
        return;
    }
    for v6 in [false, true] {
        let folder = Folder::new();
        let files = ["down.pcap", "up.pcap"].map(|name| folder.path(name));
        through_tunnels((v6, true), |hosts, far| {
            // An interface does not show the packets that its own end sends.
            let mut recordings = [(2, "link0", &files[0]), (far, "link1", &files[1])].map(|(host, link, file)| {
                let file = file.to_str().unwrap();
                hosts.start(host, &["dumpcap", "-q", "-P", "-i", link, "-w", file])
            });
            wait_for(|| {
                recordings.iter_mut().all(|recording| {
                    recording.assert_runs();
                    recording.said().contains("File: ")
                })
            });
            pings(hosts);
            // Time until the last packets are in the file.
            std::thread::sleep(Duration::from_millis(500));
        });
        let fields = [
            "gtp.message",
            "gtp.teid",
            "gtp.ext_hdr.pdu_ses_con.pdu_type",
            "gtp.ext_hdr.pdu_ses_con.qos_flow_id",
            "udp.checksum.status",
        ];
        // Two pings of three sizes by two versions from both sides, each with a response, are about 24 packets per
        // direction. UDP over IPv4 has no checksum, which is status 3, and over IPv6 a right one.
        let status = if v6 { "1" } else { "3" };
        let lines = [
            format!("0xff\t0x00002001\t0\t9\t{status}"),
            format!("0xff\t0x00001001\t1\t9\t{status}"),
        ];
        for (file, line) in files.iter().zip(lines) {
            let dissect = |more: &[&str]| {
                let mut tshark = Command::new("tshark");
                tshark.arg("-r").arg(file).args(more);
                text(&tshark.output().unwrap().stdout)
            };
            let mut read = vec!["-o", "udp.check_checksum:TRUE", "-Y", "gtp", "-T", "fields"];
            fields.iter().for_each(|field| read.extend(["-e", field]));
            let dissected = dissect(&read);
            // A late ping response causes a repetition, and the last packets may not be in the file yet.
            assert!(dissected.lines().count() >= 12, "{dissected}");
            assert!(dissected.lines().all(|read| read == line), "{dissected}");
            let wrong = dissect(&["-Y", "_ws.malformed or _ws.expert.severity >= error"]);
            assert_eq!(wrong, "", "v6: {v6}");
        }
    }
}
