//! Per-packet guarantees: no allocations, and every packet accounted for.

#[path = "common/library.rs"]
mod library;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_api::WhenOverloaded;
use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_chain::buffer::BufferPool;
use tailwater_dataplane::batches::{BatchRecorder, TimedPart};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::overhead::EpochEnd;
use tailwater_dataplane::telemetry::windows;
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_dataplane::worker::{Worker, WorkerConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::build::ChainBuilder;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;
use tailwater_policy::capacity::{EpochFrontier, SplitPoint, SplitProfile};
use tailwater_policy::core::Load;
use tailwater_traffic::generate::UniformConfig;
use tailwater_traffic::generate::{Bursty, BurstyConfig, FrameSize, Transport, Uniform};
use tailwater_traffic::{LoadOptions, PacketSource, Trace};

fn spec(functions: &str, extra: &str) -> ChainSpec {
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 200us}}\n  functions: {functions}\n{extra}"
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
}

const ACL_NAT: &str = "[{acl: {rules: [{action: allow, source: 10.0.0.0/8}, {action: deny}]}}, \
                       {nat: {external: [203.0.113.0/28]}}]";

const ENCRYPT: &str = "[{encrypt: {\
     key: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f}}]";

const LB_ACCOUNTING: &str = "[{loadBalancer: {services: [{address: 0.0.0.0/0, port: any, \
     protocol: udp, backends: [{address: 172.16.0.1}, {address: 172.16.0.2}]}]}}, \
     {accounting: {}}]";

const TUNNEL_ROUTER: &str = "[{tunnel: {rules: [{match: {protocol: tcp}, pop: true}, {push: {vlan: 7}}]}}, \
                             {ipForward: {sourceMac: '02:00:00:00:00:01', default: a, \
                              nextHops: [{name: a, mac: '02:00:00:00:00:02'}], \
                              routes: [{prefix: '198.18.0.0/15', nextHop: a}]}}]";

/// Both counters apply.
const COUNT: &str = "[{count: {counters: [{name: udp, protocol: udp}, {name: untagged, vlan: untagged}]}}]";

/// Records of continuing flows: timeouts expire continuously.
const FLOW_STATS: &str = "[{flowStats: {activeTimeout: 100ms, idleTimeout: 100ms, export: [{file: /dev/null}]}}]";

/// Some of the copies find no room.
const MIRROR: &str = "[{mirror: {to: {file: /dev/null}, buffer: 64KiB, sample: {every: 3}, snap: 96}}]";

const POLICER: &str = "[{policer: {limits: [{match: {protocol: tcp}, rate: 1kpps, burst: 9}, \
                       {per: flow, rate: 1Mbps, burst: 1600, peak: {rate: 1Gbps, burst: 1600}, \
                        conforming: {dscp: ef}}]}}]";

const SYNTHETIC: &str = "[{synthetic: {cycles: 100, newFlowCycles: 100, reads: 3, writes: 2, \
                         workingSet: 64KiB, pattern: chase, per: flow, drop: 0.1}}]";

/// The traffic goes to port 9 and is not DNS, so it counts as malformed queries.
const DNS_GUARD: &str = "[{dnsGuard: {ports: [9], mode: strict, limits: {queries: 3, responses: 3, all: 5}, \
                         amplification: {ratio: 2}, accounts: 1024, queries: 1024}}]";

/// From a file, which needs no libpcap.
const BPF_FILTER: &str = "[{bpfFilter: {rules: [{programFile: ../../examples/programs/no-telnet.bpf, action: drop}]}}]";

/// Counts by source in a hash map.
const XDP: &str = "[{xdp: {file: ../../examples/programs/xdp/source_counter.o, readOnly: true}}]";

/// A token bucket for each flow, which is new again and again.
const WASM: &str = "[{wasm: {file: ../../examples/programs/wasm/rate_limit.wasm, config: {packetsPerSecond: 1000}}}]";

