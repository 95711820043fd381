//! RSS buckets moved between dedicated workers of one run: nothing lost, nothing reordered, state as on
//! one core.
//!
//! The server mapper here moves buckets at random every few milliseconds, and the core mapper, if there
//! is one, flows at random every few microseconds.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, cores, run};
use tailwater_handover::park::Mode;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, Place, Plan, View};
use tailwater_policy::server::{Move, ServerMapper, ServerView};
use tailwater_traffic::{
    CaptureReader, LoadOptions, Notice, Packet, PacketSource, ReadOptions, Trace, TrafficError,
};

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What a mapper saw, for the test.
#[derive(Debug, Default)]
struct Seen {
    /// Most packets a second, and active flows, of all buckets together.
    rate: AtomicU64,
    flows: AtomicU64,
    /// The busiest core, in millionths.
    busy: AtomicU64,
}

/// Moves some of the buckets at random.
struct RandomBuckets {
    state: u64,
    period: Nanos,
    seen: Arc<Seen>,
}

impl ServerMapper for RandomBuckets {
    fn period(&self) -> Nanos {
        self.period
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        assert!(moves.is_empty());
        let rate: f64 = view.buckets.iter().map(|bucket| bucket.rate).sum();
        let flows: f64 = view.buckets.iter().map(|bucket| bucket.flows).sum();
        let busy = view.cores.iter().map(|core| core.busy).fold(0.0, f64::max);
        self.seen.rate.fetch_max(rate as u64, Ordering::Relaxed);
        self.seen.flows.fetch_max(flows as u64, Ordering::Relaxed);
        self.seen
            .busy
            .fetch_max((busy * 1e6) as u64, Ordering::Relaxed);
        // From a few buckets to most of them.
        let share = 1 + next(&mut self.state) % 16;
        for (bucket, load) in view.buckets.iter().enumerate() {
            let to = (next(&mut self.state) % view.cores.len() as u64) as u16;
            if next(&mut self.state) % 16 < share && to != load.core {
                moves.push(Move {
                    bucket: bucket as u16,
                    to,
                });
            }
        }
    }
}

/// Places flows at random, and moves those in the own queue every few microseconds.
struct RandomFlows {
    state: u64,
    next: Nanos,
}

impl RandomFlows {
    fn anywhere(&mut self) -> Place {
        match next(&mut self.state) % 2 {
            0 => Place::HERE,
            _ => Place::helper(0),
        }
    }
}

impl CoreMapper for RandomFlows {
    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.next
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.next = view.now + Nanos::from_micros(3);
        for (flow, place) in view.queued.iter().zip(&mut plan.places) {
            if !flow.bound {
                *place = self.anywhere();
            }
        }
        plan.boost = next(&mut self.state).is_multiple_of(16);
        for (i, helper) in view.helpers.iter().enumerate() {
            if helper.load.packets == 0 && !plan.places.contains(&Place::helper(i)) {
                plan.release |= 1 << i;
            }
        }
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Place {
        self.anywhere()
    }
}

const FLOWS: u32 = 300;

/// Mean time between packets: what is left when they end must be done in half a second, or is lost.
const SPACING: Nanos = Nanos(if cfg!(debug_assertions) {
    10_000
} else {
    2_000
});

/// Packets that come at once, so that some wait and flows are handed over.
const BURST: u32 = 256;

/// Packets of [`FLOWS`] flows, each with its number within the flow: in trains, and one by one.
struct Numbered {
    packets: Vec<(Nanos, Vec<u8>)>,
    next: usize,
}

impl Numbered {
    fn new(count: u32) -> Numbered {
        let mut numbers = [0u32; FLOWS as usize];
        let (mut packets, mut state, mut left, mut flow) = (Vec::new(), 88172645463325252u64, 0, 0);
        for i in 0..count {
            if left == 0 {
                next(&mut state);
                flow = (state % u64::from(FLOWS)) as u32;
                left = if state >> 60 == 0 {
                    200
                } else {
                    1 + (state >> 40) as u32 % 4
                };
            }
            left -= 1;
            let number = &mut numbers[flow as usize];
            *number += 1;
            let key = FlowKey::v4(
                Ipv4Addr::from_bits(0x0a00_0000 + flow),
                Ipv4Addr::new(198, 51, 100, 1),
                protocol::UDP,
                1000 + flow as u16,
                53,
            );
            let payload = [flow.to_be_bytes(), number.to_be_bytes()].concat();
            let frame = FrameBuilder::new(&key).payload(&payload).to_vec().unwrap();
            packets.push((Nanos(u64::from(i / BURST * BURST) * SPACING.0), frame));
        }
        Numbered { packets, next: 0 }
    }
}

impl PacketSource for Numbered {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        self.next += 1;
        Ok(self.packets.get(self.next - 1).map(|(time, data)| Packet {
            timestamp: *time,
            data,
            wire_length: data.len() as u32,
        }))
    }
    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }
    fn name(&self) -> &str {
        "numbered"
    }
}

/// What is left of a run: its report, the frames sent in order of time, and the flow records without
/// their times.
struct Outcome {
    report: RunReport,
    frames: Vec<Vec<u8>>,
    records: Vec<String>,
}

