//! Cost of packets crafted to be as expensive as possible, compared with ordinary ones. Valgrind counts instructions,
//! so the numbers are the same on every machine. Each row has a bound, and the program fails if one is exceeded.
//!
//! `cargo test -p tailwater-functions --test hostile [--release] [-- PART]` prints a table of the rows whose names
//! contain PART. The program creates a row's packets, and processes them in a second process under valgrind.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_net::{FlowKey, Nanos, protocol};

/// Number of counted packets of each type.
const COUNTED: usize = 256;
const NOW: Nanos = Nanos::from_secs(1);
const WEB: u16 = 80;

/// Packets, of which the last [`COUNTED`] are counted.
type Frames = Vec<Vec<u8>>;

/// Ordinary and hostile packets for one chain.
struct Row {
    name: &'static str,
    /// Description of the hostile packets.
    what: &'static str,
    function: &'static str,
    flows: &'static str,
    plain: fn(&RssHasher) -> Frames,
    hostile: fn(&RssHasher) -> Frames,
    /// Maximum cost of a hostile packet as a multiple of an ordinary one's.
    bound: f64,
}

const SMALL: &str = "capacity: 512, whenFull: refuse";
const EVICTS: &str = "capacity: 512, whenFull: evict";
const LARGE: &str = "capacity: 16384";
const ACL: &str = "acl: {rulesFile: rules/acl-1500.rules, format: classbench, cache: none, default: allow}";
/// Limits that are never exceeded.
const GUARD: &str = "dnsGuard: {limits: {nxdomains: 20000, all: 100000}}";
const OPTIMIZER: &str = "wanOptimizer: {local: 192.0.2.1, remote: 192.0.2.2, mtu: 9000, destinations: [0.0.0.0/0]}";
/// Copies go to `/dev/null`.
const MIRROR: &str = "mirror: {to: {file: /dev/null}}";
const URLS: &str = "urlFilter: {patterns: [bad.example, '*aaaaaaaab*', '*abababac*', /aaaa/aaab]}";
const IDS: &str = "ids: {rules: [\
     'alert tcp any any -> any any (content:\"aaaaaaaab\"; sid:1;)', \
     'alert tcp any any -> any any (content:\"a\"; content:\"b\"; distance:1; content:\"c\"; distance:1; within:9; sid:2;)', \
     'alert tcp any any -> any any (content:\"ab\"; pcre:\"/(a|b|ab)*c/R\"; sid:3;)', \
     'alert http any any -> any any (http.uri; content:\"/aa\"; content:\"aab\"; distance:1; sid:4;)']}";

