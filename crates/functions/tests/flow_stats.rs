//! `FlowStats` and its collectors: sockets of the test itself, and third-party collectors, which are skipped where they
//! are not installed.

#[path = "handover/ipfix.rs"]
mod ipfix;

use ipfix::{Message, Reader, assert_in_sequence, number, whole};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::accounting::{ExportError, Exported};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

const SECOND: Nanos = Nanos::from_secs(1);
/// Time limit against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chain with only this function.
struct Rig {
    builder: ChainBuilder,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    rss: RssHasher,
}

impl Rig {
    fn new(config: &str) -> Rig {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{{name: it, flowStats: {{{config}}}}}]\n"
        );
        let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
        let pool = BufferPool::new(64, 2048).unwrap();
        let mut builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap();
        Rig {
            chain: builder.instance(|_| true),
            builder,
            batch: Batch::new(&pool, 64),
            pool,
            rss: spec.rss(),
        }
    }

    fn run(&mut self, frame: &[u8], now: Nanos) {
        let hash = parse(frame).map_or(0, |headers| self.rss.hash_headers(&headers));
        assert!(self.batch.push(&mut self.pool, frame, now, hash));
        self.chain.process(&mut self.batch, now);
        assert_eq!(self.batch.len(), 1);
        self.batch.release(&mut self.pool);
    }

    fn count(&self, note: &str) -> u64 {
        let name = format!("it/{note}");
        let mut counts = self.chain.reasons().into_iter().zip(self.chain.reason_counts());
        counts.find(|(reason, _)| reason.name == name).unwrap().1
    }

    fn finish(self) -> Result<Vec<Exported>, ExportError> {
        self.finish_counting("records").1
    }

    /// Ends the run; also returns the final value of a counter.
    fn finish_counting(self, note: &str) -> (u64, Result<Vec<Exported>, ExportError>) {
        let name = format!("it/{note}");
        let reasons = self.chain.reasons();
        let at = reasons.iter().position(|reason| reason.name == name);
        let before = self.count(note);
        let counted = self.chain.drain();
        (before + counted[at.unwrap()], self.builder.finish_exports(&[]))
    }
}

/// Folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-flow-stats-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(flow: u16) -> FlowKey {
    let port = 1000 + flow;
    match flow % 4 {
        0 => FlowKey::v6(1u128.into(), 2u128.into(), protocol::TCP, port, 80),
        1 => FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 1].into(), protocol::UDP, port, 53),
        2 => FlowKey::v4([10, 0, 0, 2].into(), [192, 0, 2, 1].into(), protocol::TCP, port, 443),
        // Without ports, all flows are in one RSS bucket, which has room for 300.
        _ if flow < 300 => FlowKey::v4([10, 0, 0, 3].into(), [192, 0, 2, 1].into(), protocol::ICMP, flow, flow),
        _ => FlowKey::v4([10, 0, 0, 3].into(), [192, 0, 2, 1].into(), protocol::UDP, port, 53),
    }
}

fn frame(flow: u16, bytes: usize) -> Vec<u8> {
    let builder = FrameBuilder::new(&key(flow));
    let fields = TcpFields {
        flags: TcpFlags::SYN | TcpFlags::ACK,
        ..TcpFields::default()
    };
    let builder = match key(flow).protocol() {
        protocol::TCP => builder.tcp(fields),
        _ => builder,
    };
    builder.payload(&vec![0; bytes]).to_vec().unwrap()
}

/// Packets and IP bytes by source, destination, protocol, and ports (for ICMP: 0, and type and code). All echoes
/// between two hosts count as one flow here.
type Flows = BTreeMap<(String, String, u8, u16, u16), (u64, u64)>;

/// Sends flows of one to seven packets, and returns the expected records.
fn traffic(rig: &mut Rig, flows: u16) -> Flows {
    let mut expected = Flows::new();
    for round in 0..7 {
        for flow in 0..flows {
            if round > flow % 7 {
                continue;
            }
            let frame = frame(flow, usize::from(flow % 400));
            let headers = parse(&frame).unwrap();
            let key = key(flow);
            let ports = match key.protocol() {
                protocol::ICMP => (0, u16::from_be_bytes([frame[34], frame[35]])),
                _ => (key.source_port(), key.destination_port()),
            };
            let ends = (key.source().to_string(), key.destination().to_string());
            let told = expected.entry((ends.0, ends.1, key.protocol(), ports.0, ports.1));
            let told = told.or_default();
            told.0 += 1;
            told.1 += headers.datagram(&frame).len() as u64;
            rig.run(&frame, SECOND + Nanos::from_millis(round.into()));
        }
    }
    expected
}

