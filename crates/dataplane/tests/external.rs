//! External functions in chains: whatever one does with packets, each is accounted for, and continues correctly.

mod common;

use common::traffic::{Traffic, order, random};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::function::{FlowStates, NetworkFunction};
use tailwater_dataplane::external::{Attached, Attachment, Direction, Functions};
use tailwater_dataplane::port::OpenError;
use tailwater_dataplane::report::{ExternalReport, RunReport};
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{Packets, RunConfig, RunControl, RunError, RunPlan, cores, run};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_net::Nanos;
use tailwater_traffic::{CaptureReader, PacketSource, ReadOptions};

/// Random behaviour of a function, in shares of 1,000 packets.
#[derive(Clone, Copy, Debug, Default)]
struct Does {
    /// Drops the packet.
    drop: u64,
    /// Returns it after the timeout.
    detain: u64,
    /// Sends an additional packet of its own.
    add: u64,
    /// Does not accept it.
    refuse: u64,
    /// Sends it back in the opposite direction.
    bounce: u64,
    /// Fails at this packet and returns none from then on.
    dies_at: Option<u64>,
}

/// Address translator in memory.
#[derive(Debug)]
struct Pretended {
    does: Does,
    two_ports: bool,
    state: u64,
    seen: u64,
    /// Frames to be returned, with their times, by direction.
    coming: [VecDeque<(Nanos, Vec<u8>)>; 2],
    detained: VecDeque<(Nanos, Vec<u8>)>,
    now: Nanos,
}

/// Processing time, and time for which packets are detained: longer than the timeout.
const DELAY: Nanos = Nanos::from_micros(50);
const DETENTION: Nanos = Nanos::from_millis(60);
const TIMEOUT: &str = "20ms";

impl Pretended {
    fn new(does: Does, two_ports: bool) -> Pretended {
        Pretended {
            does,
            two_ports,
            state: 0x9e37_79b9,
            seen: 0,
            coming: Default::default(),
            detained: VecDeque::new(),
            now: Nanos::ZERO,
        }
    }

    fn happens(&mut self, share: u64) -> bool {
        random(&mut self.state) % 1000 < share
    }
}

/// Changes the source address, hop limit and checksum: all that a translator changes but ports, which tests rely on.
fn translate(frame: &mut [u8]) {
    frame[..12].fill(2);
    if frame[12..14] != [8, 0] {
        return;
    }
    frame[22] -= 1;
    frame[26] = 77;
    frame[24..26].fill(0xee);
}

