//! Detection: packets per second on one core, cost of loading, and cost of hostile packets.
//!
//! `cargo bench -p tailwater-ids --bench ids [-- NAME]` runs the figures whose names contain NAME. One JSON line per
//! figure on standard output. The rules are ET Open's, located by the environment variable `TAILWATER_TEST_DATA`;
//! `1000` selects every 24th of them.
//!
//! - `functions/ids/RULES/SIZE/rate`, `.../throughput`: HTTP connections with 8 KiB of text each, in frames of this
//!   size, one after the other in 256 flows, from handshake to end;
//! - `functions/ids/RULES/load`, `.../ready`: parsing the rules, and compiling them; `.../memory`: of the whole
//!   process;
//! - `functions/ids/hostile/WHAT/instructions`: instructions per packet (by valgrind), compared with `plain` text of
//!   the same length.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailwater_ids::connection::Connection;
use tailwater_ids::inspector::{Inspector, Settings};
use tailwater_ids::language::{Reader, Variables};
use tailwater_ids::packet::Input;
use tailwater_ids::rule::{Rule, Test};
use tailwater_ids::ruleset::{BitNames, RuleSet};
use tailwater_ids::slots::OwnSlots;
use tailwater_ids::threshold::Thresholds;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Concurrent flows, served in turn.
const FLOWS: usize = 256;
/// Measurements per figure; the median is reported.
const RUNS: usize = 11;
/// Duration of a measurement.
const RUN: Duration = Duration::from_millis(100);
/// Packets per hostile kind whose instructions are counted.
const COUNTED: usize = 512;

const SIZES: [(&str, &[usize]); 3] = [
    ("64B", &[64]),
    ("imix", &[64, 64, 64, 64, 64, 64, 64, 570, 570, 570, 570, 1518]),
    ("1024B", &[1024]),
];

const HOSTILE: [&str; 7] = [
    "plain", "contents", "prefixes", "suffixes", "repeats", "bytes", "islands",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(rules) = et_open() else {
        eprintln!("no figures: TAILWATER_TEST_DATA is not set, or there is no tar that reads Zstandard");
        return;
    };
    if let [flag, kind] = &arguments[..]
        && flag == "--one-pass"
    {
        return one_pass(&rules, kind);
    }
    // `cargo test --benches` runs this without the flag, as a smoke test.
    let runs = if arguments.iter().any(|a| a == "--bench") {
        RUNS
    } else {
        1
    };
    let part = arguments.iter().find(|a| !a.starts_with('-'));
    let wanted = |name: &str| part.is_none_or(|part| name.contains(part.as_str()));
    let few: Vec<Rule> = rules.iter().step_by(24).take(1000).cloned().collect();
    for (name, rules) in [("1000", &few), ("et-open", &rules)] {
        let before = resident();
        let start = Instant::now();
        let set = RuleSet::new(rules.clone(), &mut BitNames::default()).expect("the rules fit");
        let ready = start.elapsed().as_secs_f64() * 1e3;
        if wanted(&format!("functions/ids/{name}/load")) {
            let mut times: Vec<f64> = (0..runs.min(3))
                .map(|_| reading_time(rules.len() == few.len()))
                .collect();
            print(&format!("functions/ids/{name}/load"), "ms", &mut times);
            print(&format!("functions/ids/{name}/ready"), "ms", &mut [ready]);
            let memory = (resident() - before) / f64::from(1 << 20);
            print(&format!("functions/ids/{name}/memory"), "MiB", &mut [memory]);
            let prefilter = set.prefilter_bytes() as f64 / f64::from(1 << 20);
            print(&format!("functions/ids/{name}/prefilter"), "MiB", &mut [prefilter]);
        }
        let set = Arc::new(set);
        for (size, pattern) in SIZES {
            let figure = format!("functions/ids/{name}/{size}");
            if !wanted(&figure) {
                continue;
            }
            let mut rig = Rig::new(Arc::clone(&set));
            let frames = traffic(pattern);
            let bits =
                frames.iter().map(|(_, frame)| 8 * (frame.len() + 24)).sum::<usize>() as f64 / frames.len() as f64;
            let mut rates: Vec<f64> = (0..runs).map(|_| rig.rate(&frames)).collect();
            let mut throughput: Vec<f64> = rates.iter().map(|rate| rate * bits / 1e3).collect();
            print(&format!("{figure}/rate"), "Mpps", &mut rates);
            print(&format!("{figure}/throughput"), "Gbps", &mut throughput);
        }
    }
    for kind in HOSTILE {
        let figure = format!("functions/ids/hostile/{kind}/instructions");
        if wanted(&figure) {
            match instructions(kind) {
                Some(count) => print(&figure, "instructions/packet", &mut [count as f64 / COUNTED as f64]),
                None => eprintln!("{figure}: valgrind is not installed or failed"),
            }
        }
    }
}

