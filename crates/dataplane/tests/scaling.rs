//! Whole flows handed between cores: nothing lost, nothing reordered, state as on one core.
//!
//! The mapper here moves flows at random as often as it can, which is harder on the hand-over than
//! any policy.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::TraceNicConfig;
use tailwater_dataplane::{RunConfig, cores, run};
use tailwater_handover::park::Mode;
use tailwater_net::builder::FrameBuilder;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, Place, Plan, View};
use tailwater_traffic::{
    CaptureReader, LoadOptions, Notice, Packet, PacketSource, ReadOptions, Trace, TrafficError,
};

/// Places flows at random, and moves those in the own queue every few microseconds.
struct Random {
    state: u64,
    helpers: usize,
    next: Nanos,
}

impl Random {
    fn new(seed: u64, helpers: usize) -> Random {
        Random {
            state: seed,
            helpers,
            next: Nanos::ZERO,
        }
    }

    fn place_at_random(&mut self) -> Place {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        match self.state as usize % (self.helpers + 1) {
            0 => Place::HERE,
            helper => Place::helper(helper - 1),
        }
    }
}

/// As [`Random`], but the core stands still for a while in the middle of the run.
struct Stalling {
    random: Random,
    decisions: u32,
}

impl CoreMapper for Stalling {
    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.random.due(now, packets)
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.decisions += 1;
        if self.decisions == 20 {
            std::thread::sleep(Duration::from_millis(40));
        }
        self.random.decide(view, plan);
    }

    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Place {
        self.random.place(flowlet, loads)
    }
}

impl CoreMapper for Random {
    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.next
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.next = view.now + Nanos::from_micros(3);
        for (flow, place) in view.queued.iter().zip(&mut plan.places) {
            if !flow.bound {
                *place = self.place_at_random();
            }
        }
        self.place_at_random();
        plan.boost = self.state.is_multiple_of(16);
        for (i, helper) in view.helpers.iter().enumerate() {
            if helper.load.packets == 0 && !plan.places.contains(&Place::helper(i)) {
                plan.release |= 1 << i;
            }
        }
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Place {
        self.place_at_random()
    }
}

const FLOWS: u32 = 300;

/// Packets of [`FLOWS`] flows, each with its number within the flow: in trains, as whales come, and
/// one by one.
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
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
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
            let mut payload = [flow.to_be_bytes(), number.to_be_bytes()].concat();
            // Some so long that their end is copied by the core that processes them.
            payload.extend((0..flow % 3 * 120).map(|i| (i + *number) as u8));
            let frame = FrameBuilder::new(&key).payload(&payload).to_vec().unwrap();
            // In bursts of several batches, so that there always is something to hand over.
            packets.push((Nanos(u64::from(i / 128) * 128 * SPACING), frame));
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

fn run_through(functions: &str, packets: u32, scaling: Option<ScalingConfig>) -> Outcome {
    // Nothing is lost before the chain, and all that waits at the end is done, however slow the
    // machine.
    run_with(functions, packets, scaling, 1 << 20, "250ms")
}

fn run_with(
    functions: &str,
    packets: u32,
    scaling: Option<ScalingConfig>,
    ring: usize,
    slo: &str,
) -> Outcome {
    let folder = Folder::new();
    let (capture, records) = (folder.0.join("sent.pcap"), folder.0.join("flows.csv"));
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: {slo}}}\n  functions: [{{accounting: {{export: {{file: {}}}}}}}, {functions}]\n",
        records.display()
    );
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    let trace = Trace::load(&mut Numbered::new(packets), &LoadOptions::default()).unwrap();
    let config = RunConfig {
        cores: vec![cores::default_core()],
        nic: TraceNicConfig {
            ring,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out: Some(capture.clone()),
        not_matched: 0,
        seed: 1,
        scaling,
        server: None,
    };
    let report = run(&spec, trace, &config, &AtomicBool::new(false), |_| {}).unwrap();
    Outcome {
        report,
        frames: sent(&capture),
        records: flow_records(&records),
    }
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-scaling-{}-{number}", std::process::id());
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
fn sent(capture: &PathBuf) -> Vec<Vec<u8>> {
    let trace = Trace::load(
        &mut CaptureReader::open(capture, &ReadOptions::default()).unwrap(),
        &LoadOptions::default(),
    )
    .unwrap();
    (0..trace.len()).map(|i| trace.packet(i).to_vec()).collect()
}

fn flow_records(file: &PathBuf) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    // All but the times of the first and the last packet, which end the line.
    let line = |line: &str| line.rsplitn(3, ',').last().unwrap().to_owned();
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines
}

