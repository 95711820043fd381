//! Flows split between cores: no loss, no reordering, state as on one core.
//!
//! The mapper here moves and splits flows at random, as often as it can and before every function.

mod common;

use common::traffic::random;
use common::{Folder, alone, flow_records, sent};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::TraceNicConfig;
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::parse::parse;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, Review, Split, SplitFlow, Unit, View};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Every few microseconds moves or splits the queued flows, or neither.
struct Random {
    state: u64,
    helpers: usize,
    functions: usize,
    unit: Unit,
    next: Nanos,
}

impl CoreMapper for Random {
    fn unit(&self) -> Unit {
        self.unit
    }

    fn split_points(&mut self, _: usize) -> u64 {
        u64::MAX
    }

    /// Divides and joins parts, with and without packets on their way.
    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        let draw = random(&mut self.state) as usize;
        match draw % 8 {
            0..3 => Review::Divide {
                last_functions: 1 + draw / 64 % (self.functions - 1),
                auxiliary: draw / 8 % self.helpers,
            },
            3 if split.parts.len() > 1 || (draw / 8).is_multiple_of(4) => Review::Join,
            _ => Review::Keep,
        }
    }

    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.next
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.next = view.now + Nanos::from_micros(3);
        for (flow, queued) in view.queued.iter().enumerate() {
            let draw = random(&mut self.state) as usize;
            let helper = draw / 8 % self.helpers;
            match draw % 8 {
                _ if queued.bound => {}
                0 => plan.destinations[flow] = Destination::auxiliary(helper),
                1..5 => plan.splits.push(Split {
                    flow,
                    last_functions: 1 + draw / 64 % (self.functions - 1),
                    auxiliary: helper,
                }),
                _ => {}
            }
        }
        plan.boost = random(&mut self.state).is_multiple_of(16);
        // Including auxiliary cores of split flows, which must not be released.
        for (i, helper) in view.auxiliaries.iter().enumerate() {
            plan.release |= u64::from(helper.load.packets == 0) << i;
        }
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        match random(&mut self.state) % 4 {
            0 => Destination::auxiliary(0),
            _ => Destination::OWN_CORE,
        }
    }
}

const FLOWS: u32 = 60;

/// Number of packets, and mean nanoseconds between them: sustainable by two cores that other programs use, too.
type Load = (u32, u64);

const LOAD: Load = match cfg!(debug_assertions) {
    true => (20_000, 10_000),
    false => (200_000, 2_000),
};

/// For functions that work on payloads.
const LIGHT: Load = match cfg!(debug_assertions) {
    true => (4_000, 400_000),
    false => (100_000, 8_000),
};

/// Packets of UDP flows and TCP connections, each with its number within the flow at its end, mostly in trains, as of
/// whales. Some connections request a page, and a few of them a forbidden one.
struct Numbered {
    packets: Vec<(Nanos, Vec<u8>)>,
    next: usize,
}

impl Numbered {
    fn new((count, spacing): Load) -> Numbered {
        let mut flows = [(0u32, 1000u32); FLOWS as usize];
        let (mut packets, mut state, mut left, mut flow) = (Vec::new(), 88172645463325252, 0, 0);
        for i in 0..count {
            if left == 0 {
                let draw = random(&mut state);
                flow = (draw % u64::from(FLOWS)) as u32;
                left = match draw >> 60 {
                    0..4 => 100,
                    _ => 1 + (draw >> 40) as u32 % 4,
                };
            }
            left -= 1;
            let (number, sequence) = &mut flows[flow as usize];
            *number += 1;
            // In bursts of several batches, so there are always packets to offload.
            let time = Nanos(u64::from(i / 128) * 128 * spacing);
            packets.push((time, frame(flow, *number, sequence)));
        }
        Numbered { packets, next: 0 }
    }
}

