//! Packets through a switch between network namespaces, Open vSwitch or the software data plane: they reach the server
//! that their row names. Requires root.

use super::live::{UPLINK, chain, config, mac, server};
use super::ovs::{Ovs, is_missing, skipped};
use super::switches::{Kind, RackSwitch};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tailwater_cluster::ingress::{Input, Output, Readiness};
use tailwater_net::Nanos;

pub const PORT: u16 = 9000;
/// Ports of the switch: the uplink, and the servers'.
pub const PORTS: [&str; 4] = ["u0", "s1", "s2", "s3"];
/// Address of the client.
const CLIENT: &str = "02:ff:00:00:00:01";
/// Time between two packets.
const PAUSE: Duration = Duration::from_micros(500);

/// Client, switch and three servers, each a namespace.
pub struct Rack {
    names: Vec<String>,
}

fn sh(line: &str) {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

impl Rack {
    /// Returns namespaces and the switch between them, or `None` and says why where that is impossible.
    pub fn with_switch(kind: Kind) -> Option<(Rack, RackSwitch)> {
        const PROGRAMS: [&str; 3] = ["ip", "ethtool", "sysctl"];
        let is_skipped = match kind {
            Kind::OpenVSwitch => skipped(&PROGRAMS),
            Kind::Software => is_missing(&PROGRAMS),
        };
        if is_skipped {
            return None;
        }
        if !is_root() {
            println!("skipped: network namespaces need root");
            return None;
        }
        let Some(rack) = Rack::new() else {
            println!("skipped: this machine has no network namespaces");
            return None;
        };
        let switch = match kind {
            Kind::OpenVSwitch => RackSwitch::OpenVSwitch(Ovs::new("netdev", &PORTS, Some(&rack.names[0]))),
            Kind::Software => RackSwitch::software(),
        };
        Some((rack, switch))
    }

    /// Creates the namespaces, or returns `None` where there are none.
    fn new() -> Option<Rack> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("tw-ingress-{}-{number}", std::process::id());
        let names: Vec<String> = ["switch", "client", "s1", "s2", "s3"]
            .iter()
            .map(|name| format!("{prefix}-{name}"))
            .collect();
        let probe = Command::new("ip").args(["netns", "add", &names[0]]).output().ok()?;
        if !probe.status.success() {
            return None;
        }
        let rack = Rack { names };
        for name in &rack.names {
            if *name != rack.names[0] {
                sh(&format!("ip netns add {name}"));
            }
            // No packets of the namespace's own.
            sh(&format!(
                "ip netns exec {name} sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv4.conf.all.rp_filter=0 \
                 net.ipv4.conf.default.rp_filter=0; ip -n {name} link set lo up"
            ));
        }
        let switch = &rack.names[0];
        for (number, name) in rack.names[1..].iter().enumerate() {
            let port = if number == 0 {
                "u0".to_owned()
            } else {
                format!("s{number}")
            };
            sh(&format!(
                "ip link add eth0 netns {name} type veth peer name {port} netns {switch}"
            ));
            sh(&format!("ip -n {switch} link set {port} up"));
            sh(&format!("ip netns exec {name} ethtool -K eth0 tx off"));
            sh(&format!("ip netns exec {switch} ethtool -K {port} tx off"));
            sh(&format!("ip -n {name} addr add 192.0.2.{}/24 dev eth0", number + 1));
            if number == 0 {
                sh(&format!("ip -n {name} link set eth0 address {CLIENT}"));
            } else {
                let mac = mac(number as u16).map(|byte| format!("{byte:02x}")).join(":");
                sh(&format!("ip -n {name} link set eth0 address {mac}"));
                // Every address of the chain is the server's own.
                sh(&format!("ip -n {name} route add local 10.0.0.0/8 dev lo"));
            }
            sh(&format!("ip -n {name} link set eth0 up"));
            // Nobody answers ARP: the switch forwards what rows say, and nothing else.
            sh(&format!(
                "ip -n {name} neigh add 192.0.2.254 lladdr 02:ff:00:00:00:00 dev eth0"
            ));
            if number == 0 {
                sh(&format!("ip -n {name} route add 10.0.0.0/8 via 192.0.2.254"));
            } else {
                sh(&format!("ip -n {name} neigh add 192.0.2.1 lladdr {CLIENT} dev eth0"));
            }
        }
        Some(rack)
    }

    /// Runs a task in a thread in a namespace.
    pub fn within<T: Send + 'static>(&self, number: usize, task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.names[number])).unwrap();
        thread::spawn(move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
            task()
        })
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Packets that arrived: for each prefix and packet number, the servers that got it.
pub type Arrived = Arc<Mutex<BTreeMap<(u8, u32), Vec<u16>>>>;

/// Receives on a server until the flag is set. Each packet is answered.
pub fn receive(server: u16, arrived: &Arrived, done: &AtomicBool) {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut packet = [0; 64];
    while !done.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut packet) else {
            continue;
        };
        assert_eq!(length, 5);
        let number = u32::from_be_bytes([packet[1], packet[2], packet[3], packet[4]]);
        let mut arrived = arrived.lock().unwrap();
        arrived.entry((packet[0], number)).or_default().push(server);
        drop(arrived);
        let _ = socket.send_to(&packet[..length], from);
    }
}

#[tokio::test]
async fn packets_reach_the_servers_of_their_rows_before_during_and_after_moves() {
    packets_reach_their_servers(Kind::OpenVSwitch).await;
}

#[tokio::test]
async fn packets_reach_the_servers_of_their_rows_by_software() {
    packets_reach_their_servers(Kind::Software).await;
}