/// Sums of the flows in the messages.
fn flows<'m>(messages: impl IntoIterator<Item = &'m Message>) -> Flows {
    let mut flows = Flows::new();
    for record in messages.into_iter().flat_map(|message| &message.flows) {
        let address = |v4: u16, v6: u16| match record.get(&v4) {
            Some(bytes) => std::net::Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..]).unwrap()).to_string(),
            None => std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&record[&v6][..]).unwrap()).to_string(),
        };
        let ports = match record.contains_key(&32) {
            true => (0, number(record, 32) as u16),
            false => (number(record, 7) as u16, number(record, 11) as u16),
        };
        let key = (
            address(8, 27),
            address(12, 28),
            number(record, 4) as u8,
            ports.0,
            ports.1,
        );
        let sums = flows.entry(key).or_default();
        *sums = (sums.0 + number(record, 2), sums.1 + number(record, 1));
    }
    flows
}

/// Receives datagrams until they hold `records` flow records.
fn receive(socket: &UdpSocket, reader: &mut Reader, records: usize, most: usize) -> Vec<Message> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut messages, mut seen) = (Vec::new(), 0);
    let mut bytes = [0; 65_536];
    while seen < records {
        let length = socket.recv(&mut bytes).expect("a datagram");
        assert!(length <= most, "{length} bytes");
        let mut datagram = &bytes[..length];
        messages.push(reader.read(&mut datagram));
        assert!(datagram.is_empty(), "one message in a datagram");
        seen += messages.last().unwrap().flows.len();
    }
    messages
}

#[test]
fn datagrams_are_messages_with_templates_now_and_then() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut rig = Rig::new(&format!(
        "idleTimeout: 1s, observationDomain: 9, \
         export: [{{collector: \"{address}\", messageBytes: 600, templateRefresh: 1s, rate: 10Mbps}}]"
    ));
    let expected = traffic(&mut rig, 100);
    // All flows have ended, and are exported before the end of the run.
    let mut now = SECOND;
    for _ in 0..6 {
        now += SECOND;
        (0..512).for_each(|_| rig.chain.expire(now));
    }
    assert_eq!(rig.count("records"), 100);
    let mut reader = Reader::default();
    let mut messages = receive(&socket, &mut reader, 100, 600);
    assert_eq!(messages[0].templates, 5);
    assert_eq!(flows(&messages), expected);
    assert!(messages.iter().all(|message| message.domain == 9));
    // Later records repeat the templates, for a collector that has just started.
    std::thread::sleep(Duration::from_millis(1100));
    rig.run(&frame(1, 1), now);
    rig.finish().unwrap();
    let before = messages.len();
    messages.extend(receive(&socket, &mut Reader::default(), 1, 600));
    assert_eq!(messages[before].templates, 5);
    assert_in_sequence(&messages);
}

/// A closed connection is reopened, with its own sequence numbers and templates.
#[test]
fn connections_are_opened_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut rig = Rig::new(&format!(
        "idleTimeout: 1s, export: [{{collector: \"{address}\", transport: tcp}}]"
    ));
    let first = traffic(&mut rig, 40);
    let mut now = SECOND;
    let over = |rig: &mut Rig, now: &mut Nanos| {
        for _ in 0..6 {
            *now += SECOND;
            (0..512).for_each(|_| rig.chain.expire(*now));
        }
    };
    over(&mut rig, &mut now);
    let (mut connection, _) = listener.accept().unwrap();
    let read = |connection: &mut TcpStream, records: usize| {
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let length = connection.read(&mut piece).expect("a piece of a message");
            bytes.extend_from_slice(&piece[..length]);
            let messages = whole(&bytes);
            let seen: usize = messages.iter().map(|message| message.flows.len()).sum();
            if seen >= records || length == 0 {
                return messages;
            }
        }
    };
    let messages = read(&mut connection, 40);
    assert_in_sequence(&messages);
    assert_eq!(flows(&messages), first);
    drop(connection);
    // Records exported until the loss is detected are lost unnoticed, so the test sends one flow after the other until
    // a connection exists.
    listener.set_nonblocking(true).unwrap();
    let (started, mut flow) = (Instant::now(), 1000);
    let mut connection = loop {
        assert!(started.elapsed() < PATIENCE, "no second connection");
        rig.run(&frame(flow, 1), now);
        flow += 1;
        over(&mut rig, &mut now);
        std::thread::sleep(Duration::from_millis(100));
        match listener.accept() {
            Ok((connection, _)) => break connection,
            Err(_) => continue,
        }
    };
    connection.set_nonblocking(false).unwrap();
    rig.run(&frame(999, 1), now);
    rig.finish().unwrap();
    let messages = read(&mut connection, usize::MAX);
    assert_eq!(messages[0].templates, 5);
    assert_in_sequence(&messages);
    let seen = flows(&messages);
    assert!(seen.keys().any(|key| key.3 == 1999), "{seen:?}");
}