const ROWS: [Row; 22] = [
    Row {
        name: "flow-table/known",
        what: "flows of one RSS bucket, whose places are all taken",
        function: "accounting: {}",
        flows: SMALL,
        plain: |_| clients(0..32).cycle_to(COUNTED),
        hostile: |rss| {
            let mut frames = rivals(rss, 128);
            frames.extend(frames[..32].to_vec().cycle_to(COUNTED));
            frames
        },
        bound: 2.0,
    },
    Row {
        name: "flow-table/new-refused",
        what: "new flows of a bucket whose places are all taken",
        function: "accounting: {}",
        flows: SMALL,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |rss| rivals(rss, 128 + COUNTED),
        bound: 2.0,
    },
    Row {
        name: "flow-table/new-evicting",
        what: "the same, each in another's place",
        function: "accounting: {}",
        flows: EVICTS,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |rss| rivals(rss, 128 + COUNTED),
        bound: 3.0,
    },
    Row {
        name: "nat/ports",
        what: "new connections when the ports are gone",
        function: "nat: {external: [203.0.113.1], ports: 1024-1535}",
        flows: LARGE,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |_| clients(0..3_000 + COUNTED as u32),
        bound: 2.0,
    },
    Row {
        name: "nat/one-bucket",
        what: "new connections that share one bucket's ports",
        function: "nat: {external: [203.0.113.1], ports: 1024-65535}",
        flows: LARGE,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |rss| rivals(rss, 64 + COUNTED),
        bound: 2.0,
    },
    Row {
        name: "firewall/handshakes",
        what: "SYNs beyond the half-open limit",
        function: "firewall: {rules: [allow], halfOpen: {total: 100}}",
        flows: LARGE,
        plain: |_| clients(0..90).cycle_to(COUNTED),
        hostile: |_| clients(0..1_000 + COUNTED as u32),
        bound: 4.0,
    },
    Row {
        name: "firewall/windows",
        what: "segments and resets out of the window",
        function: "firewall: {rules: [allow]}",
        flows: LARGE,
        plain: |_| data(&steady(0, 64)),
        hostile: |_| {
            let guess = |i: u32| {
                (
                    TcpFlags(if i.is_multiple_of(2) { 0x10 } else { 0x04 }),
                    i.wrapping_mul(0x0123_4567),
                )
            };
            let guesses = (0..COUNTED as u32).map(guess);
            let guesses = guesses.map(|(flags, sequence)| segment(0, sequence, flags, b"guess"));
            opened(guesses.collect())
        },
        bound: 2.0,
    },
    Row {
        name: "firewall/fragments",
        what: "fragments that lie over their first",
        function: "firewall: {rules: [allow]}",
        flows: LARGE,
        plain: |_| fragments(64),
        hostile: |_| fragments(8),
        bound: 2.0,
    },
    Row {
        name: "acl/corners",
        what: "headers on the corners of the rules, against headers of none",
        function: ACL,
        flows: LARGE,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |_| corners(),
        bound: 3.0,
    },
    Row {
        name: "mirror/long",
        what: "packets as long as they may be, all copied",
        function: MIRROR,
        flows: LARGE,
        plain: |_| clients(0..COUNTED as u32),
        hostile: |_| data(&stream(b"x", 1_400)),
        bound: 5.0,
    },
    Row {
        name: "dns-guard/records",
        what: "responses with as many records, and labels of the name, as there is room for",
        function: GUARD,
        flows: LARGE,
        plain: |_| denials(3, 1),
        hostile: |_| denials(120, 90),
        bound: 20.0,
    },
    Row {
        name: "wan-optimizer/repeats",
        what: "one byte repeated, against content that never came before",
        function: OPTIMIZER,
        flows: LARGE,
        plain: |_| data(&stream(&random(COUNTED * 1_400), 1_400)),
        hostile: |_| data(&stream(b"x", 1_400)),
        bound: 2.0,
    },
    Row {
        name: "wan-optimizer/pieces",
        what: "short stretches that came before, in another order each time",
        function: OPTIMIZER,
        flows: LARGE,
        plain: |_| data(&stream(&random(COUNTED * 1_400), 1_400)),
        hostile: |_| data(&stream(&pieces(COUNTED * 1_400, 48), 1_400)),
        bound: 3.0,
    },
    Row {
        name: "url-filter/prefixes",
        what: "nearly what patterns are, over and over",
        function: URLS,
        flows: LARGE,
        plain: |_| data(&requests(b"/news/index.html?q=weather+report/")),
        hostile: |_| data(&requests(b"/aaaa/aaaaaaaacaaaaaaaacabababaabc")),
        bound: 2.0,
    },
    Row {
        name: "url-filter/bytes",
        what: "a request byte by byte",
        function: URLS,
        flows: LARGE,
        plain: |_| data(&requests(b"/news/index.html?q=weather+report/")),
        hostile: |_| data(&steady(0, 1)),
        bound: 1.0,
    },
    Row {
        name: "url-filter/islands",
        what: "segments with gaps between that are never filled",
        function: URLS,
        flows: LARGE,
        plain: |_| data(&steady(0, 64)),
        hostile: |_| data(&steady(40, 64)),
        bound: 2.0,
    },
    Row {
        name: "url-filter/overlaps",
        what: "segments each over most of the one in front",
        function: URLS,
        flows: LARGE,
        plain: |_| data(&steady(0, 64)),
        hostile: |_| data(&overlapping(64)),
        bound: 2.0,
    },
    Row {
        name: "ids/prefixes",
        what: "nearly what rules look for, over and over",
        function: IDS,
        flows: LARGE,
        plain: |_| data(&stream(b"the quick brown fox; ", 1_400)),
        hostile: |_| data(&stream(b"aaaaaaaa", 1_400)),
        bound: 2.0,
    },
    Row {
        name: "ids/backtracking",
        what: "bytes with which a rule could be tried in ever more ways",
        function: IDS,
        flows: LARGE,
        plain: |_| data(&stream(b"the quick brown fox; ", 1_400)),
        hostile: |_| data(&stream(b"ababaabb", 1_400)),
        bound: 5.0,
    },
    Row {
        name: "ids/bytes",
        what: "a stream byte by byte",
        function: IDS,
        flows: LARGE,
        plain: |_| data(&stream(b"the quick brown fox; ", 1_400)),
        hostile: |_| data(&stream(b"GET /aa", 1)),
        bound: 1.0,
    },
    Row {
        name: "ids/islands",
        what: "segments with gaps between that are never filled",
        function: IDS,
        flows: LARGE,
        plain: |_| data(&steady(0, 64)),
        hostile: |_| data(&steady(40, 64)),
        bound: 2.0,
    },
    Row {
        name: "ids/overlaps",
        what: "segments each over most of the one in front",
        function: IDS,
        flows: LARGE,
        plain: |_| data(&steady(0, 64)),
        hostile: |_| data(&overlapping(64)),
        bound: 2.0,
    },
];

