//! Two hosts with Tailwater between them, as network namespaces with veth pairs. Requires root.

use super::{Folder, assert_refused, tailwater, text};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The hosts' addresses.
pub const HOSTS: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
pub const HOSTS_V6: [&str; 2] = ["fd09::1", "fd09::2"];

/// Address of the service of [`Hosts::add_backends`].
pub const SERVICE: &str = "10.9.0.200";

/// Both hosts. Each has an interface `eth0`, whose peer is `port0` or `port1` in the middle namespace. Tests add
/// further namespaces.
pub struct Hosts {
    names: Vec<String>,
    /// Serialises tests: workers spin. Held between set-up and removal, which overlap with the run of another test.
    alone: Option<MutexGuard<'static, ()>>,
}

/// Returns `true` and prints the reason if a test cannot be run here.
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
    // Shared by concurrent tests, since the namespace has a single name.
    static NAMESPACES: LazyLock<bool> = LazyLock::new(|| {
        sweep();
        let name = format!("{}-probe", *PREFIX);
        let probe = sh(&format!("ip netns add {name} && ip netns del {name}"));
        probe.status.success()
    });
    let programs = ["ip", "ping", "ethtool"].iter().chain(programs);
    let missing: Vec<&str> = programs.filter(missing).copied().collect();
    if !root {
        println!("skipped: network namespaces need root");
    } else if !missing.is_empty() {
        println!("skipped: there is no {}", missing.join(", "));
    } else if !*NAMESPACES {
        println!("skipped: this machine has no network namespaces");
    } else {
        return false;
    }
    true
}

/// Prefix of namespace names: the program's process id, which may be reused, and its start time.
static PREFIX: LazyLock<String> = LazyLock::new(|| {
    let pid = std::process::id();
    let started = started(pid).expect("this program runs");
    format!("tailwater-{pid}-{started}")
});

/// Returns a program's start time, in ticks since boot; `None` if it does not run.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may contain blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Removes namespaces of killed test programs, and kills the processes in them.
fn sweep() {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let mut parts = name.split('-');
        let ours = parts.next() == Some("tailwater");
        let pid = parts.next().and_then(|pid| pid.parse().ok());
        let since = parts.next().and_then(|ticks| ticks.parse::<u64>().ok());
        if let (true, Some(pid), Some(since)) = (ours, pid, since)
            && started(pid) != Some(since)
        {
            sh(&format!("ip netns pids {name} | xargs -r kill -9; ip netns del {name}"));
        }
    }
}

/// Runs a command line.
fn sh(line: &str) -> Output {
    Command::new("sh").args(["-c", line]).output().unwrap()
}

impl Hosts {
    /// Creates the hosts. Without `ipv6` no host sends packets on its own, such as neighbour discovery.
    pub fn new(ipv6: bool) -> Hosts {
        static ALONE: Mutex<()> = Mutex::new(());
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b", "middle"].map(|name| format!("{}-{number}-{name}", *PREFIX));
        let names = names.to_vec();
        let mut hosts = Hosts { names, alone: None };
        for (name, quiet) in hosts.names.iter().zip([!ipv6, !ipv6, true]) {
            hosts.add_namespace(name, quiet);
        }
        for (host, address) in HOSTS_V6.iter().enumerate() {
            hosts.link(host);
            if ipv6 {
                let name = &hosts.names[host];
                hosts.must(&format!("ip -n {name} addr add {address}/64 dev eth0 nodad"));
            }
        }
        hosts.alone = Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        hosts
    }

    /// Links a host with the middle, which has no interface for it yet.
    pub fn link(&self, host: usize) {
        let (name, middle) = (&self.names[host], &self.names[2]);
        self.must(&format!(
            "ip link add eth0 netns {name} type veth peer name port{host} netns {middle}"
        ));
        self.must(&format!("ip netns exec {name} ethtool -K eth0 tx off"));
        self.must(&format!("ip netns exec {middle} ethtool -K port{host} tx off"));
        self.must(&format!("ip -n {name} addr add {}/24 dev eth0", HOSTS[host]));
        self.must(&format!("ip -n {name} link set dev eth0 up"));
        self.must(&format!("ip -n {middle} link set dev port{host} up"));
    }

