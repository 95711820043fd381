//! User plane function on one core, with packets of random users.
//!
//! `cargo bench -p tailwater-functions --bench upf [-- NAME]` runs the figures whose names contain NAME. It prints one
//! JSON line per figure to standard output: `functions/upf/WHAT/SIZE/SESSIONS`, where `SIZE` is the inner packet's
//! frame, and `WHAT` is
//!
//! - `down`: packets to users, put into their tunnels; `down-flow`: the same with `cache: flow`, a flow for each user;
//! - `up`: packets from users, taken out of their tunnels;
//! - `down-rates`, `up-rates`: with a session rate and usage counters;
//! - `forward`: a chain that only sets addresses, on the packets of `down`.
//!
//! Two more figures are `functions/upf/state/SESSIONS`, bytes per session, and `functions/upf/new-session/SESSIONS`,
//! nanoseconds to add one.
//!
//! The copy that fills a batch creates the packets, and counts in all figures. Variants alternate within a run; values
//! are medians.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use tailwater_chain::batch::{Batch, Incoming};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_functions::upf::{Owner, Session, Tunnel, UpfTable};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};

/// Packets per batch, as in the data plane.
const BATCH: usize = 32;
/// Number of buffers: more than the L1 and L2 caches hold, as with a device.
const BUFFERS: u32 = 2048;
/// Measurements per figure; the median counts.
const RUNS: usize = 9;
/// Duration of a measurement.
const RUN: Duration = Duration::from_millis(50);

const SESSIONS: [u32; 3] = [10_000, 100_000, 1_000_000];
/// Frame sizes in bytes, with check sequence, by name. `imix` mixes 64, 594 and 1518 bytes in the ratio 7:4:1.
const SIZES: [(&str, &[usize]); 3] = [
    ("64B", &[64]),
    ("imix", &[64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 64, 594]),
    ("1024B", &[1024]),
];

/// Variant: its name, `true` if packets arrive in tunnels, additions to the profile and to the configuration.
type Way = (&'static str, bool, &'static str, &'static str);

const LIMITED: &str = ", sessionRates: {up: 9000Gbps, down: 9000Gbps}, usage: {volume: 1000000000000}";
const REPORTED: &str = "usage: {file: /dev/null}, ";
const WAYS: [Way; 5] = [
    ("down", false, "", ""),
    ("down-flow", false, "", "cache: flow, "),
    ("up", true, "", ""),
    ("down-rates", false, LIMITED, REPORTED),
    ("up-rates", true, LIMITED, REPORTED),
];

fn session(number: u32) -> Session {
    Session {
        id: number.into(),
        address: Some((0x0a00_0000 + number).into()),
        prefix: None,
        teid: number + 1,
        tunnel: Some(Tunnel {
            peer: [192, 0, 2, 10 + (number % 16) as u8].into(),
            teid: number + 1,
        }),
        profile: 0,
    }
}

/// Frames without their user, whose address and tunnel are filled in for each packet.
struct Frames {
    frames: Vec<Vec<u8>>,
    up: bool,
}

impl Frames {
    fn new(sizes: &[usize], up: bool) -> Frames {
        let (server, user) = ([198, 51, 100, 1].into(), [10, 0, 0, 0].into());
        let frames = sizes.iter().map(|size| {
            let key = FlowKey::v4(server, user, protocol::UDP, 53, 4000);
            let key = if up { key.reversed() } else { key };
            let payload = vec![0; size - 4 - 42];
            let plain = FrameBuilder::new(&key).payload(&payload).to_vec();
            let plain = plain.unwrap_or_else(|error| panic!("{error}"));
            if !up {
                return plain;
            }
            let inner = &plain[14..];
            let mut payload = vec![0x34, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x85, 1, 0x10, 9, 0];
            payload[2..4].copy_from_slice(&(8 + inner.len() as u16).to_be_bytes());
            payload.extend(inner);
            let (station, own) = ([192, 0, 2, 10].into(), [192, 0, 2, 1].into());
            let key = FlowKey::v4(station, own, protocol::UDP, 2152, 2152);
            let frame = FrameBuilder::new(&key).payload(&payload).without_udp_checksum();
            frame.to_vec().unwrap_or_else(|error| panic!("{error}"))
        });
        Frames {
            frames: frames.collect(),
            up,
        }
    }
}

/// Chain and its packets.
struct Rig {
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    frames: Frames,
    sessions: u32,
    random: u64,
    next: usize,
    rss: RssHasher,
}

fn builder(functions: &str, flows: u32) -> ChainBuilder {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\n\
         spec:\n  slo: {{latency: 200us}}\n  functions: {functions}\n  flows: {{capacity: {flows}}}\n"
    );
    let spec = ChainSpec::parse(&text, "bench", Path::new("."));
    let spec = spec.unwrap_or_else(|error| panic!("{error}"));
    let builder = ChainBuilder::new(&spec, &RssHasher::default(), 1);
    builder.unwrap_or_else(|error| panic!("{error}"))
}