/// A packet of the function's own.
fn own(number: u64) -> Vec<u8> {
    let mut frame = vec![3; 12];
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

impl Attachment for Pretended {
    fn has_two_ports(&self) -> bool {
        self.two_ports
    }

    fn longest(&self) -> usize {
        1514
    }

    fn ring(&self) -> usize {
        usize::MAX
    }

    fn send(&mut self, way: Direction, batch: &mut Batch) -> usize {
        let mut refused = Vec::new();
        for i in 0..batch.len() {
            if self.happens(self.does.refuse) {
                refused.push(i as u16);
                continue;
            }
            self.seen += 1;
            let dead = self.does.dies_at.is_some_and(|at| self.seen >= at);
            if dead || self.happens(self.does.drop) {
                continue;
            }
            let mut frame = batch.frame(i).to_vec();
            translate(&mut frame);
            let back = self.now + DELAY;
            let way = match self.happens(self.does.bounce) {
                true => Direction::Backward,
                false => way,
            };
            if self.happens(self.does.detain) {
                self.detained.push_back((self.now + DETENTION, frame));
            } else {
                self.coming[way as usize].push_back((back, frame));
            }
            if self.happens(self.does.add) {
                self.coming[0].push_back((back, own(self.seen)));
            }
        }
        batch.remove_unsent(&refused);
        refused.len()
    }

    fn receive(&mut self, way: Direction, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize {
        self.now = now;
        let mut queues = vec![&mut self.coming[way as usize]];
        if way == Direction::Forward {
            queues.push(&mut self.detained);
        }
        for queue in queues {
            while let Some((_, frame)) = queue.front().filter(|(time, _)| *time <= now) {
                if !batch.push(pool, frame, now, 0) {
                    return batch.len();
                }
                queue.pop_front();
            }
        }
        batch.len()
    }
}

/// Functions of each worker.
struct Pretences(Vec<Vec<Pretended>>);

impl<P> Functions<P> for Pretences {
    fn open(&mut self, _: &P) -> Result<Vec<Attached>, OpenError> {
        let workers = self.0.drain(..).map(|functions| {
            let attachments = functions.into_iter().map(|function| Box::new(function) as _);
            Ok(Attached {
                attachments: attachments.collect(),
                pool: BufferPool::new(512, 2048)?,
            })
        });
        workers.collect()
    }
}

struct RunResult {
    report: RunReport,
    frames: Vec<Vec<u8>>,
    records: BTreeMap<String, u64>,
}

/// A run that is not stopped.
const NEVER: u64 = u64::MAX;

const PACKETS: u32 = 8_000;

/// Port 1001 is closed. Packets that leave the chain are counted by flow.
fn spec(functions: &str, folder: &Path) -> ChainSpec {
    let records = folder.join("flows.csv");
    let text = format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: 250ms}}\n  functions:\n    - acl: {{default: allow, rules: [{{action: deny, sourcePorts: \
         1001}}]}}\n{functions}    - accounting: {{export: {{file: {}}}}}\n",
        records.display()
    );
    ChainSpec::parse(&text, "test", Path::new(".")).unwrap()
}

fn config(capture: PathBuf, workers: usize) -> RunConfig {
    RunConfig {
        cores: cores::available().into_iter().take(workers).collect(),
        nic: TraceNicConfig {
            // Longer than packets are detained. The ring has room for all, so a busy machine loses none.
            pacing: Pacing::Arrivals,
            ring: 1 << 16,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out: Some(capture),
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: None,
        server: None,
        isolation: None,
    }
}

fn external(name: &str, more: &str) -> String {
    format!("    - name: {name}\n      external: {{port: net_{name}0, timeout: {TIMEOUT}, {more}}}\n")
}

fn traffic() -> Traffic {
    Traffic {
        packets: PACKETS,
        flows: 40,
        burst: 16,
        spacing: Nanos(40_000),
        ..Traffic::default()
    }
}

fn run_with(functions: &str, pretended: Vec<Pretended>, stop_after: u64) -> RunResult {
    run_on_workers(functions, vec![pretended], stop_after)
}

/// Runs a chain with these functions at each worker.
fn run_on_workers(functions: &str, pretended: Vec<Vec<Pretended>>, stop_after: u64) -> RunResult {
    let folder = common::Folder::new();
    let spec = spec(functions, &folder.0);
    let capture = folder.0.join("sent.pcap");
    let config = config(capture.clone(), pretended.len());
    let functions = Box::new(Pretences(pretended));
    let _alone = common::alone();
    let stop = AtomicBool::new(false);
    let progress = |progress: &Progress| {
        stop.fetch_or(progress.packets.delivered >= stop_after, Ordering::Relaxed);
    };
    let trace = traffic().trace();
    let plan = RunPlan::new(spec, config).unwrap();
    let control = RunControl::new(&stop).with_progress(progress);
    let report = run(&plan, Packets::TraceWithExternals { trace, functions }, control);
    let report = report.unwrap();
    let mut reader = CaptureReader::open(&capture, &ReadOptions::default()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        frames.push(packet.data.to_vec());
    }
    let records = std::fs::read_to_string(folder.0.join("flows.csv")).unwrap();
    let mut lines = records.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let packets = names.iter().position(|name| *name == "packets").unwrap();
    let source = names.iter().position(|name| name.starts_with("source")).unwrap();
    let mut counts = BTreeMap::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        *counts.entry(fields[source].to_owned()).or_default() += fields[packets].parse::<u64>().unwrap();
    }
    RunResult {
        report,
        frames,
        records: counts,
    }
}