    /// Adds a namespace; a quiet one has no IPv6, so that it sends no packets on its own.
    fn add_namespace(&self, name: &str, quiet: bool) {
        self.must(&format!("ip netns add {name}"));
        let disabled = u8::from(quiet);
        self.must(&format!(
            "ip netns exec {name} sysctl -q -w net.ipv6.conf.all.disable_ipv6={disabled} \
             net.ipv6.conf.default.disable_ipv6={disabled}"
        ));
    }

    fn must(&self, line: &str) {
        let output = sh(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }

    /// Runs a command line on a host, 0 or 1, or in the middle, 2.
    pub fn on(&self, host: usize, line: &str) -> Output {
        sh(&format!("ip netns exec {} {line}", self.names[host]))
    }

    /// Asserts that this number of pings is answered. With a count alone, `ping` would wait for the last response no
    /// longer than an interval, which is too short on a busy machine.
    pub fn assert_pings(&self, host: usize, to: &str, answers: u32) {
        let ping = self.on(host, &format!("ping -q -c {answers} -i 0.02 -w 30 {to}"));
        assert!(ping.status.success(), "{}", text(&ping.stdout));
    }

    /// Returns the packets sent and received by a host's `eth0`, by its own counters.
    pub fn counted(&self, host: usize) -> [u64; 2] {
        self.counted_at(host, "eth0")
    }

    /// Returns the packets sent and received by a host's interface.
    pub fn counted_at(&self, host: usize, interface: &str) -> [u64; 2] {
        ["tx", "rx"].map(|way| {
            let file = format!("/sys/class/net/{interface}/statistics/{way}_packets");
            // The namespace's own view of /sys.
            let output = self.on(host, &format!("cat {file}"));
            text(&output.stdout).trim().parse().unwrap()
        })
    }

    /// Adds hosts on the Ethernet of host 1, each with an `eth0`, which accept packets to [`SERVICE`] and have numbers
    /// from 3 on. Returns their MAC addresses, or `None` if the kernel lacks the driver.
    pub fn add_backends(&mut self, number: usize) -> Option<Vec<String>> {
        let middle = self.names[2].clone();
        let mut macs = Vec::new();
        for backend in 0..number {
            let name = format!("{middle}-{backend}");
            self.names.push(name.clone());
            self.add_namespace(&name, true);
            let link = format!(
                "ip -n {} link add link eth0 name backend{backend} type macvlan mode bridge",
                self.names[1]
            );
            if !sh(&link).status.success() {
                return None;
            }
            self.must(&format!(
                "ip -n {} link set backend{backend} netns {name} name eth0",
                self.names[1]
            ));
            // All of them have the service's address.
            self.must(&format!("ip -n {name} addr add {SERVICE}/24 dev eth0"));
            self.must(&format!("ip -n {name} link set dev eth0 up"));
            macs.push(self.mac(self.names.len() - 1));
        }
        Some(macs)
    }

    /// Adds a host that stands for a third-party function, with interfaces `in0` and `out0`, whose peers are `fn-in`
    /// and `fn-out` in the middle. Returns its number.
    pub fn add_function(&mut self) -> usize {
        self.add_function_for("")
    }

    /// Like [`add_function`](Self::add_function), for the worker with this number, which is appended to the names in
    /// the middle.
    pub fn add_function_for(&mut self, worker: &str) -> usize {
        let name = format!("{}-function{worker}", self.names[2]);
        self.names.push(name.clone());
        self.add_namespace(&name, true);
        let function = self.names.len() - 1;
        self.link_function(function, "in0", &format!("fn-in{worker}"));
        self.link_function(function, "out0", &format!("fn-out{worker}"));
        function
    }

    /// Connects a function's interface with one in the middle.
    pub fn link_function(&self, function: usize, inside: &str, outside: &str) {
        let (name, middle) = (&self.names[function], &self.names[2]);
        self.must(&format!(
            "ip link add {inside} netns {name} type veth peer name {outside} netns {middle}"
        ));
        for (namespace, interface) in [(name, inside), (middle, outside)] {
            self.must(&format!("ip netns exec {namespace} ethtool -K {interface} tx off"));
            self.must(&format!("ip -n {namespace} link set dev {interface} up"));
        }
    }

    /// Splits the middle: `port1` moves to a new namespace, whose number is returned. A link connects both, with
    /// `link0` in the middle and `link1` in the new namespace.
    pub fn cut_middle(&mut self) -> usize {
        let middle = self.names[2].clone();
        let name = format!("{middle}-far");
        self.names.push(name.clone());
        self.add_namespace(&name, true);
        self.must(&format!(
            "ip link add link1 netns {name} type veth peer name link0 netns {middle}"
        ));
        self.must(&format!("ip -n {middle} link set port1 netns {name}"));
        for (namespace, interface) in [(&middle, "link0"), (&name, "link1"), (&name, "port1")] {
            self.must(&format!("ip netns exec {namespace} ethtool -K {interface} tx off"));
            self.must(&format!("ip -n {namespace} link set dev {interface} up"));
        }
        self.names.len() - 1
    }

    /// Runs a command line on a host, and asserts success.
    pub fn must_on(&self, host: usize, line: &str) {
        let output = self.on(host, line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }

    /// Returns the MAC address of a host's `eth0`.
    pub fn mac(&self, host: usize) -> String {
        let file = self.on(host, "cat /sys/class/net/eth0/address");
        text(&file.stdout).trim().to_owned()
    }

    /// Sets a host's neighbour entry for an address.
    pub fn neighbour(&self, host: usize, address: &str, mac: &str) {
        let name = &self.names[host];
        self.must(&format!(
            "ip -n {name} neigh replace {address} lladdr {mac} dev eth0 nud permanent"
        ));
    }

    /// Starts a chain between the hosts, over ports of a driver, and waits until it receives.
    pub fn run(&self, driver: &str, chain: &Path, more: &[&str]) -> Program {
        let ports = [0, 1].map(|port| format!("{driver}{port},iface=port{port}"));
        let mut between = self.run_on(2, chain, &[&ports[0], &ports[1]], more);
        wait_for(|| {
            between.assert_runs();
            (0..2).all(|port| self.receives(2, &format!("port{port}")))
        });
        thread::sleep(Duration::from_millis(200));
        between
    }

    /// Starts a chain between host 0 and the link, and another one between the link and host 1, once the middle is
    /// [split](Self::cut_middle), and waits until both receive.
    pub fn run_pair(&self, driver: &str, far: usize, chains: [&Path; 2]) -> [Program; 2] {
        let ends = [(2, chains[0], ["port0", "link0"]), (far, chains[1], ["link1", "port1"])];
        let mut programs = ends.map(|(host, chain, ports)| {
            let ports = [0, 1].map(|port| format!("{driver}{port},iface={}", ports[port]));
            self.run_on(host, chain, &[&ports[0], &ports[1]], &[])
        });
        let ports = ends.iter().flat_map(|(host, _, ports)| ports.map(|port| (*host, port)));
        let ports: Vec<(usize, &str)> = ports.collect();
        wait_for(|| {
            programs.iter_mut().for_each(Program::assert_runs);
            ports.iter().all(|(host, port)| self.receives(*host, port))
        });
        thread::sleep(Duration::from_millis(200));
        programs
    }

    /// Returns `true` if a chain receives from a port, which is the case once the port is promiscuous.
    fn receives(&self, host: usize, port: &str) -> bool {
        let shown = self.on(host, &format!("ip -d link show dev {port}"));
        text(&shown.stdout).contains("promiscuity 1")
    }

    /// Starts a chain on a host, or in the middle, between two ports.
    pub fn run_on(&self, host: usize, chain: &Path, ports: &[&str; 2], more: &[&str]) -> Program {
        let program = tailwater();
        let mut line = vec![program.get_program().to_str().unwrap(), "run"];
        line.extend(["--output", "json", "--both-ways"]);
        // Cores of chains that wait are free for the hosts, and for other tests. External functions are polled.
        if !std::fs::read_to_string(chain).unwrap().contains("external:") {
            line.extend(["--nap", "200us"]);
        }
        // Bounds the run in case the test is killed.
        line.extend(["--duration", "3m", chain.to_str().unwrap()]);
        line.extend(ports.iter().flat_map(|port| ["--port", port]));
        line.extend(more);
        self.start(host, &line)
    }

    /// Starts a chain on a capture, in the middle.
    pub fn replay(&self, chain: &Path, capture: &Path, more: &[&str]) -> Program {
        let program = tailwater();
        let paths = [chain, capture].map(|path| path.to_str().unwrap());
        let line = [
            program.get_program().to_str().unwrap(),
            "run",
            "--output",
            "json",
            paths[0],
            "--traffic",
            paths[1],
            // Large enough for all packets that arrive while a busy machine is occupied.
            "--ring",
            "32768",
        ];
        self.start(2, &[&line[..], more].concat())
    }

    /// Starts a program on a host, or in the middle.
    pub fn start(&self, host: usize, line: &[&str]) -> Program {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).args(line);
        Program::start(&mut command)
    }

    /// Waits until a server listens on a port of a host.
    pub fn wait_for_listener(&self, host: usize, port: u16) {
        let port = format!(":{port} ");
        wait_for(|| text(&self.on(host, "ss -ltn").stdout).contains(&port));
    }

    /// Runs a task in a thread in a host's namespace.
    pub fn within<T: Send + 'static>(&self, host: usize, task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.names[host])).unwrap();
        thread::spawn(move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
            task()
        })
    }

    /// Serves `body` over HTTP on a host until the test program ends.
    pub fn serve(&self, host: usize, address: &str, port: u16, body: Vec<u8>) {
        let address = (address.parse::<IpAddr>().unwrap(), port);
        let (ready, is_ready) = std::sync::mpsc::channel();
        self.within(host, move || {
            let listener = TcpListener::bind(address).unwrap();
            ready.send(()).unwrap();
            for stream in listener.incoming() {
                let body = body.clone();
                // A client whose request was blocked disconnects.
                thread::spawn(move || drop(answer(stream.unwrap(), &body)));
            }
        });
        is_ready.recv().unwrap();
    }
}