/// Into a tunnel and out of it.
const IPSEC: &str = "[{name: into, ipsec: {outbound: [{name: a, spi: 0x1001, cipher: aes-128-gcm, esn: true, \
                     key: '000102030405060708090a0b0c0d0e0fa0a1a2a3', source: 192.0.2.1, \
                     destination: 192.0.2.2, udp: true}], policies: [{protect: a}]}}, \
                     {name: out-of, ipsec: {inbound: [{name: a, spi: 0x1001, cipher: aes-128-gcm, esn: true, \
                     key: '000102030405060708090a0b0c0d0e0fa0a1a2a3', destination: 192.0.2.2, udp: true}]}}]";

/// Into a tunnel and out of it.
const OPTIMIZER: &str = "[{name: near, wanOptimizer: {local: 192.0.2.1, remote: 192.0.2.2, minimum: 0, cache: 256KiB, \
                         destinations: [0.0.0.0/0]}}, \
                         {name: far, wanOptimizer: {local: 192.0.2.2, remote: 192.0.2.1, cache: 256KiB}}]";

const FIREWALL: &str = "[{firewall: {zones: {lan: {prefixes: [10.0.0.0/8]}}, \
                        halfOpen: {total: 1000}, rules: [allow from lan, deny]}}]";

/// Nearly every batch is split, and split again within a branch.
const BRANCHES: &str = "[{classifier: {directions: each, default: send, \
                        rules: [{to: a, sourcePorts: 0-40000}, {to: b, sourcePorts: 40001-60000}], branches: {\
                          a: {functions: [{name: inner, classifier: {rules: [{to: c, destinationPorts: 0-32767}, \
                            {to: c, sourcePorts: 0-20000}], \
                            branches: {c: {functions: [{accounting: {}}], then: send}}}}, {acl: {rules: [{action: allow}]}}]}, \
                          b: {functions: [{policer: {limits: [{per: flow, rate: 9Gbps, burst: 9000}]}}]}}}}, \
                        {nat: {external: [203.0.113.0/28]}}]";

fn load(mut source: impl PacketSource) -> Trace {
    Trace::load(&mut source, &LoadOptions::default()).unwrap()
}

fn uniform(flows: u32, packets: u64) -> Trace {
    let (seed, size, transport) = (1, FrameSize::Fixed(64), Transport::Udp);
    let config = UniformConfig {
        seed,
        flows,
        size,
        transport,
        rate_pps: 1_000_000,
        packets,
    };
    load(Uniform::new(config).unwrap())
}

/// Runs a worker once over the trace on this thread, and counts its allocations.
fn allocations(functions: &str, packets: u64) -> u64 {
    let clock = Clock::start();
    let rss = RssHasher::default();
    let mut builder = ChainBuilder::new(&spec(functions, ""), &rss, 1).unwrap();
    let pacing = Pacing::Saturate;
    let config = TraceNicConfig {
        pacing,
        ..TraceNicConfig::default()
    };
    // New flows all the time: more than fit the table, so flows are evicted, too.
    let trace = uniform(200_000, packets);
    let nic = TraceNic::new(trace, rss, 1, &round_robin(1), config, clock.clone()).unwrap();
    let start = clock.now();
    let queue = Box::new(nic.queues(start).remove(0));
    let pool = BufferPool::new(64, 2048).unwrap();
    let (slo, window) = (Nanos::from_micros(200), Nanos::from_millis(1));
    let config = WorkerConfig {
        slo,
        when_overloaded: WhenOverloaded::InOrder,
        window,
        start,
        batch: 32,
        late: Default::default(),
    };
    let mut chain = builder.instance(|_| true);
    let reading = clock.clone();
    chain.sample_functions(Box::new(move || reading.now()), Default::default(), Default::default());
    let (mut senders, receiver) = windows(1, [chain.reasons().len(), 8]);
    let worker = Worker::new(queue, chain, pool, clock, config, senders.remove(0));
    let mut chain = None;
    let info = allocation_counter::measure(|| chain = Some(worker.run(|| false)));
    let mut offered = 0;
    while receiver
        .receive(std::time::Duration::ZERO, |window| offered += window.offered)
        .is_ok()
    {}
    assert_eq!(offered, packets);
    info.count_total
}

