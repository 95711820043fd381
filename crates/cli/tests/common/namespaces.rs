//! Two hosts with Tailwater between them: network namespaces and veth pairs. Needs root.

use super::{tailwater, text};
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The hosts' addresses.
pub const HOSTS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
pub const HOSTS_V6: [&str; 2] = ["fd09::1", "fd09::2"];

/// Both hosts, each with an interface `eth0`, whose other end is `port0` or `port1` in the middle.
pub struct Hosts {
    names: [String; 3],
    _alone: MutexGuard<'static, ()>,
}

/// Says why a test is skipped, if it cannot be run here.
pub fn skipped(programs: &[&str]) -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|process| {
        use std::os::unix::fs::MetadataExt;
        process.uid() == 0
    });
    let missing = |program: &&&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        !found.is_ok_and(|output| output.status.success())
    };
    let programs = ["ip", "ping", "ethtool"].iter().chain(programs);
    let missing: Vec<&str> = programs.filter(missing).copied().collect();
    if !root {
        println!("skipped: network namespaces need root");
    } else if !missing.is_empty() {
        println!("skipped: there is no {}", missing.join(", "));
    } else if !sh("ip netns add tailwater-probe && ip netns del tailwater-probe")
        .status
        .success()
    {
        println!("skipped: this machine has no network namespaces");
    } else {
        return false;
    }
    true
}

/// Runs a command line.
fn sh(line: &str) -> Output {
    Command::new("sh").args(["-c", line]).output().unwrap()
}

impl Hosts {
    /// Sets them up. Without `ipv6` nobody says anything that he was not told to.
    pub fn new(ipv6: bool) -> Hosts {
        static ALONE: Mutex<()> = Mutex::new(());
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let names = ["a", "b", "middle"].map(|name| format!("tailwater-{pid}-{number}-{name}"));
        let hosts = Hosts {
            names,
            _alone: alone,
        };
        for (name, quiet) in hosts.names.iter().zip([!ipv6, !ipv6, true]) {
            hosts.must(&format!("ip netns add {name}"));
            let disabled = u8::from(quiet);
            hosts.must(&format!(
                "ip netns exec {name} sysctl -q -w net.ipv6.conf.all.disable_ipv6={disabled} \
                 net.ipv6.conf.default.disable_ipv6={disabled}"
            ));
        }
        let middle = &hosts.names[2];
        for (host, name) in hosts.names[..2].iter().enumerate() {
            hosts.must(&format!(
                "ip link add eth0 netns {name} type veth peer name port{host} netns {middle}"
            ));
            hosts.must(&format!("ip netns exec {name} ethtool -K eth0 tx off"));
            hosts.must(&format!(
                "ip netns exec {middle} ethtool -K port{host} tx off"
            ));
            hosts.must(&format!(
                "ip -n {name} addr add {}/24 dev eth0",
                HOSTS[host]
            ));
            if ipv6 {
                let address = HOSTS_V6[host];
                hosts.must(&format!(
                    "ip -n {name} addr add {address}/64 dev eth0 nodad"
                ));
            }
            hosts.must(&format!("ip -n {name} link set dev eth0 up"));
            hosts.must(&format!("ip -n {middle} link set dev port{host} up"));
        }
        hosts
    }

    fn must(&self, line: &str) {
        let output = sh(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }

    /// Runs a command line on a host, 0 or 1, or in the middle, 2.
    pub fn on(&self, host: usize, line: &str) -> Output {
        sh(&format!("ip netns exec {} {line}", self.names[host]))
    }

    /// Packets that a host sent and received so far, by its interface's own count.
    pub fn counted(&self, host: usize) -> [u64; 2] {
        ["tx", "rx"].map(|way| {
            let file = format!("/sys/class/net/eth0/statistics/{way}_packets");
            // Another look at /sys, as the namespace has it.
            let output = self.on(host, &format!("cat {file}"));
            text(&output.stdout).trim().parse().unwrap()
        })
    }

    /// Starts a chain between the hosts, over ports of a driver, and waits until it receives.
    pub fn run(&self, driver: &str, chain: &Path, more: &[&str]) -> Between {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[2]])
            .arg(tailwater().get_program())
            .args(["run", "--output", "json", "--both-ways"])
            .arg(chain)
            .args(more);
        for port in 0..2 {
            command.args(["--port", &format!("{driver}{port},iface=port{port}")]);
        }
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut between = Between {
            child: child.unwrap(),
        };
        // Only what is promiscuous is there to be received by it.
        self.wait_for(|| {
            assert!(
                between.child.try_wait().unwrap().is_none(),
                "{}",
                between.error()
            );
            (0..2).all(|port| {
                let shown = self.on(2, &format!("ip -d link show dev port{port}"));
                text(&shown.stdout).contains("promiscuity 1")
            })
        });
        thread::sleep(Duration::from_millis(200));
        between
    }

    /// Waits for something that comes soon.
    pub fn wait_for(&self, mut there: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !there() {
            assert!(Instant::now() < deadline, "it never came");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Serves `body` over HTTP on a host, to so many requests.
    pub fn serve(&self, host: usize, address: &str, port: u16, body: Vec<u8>, requests: usize) {
        let namespace = fs::File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        let address = (address.parse::<IpAddr>().unwrap(), port);
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::spawn(move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
            let listener = TcpListener::bind(address).unwrap();
            ready.send(()).unwrap();
            for stream in listener.incoming().take(requests) {
                let mut stream = stream.unwrap();
                let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                // A client whose request was blocked goes away.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&body);
            }
        });
        is_ready.recv().unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            sh(&format!("ip netns del {name}"));
        }
    }
}

/// A run between the hosts.
pub struct Between {
    child: Child,
}

impl Between {
    /// Ends it by Ctrl-C; its report.
    pub fn stop(&mut self) -> serde_json::Value {
        let kill = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        self.finish().0
    }

    /// Waits for its end; its report, and what it said.
    pub fn finish(&mut self) -> (serde_json::Value, String) {
        let mut printed = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        let said = self.error();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        (serde_json::from_str(&printed).unwrap(), said)
    }

    fn error(&mut self) -> String {
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        said
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