impl Rig {
    fn new(mut builder: ChainBuilder, sessions: u32, sizes: &[usize], up: bool) -> Rig {
        let pool = BufferPool::new(BUFFERS, 2048).unwrap_or_else(|error| panic!("{error}"));
        Rig {
            chain: builder.instance(|_| true),
            batch: Batch::new(&pool, BATCH),
            pool,
            frames: Frames::new(sizes, up),
            sessions,
            random: 1,
            next: 0,
            rss: RssHasher::default(),
        }
    }

    /// Runs a batch, including the copies that fill it.
    fn run(&mut self) {
        let Rig {
            frames,
            random,
            next,
            sessions,
            rss,
            chain,
            ..
        } = self;
        let hashed = chain.has_flows();
        self.batch.fill(&mut self.pool, BATCH, |room| {
            let frame = &frames.frames[*next % frames.frames.len()];
            *next += 1;
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (((*random >> 32) * u64::from(*sessions)) >> 32) as u32;
            let address = (0x0a00_0000 + number).to_be_bytes();
            room[..frame.len()].copy_from_slice(frame);
            match frames.up {
                false => room[30..34].copy_from_slice(&address),
                true => {
                    room[46..50].copy_from_slice(&(number + 1).to_be_bytes());
                    room[70..74].copy_from_slice(&address);
                }
            }
            let key = FlowKey::v4([198, 51, 100, 1].into(), address.into(), 17, 53, 4000);
            Incoming {
                length: frame.len(),
                arrival: Nanos::from_secs(1),
                rss_hash: if hashed { rss.hash(&key) } else { 0 },
                rest: 0,
            }
        });
        self.chain.process(&mut self.batch, Nanos::from_secs(1));
        assert_eq!(black_box(&self.batch).len(), BATCH, "packets were dropped");
        self.batch.release(&mut self.pool);
    }

    /// Nanoseconds per packet, over the duration of a measurement.
    fn nanos(&mut self) -> f64 {
        let (start, mut batches) = (Instant::now(), 0);
        while start.elapsed() < RUN {
            (0..16).for_each(|_| self.run());
            batches += 16;
        }
        start.elapsed().as_nanos() as f64 / (batches * BATCH) as f64
    }
}

fn print(name: &str, unit: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let (median, last) = (values[values.len() / 2], values[values.len() - 1]);
    println!(
        "{{\"name\":\"{name}\",\"value\":{},\"unit\":\"{unit}\",\"min\":{},\"max\":{},\"runs\":{}}}",
        rounded(median),
        rounded(values[0]),
        rounded(last),
        values.len()
    );
}

fn add(table: &UpfTable, sessions: u32) {
    for number in 0..sessions {
        let added = table.set(&session(number), Owner::Api);
        added.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, only as a smoke test.
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let runs = if measured { RUNS } else { 1 };
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter.as_str()));
    for sessions in SESSIONS.into_iter().take(if measured { 3 } else { 1 }) {
        for (size, sizes) in SIZES {
            let directions = WAYS.into_iter();
            let name = |direction: &str| format!("functions/upf/{direction}/{size}/{}", short(sessions));
            let mut rigs: Vec<(String, Rig)> = Vec::new();
            for (direction, up, profile, more) in directions.filter(|(direction, ..)| wanted(&name(direction))) {
                let functions = format!(
                    "[{{upf: {{addresses: [192.0.2.1], mtu: 9000, capacity: {sessions}, {more}\
                     profiles: {{all: {{qfi: 9{profile}}}}}, sessions: [{}]}}}}]",
                    "4294967295 ue 192.168.0.1 teid 4294967295 profile all"
                );
                let builder = builder(&functions, (sessions * 2).max(512));
                if let Some(table) = builder.table::<UpfTable>("upf") {
                    table.remove(u32::MAX.into());
                    let (start, bytes) = (Instant::now(), table.memory_bytes());
                    add(&table, sessions);
                    let each = start.elapsed().as_nanos() as f64 / f64::from(sessions);
                    if direction == "down" && size == "64B" {
                        let of = |what| format!("functions/upf/{what}/{}", short(sessions));
                        print(&of("state"), "B", &mut [bytes as f64 / f64::from(sessions)]);
                        print(&of("new-session"), "ns", &mut [each]);
                    }
                }
                rigs.push((name(direction), Rig::new(builder, sessions, sizes, up)));
            }
            if wanted(&name("forward")) {
                let forward = builder("[{forward: {}}]", 512);
                let rig = Rig::new(forward, sessions, sizes, false);
                rigs.push((name("forward"), rig));
            }
            let mut found = vec![Vec::new(); rigs.len()];
            // The first round is a warm-up.
            for turn in 0..=runs {
                for ((_, rig), values) in rigs.iter_mut().zip(&mut found) {
                    let nanos = rig.nanos();
                    if turn > 0 {
                        values.push(1000.0 / nanos);
                    }
                }
            }
            for ((name, _), values) in rigs.iter().zip(&mut found) {
                print(name, "Mpps", values);
            }
        }
    }
}

fn short(sessions: u32) -> String {
    match sessions {
        1_000_000 => "1M".to_owned(),
        _ => format!("{}k", sessions / 1000),
    }
}