/// A collector resets each connection it accepts. The third comes after two pauses of the back-off at the earliest.
#[test]
fn a_collector_that_resets_connections_is_tried_less_and_less_often() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let started = Instant::now();
    let mut rig = Rig::new(&format!(
        "idleTimeout: 1s, export: [{{collector: \"{address}\", transport: tcp}}]"
    ));
    listener.set_nonblocking(true).unwrap();
    let (mut connections, mut flow, mut now) = (0, 1, SECOND);
    let mut resetting: Option<TcpStream> = None;
    while connections < 3 {
        assert!(started.elapsed() < PATIENCE, "{connections} connections");
        rig.run(&frame(flow, 1), now);
        flow += 1;
        for _ in 0..6 {
            now += SECOND;
            (0..512).for_each(|_| rig.chain.expire(now));
        }
        if let Ok((connection, _)) = listener.accept() {
            connections += 1;
            connection.set_nonblocking(true).unwrap();
            resetting = Some(connection);
        }
        // Closing a connection with unread bytes resets it.
        if matches!(&resetting, Some(connection) if connection.peek(&mut [0]).is_ok()) {
            resetting = None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Holds on a slow machine as well, which only waits longer.
    assert!(started.elapsed() >= Duration::from_secs(1 + 2));
    drop((resetting, listener));
    let (unsent, finished) = rig.finish_counting("records-unsent");
    // Records that the connections accepted are not known to be lost.
    match finished {
        Ok(_) => assert_eq!(unsent, 0),
        Err(error) => assert_eq!(
            error.to_string(),
            format!(
                "tcp:{address}: {unsent} of {} flow records were not delivered",
                flow - 1
            )
        ),
    }
}

/// Without a collector, packets continue; records that do not fit the ring are lost, and all losses are reported.
#[test]
fn without_a_collector_every_record_is_told_to_be_lost() {
    // A port that was free a moment ago, so nothing listens on it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut rig = Rig::new(&format!(
        "idleTimeout: 1s, export: [{{collector: \"{address}\", transport: tcp}}]"
    ));
    let mut now = SECOND;
    for _ in 0..3 {
        for flow in 0..8000 {
            rig.run(&frame(4 * flow + 1, 0), now);
        }
        for _ in 0..6 {
            now += SECOND;
            (0..1024).for_each(|_| rig.chain.expire(now));
        }
    }
    assert_eq!(rig.count("records"), 24_000);
    let lost = rig.count("records-lost");
    // The capacity of the ring, and the records that the exporter has taken out of it.
    assert!((24_000 - 16_384 - 5119..=24_000 - 16_384).contains(&lost), "{lost}");
    // Records that still waited at the end count as well.
    let (unsent, finished) = rig.finish_counting("records-unsent");
    assert_eq!(unsent, 24_000 - lost);
    let error = finished.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("tcp:{address}: 24000 of 24000 flow records were not delivered")
    );
}

#[test]
fn a_file_that_takes_no_bytes_is_an_error_at_the_end() {
    if !Path::new("/dev/full").exists() {
        println!("skipped: there is no /dev/full");
        return;
    }
    let mut rig = Rig::new("export: [{file: /dev/full}]");
    traffic(&mut rig, 1000);
    let error = rig.finish().unwrap_err().to_string();
    assert!(error.starts_with("/dev/full: cannot write records: "), "{error}");
}

