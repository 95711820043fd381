//! Live runs.

use crate::{BUFFERS, Cell, LENGTH, RING, SPIN, TRAINING, WINDOW, spec};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, run};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::catalog::Policy;
use tailwater_traffic::Trace;

/// Windows of the runs that tell how fast the machine is.
const PROBE_WINDOW: Nanos = Nanos::from_millis(2);

/// The cores of live runs.
pub struct Lab {
    pub dedicated: usize,
    pub auxiliary: usize,
}

/// A window of a run.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub p50: f64,
    pub p99: f64,
    /// Whether a core was taken away.
    pub flagged: bool,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Live {
    pub windows: Vec<Window>,
    /// Helpers' time between being recruited and let go, as part of the run's.
    pub auxiliary: f64,
    /// Packets by fate.
    pub offered: u64,
    pub dropped: u64,
    pub lost: u64,
    /// What a packet of the training's traffic cost just before and after, as parts of what it cost in
    /// training.
    pub speed: [f64; 2],
    /// What packets took of the cores while they were processed, in nanoseconds a packet.
    pub busy: f64,
    /// Times a helper was recruited, and packets it was handed.
    pub recruited: u64,
    pub handed: u64,
}

impl Lab {
    /// On the first and the last of the available cores, if there are two.
    pub fn new() -> Option<Lab> {
        let cores = available();
        let (&auxiliary, &dedicated) = (cores.first()?, cores.last()?);
        (auxiliary != dedicated).then_some(Lab {
            dedicated,
            auxiliary,
        })
    }

    /// Runs the policies in turn, `runs` times. The runs of each policy.
    pub fn measure(
        &self,
        cell: &Cell,
        policies: &[&str],
        profile: &CapacityProfile,
        (trace, probe): (Trace, &Trace),
        runs: usize,
    ) -> Vec<Vec<Live>> {
        let mut results: Vec<Vec<Live>> = policies.iter().map(|_| Vec::new()).collect();
        let mut before = self.speed(cell, profile, probe);
        for _ in 0..TRIES * runs {
            for (policy, results) in policies.iter().zip(&mut results) {
                if results.iter().filter(|run| run.is_steady()).count() >= runs {
                    continue;
                }
                let report = self.run(cell, policy, profile, trace.clone());
                let after = self.speed(cell, profile, probe);
                let speed = [std::mem::replace(&mut before, after), after];
                eprintln!(
                    "{}: p50 {:.1} p99 {:.1} auxiliary {:.3} flagged {}/{} dropped {} lost {} speed {speed:.2?} wake {:?} {:?}",
                    cell.name(policy),
                    report.windows.median_latency_us.p50,
                    report.windows.median_latency_us.p99,
                    report.cores.auxiliary_avg,
                    report.windows.flagged,
                    report.windows.count,
                    report.packets.dropped_by_nf,
                    report.packets.lost,
                    report.wake_us,
                    report.scaling,
                );
                results.push(Live::of(&report, speed));
            }
        }
        results
    }

    /// What a packet of the training's traffic costs now, as part of what it cost in training.
    fn speed(&self, cell: &Cell, profile: &CapacityProfile, probe: &Trace) -> f64 {
        let config = RunConfig {
            cores: vec![self.dedicated],
            nic: TraceNicConfig {
                pacing: Pacing::Saturate,
                ..TraceNicConfig::default()
            },
            window: PROBE_WINDOW,
            capture_out: None,
            not_matched: 0,
            seed: 1,
            scaling: None,
            server: None,
        };
        let spec = spec(cell.chain, TRAINING, cell.slo);
        let stop = AtomicBool::new(false);
        let report = run(&spec, probe.clone(), &config, &stop, |_| {}).expect("the run");
        let windows = report.windows.list.iter();
        let mut nanos: Vec<f64> = windows
            .filter(|window| !window.flagged && window.offered > 0)
            .map(|window| PROBE_WINDOW.0 as f64 / window.offered as f64)
            .collect();
        nanos.sort_by(f64::total_cmp);
        let details = profile.details.as_ref();
        let trained = details.map_or(f64::NAN, |known| known.traffic_packet);
        nanos
            .get(nanos.len() / 2)
            .map_or(f64::NAN, |nanos| nanos / trained)
    }