fn random(seed: u64, helpers: usize, park: Mode) -> ScalingConfig {
    // Helpers may share a core with others, or with the dispatcher: slower, but no less right.
    let cores = cores::available();
    let auxiliary = (0..helpers).map(|i| cores[i % cores.len()]).collect();
    ScalingConfig {
        auxiliary,
        mapper: Arc::new(move || Box::new(Random::new(seed, helpers))),
        park,
        buffers: 4096,
    }
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

const PACKETS: u32 = if cfg!(debug_assertions) {
    30_000
} else {
    400_000
};

/// From packet to packet, on average, in nanoseconds: what two cores that others use, too, keep up
/// with.
const SPACING: u64 = if cfg!(debug_assertions) { 6000 } else { 1500 };

/// Whatever is handed where: what is sent, in which order within each flow, and what the functions
/// counted and bound is as on one core.
fn scaled_equals_single(functions: &str, helpers: usize, park: Mode) {
    let single = run_through(functions, PACKETS, None);
    assert_eq!(single.report.packets.lost, 0);
    let expected = order(&single.frames);
    for (flow, numbers) in &expected {
        let in_order = (1..=numbers.len() as u32).eq(numbers.iter().copied());
        assert!(in_order, "flow {flow} on one core");
    }
    let mut single_frames = single.frames.clone();
    single_frames.sort();
    for seed in [0x2545_f491, 0x9e37_79b9_7f4a] {
        let scaled = run_through(functions, PACKETS, Some(random(seed, helpers, park)));
        let packets = &scaled.report.packets;
        assert_eq!((packets.offered, packets.lost), (u64::from(PACKETS), 0));
        assert_eq!(packets.delivered, single.report.packets.delivered);
        assert_eq!(
            order(&scaled.frames),
            expected,
            "order within flows, seed {seed}"
        );
        let mut frames = scaled.frames;
        frames.sort();
        assert!(
            frames == single_frames,
            "packets differ from those on one core"
        );
        assert_eq!(scaled.records, single.records);
        assert!(scaled.report.cores.auxiliary_avg > 0.0);
    }
}

#[test]
fn flows_handed_at_random_are_processed_as_on_one_core() {
    scaled_equals_single("nat: {external: [203.0.113.0/28]}", 1, Mode::Sleep);
}

#[test]
fn several_helpers_that_share_cores() {
    let park = Mode::SpinThenSleep(Duration::from_micros(20));
    let balanced = "loadBalancer: {services: [{address: 0.0.0.0/0, port: any, protocol: udp, \
                    backends: [{address: 172.16.0.1}, {address: 172.16.0.2}]}]}";
    scaled_equals_single(balanced, 3, park);
}

/// A chain without a flow table hands packets by their RSS hash.
#[test]
fn chains_without_flow_state() {
    let scaled = run_through("forward: {}", 20_000, Some(random(7, 2, Mode::Sleep)));
    assert_eq!(scaled.report.packets.delivered, 20_000);
    for (flow, numbers) in order(&scaled.frames) {
        assert!(numbers.is_sorted(), "flow {flow}: {numbers:?}");
    }
}

/// The dispatcher's core stands still for 40 ms in mid-burst: what its ring has no room for meanwhile
/// is lost, counted, and put down to that; everything else goes on in order.
#[test]
fn a_dispatcher_that_stands_still_recovers() {
    let mut scaling = random(11, 1, Mode::Sleep);
    scaling.mapper = Arc::new(|| {
        Box::new(Stalling {
            random: Random::new(11, 1),
            decisions: 0,
        })
    });
    let nat = "nat: {external: [203.0.113.0/28]}";
    let outcome = run_with(nat, PACKETS, Some(scaling), 1024, "10ms");
    let packets = &outcome.report.packets;
    assert_eq!(packets.offered, u64::from(PACKETS));
    let known = packets.delivered + packets.dropped_by_nf + packets.lost;
    assert_eq!(packets.offered, known);
    // Some 6,000 packets or more come in 40 ms, of which the ring holds 1,024.
    assert!(packets.lost > 3_000, "{packets:?}");
    assert!(outcome.report.late_by_cause["descheduled"] > 3_000);
    assert_eq!(outcome.frames.len() as u64, packets.delivered);
    for (flow, numbers) in order(&outcome.frames) {
        assert!(numbers.is_sorted(), "flow {flow} is out of order");
    }
}