/// Repeats frames up to a given number.
trait CycleTo {
    fn cycle_to(self, count: usize) -> Frames;
}

impl CycleTo for Frames {
    fn cycle_to(self, count: usize) -> Frames {
        let again = self.iter().cloned().cycle();
        again.take(count.max(self.len())).collect()
    }
}

fn key(client: u32) -> FlowKey {
    let source = Ipv4Addr::from_bits(0x0a00_0000 + client);
    let server = Ipv4Addr::new(198, 51, 100, 1);
    FlowKey::v4(source, server, protocol::TCP, 40_000, WEB)
}

fn of_key(key: &FlowKey, numbers: [u32; 2], flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let fields = TcpFields {
        sequence: numbers[0],
        acknowledgment: numbers[1],
        flags,
        ..TcpFields::default()
    };
    let frame = FrameBuilder::new(key).tcp(fields).payload(payload).to_vec();
    frame.unwrap_or_else(|error| panic!("{error}"))
}

fn segment(client: u32, sequence: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    of_key(&key(client), [sequence, 501], flags, payload)
}

/// First packets of clients' connections.
fn clients(clients: std::ops::Range<u32>) -> Frames {
    clients
        .map(|client| of_key(&key(client), [99, 0], TcpFlags::SYN, b""))
        .collect()
}

/// First packets of connections in one RSS bucket.
fn rivals(rss: &RssHasher, count: usize) -> Frames {
    let openings = (0..1u32 << 20).map(|client| of_key(&key(client), [99, 0], TcpFlags::SYN, b""));
    let hash = |frame: &Vec<u8>| rss.hash_headers(&parse(frame).unwrap_or_else(|_| unreachable!()));
    openings
        .filter(|frame| bucket_of(hash(frame)) == 7)
        .take(count)
        .collect()
}

/// Handshake of a connection, followed by these frames.
fn opened(frames: Frames) -> Frames {
    let answer = TcpFlags::SYN | TcpFlags::ACK;
    let mut all = clients(0..1);
    all.push(of_key(&key(0).reversed(), [500, 100], answer, b""));
    all.push(segment(0, 100, TcpFlags::ACK, b""));
    all.extend(frames);
    all
}

/// Handshake of a connection, followed by segments with these offsets and payloads.
fn data(segments: &[(u32, Vec<u8>)]) -> Frames {
    let segments = segments.iter();
    opened(
        segments
            .map(|(at, bytes)| segment(0, 100 + at, TcpFlags::ACK, bytes))
            .collect(),
    )
}

/// These bytes repeatedly, in segments of `length` bytes.
fn stream(bytes: &[u8], length: usize) -> Vec<(u32, Vec<u8>)> {
    let mut all = bytes.iter().copied().cycle();
    let places = (0..COUNTED as u32).map(|i| i * length as u32);
    places.map(|at| (at, all.by_ref().take(length).collect())).collect()
}

