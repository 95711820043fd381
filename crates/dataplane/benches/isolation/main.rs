//! What isolation costs: chains of functions in processes of their own beside the same in one process.
//!
//! `cargo bench -p tailwater-dataplane --bench isolation [-- --runs N] [--most N]` prints a JSON line a figure. All rows are
//! run in turn, `runs` times, on the last core; the value is the median. To be run as root: without real-time
//! priority processes cannot take turns in time.
//!
//! - `isolation/N-functions/KIND/one-process`, `.../isolated`: throughput, Mpps. Functions of the kind `lookups-200`
//!   do 200 longest-prefix matches a packet, as in Quadrant's figure 5; those of the kind `light` one.
//! - `.../ratio`: isolated ÷ one process, the median of pairs that were measured one after the other;
//! - `.../model`: what eq. 1 of the paper leaves, with the switches as measured and the batch as chosen;
//! - `.../batch`: the batch chosen; `.../empty`: what a batch of no packets takes, the switches alone;
//!   `.../switches`: what any takes besides its packets, with caches to be filled again;
//! - `isolation/packet/SIZE`: what each packet adds for a chain of one light function, by frame size;
//! - `isolation/attach`, `isolation/start`: how long it took to attach a process, and to start one.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, cores, run};
use tailwater_isolation::program::run_function;
use tailwater_isolation::server::{IsolationConfig, IsolationReport, Launch, Program};
use tailwater_net::Nanos;
use tailwater_nf::spec::ChainSpec;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{LoadOptions, Trace};

/// How long packets are offered.
const RUN: Nanos = Nanos::from_millis(150);
/// The objective, of which a batch may take half.
const SLO: Nanos = Nanos::from_millis(5);
/// With this argument the program is a function's process.
const PROCESS: &str = "function-process";

/// A folder that is gone after.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
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

    /// A chain of so many functions that do so many look-ups each.
    fn chain(&self, functions: usize, lookups: u32) -> PathBuf {
        let mut text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: bench}}\nspec:\n  \
             slo: {{latency: {}ms}}\n  functions:\n",
            SLO.0 / 1_000_000
        );
        for i in 0..functions {
            text += &format!(
                "    - {{name: f{i}, library: {{file: lookups.so, config: {{lookups: {lookups}}}}}}}\n"
            );
        }
        let path = self.0.join(format!("{functions}-{lookups}.yaml"));
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{error}"));
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn trace(bytes: u16) -> Trace {
    let config = UniformConfig {
        seed: 1,
        flows: 10_000,
        size: FrameSize::Fixed(bytes),
        transport: Transport::Udp,
        rate_pps: 1_000_000,
        packets: 1 << 15,
    };
    let source = Uniform::new(config).map_err(|error| error.to_string());
    let trace = source.and_then(|mut source| {
        Trace::load(&mut source, &LoadOptions::default()).map_err(|error| error.to_string())
    });
    trace.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a chain as fast as it can.
fn report(chain: &Path, bytes: u16, isolated: bool) -> RunReport {
    let spec = ChainSpec::read(chain).unwrap_or_else(|error| panic!("{error}"));
    let isolation = isolated.then(|| {
        let program = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let launch = Launch {
            program: program.into(),
            arguments: vec![PROCESS.into(), chain.into()],
        };
        IsolationConfig::new(Program::of_chain(&spec, &launch), spec.slo.budget())
    });
    let config = RunConfig {
        cores: vec![cores::default_core()],
        nic: TraceNicConfig {
            pacing: Pacing::Saturate,
            duration: Some(RUN),
            ..TraceNicConfig::default()
        },
        window: RUN,
        capture_out: None,
        not_matched: 0,
        seed: 1,
        scaling: None,
        server: None,
        isolation,
    };
    let report = run(
        &spec,
        trace(bytes),
        &config,
        &AtomicBool::new(false),
        |_| {},
    );
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.packets.lost, 0, "{report:?}");
    report
}