fn reading_time(few: bool) -> f64 {
    let texts = texts().unwrap_or_default();
    let start = Instant::now();
    let mut reader = Reader::new(&Variables::default()).expect("right variables");
    for text in &texts {
        let text: String = match few {
            true => text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .step_by(24)
                .collect::<Vec<_>>()
                .join("\n"),
            false => text.clone(),
        };
        black_box(reader.read(&text));
    }
    start.elapsed().as_secs_f64() * 1e3
}

/// Reads the rule files.
fn texts() -> Option<Vec<String>> {
    let data = std::env::var_os("TAILWATER_TEST_DATA")?;
    let archive = Path::new(&data).join("rules/et_open_2025.tar.zst");
    let output = Command::new("tar")
        .arg("--zstd")
        .arg("-xOf")
        .arg(archive)
        .args(["--wildcards", "*.rules"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (!text.is_empty()).then(|| vec![text])
}

fn et_open() -> Option<Vec<Rule>> {
    let mut reader = Reader::new(&Variables::default()).ok()?;
    Some(texts()?.iter().flat_map(|text| reader.read(text).rules).collect())
}

/// Returns the resident memory of the process.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0.0) * 4096.0
}

/// Inspector with its connections.
struct Rig {
    inspector: Inspector,
    connections: Vec<Connection>,
    slots: OwnSlots,
    now: Nanos,
}

impl Rig {
    fn new(rules: Arc<RuleSet>) -> Rig {
        let settings = Settings::default();
        Rig {
            inspector: Inspector::new((1, rules), Arc::new(Thresholds::new(1)), settings),
            connections: vec![Connection::default(); FLOWS],
            slots: OwnSlots::new(FLOWS as u32, settings.window),
            now: Nanos::from_secs(1),
        }
    }

    fn pass(&mut self, frames: &[(usize, Vec<u8>)]) {
        for (flow, frame) in frames {
            self.now += Nanos(100);
            let headers = parse(frame).expect("a right frame");
            let (_, reversed) = headers.key.of_connection();
            let input = Input {
                frame,
                headers: &headers,
                arrival: self.now,
                reversed,
            };
            let connection = &mut self.connections[*flow];
            black_box(self.inspector.packet(&input, connection, &mut self.slots));
        }
    }

    /// Measures the rate in millions of packets per second.
    fn rate(&mut self, frames: &[(usize, Vec<u8>)]) -> f64 {
        let (start, mut passes) = (Instant::now(), 0);
        while start.elapsed() < RUN || passes == 0 {
            // Connections are reset, since a handshake with known sequence numbers counts as a retransmission.
            for connection in &mut self.connections {
                Inspector::ended(connection, &mut self.slots);
                *connection = Connection::default();
            }
            self.pass(frames);
            passes += 1;
        }
        (passes * frames.len()) as f64 / start.elapsed().as_secs_f64() / 1e6
    }
}

/// Returns text that resembles a web page: words and tags.
fn text(length: usize) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "<div class=\"item\">",
        "the quick brown fox",
        "</div>\n",
        "<a href=\"/news/2024\">",
        "report",
        "</a> ",
        "of the day ",
        "<p>",
        "weather: 17 degrees, ",
        "function(x) { return x; }",
        "</p>\n",
        "information ",
    ];
    let mut state = 1u32;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        WORDS[(state >> 16) as usize % WORDS.len()].bytes()
    });
    words.flatten().take(length).collect()
}

fn key(flow: usize) -> FlowKey {
    FlowKey::v4(
        [10, 0, 0, 1].into(),
        [198, 51, 100, 1].into(),
        protocol::TCP,
        20_000 + flow as u16,
        80,
    )
}

fn frame(key: &FlowKey, [sequence, acknowledgment]: [u32; 2], flags: u8, data: &[u8]) -> Vec<u8> {
    let fields = TcpFields {
        sequence,
        acknowledgment,
        flags: TcpFlags(flags),
        ..TcpFields::default()
    };
    FrameBuilder::new(key)
        .tcp(fields)
        .payload(data)
        .to_vec()
        .expect("a right frame")
}

