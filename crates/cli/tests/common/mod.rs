//! Common parts of the binary's tests: directories, captures, specs, and runs.

#![allow(dead_code, reason = "not every test uses everything")]

pub mod chain_server;
pub mod namespaces;
pub mod serving;

use signal_hook::consts::SIGINT;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::checksum::{Checksum, verify_network, verify_transport};
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::{CaptureReader, Packet, PacketSource, PcapWriter, ReadOptions};

/// A test's own directory, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a rack with a chain on a capture and one on a preset.
    pub fn rack(&self) -> PathBuf {
        self.capture("in.pcap", &mixture(300));
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: Rack\nmetadata: {name: test}\nspec:\n  \
                    servers: [{count: 2, cores: 8}]\n  duration: 20ms\n  chains:\n    \
                    - {name: a, slo: 200us, costs: {packetNanoseconds: 500}, traffic: {source: in.pcap}}\n    \
                    - {name: b, slo: 200us, costs: {packetNanoseconds: 500}, traffic: {source: bursty}}\n";
        self.write("rack.yaml", text)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a capture of (nanoseconds, frame).
    pub fn capture(&self, name: &str, packets: &[(u64, Vec<u8>)]) -> PathBuf {
        let path = self.path(name);
        let mut writer = PcapWriter::create(&path).unwrap();
        for (time, data) in packets {
            let packet = Packet {
                timestamp: Nanos(*time),
                data,
                wire_length: data.len() as u32,
            };
            writer.write(&packet).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    /// Writes a chain spec. Its objective gives a worker half a second at the end to catch up, on a busy machine.
    /// `functions` is a flow-style YAML list; `rest` is appended to `spec`.
    pub fn spec(&self, name: &str, functions: &str, rest: &str) -> PathBuf {
        self.spec_with_slo("250ms", name, functions, rest)
    }

    /// Like [`spec`](Folder::spec), with this objective.
    pub fn spec_with_slo(&self, slo: &str, name: &str, functions: &str, rest: &str) -> PathBuf {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\n\
             spec:\n  functions: {functions}\n  slo: {{latency: {slo}}}\n{rest}"
        );
        self.write(name, text)
    }

    pub fn forward(&self) -> PathBuf {
        self.spec("forward.yaml", "[{forward: }]", "")
    }

    /// Writes a chain of an access list that refuses mail, and NAT.
    pub fn acl_nat(&self) -> PathBuf {
        let functions = "[{name: edge, acl: {default: allow, rules: \
                         [{action: deny, protocol: tcp, destinationPorts: 25}]}}, \
                         {nat: {external: [203.0.113.0/28]}}]";
        self.spec("acl-nat.yaml", functions, "  flows: {capacity: 8192}\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn tailwater() -> Command {
    static INTERRUPTS: Once = Once::new();
    // Children start with the default of a signal that is handled here, also where a shell had it ignored since the
    // test runs in the background: many tests end programs by SIGINT. The handler ends the test, as the default would.
    INTERRUPTS.call_once(|| {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, always).unwrap();
    });
    Command::new(env!("CARGO_BIN_EXE_tailwater"))
}

pub fn run(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    tailwater().args(args).output().unwrap()
}

/// Simulates a rack.
pub fn simulation(rack: &Path, more: &[&str]) -> Output {
    let mut command = tailwater();
    command.arg("simulate").arg(rack).args(more);
    command.output().unwrap()
}

/// Asserts that simulating a rack is refused.
pub fn refused_simulation(rack: &Path, more: &[&str], expected: &str) {
    assert_refused(&simulation(rack, more), expected);
}

/// Asserts a single line that starts with `error: ` and contains `expected`, and exit code 2.
pub fn assert_refused(output: &Output, expected: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(stderr.contains(expected), "{expected} is not there: {stderr}");
    assert!(output.stdout.is_empty());
}

/// Waits until a program handles SIGINT.
pub fn until_signals_are_handled(child: &Child) {
    let began = std::time::Instant::now();
    let is_handled = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (SIGINT - 1) & 1 == 1)
    };
    while !is_handled() {
        assert!(began.elapsed().as_secs() < 60, "it handles no signals");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Sends SIGINT, as Ctrl-C does. Returns the program's output at its end.
pub fn interrupt(child: Child) -> Output {
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Replaces the objective of an example's or a skeleton's chain by that of [`Folder::spec`], for busy machines.
pub fn lenient(chain: &Path) {
    let text = std::fs::read_to_string(chain).unwrap();
    let mut changed = 0;
    let lines = text.lines().map(|line| {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        match rest.starts_with("latency:") {
            true => {
                changed += 1;
                format!("{indent}latency: 250ms\n")
            }
            false => format!("{line}\n"),
        }
    });
    let lines: String = lines.collect();
    assert_eq!(changed, 1, "{text}");
    std::fs::write(chain, lines).unwrap();
}

/// Runs a chain successfully with JSON output. By default, the NIC's queue is large enough for packets that arrive
/// while a busy machine preempts the core.
pub fn report(chain: &Path, traffic: &Path, more: &[&str]) -> serde_json::Value {
    let deep = ["--ring", "65536"];
    let ring = match more.contains(&"--ring") {
        true => &deep[..0],
        false => &deep[..],
    };
    let output = tailwater()
        .args(["run", "--output", "json", "--traffic"])
        .args([traffic, chain])
        .args(ring)
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a count of `report.packets`.
pub fn count(report: &serde_json::Value, name: &str) -> u64 {
    report["packets"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("packets.{name} is no count in {report}"))
}

/// Asserts the balance of packets, and that drop reasons add up.
pub fn assert_identity(report: &serde_json::Value) {
    let [offered, delivered, dropped, lost] =
        ["offered", "delivered", "dropped_by_nf", "lost"].map(|name| count(report, name));
    assert_eq!(offered, delivered + dropped + lost, "{report}");
}

/// Returns the frames of a capture.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(path, &ReadOptions::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        frames.push(packet.data.to_vec());
    }
    frames
}

/// Returns the number of frames with a wrong network or transport checksum.
pub fn wrong_checksums<'a>(frames: impl IntoIterator<Item = &'a Vec<u8>>) -> usize {
    let wrong = |frame: &&Vec<u8>| {
        parse(frame).is_ok_and(|headers| {
            verify_network(frame, &headers) == Checksum::Wrong || verify_transport(frame, &headers) == Checksum::Wrong
        })
    };
    frames.into_iter().filter(wrong).count()
}

/// Returns `true` if tshark, an independent reader of captures, is installed.
pub fn tshark_is_there() -> bool {
    Command::new("tshark").arg("--version").output().is_ok()
}

/// Returns the number of frames of a capture that match a display filter of tshark's, with all checksums verified.
pub fn tshark_frames(capture: &Path, filter: &str) -> u64 {
    let output = Command::new("tshark")
        .args(["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"])
        .args(["-o", "udp.check_checksum:TRUE", "-T", "fields", "-e", "frame.number"])
        .args(["-Y", filter, "-r"])
        .arg(capture)
        .output()
        .unwrap();
    let name = capture.display();
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    text(&output.stdout).lines().count() as u64
}

pub fn key(frame: &[u8]) -> FlowKey {
    parse(frame).unwrap().key
}

pub fn client(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

pub fn tcp(source: Ipv4Addr, source_port: u16, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let key = FlowKey::v4(source, to, protocol::TCP, source_port, port);
    FrameBuilder::new(&key).payload(b"hello").to_vec().unwrap()
}

pub fn udp(source: Ipv4Addr, source_port: u16, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let key = FlowKey::v4(source, to, protocol::UDP, source_port, port);
    FrameBuilder::new(&key).payload(b"query").to_vec().unwrap()
}

/// Returns `packets` packets of ten TCP and UDP flows, 100 us apart; every tenth has port 25.
pub fn mixture(packets: usize) -> Vec<(u64, Vec<u8>)> {
    (0..packets)
        .map(|i| {
            let number = (i % 10) as u8;
            let frame = match number {
                0 => tcp(client(100), 4000, SERVER, 25),
                n if n % 2 == 0 => tcp(client(n), 4000 + u16::from(n), SERVER, 80),
                n => udp(client(n), 5000 + u16::from(n), SERVER, 53),
            };
            (i as u64 * 100_000, frame)
        })
        .collect()
}

/// Returns the directory of test data, or prints that the test is skipped.
pub fn test_data() -> Option<PathBuf> {
    let folder = std::env::var_os("TAILWATER_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: TAILWATER_TEST_DATA is not set");
    }
    folder
}

/// Returns the names of all fields in a document, with elements of lists as `name[]`. `maps` lists the maps whose keys
/// are data.
pub fn fields(document: &serde_json::Value, maps: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open = vec![(String::new(), document)];
    while let Some((path, value)) = open.pop() {
        let dot = if path.is_empty() { "" } else { "." };
        match value {
            serde_json::Value::Object(map) if !maps.contains(&&*path) => {
                open.extend(map.iter().map(|(name, value)| (format!("{path}{dot}{name}"), value)));
            }
            serde_json::Value::Array(list) => {
                open.extend(list.iter().map(|value| (format!("{path}[]"), value)));
            }
            _ => {
                names.insert(path);
            }
        }
    }
    names
}

/// Returns the names in the first column of the table under a heading.
pub fn documented(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, section) = page.split_once(heading).expect("the heading");
    let section = section.split("\n#").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the directory of libtailwater_nf, built with the same profile as this program.
pub fn libtailwater_nf() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_tailwater")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline", "--quiet", "--locked", "-p", "tailwater-sdk-c"]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", folder.parent().unwrap())
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    assert!(folder.join("libtailwater_nf.a").is_file());
    folder.to_owned()
}