/// Answers requests until the client disconnects, or a single one of HTTP/1.0.
fn answer(mut stream: TcpStream, body: &[u8]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            head.push_str(&line);
        }
        let old = head.contains(" HTTP/1.0\r\n");
        let version = if old { "1.0" } else { "1.1" };
        let length = body.len();
        let head = format!("HTTP/{version} 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat())?;
        if old {
            return Ok(());
        }
    }
}

/// Waits for a condition with a timeout that suits a busy machine.
pub fn wait_for(mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < deadline, "it never came");
        thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.alone = None;
        for name in &self.names {
            sh(&format!("ip netns del {name}"));
        }
    }
}

/// A running program, on a host or not, ended with the test.
pub struct Program {
    child: Child,
    folder: Folder,
}

impl Program {
    pub fn start(command: &mut Command) -> Program {
        let folder = Folder::new();
        let file = |name| File::create(folder.path(name)).unwrap();
        let child = command.stdout(file("printed")).stderr(file("said")).spawn().unwrap();
        Program { child, folder }
    }

    /// Returns its standard output so far.
    pub fn printed(&self) -> String {
        text(&fs::read(self.folder.path("printed")).unwrap())
    }

    /// Returns its standard error so far.
    pub fn said(&self) -> String {
        text(&fs::read(self.folder.path("said")).unwrap())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn assert_runs(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", self.said());
    }

    /// Asserts that it ends at once with this error.
    pub fn assert_refused(mut self, expected: &str) {
        let status = self.ended();
        let [stdout, stderr] = [self.printed(), self.said()].map(String::into_bytes);
        let output = Output { status, stdout, stderr };
        assert_refused(&output, expected);
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&mut self) -> ExitStatus {
        let kill = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        self.ended()
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for(|| {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends a run by SIGINT, and returns its report.
    pub fn stop(&mut self) -> serde_json::Value {
        self.interrupt();
        self.finish().0
    }

    /// Waits for a run's end, and returns its report and standard error.
    pub fn finish(&mut self) -> (serde_json::Value, String) {
        let (status, said) = (self.ended(), self.said());
        assert_eq!(status.code(), Some(0), "{said}");
        (serde_json::from_str(&self.printed()).unwrap(), said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
