//! Common code of tests of whole runs: traffic of identifiable packets, mappers that move flows and buckets at random,
//! and the comparison with a run on one core.

#![allow(dead_code, reason = "not every test uses everything")]

pub mod device;
pub mod library;
pub mod mappers;
pub mod traffic;

use device::{Spread, TraceDevice};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::run::Progress;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{Packets, RunConfig, RunControl, RunError, RunPlan, cores, run};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_net::Nanos;
use tailwater_traffic::{CaptureReader, LoadOptions, ReadOptions, Trace};
use traffic::{Traffic, order};

pub const NAT: &str = "nat: {external: [203.0.113.0/28]}";

pub const BALANCER: &str = "loadBalancer: {services: [{address: 0.0.0.0/0, port: any, \
                            protocol: udp, backends: [{address: 172.16.0.1}, {address: 172.16.0.2}]}]}";

/// Serialises runs: workers spin, and there are few cores.
static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub traffic: Traffic,
    /// Latency objective. At its end the run waits twice as long for remaining packets, at most half a second.
    pub slo: &'static str,
    /// Dedicated workers. They may share a core: slower, but equally correct.
    pub workers: usize,
    pub ring: usize,
    pub reta_delay: Nanos,
    pub pacing: Pacing,
    /// Duration of the arrivals, or `None` to play the traffic once.
    pub duration: Option<Nanos>,
    pub scaling: Option<ScalingConfig>,
    pub server: Option<ServerConfig>,
    /// Function appended to the chain.
    pub last: Option<FunctionSpec>,
    /// Spreading by a device that the traffic comes from, if any.
    pub device: Option<Spread>,
}

impl Default for Setup {
    /// One core, and no packet is lost before the chain, however slow the machine.
    fn default() -> Setup {
        Setup {
            traffic: Traffic::default(),
            slo: "250ms",
            workers: 1,
            ring: 1 << 20,
            reta_delay: Nanos::from_millis(2),
            pacing: Pacing::Arrivals,
            duration: None,
            scaling: None,
            server: None,
            last: None,
            device: None,
        }
    }
}

/// Results of a run: its end, the frames sent in order of time, and the flow records without their times.
#[derive(Debug)]
pub struct RunResult {
    pub result: Result<RunReport, RunError>,
    pub frames: Vec<Vec<u8>>,
    pub records: Vec<String>,
}

impl RunResult {
    pub fn report(&self) -> &RunReport {
        self.result.as_ref().expect("the run goes well")
    }
}

/// Runs the setup's traffic through accounting, and then `functions`.
pub fn run_through(functions: &str, setup: Setup) -> RunResult {
    run_until(functions, setup, &AtomicBool::new(false), |_| {})
}

pub fn run_until(functions: &str, setup: Setup, stop: &AtomicBool, progress: impl FnMut(&Progress)) -> RunResult {
    let folder = Folder::new();
    let records = folder.0.join("flows.csv");
    let functions = format!(
        "{{accounting: {{export: {{file: {}}}}}}}, {functions}",
        records.display()
    );
    let outcome = run_chain(&functions, setup, &folder, stop, progress);
    RunResult {
        records: flow_records(&records),
        ..outcome
    }
}

/// Like [`run_through`], without accounting, and so possibly without a flow table.
pub fn run_only(functions: &str, setup: Setup) -> RunResult {
    let stop = AtomicBool::new(false);
    run_chain(functions, setup, &Folder::new(), &stop, |_| {})
}

