//! Whole runs with flow state in a real Redis, which is stopped, frozen, filled up or restarted meanwhile. Every packet
//! is accounted for, flows keep their order, and the next run finds the state.

#[path = "../common/allocations.rs"]
mod allocations;
#[path = "../common/mod.rs"]
mod common;
mod lent;
#[path = "../../../state/tests/server/mod.rs"]
mod server;

use common::mappers::random_buckets;
use server::RedisServer;
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::{RunReport, StateReport};
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::{CaptureReader, LoadOptions, Packet, PcapWriter, ReadOptions, Trace};

const FLOWS: u32 = 50;

/// Serialises runs: workers spin, and there are few cores.
static ALONE: Mutex<()> = Mutex::new(());

fn key(flow: u32) -> FlowKey {
    FlowKey::v4(
        Ipv4Addr::new(10, 0, 0, (flow % 25) as u8),
        Ipv4Addr::new(198, 51, 100, 1),
        protocol::UDP,
        3000 + flow as u16,
        53,
    )
}

/// Frames that arrive one every `gap`.
fn trace(folder: &Path, frames: &[Vec<u8>], gap: Nanos) -> Trace {
    timed(folder, frames, |i| Nanos(i * gap.0))
}

/// Frames of which 40 arrive at once every `gap`.
fn bursts(folder: &Path, frames: &[Vec<u8>], gap: Nanos) -> Trace {
    timed(folder, frames, |i| Nanos(i / 40 * gap.0))
}

/// Frames that arrive at these times, by their indices.
fn timed(folder: &Path, frames: &[Vec<u8>], time: impl Fn(u64) -> Nanos) -> Trace {
    let file = folder.join("in.pcap");
    let mut writer = PcapWriter::create(&file).unwrap();
    for (i, data) in frames.iter().enumerate() {
        let packet = Packet {
            timestamp: time(i as u64),
            data,
            wire_length: data.len() as u32,
        };
        writer.write(&packet).unwrap();
    }
    writer.finish().unwrap();
    load(&file)
}

fn frames(trace: &Trace) -> Vec<Vec<u8>> {
    (0..trace.len()).map(|i| trace.packet(i).to_vec()).collect()
}

fn load(file: &Path) -> Trace {
    let mut reader = CaptureReader::open(file, &ReadOptions::default()).unwrap();
    Trace::load(&mut reader, &LoadOptions::default()).unwrap()
}

/// `count` packets, of all flows in turn, with their numbers.
fn packets(count: u32) -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let key = key(number % FLOWS);
        FrameBuilder::new(&key).payload(&number.to_be_bytes()).to_vec().unwrap()
    };
    (0..count).map(frame).collect()
}

struct Done {
    report: RunReport,
    sent: Vec<Vec<u8>>,
}

impl Done {
    fn state(&self) -> &StateReport {
        self.report.state.as_ref().expect("state is kept")
    }

    /// Every packet is accounted for, and none overtook another of its flow. Returns the number of packets sent.
    fn check(&self) -> u64 {
        let packets = &self.report.packets;
        assert_eq!(
            packets.offered,
            packets.delivered + packets.dropped_by_nf + packets.lost,
            "{packets:?}"
        );
        assert_eq!(packets.delivered, self.sent.len() as u64);
        let lost = packets.reasons.get("state-unavailable").copied().unwrap_or(0);
        assert_eq!(self.state().dropped, lost, "{packets:?}");
        let mut last: HashMap<FlowKey, u32> = HashMap::new();
        for frame in &self.sent {
            let headers = parse(frame).unwrap();
            let at = usize::from(headers.payload_offset);
            let number = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
            let before = last.insert(headers.key, number);
            assert!(before < Some(number), "{:?}: {before:?} before {number}", headers.key);
        }
        packets.delivered
    }

    /// Same, and none was lost or dropped.
    fn check_all(&self, sent: u64) {
        assert_eq!(self.check(), sent, "{:?} {:?}", self.report.packets, self.state());
    }
}

/// Runs a trace through functions with state in the server of the directory. `meanwhile` is called with the time since
/// the first arrival.
fn go(folder: &Path, functions: &str, state: &str, trace: Trace, workers: usize, meanwhile: impl FnMut(Nanos)) -> Done {
    go_moving(folder, functions, state, trace, (workers, None), meanwhile)
}