async fn packets_reach_their_servers(kind: Kind) {
    let Some((rack, switch)) = Rack::with_switch(kind) else {
        return;
    };
    let mut known: Vec<Input> = (1..=3).map(|number| server(number, Readiness::Ready)).collect();
    known.push(Input::Chain(chain("edge", &[1, 2, 3])));
    let settings = tailwater_cluster::ingress::SteeringConfig {
        // Moves of a drained server take turns.
        transfer: Nanos::from_millis(20),
        audit: None,
        ..config()
    };
    assert_eq!(UPLINK, 1);
    let mut ingress = switch.ingress(&rack, settings, known);
    ingress.written().await;

    let (arrived, done) = (Arrived::default(), Arc::new(AtomicBool::new(false)));
    let servers: Vec<JoinHandle<()>> = (1..=3)
        .map(|number| {
            let (arrived, done) = (arrived.clone(), done.clone());
            rack.within(number as usize + 1, move || receive(number, &arrived, &done))
        })
        .collect();
    let (sent, stop) = (Arc::new(Mutex::new(0_u32)), Arc::new(AtomicBool::new(false)));
    let client = {
        let (sent, stop) = (sent.clone(), stop.clone());
        rack.within(1, move || {
            let socket = UdpSocket::bind(("192.0.2.1", PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            // The servers listen.
            thread::sleep(Duration::from_millis(100));
            let (mut answers, mut number, mut answer) = (0_u32, 0_u32, [0; 64]);
            while !stop.load(Ordering::Relaxed) {
                for prefix in 1..=4_u8 {
                    let mut packet = vec![prefix];
                    packet.extend(number.to_be_bytes());
                    let destination = (std::net::Ipv4Addr::new(10, prefix, 0, 1), PORT);
                    let _ = socket.send_to(&packet, destination);
                    thread::sleep(PAUSE);
                }
                number += 1;
                *sent.lock().unwrap() = number;
                while socket.recv_from(&mut answer).is_ok() {
                    answers += 1;
                }
            }
            thread::sleep(Duration::from_millis(200));
            while socket.recv_from(&mut answer).is_ok() {
                answers += 1;
            }
            answers
        })
    };
    let rounds = || *sent.lock().unwrap();
    let wait_rounds = async |more: u32| {
        let (until, mut tries) = (rounds() + more, 0);
        while rounds() < until {
            tries += 1;
            assert!(tries < 3000, "the client sends nothing");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    wait_rounds(50).await;
    // Two rows leave server 1, one after another, while packets come.
    let before = rounds();
    ingress.send(server(1, Readiness::Draining)).await;
    let outputs = ingress.until(|output| matches!(output, Output::ServerDrained(1))).await;
    let drained = rounds();
    println!("drained within {} rounds of four packets", drained - before);
    let written = outputs.iter().filter(|output| matches!(output, Output::MoveWritten(_)));
    assert_eq!(written.count(), 2, "{outputs:?}");
    wait_rounds(50).await;
    // Server 2 dies: its link goes down.
    let dies = rounds();
    sh(&format!("ip -n {} link set eth0 down", rack.names[3]));
    let outputs = ingress.until(|output| matches!(output, Output::MoveEnded { .. })).await;
    let recovered = rounds();
    wait_rounds(50).await;
    stop.store(true, Ordering::Relaxed);
    let answers = client.join().unwrap();
    done.store(true, Ordering::Relaxed);
    servers.into_iter().for_each(|server| server.join().unwrap());
    ingress.stop().await;

    let (arrived, rounds) = (arrived.lock().unwrap(), rounds());
    let at = |prefix: u8, number: u32| arrived.get(&(prefix, number)).map(Vec::as_slice).unwrap_or_default();
    let rows_lost = outputs
        .iter()
        .filter(|output| matches!(output, Output::MoveWritten(_)))
        .count();
    let mut rows_of_dead = 0;
    let mut lost = 0;
    // The fourth prefix goes to the server with fewest cores, of equal ones the first.
    for (prefix, first) in [(1, 1), (2, 2), (3, 3), (4, 1)] {
        let mut way: Vec<u16> = Vec::new();
        let mut missing = Vec::new();
        for number in 0..rounds {
            match at(prefix, number) {
                [] => missing.push(number),
                [server] if way.last() != Some(server) => way.push(*server),
                [_] => {}
                several => panic!("prefix {prefix}, packet {number} arrived {} times", several.len()),
            }
        }
        let is_of_dead = way.contains(&2);
        rows_of_dead += usize::from(is_of_dead);
        // Each row goes from server to server, and never back.
        let expected = match (first, is_of_dead) {
            (1, true) => vec![1, 2, 3],
            (2, _) => vec![2, 3],
            (1, false) => vec![1, 3],
            _ => vec![3],
        };
        assert_eq!(way, expected, "prefix {prefix}");
        // Only the dead server's packets are lost, up to the first that the new rule sends elsewhere.
        let is_gap = missing.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        assert!(
            is_gap && missing.iter().all(|number| *number + 1 >= dies),
            "prefix {prefix}: {missing:?}"
        );
        assert!(is_of_dead || missing.is_empty(), "prefix {prefix}: {missing:?}");
        println!("prefix {prefix}: by servers {way:?}, lost {missing:?}");
        lost += missing.len() as u32;
    }
    assert_eq!(rows_lost, rows_of_dead);
    println!(
        "{} packets sent, {lost} lost with the server that died in round {dies} (rules changed by {recovered}), \
         {answers} answered",
        4 * rounds
    );
    assert!(
        answers + 2 * lost + 4 >= 4 * rounds,
        "answers come back by the servers' rules: {answers}"
    );
}