fn run_chain(
    functions: &str,
    setup: Setup,
    folder: &Folder,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> RunResult {
    let text = spec_text(functions, setup.slo);
    let spec = ChainSpec::parse(&text, "test", Path::new(".")).unwrap();
    run_spec(spec, setup, folder, stop, progress)
}

/// Text of a spec.
pub fn spec_text(functions: &str, slo: &str) -> String {
    format!(
        "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
         slo: {{latency: {slo}}}\n  functions: [{functions}]\n"
    )
}

/// Runs the setup's traffic through a chain.
pub fn run_spec(
    mut spec: ChainSpec,
    setup: Setup,
    folder: &Folder,
    stop: &AtomicBool,
    progress: impl FnMut(&Progress),
) -> RunResult {
    let capture = folder.0.join("sent.pcap");
    spec.functions.extend(setup.last);
    let cores = cores::available();
    let config = RunConfig {
        // From the last core down: auxiliary cores use the first ones.
        cores: cores.iter().rev().cycle().take(setup.workers).copied().collect(),
        nic: TraceNicConfig {
            pacing: setup.pacing,
            ring: setup.ring,
            reta_delay: setup.reta_delay,
            duration: setup.duration,
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(20),
        capture_out: Some(capture.clone()),
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling: setup.scaling,
        server: setup.server,
        isolation: None,
    };
    let trace = setup.traffic.trace();
    let control = RunControl::new(stop).with_progress(progress);
    let _alone = alone();
    RunResult {
        result: RunPlan::new(spec, config).and_then(|plan| match setup.device {
            None => run(&plan, trace, control),
            Some(spread) => {
                let clock = Clock::start();
                let mut port = TraceDevice::new(trace, spread, setup.reta_delay, clock.clone());
                run(&plan, Packets::Port { port: &mut port, clock }, control)
            }
        }),
        frames: sent(&capture),
        records: Vec::new(),
    }
}

/// Directory that is deleted on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-dataplane-{}-{number}", std::process::id());
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

/// Frames of a capture, in order of time.
pub fn sent(capture: &Path) -> Vec<Vec<u8>> {
    let trace = Trace::load(
        &mut CaptureReader::open(capture, &ReadOptions::default()).unwrap(),
        &LoadOptions::default(),
    )
    .unwrap();
    (0..trace.len()).map(|i| trace.packet(i).to_vec()).collect()
}

/// Flow records of a file, sorted, without their times.
pub fn flow_records(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    // Removes the times of the first and the last packet, which end the line.
    let line = |line: &str| line.rsplitn(3, ',').last().unwrap().to_owned();
    let mut lines: Vec<String> = text.lines().map(line).collect();
    lines.sort();
    lines
}

/// Results of a run on one core, to compare others with.
pub struct Reference {
    packets: u64,
    order: BTreeMap<u32, Vec<u32>>,
    /// Sorted.
    frames: Vec<Vec<u8>>,
    records: Vec<String>,
    active_flows: Option<u64>,
}

impl Reference {
    /// Takes the results of a run on one core, which must have sent every packet, in order.
    ///
    /// # Errors
    /// If the run is not usable as a reference, with the cause.
    pub fn new(single: RunResult) -> Result<Reference, String> {
        let report = single.report();
        let packets = &report.packets;
        if packets.delivered != packets.offered {
            return Err(format!("one core did not send everything: {packets:?}"));
        }
        let order = order(&single.frames);
        let all = |numbers: &Vec<u32>| (1..=numbers.len() as u32).eq(numbers.iter().copied());
        if let Some((flow, _)) = order.iter().find(|(_, numbers)| !all(numbers)) {
            return Err(format!("flow {flow} is out of order on one core"));
        }
        Ok(Reference {
            packets: packets.offered,
            order,
            active_flows: report.flows.map(|flows| flows.active),
            frames: sorted(single.frames),
            records: single.records,
        })
    }

    /// First difference of a run of the same traffic, if there is any: packets, their order within each flow, their
    /// bytes, flow records.
    pub fn difference(&self, other: RunResult) -> Option<String> {
        let report = other.report();
        let packets = &report.packets;
        if (packets.offered, packets.delivered) != (self.packets, self.packets) {
            return Some(format!("of {} packets: {packets:?}", self.packets));
        }
        let order = order(&other.frames);
        for (flow, numbers) in &self.order {
            let found = order.get(flow).map_or(&[][..], Vec::as_slice);
            if found != numbers {
                let at = (0..).find(|&i| found.get(i) != numbers.get(i));
                let at = at.unwrap_or_default();
                return Some(format!(
                    "flow {flow}, from packet {at} on: {:?} instead of {:?}",
                    &found[at.min(found.len())..found.len().min(at + 8)],
                    &numbers[at.min(numbers.len())..numbers.len().min(at + 8)],
                ));
            }
        }
        let active_flows = report.flows.map(|flows| flows.active);
        if active_flows != self.active_flows {
            return Some(format!("flows: {active_flows:?}, not {:?}", self.active_flows));
        }
        let frames = sorted(other.frames);
        if let Some((a, b)) = frames.iter().zip(&self.frames).find(|(a, b)| a != b) {
            return Some(format!("a frame is {a:02x?} instead of {b:02x?}"));
        }
        if frames.len() != self.frames.len() {
            return Some(format!("{} frames of {}", frames.len(), self.frames.len()));
        }
        if let Some((a, b)) = other.records.iter().zip(&self.records).find(|(a, b)| a != b) {
            return Some(format!("a flow record is {a} instead of {b}"));
        }
        let records = [&other.records, &self.records].map(Vec::len);
        (records[0] != records[1]).then(|| format!("{} records of {}", records[0], records[1]))
    }
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort_unstable();
    frames
}
