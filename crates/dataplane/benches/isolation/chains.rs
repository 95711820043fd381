//! Chains of functions that look up addresses, and runs of them.

use crate::baselines::{Group, Handed, Kind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use tailwater_confine::Confinement;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, cores, run};
use tailwater_functions::own::OwnFunction;
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::{Confined, IsolationConfig, IsolationReport, Launch, Program};
use tailwater_net::Nanos;
use tailwater_policy::isolation::BatchBounds;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

/// Duration of the arrivals.
const RUN: Nanos = Nanos::from_millis(150);
/// Latency objective, of which a batch may take half.
pub const SLO: Nanos = Nanos::from_millis(5);
/// Argument that makes the program a function's process.
pub const PROCESS: &str = "function-process";

/// Execution of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// In one process, in batches of this many packets.
    One(usize),
    /// Each function in its own process, with batch sizes from eq. 1 for this bound.
    Isolated(f64),
    /// The same, confined with all defences.
    Confined(f64),
    /// The same without confinement, in batches of this many packets.
    Fixed(usize),
    /// In processes of a baseline, in batches of this many packets.
    Baseline(Kind, usize),
}

/// Chain to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chain {
    /// A row of functions with the given number of look-ups per packet.
    Lookups { functions: usize, lookups: u32 },
    /// A classifier that sends part of the packets through two functions, and the rest through two others. All packets
    /// pass one more function behind it.
    Branches { lookups: u32, part: ChainPart },
    /// One of the examples.
    Example(&'static str),
}

/// Share of packets in the first branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChainPart {
    Half,
    Sixteenth,
}

impl ChainPart {
    pub fn name(self) -> &'static str {
        match self {
            ChainPart::Half => "half",
            ChainPart::Sixteenth => "sixteenth",
        }
    }

    /// Source ports of that share of [the traffic's](trace) flows, which are in sixteen ranges of 4,000 each.
    fn ports(self) -> &'static str {
        match self {
            ChainPart::Half => "1024-33023",
            ChainPart::Sixteenth => "1024-5023",
        }
    }
}