fn frame(flow: u32, number: u32, sequence: &mut u32) -> Vec<u8> {
    let protocol = match flow % 2 {
        0 => protocol::UDP,
        _ => protocol::TCP,
    };
    let mut payload = Vec::new();
    if protocol == protocol::TCP && flow.is_multiple_of(3) && number == 5 {
        let host = if flow.is_multiple_of(9) {
            "example.net"
        } else {
            "example.org"
        };
        payload.extend(format!("GET /{flow} HTTP/1.1\r\nHost: {host}\r\n\r\n").bytes());
    }
    // Some are so long that the core that needs their end copies it.
    payload.extend((0..flow % 3 * 120).map(|i| (i + number) as u8 | 128));
    payload.extend([flow.to_be_bytes(), number.to_be_bytes()].concat());
    let key = FlowKey::v4(
        Ipv4Addr::from_bits(0x0a00_0000 + flow),
        Ipv4Addr::new(198, 51, 100, 1),
        protocol,
        1000 + flow as u16,
        80,
    );
    let mut builder = FrameBuilder::new(&key);
    if protocol == protocol::TCP {
        if number == 1 {
            payload.drain(..payload.len() - 8);
        }
        builder = builder.tcp(TcpFields {
            sequence: *sequence,
            flags: if number == 1 { TcpFlags::SYN } else { TcpFlags::ACK },
            ..TcpFields::default()
        });
        *sequence += payload.len() as u32 + u32::from(number == 1);
    }
    builder.payload(&payload).to_vec().unwrap()
}

/// Flow of a frame, and its number in the flow.
fn identity(frame: &[u8]) -> (u32, u32) {
    let headers = parse(frame).unwrap();
    let payload = &frame[..usize::from(headers.end)];
    let word = |back| {
        let at = payload.len() - back;
        u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
    };
    (word(8), word(4))
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

/// Results of a run: its report, the numbers of each flow's packets in the order in which they were sent, the sorted
/// frames, and the sorted flow records without their times.
struct SplitResult {
    report: RunReport,
    order: BTreeMap<u32, Vec<u32>>,
    frames: Vec<Vec<u8>>,
    records: Vec<String>,
    /// Number of functions in the chain.
    functions: usize,
}

/// Runs the traffic through the functions, and accounting behind them.
fn run_through(functions: &[&str], load: Load, scaling: Option<ScalingConfig>) -> SplitResult {
    let folder = Folder::new();
    let (capture, records) = (folder.0.join("sent.pcap"), folder.0.join("flows.csv"));
    // All waiting packets are processed at the end, however slow the machine.
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 250ms}}\n  functions: [{}, {{name: last, accounting: {{export: {{file: {}}}}}}}]\n",
        functions.join(", "),
        records.display()
    );
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    let trace = Trace::load(&mut Numbered::new(load), &LoadOptions::default()).unwrap();
    let config = RunConfig {
        cores: vec![cores::default_core()],
        nic: TraceNicConfig {
            // No packet is lost before the chain.
            ring: 1 << 20,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out: Some(capture.clone()),
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server: None,
        isolation: None,
    };
    let _alone = alone();
    let plan = RunPlan::new(spec.clone(), config).unwrap();
    let report = run(&plan, trace, RunControl::new(&AtomicBool::new(false))).unwrap();
    let mut frames = sent(&capture);
    let mut order: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (flow, number) in frames.iter().map(|frame| identity(frame)) {
        order.entry(flow).or_default().push(number);
    }
    frames.sort_unstable();
    SplitResult {
        report,
        order,
        frames,
        records: flow_records(&records),
        functions: spec.functions.len(),
    }
}