fn reason(report: &RunReport, name: &str) -> u64 {
    report.packets.reasons.get(name).copied().unwrap_or(0)
}

/// Every packet is accounted for exactly once, by all counters.
fn check(outcome: &RunResult) {
    let RunResult { report, frames, .. } = outcome;
    let packets = &report.packets;
    let known = packets.delivered + packets.dropped_by_nf + packets.lost;
    assert_eq!(packets.offered, known, "{packets:?}");
    assert_eq!(frames.len() as u64, packets.delivered);
    let own: u64 = report.externals.iter().map(|external| external.own).sum();
    assert_eq!(packets.offered, u64::from(PACKETS) + own);
    for external in &report.externals {
        let ExternalReport {
            function,
            sent,
            returned,
            not_returned,
            ..
        } = external;
        assert_eq!(*sent, returned + not_returned, "{external:?}");
        assert_eq!(reason(report, &format!("{function}/not-returned")), *not_returned);
        assert_eq!(reason(report, &format!("{function}/own")), external.own);
    }
    let causes: u64 = report.late_by_cause.values().sum();
    assert!(causes >= packets.lost, "{:?}", report.late_by_cause);
}

/// Packets of the function's own, among the frames sent.
fn made(frames: &[Vec<u8>]) -> u64 {
    frames.iter().filter(|frame| frame[12..14] == [8, 6]).count() as u64
}

fn rises(frames: &[Vec<u8>]) {
    let ip: Vec<Vec<u8>> = frames
        .iter()
        .filter(|frame| frame[12] == 8 && frame[13] == 0)
        .cloned()
        .collect();
    for (flow, numbers) in order(&ip) {
        let rises = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(rises, "flow {flow} is out of order: {numbers:?}");
    }
}

#[test]
fn all_that_a_function_gives_back_goes_on_in_order_as_its_own_flow() {
    for two_ports in [false, true] {
        let function = Pretended::new(Does::default(), two_ports);
        let outcome = run_with(&external("fw", ""), vec![function], NEVER);
        check(&outcome);
        rises(&outcome.frames);
        let report = &outcome.report;
        let denied = reason(report, "acl/denied");
        assert!(denied > 0, "{:?}", report.packets);
        assert_eq!(report.packets.delivered, u64::from(PACKETS) - denied);
        let [external] = &report.externals[..] else {
            panic!("{:?}", report.externals)
        };
        assert_eq!(
            (external.sent, external.own, external.late),
            (report.packets.delivered, 0, 0)
        );
        // Latency covers the whole chain: from the first arrival.
        let (inside, outside) = (report.latency_us.mean, external.delay_us.mean);
        assert!(outside > 0.0 && inside >= 0.9 * outside, "{inside} {outside}");
        // The function behind sees the translated flows.
        assert!(
            outcome.records.keys().all(|source| source.starts_with("77.")),
            "{:?}",
            outcome.records
        );
        assert_eq!(outcome.records.values().sum::<u64>(), report.packets.delivered);
    }
}