/// Directory that is deleted on drop.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("tailwater-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{error}"));
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/isolation/lookups.c");
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-std=c11", "-fPIC", "-shared"])
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../sdk/include"))
            .arg("-o")
            .args([folder.join("lookups.so").as_os_str(), here.as_ref()])
            .status();
        assert!(compiled.is_ok_and(|status| status.success()), "cc failed");
        Folder(folder)
    }

    /// Library with the function.
    pub fn library(&self) -> PathBuf {
        self.0.join("lookups.so")
    }

    /// Spec file of a chain, with the batch size for one process.
    fn file(&self, chain: Chain, batch: usize) -> PathBuf {
        let function = |name: &str, lookups: u32| {
            format!("{{name: {name}, library: {{file: lookups.so, config: {{lookups: {lookups}}}}}}}")
        };
        let (name, functions) = match chain {
            Chain::Lookups { functions, lookups } => {
                let all = (0..functions).map(|i| function(&format!("f{i}"), lookups));
                let name = format!("{functions}-{lookups}-{batch}.yaml");
                (name, all.collect::<Vec<_>>())
            }
            Chain::Branches { lookups, part } => {
                let [a, b, c, d, behind] = ["a", "b", "c", "d", "behind"].map(|name| function(name, lookups));
                let ports = part.ports();
                let classifier = format!(
                    "classifier: {{rules: [{{to: one, sourcePorts: {ports}}}], default: other, branches: \
                     {{one: {{functions: [{a}, {b}]}}, other: {{functions: [{c}, {d}]}}}}}}"
                );
                let name = format!("{}-{lookups}-{batch}.yaml", part.name());
                (name, vec![classifier, behind])
            }
            Chain::Example(name) => {
                let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
                return Path::new(examples).join(format!("{name}.yaml"));
            }
        };
        let mut text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\nspec:\n  \
             slo: {{latency: {}ms}}\n  packets: {{batch: {batch}}}\n  functions:\n",
            SLO.0 / 1_000_000
        );
        for function in functions {
            text += &format!("    - {function}\n");
        }
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{error}"));
        path
    }

    /// Runs a chain at full speed, on frames of `bytes` bytes.
    pub fn run(&self, chain: Chain, way: Way, bytes: u16) -> RunReport {
        let nic = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration: Some(RUN),
            ..TraceNicConfig::default()
        };
        let report = self.run_on((chain, way), trace(bytes, 1_000_000), nic);
        // The examples' functions may have reasons to drop.
        let may_lose = matches!(chain, Chain::Example(_));
        assert!(may_lose || report.packets.lost == 0, "{report:?}");
        report
    }

    /// Runs a chain on frames of 64 bytes that arrive at `rate` packets per second, for `duration`.
    pub fn run_at(&self, chain: Chain, way: Way, rate: u64, duration: Nanos) -> RunReport {
        let nic = TraceNicConfig {
            duration: Some(duration),
            // No packet is lost before the functions.
            ring: (rate * duration.0 / 1_000_000_000) as usize,
            ..TraceNicConfig::default()
        };
        self.run_on((chain, way), trace(64, rate), nic)
    }

    fn run_on(&self, (chain, way): (Chain, Way), trace: Trace, nic: TraceNicConfig) -> RunReport {
        let batch = match way {
            Way::One(batch) | Way::Baseline(_, batch) => batch,
            Way::Isolated(_) | Way::Confined(_) | Way::Fixed(_) => 32,
        };
        let path = self.file(chain, batch);
        let mut spec = ChainSpec::read(&path).unwrap_or_else(|error| panic!("{error}"));
        let isolation = match way {
            Way::One(_) | Way::Baseline(..) => None,
            Way::Isolated(overhead) | Way::Confined(overhead) => {
                let mut isolation = isolation(&spec, &path, |bounds| {
                    (bounds.overhead, bounds.objective) = (overhead, SLO);
                });
                if matches!(way, Way::Confined(_)) {
                    self.confine(&mut isolation.programs, &path);
                }
                Some(isolation)
            }
            // A bound that only the largest batch meets.
            Way::Fixed(packets) => Some(isolation(&spec, &path, |bounds| {
                (bounds.overhead, bounds.most) = (1e-6, packets);
                bounds.objective = Nanos::from_secs(1);
            })),
        };
        if let (Way::Baseline(kind, _), Chain::Lookups { functions, lookups }) = (way, chain) {
            let group = Arc::new(Mutex::new(Group::start(kind, &self.library(), functions, lookups)));
            let own = OwnFunction::new("Baseline", move || Box::new(Handed(Arc::clone(&group))));
            spec.functions.truncate(1);
            spec.functions[0].config = own.into();
        }
        let config = RunConfig {
            cores: vec![cores::default_core()],
            nic,
            window: RUN,
            capture_out: None,
            keep_packets: None,
            not_matched: 0,
            seed: 1,
            scaling: None,
            server: None,
            isolation,
        };
        let stop = AtomicBool::new(false);
        let report = RunPlan::new(spec, config).and_then(|plan| run(&plan, trace, RunControl::new(&stop)));
        report.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Confines programs as `tailwater run` does.
    fn confine(&self, programs: &mut [Program], chain: &Path) {
        for program in programs {
            let mut confinement = Confinement::full();
            if let Some(root) = &mut confinement.root {
                root.files = vec![chain.to_owned(), self.library()];
            }
            program.confined = Some(Confined {
                confinement,
                container: None,
            });
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn isolation(spec: &ChainSpec, path: &Path, bound: impl FnOnce(&mut BatchBounds)) -> IsolationConfig {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let launch = Launch {
        program: program.into(),
        arguments: vec![PROCESS.into(), path.into()],
    };
    let mut config = IsolationConfig::new(Program::of_chain(spec, &launch), spec.slo.budget());
    bound(&mut config.batch);
    config
}

fn trace(bytes: u16, rate_pps: u64) -> Trace {
    let config = UniformConfig {
        seed: 1,
        flows: 10_000,
        size: FrameSize::Fixed(bytes),
        transport: Transport::Udp,
        rate_pps,
        packets: 1 << 15,
    };
    let source = Uniform::new(config).map_err(|error| error.to_string());
    let trace = source
        .and_then(|mut source| Trace::load(&mut source, &LoadOptions::default()).map_err(|error| error.to_string()));
    trace.unwrap_or_else(|error| panic!("{error}"))
}

/// Isolation section of a run's report.
pub fn processes(report: &RunReport) -> &IsolationReport {
    let isolation = report.isolation.as_ref();
    let isolation = isolation.unwrap_or_else(|| panic!("a report of processes"));
    assert!(
        isolation.real_time,
        "real-time priority is not permitted: run this as root"
    );
    isolation
}