/// Like [`go`], with RSS buckets moved by the given server mapper.
fn go_moving(
    folder: &Path,
    functions: &str,
    state: &str,
    trace: Trace,
    (workers, server): (usize, Option<ServerConfig>),
    meanwhile: impl FnMut(Nanos),
) -> Done {
    go_lending(folder, functions, state, trace, (workers, server, None), meanwhile)
}

/// Chain with functions with state in the server of the directory, and the configuration of a run with this many
/// workers and these mappers.
fn plan(
    folder: &Path,
    functions: &str,
    state: &str,
    (workers, server, scaling): (usize, Option<ServerConfig>, Option<ScalingConfig>),
) -> (ChainSpec, RunConfig) {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 250ms}}\n  functions: [{functions}]\n  \
         state: {{redis: {{socket: {}}}{state}}}\n",
        folder.join("redis.sock").display()
    );
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
    let cores = cores::available();
    let config = RunConfig {
        cores: cores.iter().rev().cycle().take(workers).copied().collect(),
        nic: TraceNicConfig {
            pacing: Pacing::Arrivals,
            ring: 1 << 16,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out: Some(folder.join("sent.pcap")),
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server,
        isolation: None,
    };
    (spec, config)
}

/// Like [`go_moving`], with RSS buckets lent to auxiliary cores, too.
fn go_lending(
    folder: &Path,
    functions: &str,
    state: &str,
    trace: Trace,
    mappers: (usize, Option<ServerConfig>, Option<ScalingConfig>),
    mut meanwhile: impl FnMut(Nanos),
) -> Done {
    let (spec, config) = plan(folder, functions, state, mappers);
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let progress = |progress: &Progress| meanwhile(progress.elapsed);
    let stop = AtomicBool::new(false);
    let control = RunControl::new(&stop).with_progress(progress);
    let report = RunPlan::new(spec, config).and_then(|plan| run(&plan, trace, control));
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    let sent = match report.packets.delivered {
        0 => Vec::new(),
        _ => frames(&load(&folder.join("sent.pcap"))),
    };
    Done { report, sent }
}

const NAT: &str = "{nat: {external: [203.0.113.0/28]}}, {accounting: {}}";

/// Generous bounds for a slow machine: packets are lost only on purpose.
const PATIENT: &str = ", wait: 10s, packets: 32768";

#[test]
fn the_next_run_goes_on_with_what_the_first_one_knew() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    for workers in [1, 2] {
        server.command(&["flushall"]);
        let out = trace(&server.folder, &packets(500), Nanos::from_micros(200));
        let first = go(&server.folder, NAT, PATIENT, out, workers, |_| {});
        first.check_all(500);
        // A flow's second packet may have triggered the request, but there is only one per flow.
        assert_eq!((first.state().reads, first.state().hits), (50, 0));
        // Two functions' state of each flow and one of the return direction.
        assert_eq!(server.keys(), 150);
        // The run has deleted its users, except the disabled one that marks it.
        let users = server.command(&["acl", "users"]);
        let mut users = users.lines().filter(|user| user.starts_with("tw:"));
        assert!(users.all(|user| user.starts_with("tw:test:@")));
        let outside: HashSet<FlowKey> = first.sent.iter().map(|frame| parse(frame).unwrap().key).collect();
        assert_eq!(outside.len(), FLOWS as usize, "{workers} workers");
        // Only replies: without the first run's bindings, none would pass.
        let back = replies_to(&first.sent);
        let replies = trace(&server.folder, &back, Nanos::from_micros(200));
        let second = go(&server.folder, NAT, PATIENT, replies, workers, |_| {});
        second.check_all(500);
        assert_eq!((second.state().reads, second.state().hits), (50, 50));
        let inside: Vec<FlowKey> = second.sent.iter().map(|frame| parse(frame).unwrap().key).collect();
        for flow in 0..FLOWS {
            let to = key(flow).reversed();
            assert_eq!(inside.iter().filter(|key| **key == to).count(), 10, "{to:?}");
        }
        // Control: without the bindings.
        server.command(&["flushall"]);
        let replies = trace(&server.folder, &back, Nanos::from_micros(200));
        let third = go(&server.folder, NAT, PATIENT, replies, workers, |_| {});
        assert_eq!(third.report.packets.reasons.get("nat/no-binding"), Some(&500));
    }
}