/// Pseudo-random bytes.
fn random(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Pieces of `piece` bytes, chosen from 64 in pseudo-random order.
fn pieces(length: usize, piece: usize) -> Vec<u8> {
    let (all, order) = (random(64 * piece), random(length / piece + 1));
    let pieces = order
        .iter()
        .flat_map(|at| &all[usize::from(at % 64) * piece..][..piece]);
    pieces.copied().take(length).collect()
}

/// NXDOMAIN responses for a name with `labels` labels, with `records` records in front of the one that names the zone.
fn denials(labels: usize, records: usize) -> Frames {
    let mut message = vec![0x12, 0x34, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0];
    message[8..10].copy_from_slice(&(records as u16 + 1).to_be_bytes());
    message.extend(b"\x01a".repeat(labels));
    message.extend([0, 0, 1, 0, 1]);
    let record = |kind: u8| [0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, 0];
    (0..records).for_each(|_| message.extend(record(1)));
    message.extend(record(6));
    let server = Ipv4Addr::new(198, 51, 100, 1);
    let clients = (0..COUNTED as u32).map(|client| Ipv4Addr::from_bits(0x0a00_0000 + client * 256));
    let frames = clients.map(|client| {
        let key = FlowKey::v4(server, client, protocol::UDP, 53, 40_000);
        let frame = FrameBuilder::new(&key).payload(&message).to_vec();
        frame.unwrap_or_else(|error| panic!("{error}"))
    });
    frames.collect()
}

/// Requests for a path, one in each segment.
fn requests(path: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let request = [b"GET ", path, b" HTTP/1.1\r\nHost: www.example.org\r\n\r\n"].concat();
    stream(&request, request.len())
}

/// Request without an end, in segments of `length` bytes with gaps between. The offsets repeat, so that all stay near.
fn steady(gap: u32, length: usize) -> Vec<(u32, Vec<u8>)> {
    let head = b"GET /".iter().copied().chain(std::iter::repeat(b'x'));
    let bytes: Vec<u8> = head.take(1 << 15).collect();
    // Out of order, so that islands have others on both sides.
    let place = |i: u32| match gap {
        0 => i * length as u32,
        _ => gap + (gap + length as u32) * (i * 7 % 23),
    };
    let segments = (0..COUNTED as u32).map(place);
    segments
        .map(|at| (at, bytes[at as usize..][..length].to_vec()))
        .collect()
}

/// Segments that each begin one byte after the start of the one before.
fn overlapping(length: usize) -> Vec<(u32, Vec<u8>)> {
    let all: Vec<u8> = steady(0, 64).into_iter().flat_map(|(_, bytes)| bytes).collect();
    let segments = 0..COUNTED as u32;
    segments.map(|at| (at, all[at as usize..][..length].to_vec())).collect()
}

/// Pairs of fragments of datagrams: 64 bytes, and a second fragment that begins at byte `second`.
fn fragments(second: u16) -> Frames {
    let pair = |number: u32| {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + number);
        let key = FlowKey::v4(source, [198, 51, 100, 1].into(), protocol::UDP, 9, 53);
        let whole = FrameBuilder::new(&key).payload(&[0; 120]).identification(number as u16);
        let whole = whole.to_vec().unwrap_or_else(|error| panic!("{error}"));
        let part = |from: u16, to: u16, more: u16| {
            let mut frame = whole[..34].to_vec();
            frame.extend(&whole[34 + usize::from(from)..34 + usize::from(to)]);
            frame[16..18].copy_from_slice(&(20 + to - from).to_be_bytes());
            frame[20..22].copy_from_slice(&((more << 13) | (from / 8)).to_be_bytes());
            frame[24..26].fill(0);
            let sum: u32 = frame[14..34]
                .chunks(2)
                .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            frame
        };
        [part(0, 64, 1), part(second, 128, 0)]
    };
    (0..COUNTED as u32 / 2).flat_map(pair).collect()
}

/// Packets with the first and the last header values that match each rule.
fn corners() -> Frames {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules/acl-1500.rules");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}"));
    let ends = |prefix: &str| -> Option<[Ipv4Addr; 2]> {
        let (address, length) = prefix.trim_start_matches('@').split_once('/')?;
        let (first, length): (Ipv4Addr, u32) = (address.parse().ok()?, length.parse().ok()?);
        let rest = u32::MAX.checked_shr(length).unwrap_or(0);
        Some([first, Ipv4Addr::from_bits(first.to_bits() | rest)])
    };
    let frames = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [source, destination, from, _, _, to, ..] = words[..] else {
            return None;
        };
        let (sources, destinations) = (ends(source)?, ends(destination)?);
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        let key = |i: usize| FlowKey::v4(sources[i], destinations[i], protocol::TCP, from, to);
        Some([0, 1].map(|i| of_key(&key(i), [99, 0], TcpFlags::SYN, b"")))
    });
    let frames: Frames = frames.flatten().take(COUNTED).collect();
    assert_eq!(frames.len(), COUNTED, "rules of the example");
    frames
}