/// One run at a time: workers spin, and there are few cores.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a run differs from others.
struct Setup {
    workers: usize,
    packets: u32,
    reta_delay: Nanos,
    scaling: Option<ScalingConfig>,
    server: Option<ServerConfig>,
}

fn spec(functions: &str, slo: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: {slo}}}\n  functions: [{functions}]\n"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
}

fn trace(packets: u32) -> Trace {
    Trace::load(&mut Numbered::new(packets), &LoadOptions::default()).unwrap()
}

/// Workers may share a core: slower, but no less right.
fn shared_cores(count: usize) -> Vec<usize> {
    let cores = cores::available();
    (0..count).map(|i| cores[i % cores.len()]).collect()
}

fn config(setup: Setup, capture_out: Option<PathBuf>) -> RunConfig {
    RunConfig {
        cores: shared_cores(setup.workers),
        nic: TraceNicConfig {
            // Nothing is lost before the chain, however slow the machine.
            ring: 1 << 20,
            reta_delay: setup.reta_delay,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out,
        not_matched: 0,
        seed: 1,
        scaling: setup.scaling,
        server: setup.server,
    }
}

fn run_through(functions: &str, setup: Setup) -> Outcome {
    let folder = Folder::new();
    let (capture, records) = (folder.0.join("sent.pcap"), folder.0.join("flows.csv"));
    let functions = format!(
        "{{accounting: {{export: {{file: {}}}}}}}, {functions}",
        records.display()
    );
    let outcome = run_chain(&spec(&functions, "250ms"), setup, &capture);
    Outcome {
        records: flow_records(&records),
        ..outcome
    }
}

fn run_chain(spec: &ChainSpec, setup: Setup, capture: &Path) -> Outcome {
    let trace = trace(setup.packets);
    let config = config(setup, Some(capture.to_owned()));
    let _alone = alone();
    let report = run(spec, trace, &config, &AtomicBool::new(false), |_| {}).unwrap();
    Outcome {
        report,
        frames: sent(capture),
        records: Vec::new(),
    }
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-buckets-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The frames of a capture, in order of time.
fn sent(capture: &Path) -> Vec<Vec<u8>> {
    let trace = Trace::load(
        &mut CaptureReader::open(capture, &ReadOptions::default()).unwrap(),
        &LoadOptions::default(),
    )
    .unwrap();
    (0..trace.len()).map(|i| trace.packet(i).to_vec()).collect()
}

fn flow_records(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    // All but the times of the first and the last packet, which end the line.
    let line = |line: &str| line.rsplitn(3, ',').last().unwrap().to_owned();
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines
}

/// The numbers of each flow's packets in the order in which they were sent.
fn order(frames: &[Vec<u8>]) -> BTreeMap<u32, Vec<u32>> {
    let mut order: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for frame in frames {
        let word = |at| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        order.entry(word(42)).or_default().push(word(46));
    }
    order
}

fn random_server(state: u64, period: Nanos) -> (ServerConfig, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let mapper = {
        let seen = Arc::clone(&seen);
        move || -> Box<dyn ServerMapper> {
            Box::new(RandomBuckets {
                state,
                period,
                seen: Arc::clone(&seen),
            })
        }
    };
    let mapper = Arc::new(mapper);
    (ServerConfig { mapper }, seen)
}

fn random_flows(state: u64) -> ScalingConfig {
    ScalingConfig {
        auxiliary: shared_cores(1),
        mapper: Arc::new(move || {
            Box::new(RandomFlows {
                state,
                next: Nanos::ZERO,
            })
        }),
        park: Mode::Sleep,
        buffers: 4096,
    }
}

const PACKETS: u32 = if cfg!(debug_assertions) {
    30_000
} else {
    250_000
};

/// Periods and table delays to try.
const TIMES: [[Nanos; 2]; 3] = [
    [Nanos::from_millis(2), Nanos::from_micros(200)],
    [Nanos::from_millis(3), Nanos::from_millis(2)],
    [Nanos::from_micros(500), Nanos::from_micros(1)],
];

/// Whatever moves when: what is sent, in which order within each flow, and what the functions counted
/// and bound is as on one core.
fn moved_equals_single(functions: &str, workers: usize, helped: bool) {
    let setup = Setup {
        workers: 1,
        packets: PACKETS,
        reta_delay: Nanos::from_millis(2),
        scaling: None,
        server: None,
    };
    let single = run_through(functions, setup);
    assert_eq!(single.report.packets.lost, 0);
    let expected = order(&single.frames);
    for (flow, numbers) in &expected {
        let in_order = (1..=numbers.len() as u32).eq(numbers.iter().copied());
        assert!(in_order, "flow {flow} on one core");
    }
    let mut single_frames = single.frames;
    single_frames.sort();
    for (seed, [period, reta_delay]) in [0x2545_f491, 0x9e37_79b9_7f4a, 77].into_iter().zip(TIMES) {
        let (server, seen) = random_server(seed, period);
        let setup = Setup {
            workers,
            packets: PACKETS,
            reta_delay,
            scaling: helped.then(|| random_flows(seed)),
            server: Some(server),
        };
        let moved = run_through(functions, setup);
        let packets = &moved.report.packets;
        assert_eq!(
            (packets.offered, packets.lost),
            (u64::from(PACKETS), 0),
            "seed {seed}: {packets:?}"
        );
        assert_eq!(packets.delivered, single.report.packets.delivered);
        assert_eq!(order(&moved.frames), expected, "order, seed {seed}");
        let mut frames = moved.frames;
        frames.sort();
        assert!(frames == single_frames, "packets differ, seed {seed}");
        assert_eq!(moved.records, single.records, "records, seed {seed}");
        let flows = moved.report.flows.unwrap();
        assert_eq!(flows.active, single.report.flows.unwrap().active);
        let server = moved.report.server.unwrap();
        assert!(
            server.decisions > 0 && server.buckets_moved > 0,
            "{server:?}"
        );
        assert!(seen.rate.load(Ordering::Relaxed) > 0);
        assert!(seen.flows.load(Ordering::Relaxed) > 0);
        assert!(seen.busy.load(Ordering::Relaxed) > 0);
        assert_eq!(moved.report.cores.auxiliary_avg > 0.0, helped);
    }
}

#[test]
fn buckets_moved_at_random_are_processed_as_on_one_core() {
    moved_equals_single("nat: {external: [203.0.113.0/28]}", 2, false);
}

#[test]
fn buckets_and_flows_moved_at_random() {
    moved_equals_single("nat: {external: [203.0.113.0/28]}", 2, true);
}

#[test]
fn buckets_moved_between_three_workers() {
    let balanced = "loadBalancer: {services: [{address: 0.0.0.0/0, port: any, protocol: udp, \
                    backends: [{address: 172.16.0.1}, {address: 172.16.0.2}]}]}";
    moved_equals_single(balanced, 3, false);
}

/// Without a flow table there is nothing to move but the right to process.
#[test]
fn chains_without_flow_state() {
    for helped in [false, true] {
        let folder = Folder::new();
        let (server, _) = random_server(7, Nanos::from_millis(1));
        let setup = Setup {
            workers: 2,
            packets: PACKETS,
            reta_delay: Nanos::from_micros(300),
            scaling: helped.then(|| random_flows(9)),
            server: Some(server),
        };
        let capture = folder.0.join("sent.pcap");
        let moved = run_chain(&spec("forward: {}", "250ms"), setup, &capture);
        assert_eq!(moved.report.packets.delivered, u64::from(PACKETS));
        assert!(moved.report.server.unwrap().buckets_moved > 0);
        for (flow, numbers) in order(&moved.frames) {
            assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
        }
    }
}

/// A run that is stopped in the midst of moves ends soon, and every packet is accounted for.
#[test]
fn stopped_while_buckets_move() {
    for seed in 1..6 {
        let (server, _) = random_server(seed, Nanos::from_micros(300));
        let setup = Setup {
            workers: 2,
            packets: PACKETS,
            reta_delay: Nanos::from_micros(500),
            scaling: (seed % 2 == 0).then(|| random_flows(seed)),
            server: Some(server),
        };
        let mut config = config(setup, None);
        config.nic.duration = Some(Nanos::from_secs(60));
        let (trace, stop) = (trace(PACKETS), AtomicBool::new(false));
        let spec = spec("nat: {external: [203.0.113.0/28]}", "200us");
        let _alone = alone();
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(40 + 3 * seed));
                stop.store(true, Ordering::Relaxed);
            });
            run(&spec, trace, &config, &stop, |_| {}).unwrap()
        });
        assert!(report.interrupted);
        let packets = &report.packets;
        assert_eq!(
            packets.offered,
            packets.delivered + packets.dropped_by_nf + packets.lost
        );
        assert!(!packets.reasons.contains_key("bucket-not-held"));
    }
}

/// A mapper that must not be asked.
struct Never;

impl ServerMapper for Never {
    fn period(&self) -> Nanos {
        Nanos(1)
    }

    fn remap(&mut self, _: &ServerView<'_>, _: &mut Vec<Move>) {
        panic!("there is nothing to move, or no time at which to");
    }
}

#[test]
fn nothing_moves_with_one_core_or_without_pace() {
    for (workers, pacing) in [(1, Pacing::Arrivals), (2, Pacing::Saturate)] {
        let setup = Setup {
            workers,
            packets: 10_000,
            reta_delay: Nanos::from_micros(1),
            scaling: None,
            server: Some(ServerConfig {
                mapper: Arc::new(|| Box::new(Never)),
            }),
        };
        let mut config = config(setup, None);
        config.nic.pacing = pacing;
        let spec = spec("nat: {external: [203.0.113.0/28]}", "250ms");
        let _alone = alone();
        let stop = AtomicBool::new(false);
        let report = run(&spec, trace(10_000), &config, &stop, |_| {}).unwrap();
        assert_eq!(report.packets.lost, 0);
        assert_eq!(report.server.unwrap(), Default::default());
    }
}