/// A function that translates addresses moves flows to RSS buckets of other workers.
#[test]
fn flows_that_a_function_moves_to_other_buckets_stay_at_their_worker() {
    if cores::available().len() < 2 {
        println!("skipped: this needs two cores");
        return;
    }
    for does in [
        Does::default(),
        Does {
            drop: 50,
            add: 30,
            refuse: 20,
            ..Does::default()
        },
    ] {
        let functions = format!("{}    - {{name: counters, accounting: }}\n", external("fw", ""));
        let workers = (0..2).map(|_| vec![Pretended::new(does, true)]).collect();
        let outcome = run_on_workers(&functions, workers, NEVER);
        check(&outcome);
        rises(&outcome.frames);
        let report = &outcome.report;
        assert_eq!(report.cores.dedicated, 2);
        assert_eq!(reason(report, "after-fw/bucket-not-held"), 0, "{:?}", report.packets);
        let [external] = &report.externals[..] else {
            panic!("{:?}", report.externals)
        };
        let (denied, dropped) = (reason(report, "acl/denied"), external.not_returned + external.refused);
        assert!(denied > 0, "{:?}", report.packets);
        assert_eq!(
            report.packets.delivered,
            u64::from(PACKETS) + external.own - denied - dropped
        );
        // Both functions behind have seen every packet, each with its flow.
        let recorded: u64 = outcome.records.values().sum();
        assert_eq!(recorded, report.packets.delivered - external.own);
        assert!(
            outcome.records.keys().all(|source| source.starts_with("77.")),
            "{:?}",
            outcome.records
        );
        let flows = report.flows.as_ref().unwrap();
        assert_eq!((flows.refused, flows.evicted), (0, 0), "{flows:?}");
    }
}

#[test]
fn what_a_function_loses_detains_makes_and_refuses_is_counted() {
    for (two_ports, missing) in [(false, "missing: lost"), (true, "missing: dropped")] {
        let does = Does {
            drop: 50,
            detain: 20,
            add: 30,
            refuse: 20,
            ..Does::default()
        };
        let function = Pretended::new(does, two_ports);
        let outcome = run_with(&external("fw", missing), vec![function], NEVER);
        check(&outcome);
        let report = &outcome.report;
        let external = &report.externals[0];
        assert!(
            external.not_returned > 100 && external.own > 50 && external.refused > 50,
            "{external:?}"
        );
        assert!(
            external.late > 0 && external.late <= external.not_returned,
            "{external:?}"
        );
        assert_eq!(made(&outcome.frames), external.own);
        assert_eq!(reason(report, "fw/not-taken"), external.refused);
        // The function's own packets are not IP, and pass as such.
        assert_eq!(reason(report, "after-fw/non-ip"), external.own);
        let lost = external.refused + if two_ports { 0 } else { external.not_returned };
        assert_eq!(report.packets.lost, lost, "{:?}", report.packets);
        let blamed = report.late_by_cause["external"];
        assert!(two_ports || blamed >= external.not_returned, "{blamed}");
    }
}

#[test]
fn own_packets_are_dropped_where_the_spec_says_so_and_what_bounces_has_no_way() {
    let does = Does {
        add: 100,
        bounce: 100,
        ..Does::default()
    };
    let function = Pretended::new(does, true);
    let outcome = run_with(&external("fw", "own: drop"), vec![function], NEVER);
    check(&outcome);
    let external = &outcome.report.externals[0];
    assert!(external.own > 100 && external.no_way_back > 100, "{external:?}");
    assert_eq!((made(&outcome.frames), external.not_returned), (0, 0));
    let reasons = &outcome.report.packets;
    let dropped = reason(&outcome.report, "acl/denied") + external.own + external.no_way_back;
    assert_eq!(reasons.dropped_by_nf, dropped, "{reasons:?}");
}

#[test]
fn a_function_that_dies_costs_what_it_has_and_no_more_than_may_be_outside() {
    let does = Does {
        dies_at: Some(2000),
        ..Does::default()
    };
    let function = Pretended::new(does, false);
    let outcome = run_with(&external("fw", "outside: 64"), vec![function], NEVER);
    check(&outcome);
    let external = &outcome.report.externals[0];
    assert!(external.most_outside <= 64, "{external:?}");
    assert!(external.returned < 2000 && external.refused > 0, "{external:?}");
    assert_eq!(reason(&outcome.report, "fw/too-many-outside"), external.refused);
    assert_eq!(outcome.report.packets.delivered, external.returned);
}