/// Packets sent, their order within each flow, drops with their reasons, and the functions' counters and bindings are
/// the same as on one core, whatever is split and moved.
fn split_equals_single(functions: &[&str], load: Load, helpers: usize) {
    let single = run_through(functions, load, None);
    assert_eq!(single.report.packets.lost, 0, "{:?}", single.report.packets);
    assert!(single.report.packets.delivered > u64::from(load.0) / 2);
    assert!(single.order.values().all(|numbers| numbers.is_sorted()));
    let cores = cores::available();
    let functions_with_last = single.functions;
    for (seed, unit) in [(0x2545_f491, Unit::Flow), (0x9e37_79b9_7f4a, Unit::Bucket)] {
        let scaling = ScalingConfig {
            // Auxiliary cores may share a core with others, or with the dispatcher: slower, but equally correct.
            auxiliary: (0..helpers).map(|i| cores[i % cores.len()]).collect(),
            dedicated_help: false,
            mapper: Arc::new(move || {
                Box::new(Random {
                    state: seed,
                    helpers,
                    functions: functions_with_last,
                    unit,
                    next: Nanos::ZERO,
                })
            }),
            park: Mode::Sleep,
            buffers: 4096,
        };
        let split = run_through(functions, load, Some(scaling));
        let (packets, expected) = (&split.report.packets, &single.report.packets);
        assert_eq!(packets.offered, expected.offered);
        assert_eq!(packets.reasons, expected.reasons, "seed {seed}");
        assert_eq!(packets.delivered, expected.delivered);
        for (flow, numbers) in &single.order {
            let sent = split.order.get(flow);
            assert!(sent == Some(numbers), "flow {flow}, seed {seed}");
        }
        assert!(split.frames == single.frames, "other frames, seed {seed}");
        assert_eq!(split.records, single.records, "seed {seed}");
        let scaling = split.report.scaling.unwrap();
        // A bucket is not split in front of a function that opens companions.
        if unit == Unit::Flow || !functions.iter().any(|function| function.contains("nat:")) {
            assert!(scaling.splits > 50, "{scaling:?}");
        }
        assert!(scaling.flows_moved > 10, "{scaling:?}");
    }
}

const ACL: &str = "{acl: {rules: [{action: deny, source: 10.0.0.7/32}, {action: allow}]}}";

const BALANCER: &str = "{loadBalancer: {services: [\
     {address: 0.0.0.0/0, port: any, protocol: udp, backends: [{address: 172.16.0.1}, {address: 172.16.0.2}]}, \
     {address: 0.0.0.0/0, port: any, protocol: tcp, backends: [{address: 172.16.0.3}]}]}}";

const KEY: &str = "key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Flows that the translator has to open are not split before.
#[test]
fn acl_and_nat() {
    split_equals_single(&[ACL, "{nat: {external: [203.0.113.0/28]}}"], LOAD, 1);
}

#[test]
fn acl_load_balancer_and_accounting() {
    split_equals_single(&[ACL, BALANCER, "{accounting: {}}"], LOAD, 2);
}

/// Requests are matched within connections, and decryption must restore the encrypted data. Both functions keep more
/// than one decision per flow, and both need whole frames.
#[test]
fn acl_url_filter_and_encryption() {
    let encrypt = format!("{{encrypt: {{mtu: 9000, {KEY}}}}}");
    let decrypt = format!("{{name: decrypt, encrypt: {{direction: decrypt, {KEY}}}}}");
    let filter = "{urlFilter: {patterns: [example.net]}}";
    split_equals_single(&[ACL, filter, &encrypt, &decrypt], LIGHT, 2);
}

/// Frames that start at another offset and are longer than on arrival, with headers at other offsets.
#[test]
fn tunnel_and_routing() {
    let tunnel = "{tunnel: {rules: [{match: {protocol: tcp}, push: {vlan: 100}}, {push: {vlan: 7}}]}}";
    let routing = "{ipForward: {sourceMac: '02:00:00:00:00:01', default: a, \
                   nextHops: [{name: a, mac: '02:00:00:00:00:02'}]}}";
    split_equals_single(&[ACL, tunnel, routing], LOAD, 1);
}

/// Flows of different branches, one of them nested. A split may begin in any of them.
#[test]
fn branches() {
    let accounting = "{name: inner, accounting: {}}";
    let nat = "{nat: {external: [203.0.113.0/28]}}";
    let classifier = format!(
        "{{classifier: {{rules: [{{to: tcp, protocol: tcp}}, {{to: some, source: 10.0.0.0/27}}, \
         {{to: send, source: 10.0.0.40/29}}], branches: {{\
         tcp: {{functions: [{ACL}, {{name: pages, classifier: {{rules: [{{to: marked, source: 10.0.0.0/28}}], \
         branches: {{marked: {{functions: [{accounting}, {BALANCER}]}}}}}}}}]}}, \
         some: {{functions: [{nat}, {{forward: {{}}}}]}}}}}}}}"
    );
    split_equals_single(&[&classifier], LOAD, 2);
}