/// Replies to packets, numbered in turn.
fn replies_to(sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let reply = |(number, frame): (usize, &Vec<u8>)| {
        let key = parse(frame).unwrap().key.reversed();
        let number = (number as u32).to_be_bytes();
        FrameBuilder::new(&key).payload(&number).to_vec().unwrap()
    };
    sent.iter().enumerate().map(reply).collect()
}

/// Number of packets counted in Redis, over all flows, after the functions in front.
fn counted(server: &RedisServer, front: &str) -> u64 {
    let folder = &server.folder;
    let records = folder.join("flows.csv");
    let functions = format!("{front}{{accounting: {{export: {{file: {}}}}}}}", records.display());
    let traffic = trace(folder, &packets(FLOWS), Nanos::from_micros(500));
    let next = go(folder, &functions, PATIENT, traffic, 1, |_| {});
    next.check_all(u64::from(FLOWS));
    let records = std::fs::read_to_string(records).unwrap();
    let packets = records.lines().skip(1);
    let packets = packets.map(|line| line.split(',').nth(6).unwrap().parse::<u64>().unwrap());
    packets.sum::<u64>() - u64::from(FLOWS)
}

/// RSS buckets migrate between workers at random, continuously. Every flow is requested once, continues with its state,
/// and in the end the server has the last worker's version.
#[test]
fn flows_that_move_to_another_core_carry_their_state() {
    let Some(server) = RedisServer::start(&[]) else {
        return;
    };
    let folder = &server.folder;
    for (seed, period) in [(1, 2), (7, 5), (42, 1)] {
        server.command(&["flushall"]);
        let traffic = trace(folder, &packets(4000), Nanos::from_micros(250));
        let (mapper, _) = random_buckets(seed, Nanos::from_millis(period));
        let moved = go_moving(folder, NAT, PATIENT, traffic, (2, Some(mapper)), |_| {});
        moved.check_all(4000);
        let buckets = moved.report.server.unwrap().buckets_moved;
        assert!(buckets > 100, "{buckets}");
        // Only the worker that opened a flow requested it.
        assert_eq!((moved.state().reads, moved.state().hits), (50, 0));
        assert_eq!(server.keys(), 150);
        let outside: HashSet<FlowKey> = moved.sent.iter().map(|frame| parse(frame).unwrap().key).collect();
        assert_eq!(outside.len(), FLOWS as usize);
        assert_eq!(counted(&server, "{nat: {external: [203.0.113.0/28]}}, "), 4000);
    }
}

/// While Redis is unavailable no migration begins, and pending ones continue when it is back.
#[test]
fn buckets_move_around_a_server_that_is_away_for_a_while() {
    for trouble in &TROUBLES {
        let Some(mut server) = RedisServer::start(&["--maxmemory-policy", "noeviction"]) else {
            return;
        };
        let folder = server.folder.clone();
        let traffic = trace(&folder, &packets(3000), Nanos::from_micros(500));
        let mut steps = [(400, trouble.begins), (900, trouble.ends)].into_iter().peekable();
        let (mapper, _) = random_buckets(3, Nanos::from_millis(3));
        let done = go_moving(
            &folder,
            "{accounting: {}}",
            PATIENT,
            traffic,
            (2, Some(mapper)),
            |elapsed| {
                if let Some((_, step)) = steps.next_if(|(at, _)| elapsed >= Nanos::from_millis(*at)) {
                    step(&mut server);
                }
            },
        );
        assert!(steps.next().is_none(), "the run was over before the trouble");
        done.check_all(3000);
        assert!(done.report.server.unwrap().buckets_moved > 50);
        assert_eq!(counted(&server, ""), 3000);
    }
}

/// Disturbance of the server while packets arrive, and its end.
struct Trouble {
    begins: fn(&mut RedisServer),
    ends: fn(&mut RedisServer),
}

const TROUBLES: [Trouble; 3] = [
    Trouble {
        begins: RedisServer::stop,
        ends: RedisServer::start_again,
    },
    Trouble {
        begins: |server| server.signal("STOP"),
        ends: |server| server.signal("CONT"),
    },
    Trouble {
        begins: |server| drop(server.command(&["config", "set", "maxmemory", "1"])),
        ends: |server| drop(server.command(&["config", "set", "maxmemory", "0"])),
    },
];