#[test]
fn packets_go_through_two_functions_one_after_the_other() {
    let functions = format!("{}    - forward:\n{}", external("fw", ""), external("nat", ""));
    let first = Pretended::new(
        Does {
            drop: 20,
            add: 20,
            ..Does::default()
        },
        true,
    );
    let second = Pretended::new(
        Does {
            drop: 20,
            add: 20,
            ..Does::default()
        },
        false,
    );
    let outcome = run_with(&functions, vec![first, second], NEVER);
    check(&outcome);
    rises(&outcome.frames);
    let [first, second] = &outcome.report.externals[..] else {
        panic!()
    };
    // The first function's own packets go to the second, too.
    assert_eq!(second.sent, first.returned + first.own);
    assert_eq!(outcome.report.packets.delivered, second.returned + second.own);
}

#[test]
fn a_run_that_is_stopped_waits_for_what_is_outside() {
    let function = Pretended::new(Does::default(), true);
    let outcome = run_with(&external("fw", ""), vec![function], 1);
    let RunResult { report, .. } = &outcome;
    assert!(report.interrupted && report.packets.offered < u64::from(PACKETS));
    let packets = &report.packets;
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost
    );
    assert_eq!(report.externals[0].not_returned, 0, "{:?}", report.externals);
}

/// Panics at its fifth batch.
struct Dying(u32);

impl NetworkFunction for Dying {
    fn kind(&self) -> &'static str {
        "Dying"
    }

    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {
        self.0 += 1;
        assert!(self.0 < 5, "on purpose");
    }
}

#[test]
fn when_a_function_behind_dies_every_packet_is_accounted_for() {
    let folder = common::Folder::new();
    let mut spec = spec(&external("fw", ""), &folder.0);
    let make = || -> Box<dyn NetworkFunction> { Box::new(Dying(0)) };
    spec.functions.push(FunctionSpec {
        name: "dying".to_owned(),
        config: OwnFunction::new("Dying", make).into(),
        files: Vec::new(),
        branch: None,
        on_failure: Default::default(),
    });
    let (capture, stop) = (folder.0.join("sent.pcap"), AtomicBool::new(false));
    let does = Does {
        drop: 100,
        add: 100,
        ..Does::default()
    };
    let functions = Box::new(Pretences(vec![vec![Pretended::new(does, true)]]));
    let _alone = common::alone();
    let trace = traffic().trace();
    let plan = RunPlan::new(spec, config(capture, 1)).unwrap();
    let packets = Packets::TraceWithExternals { trace, functions };
    let error = run(&plan, packets, RunControl::new(&stop)).unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    let report = error.report().unwrap();
    let packets = &report.packets;
    assert_eq!(
        packets.offered,
        packets.delivered + packets.dropped_by_nf + packets.lost,
        "{packets:?}"
    );
    let external = &report.externals[0];
    assert_eq!(external.sent, external.returned + external.not_returned);
    assert!(packets.reasons["worker-died"] > 0, "{packets:?}");
}

#[test]
fn runs_that_cannot_have_external_functions_are_refused() {
    let folder = common::Folder::new();
    let spec = spec(&external("fw", ""), &folder.0);
    let one = config(folder.0.join("sent.pcap"), 1);
    let mut two = one.clone();
    two.cores.push(two.cores[0]);
    let stop = AtomicBool::new(false);
    let refused = |config: &RunConfig, packets: Packets<'_>| {
        let plan = RunPlan::new(spec.clone(), config.clone());
        let error = plan.and_then(|plan| run(&plan, packets, RunControl::new(&stop)));
        let error = error.unwrap_err();
        assert!(matches!(error, RunError::External { .. }), "{error}");
        error.to_string()
    };
    assert_eq!(
        refused(&one, traffic().trace().into()),
        "function fw is external: it requires ports, this run has none"
    );
    let of_one_worker = Pretences(vec![vec![Pretended::new(Does::default(), false)]]);
    let packets = Packets::TraceWithExternals {
        trace: traffic().trace(),
        functions: Box::new(of_one_worker),
    };
    assert_eq!(
        refused(&two, packets),
        "function fw is external: it requires ports for each core"
    );
}