/// Returns the frames of connections in concurrent flows; `sizes` include the frame check sequence.
fn traffic(sizes: &[usize]) -> Vec<(usize, Vec<u8>)> {
    let request = b"GET /news/2024/index.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
                    Accept: text/html\r\nAccept-Language: en\r\nConnection: keep-alive\r\n\r\n";
    let body = text(8192);
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nServer: example\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend(body);
    let of_flow = |flow: usize| {
        let (key, mut next, mut sizes) = (key(flow), [101u32, 501u32], sizes.iter().cycle());
        let mut frames = vec![
            frame(&key, [100, 0], 2, b""),
            frame(&key.reversed(), [500, 101], 0x12, b""),
            frame(&key, [101, 501], 0x10, b""),
        ];
        for (side, mut data) in [(0, &request[..]), (1, &answer[..])] {
            let key = if side == 0 { key } else { key.reversed() };
            while !data.is_empty() {
                let length = sizes.next().map_or(64, |size| size - 4 - 54).min(data.len());
                frames.push(frame(&key, [next[side], next[1 - side]], 0x10, &data[..length]));
                next[side] += length as u32;
                data = &data[length..];
            }
        }
        frames.push(frame(&key, next, 0x11, b""));
        frames.push(frame(&key.reversed(), [next[1], next[0] + 1], 0x11, b""));
        frames
    };
    let flows: Vec<Vec<Vec<u8>>> = (0..FLOWS).map(of_flow).collect();
    let turns = flows.iter().map(Vec::len).max().unwrap_or(0);
    let frames = (0..turns).flat_map(|turn| {
        let flows = &flows;
        (0..FLOWS).filter_map(move |flow| Some((flow, flows[flow].get(turn)?.clone())))
    });
    frames.collect()
}

/// Returns packets of one connection, crafted to be as expensive as possible.
fn hostile(rules: &[Rule], kind: &str) -> Vec<(usize, Vec<u8>)> {
    const LENGTH: usize = 1400;
    let contents = || {
        let parts = rules
            .iter()
            .filter(|rule| rule.parts.len() == 1)
            .flat_map(|rule| &rule.parts);
        let of_stream = parts.filter(|part| part.buffer == tailwater_ids::buffer::BufferKey::PAYLOAD);
        of_stream.filter_map(|part| match part.tests.first() {
            Some(Test::Content(content)) if !content.negated => Some(content.bytes.clone()),
            _ => None,
        })
    };
    let long: Vec<u8> = match kind {
        // Contents of rules back to back: each yields a candidate.
        "contents" => contents().flatten().collect(),
        // All but the last byte of each content.
        "prefixes" => contents()
            .flat_map(|content| content[..content.len() - 1].to_vec())
            .collect(),
        // All but the first byte of short contents, which follow each other closely: representative bytes everywhere,
        // and no complete content.
        "suffixes" => contents()
            .filter(|content| (8..=12).contains(&content.len()))
            .flat_map(|content| content[1..].to_vec())
            .collect(),
        // A byte that many contents repeat.
        "repeats" => vec![b'A'; LENGTH],
        _ => text(1 << 16),
    };
    let key = key(0);
    let mut frames = vec![
        frame(&key, [100, 0], 2, b""),
        frame(&key.reversed(), [500, 101], 0x12, b""),
        frame(&key, [101, 501], 0x10, b""),
    ];
    let mut bytes = long.iter().copied().cycle();
    let mut sequence = 101u32;
    for i in 0..COUNTED as u32 {
        let length = if kind == "bytes" { 1 } else { LENGTH };
        let data: Vec<u8> = bytes.by_ref().take(length).collect();
        let at = match kind {
            // Separate ranges before a gap that is never filled.
            "islands" => 101 + 200 + 700 * (i * 7 % 11),
            _ => sequence,
        };
        frames.push(frame(&key, [at, 501], 0x10, &data));
        sequence = sequence.wrapping_add(length as u32);
    }
    frames.into_iter().map(|frame| (0, frame)).collect()
}

/// Code whose instructions are counted.
#[inline(never)]
fn measured(rig: &mut Rig, frames: &[(usize, Vec<u8>)]) {
    rig.pass(frames);
}

fn one_pass(rules: &[Rule], kind: &str) {
    let set = RuleSet::new(rules.to_vec(), &mut BitNames::default()).expect("the rules fit");
    let mut rig = Rig::new(Arc::new(set));
    let frames = hostile(rules, kind);
    let (warm, counted) = frames.split_at(3);
    rig.pass(warm);
    measured(&mut rig, counted);
}

/// Returns the instructions counted by valgrind.
fn instructions(kind: &str) -> Option<u64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*ids::measured*",
        ])
        .arg(std::env::current_exe().ok()?)
        .args(["--one-pass", kind])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, count) = text.rsplit_once("Collected : ")?;
    count.split_whitespace().next()?.parse().ok()
}

fn print(name: &str, unit: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let (value, min, max) = (values[values.len() / 2], values[0], values[values.len() - 1]);
    let runs = values.len();
    println!(
        "{{\"name\": \"{name}\", \"value\": {value:.3}, \"unit\": \"{unit}\", \"min\": {min:.3}, \"max\": {max:.3}, \"runs\": {runs}}}"
    );
}