/// Process of a collector, killed on drop.
struct Collector(Child);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns `true` if a program is installed and reports its version.
fn is_there(program: &str, version: &str) -> bool {
    let found = Command::new(program)
        .arg(version)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_err() {
        println!("skipped: there is no {program}");
    }
    found.is_ok()
}

/// Flows that nfdump's collector, as packaged in Debian, received by UDP. With `sampling`, it scales the counts.
fn by_nfcapd(sampling: u32, flows: u16) -> Option<(Flows, Flows)> {
    if !is_there("nfcapd", "-V") || !is_there("nfdump", "-V") {
        return None;
    }
    let folder = Folder::new();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let collector = Command::new("nfcapd")
        .args(["-b", "127.0.0.1", "-p", &port.to_string(), "-w"])
        .arg(&folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut collector = Collector(collector.unwrap());
    // The collector is ready when the port is in use.
    let started = Instant::now();
    while UdpSocket::bind(("127.0.0.1", port)).is_ok() {
        assert!(started.elapsed() < PATIENCE, "nfcapd does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut rig = Rig::new(&format!(
        "sampling: {sampling}, export: [{{collector: \"127.0.0.1:{port}\"}}]"
    ));
    let expected = traffic(&mut rig, flows);
    rig.finish().unwrap();
    // The collector's socket holds all datagrams by now, and it reads them before it handles the signal.
    let id = collector.0.id().to_string();
    std::thread::sleep(Duration::from_millis(500));
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(collector.0.wait().unwrap().success());
    let dump = Command::new("nfdump")
        .args(["-q", "-N", "-6", "-o", "fmt:%sa;%da;%pr;%sp;%dp;%pkt;%byt", "-R"])
        .arg(&folder.0)
        .output()
        .unwrap();
    let text = String::from_utf8(dump.stdout).unwrap();
    let mut told = Flows::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<_> = line.split(';').map(str::trim).collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        let protocol = number(2) as u8;
        // Types and codes are printed with a dot.
        let port = |at: usize| match fields[at].split_once('.') {
            Some((kind, code)) => kind.parse::<u16>().unwrap() << 8 | code.parse::<u16>().unwrap(),
            None => number(at) as u16,
        };
        let key = (fields[0].to_owned(), fields[1].to_owned(), protocol, port(3), port(4));
        let sums = told.entry(key).or_default();
        *sums = (sums.0 + number(5), sums.1 + number(6));
    }
    Some((told, expected))
}

#[test]
fn nfcapd_reads_what_was_counted() {
    if let Some((told, expected)) = by_nfcapd(1, 300) {
        assert_eq!(told, expected);
    }
}

/// With one packet in ten sampled, the collector estimates the total.
#[test]
fn nfcapd_understands_sampling() {
    if let Some((told, expected)) = by_nfcapd(10, 300) {
        let packets = |flows: &Flows| flows.values().map(|sums| sums.0).sum::<u64>();
        let (told, expected) = (packets(&told), packets(&expected));
        assert!(told.abs_diff(expected) < 10, "{told} of {expected}");
    }
}

/// Reads IPFIX files (RFC 5655) with Wireshark, which is independent of our reader and of nfdump's.
#[test]
fn tshark_reads_files() {
    if !is_there("tshark", "-v") {
        return;
    }
    let folder = Folder::new();
    let file = folder.0.join("flows.ipfix");
    let mut rig = Rig::new(&format!("export: [{{file: {}}}]", file.display()));
    let expected = traffic(&mut rig, 300);
    rig.finish().unwrap();
    let fields = ["cflow.version", "cflow.packets", "cflow.octets", "_ws.malformed"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields", "-E", "separator=;"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut records, mut packets, mut bytes) = (0, 0, 0);
    for line in text.lines() {
        let fields: Vec<_> = line.split(';').collect();
        assert_eq!((fields[0], fields[3]), ("10", ""), "{line}");
        let numbers = |field: &str| -> Vec<u64> {
            let values = field.split(',').filter(|value| !value.is_empty());
            values.map(|value| value.parse().unwrap()).collect()
        };
        records += numbers(fields[1]).len();
        packets += numbers(fields[1]).iter().sum::<u64>();
        bytes += numbers(fields[2]).iter().sum::<u64>();
    }
    assert_eq!(records, 300);
    let sums = expected.values().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    assert_eq!((packets, bytes), sums);
}