/// A run of 1.5 s with a disturbance of 0.5 s.
fn troubled(state: &str, trouble: &Trouble) -> Option<(RedisServer, Done)> {
    let mut server = RedisServer::start(&["--maxmemory-policy", "noeviction"])?;
    let folder = server.folder.clone();
    let traffic = trace(&folder, &packets(3000), Nanos::from_micros(500));
    let mut steps = [(400, trouble.begins), (900, trouble.ends)].into_iter().peekable();
    let done = go(&folder, "{accounting: {}}", state, traffic, 1, |elapsed| {
        if let Some((_, step)) = steps.next_if(|(at, _)| elapsed >= Nanos::from_millis(*at)) {
            step(&mut server);
        }
    });
    assert!(steps.next().is_none(), "the run was over before the trouble");
    Some((server, done))
}

/// Packets wait for an unavailable server up to their bound: here until it is back.
#[test]
fn held_packets_all_leave_when_the_server_is_back() {
    for trouble in &TROUBLES {
        let state = ", whenUnavailable: hold, wait: 10s, packets: 32768";
        let Some((server, done)) = troubled(state, trouble) else {
            return;
        };
        done.check_all(3000);
        assert!(done.state().held_most > 100, "{:?}", done.state());
        assert_eq!((done.state().passed, done.state().dropped), (0, 0));
        assert_eq!(server.keys(), u64::from(FLOWS));
    }
}

/// Beyond the bounds they are dropped and counted. Afterwards everything is as before.
#[test]
fn packets_that_waited_for_too_long_are_dropped() {
    for trouble in &TROUBLES {
        for (state, most) in [
            (", whenUnavailable: hold, wait: 20ms, packets: 32768", 32_768),
            (", whenUnavailable: hold, wait: 10s, packets: 256", 256),
            (", whenUnavailable: drop, wait: 100ms, packets: 32768", 32_768),
        ] {
            let Some((server, done)) = troubled(state, trouble) else {
                return;
            };
            let sent = done.check();
            assert!(done.state().dropped > 100, "{state}: {:?}", done.state());
            assert!(sent > 1000, "{state}: {:?}", done.report.packets);
            assert!(done.state().held_most <= most);
            assert_eq!(done.state().passed, 0);
            assert_eq!(server.keys(), u64::from(FLOWS));
        }
    }
}

/// Packets pass, and the changes the server missed are written when it is back.
#[test]
fn packets_pass_without_and_the_server_learns_later() {
    for trouble in &TROUBLES {
        let state = ", whenUnavailable: pass, wait: 20ms";
        let Some((server, done)) = troubled(state, trouble) else {
            return;
        };
        done.check_all(3000);
        assert!(done.state().passed > 100, "{:?}", done.state());
        assert_eq!(server.keys(), u64::from(FLOWS));
        // The server's counts cover all packets: the next run finds them, and its records have the sum.
        let records = server.folder.join("flows.csv");
        let functions = format!("{{accounting: {{export: {{file: {}}}}}}}", records.display());
        let traffic = trace(&server.folder, &packets(FLOWS), Nanos::from_micros(500));
        let next = go(&server.folder, &functions, PATIENT, traffic, 1, |_| {});
        next.check_all(u64::from(FLOWS));
        let records = std::fs::read_to_string(&records).unwrap();
        let counts = records.lines().skip(1).map(|line| line.split(',').nth(6).unwrap());
        let counts: Vec<&str> = counts.collect();
        assert_eq!(counts, ["61"; FLOWS as usize]);
    }
}

/// Without state in the spec, none is stored or reported.
#[test]
fn a_chain_without_state_to_keep_needs_no_server() {
    let folder = std::env::temp_dir().join(format!("tailwater-no-state-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let traffic = trace(&folder, &packets(100), Nanos::from_micros(100));
    // A function without state, and a server that does not exist.
    let done = go(&folder, "{forward: {}}", "", traffic, 1, |_| {});
    assert_eq!(done.report.packets.delivered, 100);
    assert!(done.report.state.is_none());
    std::fs::remove_dir_all(&folder).unwrap();
}