#[test]
fn nothing_is_allocated_per_packet() {
    let in_c = format!("[{{{}}}]", library::function_in_c("steady-state", false));
    for functions in [
        "[{forward: {}}]",
        &in_c,
        LB_ACCOUNTING,
        ENCRYPT,
        ACL_NAT,
        TUNNEL_ROUTER,
        POLICER,
        FLOW_STATS,
        MIRROR,
        COUNT,
        SYNTHETIC,
        DNS_GUARD,
        BPF_FILTER,
        XDP,
        WASM,
        IPSEC,
        OPTIMIZER,
        FIREWALL,
        BRANCHES,
    ] {
        // An interpreter that is not optimised is slow.
        let part = if functions == WASM { 20 } else { 1 };
        let (few, many) = (
            allocations(functions, 20_000 / part),
            allocations(functions, 100_000 / part),
        );
        assert_eq!(few, many, "{functions}: allocations grow with the packets");
    }
}

/// Packets that wait, are offloaded and come back: from the look-up to the receipt.
#[test]
fn nothing_is_allocated_for_packets_handed_over() {
    // A single flow is offloaded only if it can be split.
    let mut splits = SplitProfile::new();
    assert!(splits.insert(SplitPoint {
        last_functions: 1,
        first: 600,
        last: 600,
    }));
    let whole = SplitProfile::new();
    for (flows, splits) in [(1, &whole), (1, &splits), (32, &whole), (310, &whole)] {
        let mut frontier = EpochFrontier::default();
        frontier.insert(Load {
            flows: u32::MAX,
            packets: 200,
        });
        let options = NetBlazeOptions::new(Nanos::from_micros(200));
        let mapper = NetBlazeMapper::new(options, &frontier, splits.clone()).unwrap();
        let mut rig = EpochEnd::new(512, flows, 3, Box::new(mapper));
        let mut epoch = |number: u64| rig.run(Nanos::from_millis(number)).1;
        let settled: usize = (1..200).map(&mut epoch).sum();
        let mut moved = 0;
        let info = allocation_counter::measure(|| moved = (200..300).map(&mut epoch).sum());
        assert_eq!(info.count_total, 0, "{flows} flows");
        let handed = flows > 1 || !splits.points().is_empty();
        assert_eq!((settled > 0, moved > 0), (handed, handed), "{flows} flows");
    }
}

/// Every processed packet is in a recorded batch, and the records are in order of time.
#[test]
fn batches_are_noted_with_all_their_packets() {
    let (spec, notes) = (spec(ACL_NAT, ""), BatchRecorder::new(20_000));
    // Room for all packets: on a busy machine, workers begin late.
    let nic = || TraceNicConfig {
        ring: 1 << 15,
        ..TraceNicConfig::default()
    };
    let (trace, stop) = (uniform(64, 20_000), AtomicBool::new(false));
    let plan = RunPlan::new(spec.clone(), config(nic(), 1)).unwrap();
    let report = run(&plan, trace, RunControl::new(&stop).with_batches(&notes));
    let packets = report.unwrap().packets;
    assert_eq!(packets.offered, 20_000);
    let noted = notes.take();
    assert_eq!(noted.len(), 1, "a list for the worker");
    let in_notes: u64 = noted[0].iter().map(|batch| u64::from(batch.packets)).sum();
    // A slow machine does not process all of them before the end.
    assert_eq!(in_notes, packets.delivered + packets.dropped_by_nf);
    for batch in &noted[0] {
        assert_eq!(batch.part, TimedPart::Whole);
        assert!(batch.arrival <= batch.received && batch.received <= batch.sent);
    }
    let pairs = noted[0].windows(2);
    assert!({ pairs }.all(|pair| pair[0].sent <= pair[1].received));
    // Batches beyond the limit are omitted.
    let few = BatchRecorder::new(3);
    let trace = uniform(64, 20_000);
    let plan = RunPlan::new(spec, config(nic(), 1)).unwrap();
    run(&plan, trace, RunControl::new(&stop).with_batches(&few)).unwrap();
    assert_eq!(few.take()[0].len(), 3);
}