fn isolation(report: &RunReport) -> &IsolationReport {
    let isolation = report.isolation.as_ref();
    let isolation = isolation.unwrap_or_else(|| panic!("a report of processes"));
    assert!(
        isolation.real_time,
        "real-time priority is not permitted: run this as root"
    );
    isolation
}

/// A row's figures, a run each.
#[derive(Default)]
struct Figures(Vec<f64>);

impl Figures {
    fn print(mut self, name: &str, unit: &str) {
        self.0.sort_by(f64::total_cmp);
        let (least, most) = (self.0[0], self.0[self.0.len() - 1]);
        println!(
            "{{\"name\": \"isolation/{name}\", \"value\": {:.4}, \"unit\": \"{unit}\", \"min\": {least:.4}, \
             \"max\": {most:.4}, \"runs\": {}}}",
            self.0[self.0.len() / 2],
            self.0.len(),
        );
    }
}

/// A chain, and what was measured.
#[derive(Default)]
struct Row {
    name: String,
    chain: PathBuf,
    one: Figures,
    isolated: Figures,
    ratio: Figures,
    model: Figures,
    batch: Figures,
    switches: Figures,
    empty: Figures,
}

impl Row {
    fn run(&mut self, times: &mut [Figures; 2]) {
        let one = report(&self.chain, 64, false);
        let other = report(&self.chain, 64, true);
        let (one, isolated) = (one.throughput_mpps, other.throughput_mpps);
        let costs = isolation(&other);
        let packet_us = 1.0 / one;
        let model = packet_us / (packet_us + costs.switches_us / costs.batch as f64);
        for (figures, value) in [
            (&mut self.one, one),
            (&mut self.isolated, isolated),
            (&mut self.ratio, isolated / one),
            (&mut self.model, model),
            (&mut self.batch, costs.batch as f64),
            (&mut self.switches, costs.switches_us),
            (&mut self.empty, costs.empty_us),
        ] {
            figures.0.push(value);
        }
        for function in &costs.functions {
            times[0].0.push(function.attach_us);
            times[1].0.push(function.start_ms);
        }
    }

    fn print(self) {
        let name = self.name;
        self.one.print(&format!("{name}/one-process"), "Mpps");
        self.isolated.print(&format!("{name}/isolated"), "Mpps");
        self.ratio.print(&format!("{name}/ratio"), "ratio");
        self.model.print(&format!("{name}/model"), "ratio");
        self.batch.print(&format!("{name}/batch"), "packets");
        self.empty.print(&format!("{name}/empty"), "us");
        self.switches.print(&format!("{name}/switches"), "us");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [process, chain, place] = &arguments[..]
        && process == PROCESS
    {
        let place = place.parse().unwrap_or(usize::MAX);
        return match run_function(Path::new(chain), place) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let number = |name: &str, otherwise: usize| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok())
            .unwrap_or(otherwise)
    };
    let (runs, most) = (number("--runs", 5), number("--most", 6));
    let folder = Folder::new();
    let mut rows = Vec::new();
    for (kind, lookups) in [("lookups-200", 200), ("light", 1)] {
        for functions in 1..=most {
            rows.push(Row {
                name: format!("{functions}-functions/{kind}"),
                chain: folder.chain(functions, lookups),
                ..Row::default()
            });
        }
    }
    let light = folder.chain(1, 1);
    let mut sizes = [64, 256, 512, 1024, 1500].map(|bytes| (bytes, Figures::default()));
    let mut times = [Figures::default(), Figures::default()];
    for run in 0..runs {
        eprintln!("run {} of {runs}", run + 1);
        for row in &mut rows {
            row.run(&mut times);
        }
        for (bytes, figures) in &mut sizes {
            let report = report(&light, *bytes, true);
            figures.0.push(isolation(&report).packet_us * 1e3);
        }
    }
    rows.into_iter().for_each(Row::print);
    for (bytes, figures) in sizes {
        figures.print(&format!("packet/{bytes}B"), "ns");
    }
    let [attach, start] = times;
    attach.print("attach", "us");
    start.print("start", "ms");
    ExitCode::SUCCESS
}