fn spec(row: &Row) -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  slo: {{latency: 1ms}}\n  \
         flows: {{{}}}\n  functions: [{{name: it, {}}}]\n",
        row.flows, row.function
    );
    ChainSpec::parse(&text, "test", examples.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Measured code. Not inlined, since valgrind selects it by name.
#[inline(never)]
fn measured(chain: &mut Chain, batch: &mut Batch) {
    chain.process(batch, NOW);
}

/// Processes the frames of a file one by one, which is the most expensive way.
fn one_pass(row: &Row, file: &str) {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut frames = Vec::new();
    let mut rest = &bytes[..];
    while let [low, high, more @ ..] = rest {
        let (frame, more) = more.split_at(usize::from(u16::from_le_bytes([*low, *high])));
        frames.push(frame);
        rest = more;
    }
    let spec = spec(row);
    let rss = spec.rss();
    let mut builder = ChainBuilder::new(&spec, &rss, 1).unwrap_or_else(|error| panic!("{error}"));
    let mut chain = builder.instance(|_| true);
    let mut pool = BufferPool::new(64, 2048).unwrap_or_else(|error| panic!("{error}"));
    let mut batch = Batch::new(&pool, 32);
    let warm = frames.len() - COUNTED;
    for (i, frame) in frames.into_iter().enumerate() {
        let hash = parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
        assert!(batch.push(&mut pool, frame, NOW, hash), "there is room");
        match i < warm {
            true => chain.process(&mut batch, NOW),
            false => measured(&mut chain, &mut batch),
        }
        batch.release(&mut pool);
    }
}

/// Instructions per packet; `None` without valgrind.
fn instructions(row: &Row, frames: &Frames) -> Option<f64> {
    let name = format!("hostile-{}.frames", std::process::id());
    let file: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend((frame.len() as u16).to_le_bytes());
        bytes.extend(frame);
    }
    std::fs::write(&file, &bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*hostile::measured*")
        .arg(std::env::current_exe().unwrap_or_else(|error| panic!("{error}")))
        .args(["--one-pass", row.name])
        .arg(&file)
        .output();
    let removed = std::fs::remove_file(&file);
    removed.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let output = output.ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let count = text.rsplit_once("Collected : ").and_then(|(_, rest)| {
        let count = rest.split_whitespace().next()?;
        count.parse::<f64>().ok()
    });
    let count = count.unwrap_or_else(|| panic!("{}: valgrind counted nothing: {text}", row.name));
    Some(count / COUNTED as f64)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, file] = &arguments[..]
        && flag == "--one-pass"
    {
        let row = ROWS.iter().find(|row| row.name == name);
        one_pass(row.unwrap_or_else(|| panic!("no row {name}")), file);
        return ExitCode::SUCCESS;
    }
    let part = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut beyond = 0;
    println!("| what | hostile packets | ordinary, instructions | hostile, instructions | times | bound |");
    println!("|---|---|---|---|---|---|");
    for row in &ROWS {
        if part.is_some_and(|part| !row.name.contains(part.as_str())) {
            continue;
        }
        let rss = spec(row).rss();
        let ways = [row.plain, row.hostile].map(|make| instructions(row, &make(&rss)));
        let [Some(plain), Some(hostile)] = ways else {
            eprintln!("skipped: valgrind is not installed");
            return ExitCode::SUCCESS;
        };
        let times = hostile / plain;
        let (name, what, bound) = (row.name, row.what, row.bound);
        println!("| `{name}` | {what} | {plain:.0} | {hostile:.0} | {times:.2} | {bound} |");
        let holds = times <= bound && plain > 0.0;
        if !holds {
            eprintln!("{name}: {times:.2} times the cost of ordinary packets, the bound is {bound}");
            beyond += 1;
        }
    }
    match beyond {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