    fn run(&self, cell: &Cell, policy: &str, profile: &CapacityProfile, trace: Trace) -> RunReport {
        let spec = cell.spec();
        let named = Policy::named(policy).expect("a policy");
        let mapper = named.mappers(spec.slo.budget(), profile).expect("a mapper");
        let config = RunConfig {
            cores: vec![self.dedicated],
            nic: TraceNicConfig {
                duration: Some(LENGTH),
                ring: RING,
                ..TraceNicConfig::default()
            },
            window: WINDOW,
            capture_out: None,
            not_matched: 0,
            seed: 1,
            scaling: mapper.map(|mapper| ScalingConfig {
                auxiliary: vec![self.auxiliary],
                mapper,
                park: Mode::SpinThenSleep(std::time::Duration::from_nanos(SPIN.0)),
                buffers: BUFFERS,
            }),
            server: None,
        };
        run(&spec, trace, &config, &AtomicBool::new(false), |_| {}).expect("the run")
    }
}

/// Runs at the most for each that counts.
const TRIES: usize = 3;
/// How much the machine's speed may change in a run that counts.
const STEADY: f64 = 0.08;

impl Live {
    /// Whether the machine was about as fast after it as before.
    pub fn is_steady(&self) -> bool {
        let [before, after] = self.speed;
        (after / before - 1.0).abs() <= STEADY
    }

    fn of(report: &RunReport, speed: [f64; 2]) -> Live {
        let windows = report.windows.list.iter().map(|window| Window {
            p50: window.latency_us.p50,
            p99: window.latency_us.p99,
            flagged: window.flagged,
        });
        let scaling = report.scaling.unwrap_or_default();
        let workers = if report.scaling.is_some() { 2.0 } else { 1.0 };
        let steps = report.timeline.list.iter();
        let busy: f64 = steps.map(|step| step.busy * workers).sum();
        let busy = busy * report.timeline.step_ms * 1e6;
        Live {
            windows: windows.collect(),
            auxiliary: report.cores.auxiliary_avg,
            offered: report.packets.offered,
            dropped: report.packets.dropped_by_nf,
            lost: report.packets.lost,
            speed,
            busy: busy / report.packets.delivered.max(1) as f64,
            recruited: scaling.recruited,
            handed: scaling.packets_handed,
        }
    }

    fn file(directory: &Path, name: &str) -> std::path::PathBuf {
        directory.join(format!("{}.live.json", name.replace('/', "-")))
    }

    /// Keeps runs for another time.
    pub fn keep(directory: &Path, name: &str, runs: &[Live]) {
        let runs: Vec<Value> = runs
            .iter()
            .map(|run| {
                let windows = run.windows.iter().map(|w| json!([w.p50, w.p99, w.flagged]));
                json!({
                    "windows": windows.collect::<Vec<_>>(),
                    "auxiliary": run.auxiliary,
                    "offered": run.offered, "dropped": run.dropped, "lost": run.lost,
                    "speed": run.speed, "busy": run.busy,
                    "recruited": run.recruited, "handed": run.handed,
                })
            })
            .collect();
        let text = Value::from(runs).to_string();
        std::fs::write(Live::file(directory, name), text).expect("--save DIRECTORY");
    }

    /// Runs that were kept.
    pub fn kept(directory: &Path, name: &str) -> Vec<Live> {
        let text = std::fs::read(Live::file(directory, name)).expect("runs that were kept");
        let runs: Vec<Value> = serde_json::from_slice(&text).expect("as it was written");
        let number = |value: &Value| value.as_f64().expect("a number");
        let count = |value: &Value| value.as_u64().expect("a count");
        let runs = runs.iter().map(|run| {
            let windows = run["windows"].as_array().expect("a list").iter();
            let windows = windows.map(|window| Window {
                p50: number(&window[0]),
                p99: number(&window[1]),
                flagged: window[2] == true,
            });
            Live {
                windows: windows.collect(),
                auxiliary: number(&run["auxiliary"]),
                offered: count(&run["offered"]),
                dropped: count(&run["dropped"]),
                lost: count(&run["lost"]),
                speed: [0, 1].map(|at| number(&run["speed"][at])),
                busy: number(&run["busy"]),
                recruited: count(&run["recruited"]),
                handed: count(&run["handed"]),
            }
        });
        runs.collect()
    }
}