fn run_once(functions: &str, trace: Trace, config: RunConfig) -> RunReport {
    let stop = AtomicBool::new(false);
    let plan = RunPlan::new(spec(functions, "  flows: {capacity: 4096}\n"), config);
    run(&plan.unwrap(), trace, RunControl::new(&stop)).unwrap()
}

fn config(nic: TraceNicConfig, workers: usize) -> RunConfig {
    RunConfig {
        cores: cores::available().into_iter().take(workers).collect(),
        nic,
        window: Nanos::from_millis(20),
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: None,
        server: None,
        isolation: None,
    }
}

fn assert_balanced(report: &RunReport) {
    let packets = &report.packets;
    assert!(packets.offered > 0);
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost
    );
    let windows: u64 = report.windows.list.iter().map(|window| window.offered).sum();
    assert_eq!(windows, packets.offered, "a window is missing");
}

#[test]
fn every_packet_is_accounted_for() {
    let bursty = |seed| {
        let config = BurstyConfig {
            seed,
            duration: Nanos::from_millis(300),
            ..BurstyConfig::preset()
        };
        load(Bursty::new(config).unwrap())
    };
    for workers in [1, 2] {
        // At the trace's rate, far too fast through a tiny ring, and as fast as the chain can.
        let paced = TraceNicConfig::default();
        let report = run_once(ACL_NAT, bursty(1), config(paced, workers));
        assert_balanced(&report);
        let mut fast = bursty(2);
        fast.scale_rate(1000.0).unwrap();
        let tiny = TraceNicConfig {
            ring: 64,
            ..TraceNicConfig::default()
        };
        let report = run_once(ACL_NAT, fast, config(tiny, workers));
        assert_balanced(&report);
        assert!(
            report.packets.lost > 0,
            "a ring of 64 cannot hold a hundred million a second"
        );
        assert_eq!(report.slo_met, Some(false));
        let attributed = report.late_by_cause["nic-ring-full"] + report.late_by_cause["descheduled"];
        assert!(attributed >= report.packets.reasons["nic-ring-full"]);
        let saturate = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration: Some(Nanos::from_millis(100)),
            ..TraceNicConfig::default()
        };
        let report = run_once(ACL_NAT, bursty(3), config(saturate, workers));
        assert_balanced(&report);
        assert_eq!(report.packets.reasons.get("nic-ring-full"), None);
    }
}

#[test]
fn a_full_flow_table_that_refuses_loses_packets_and_says_so() {
    let spec = spec(ACL_NAT, "  flows: {capacity: 512, whenFull: refuse}\n");
    let saturate = TraceNicConfig {
        pacing: Pacing::Saturate,
        ..TraceNicConfig::default()
    };
    let stop = AtomicBool::new(false);
    let plan = RunPlan::new(spec, config(saturate, 1)).unwrap();
    let report = run(&plan, uniform(100_000, 100_000), RunControl::new(&stop)).unwrap();
    assert_balanced(&report);
    let flows = report.flows.unwrap();
    let refused =
        report.packets.reasons["flow-table-full"] + report.packets.reasons.get("nat/flow-table-full").unwrap_or(&0);
    assert!(refused > 0);
    assert_eq!(flows.refused, refused);
    assert_eq!(flows.evicted, 0);
}

#[test]
fn a_stopped_run_ends_soon_and_balanced() {
    let stop = AtomicBool::new(false);
    let endless = TraceNicConfig {
        duration: Some(Nanos::from_secs(3600)),
        ..TraceNicConfig::default()
    };
    let plan = RunPlan::new(spec(ACL_NAT, ""), config(endless, 1)).unwrap();
    let offered = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let control = RunControl::new(&stop).with_progress(|progress| {
                offered.fetch_or(progress.packets.offered > 0, Ordering::Relaxed);
            });
            run(&plan, uniform(1000, 10_000), control)
        });
        // However long a busy machine takes to start.
        while !offered.load(Ordering::Relaxed) && !thread.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let before = std::time::Instant::now();
        stop.store(true, Ordering::Relaxed);
        let report = thread.join().unwrap().unwrap();
        assert!(before.elapsed() < std::time::Duration::from_secs(5));
        report
    });
    assert!(report.interrupted);
    assert_balanced(&report);
}
