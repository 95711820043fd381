//! Live runs.

use crate::{BUFFERS, Cell, LENGTH, RING, SPIN, WINDOW, WINDOWS};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::batches::{BatchRecorder, TimedPart};
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::TraceNicConfig;
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, run};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_profile::{interruptions, pace};
use tailwater_traffic::Trace;

/// The cores of live runs.
pub struct Lab {
    pub dedicated: usize,
    pub auxiliary: usize,
}

/// A window of a run.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Latencies at [`QUANTILES`](crate::table::QUANTILES).
    pub latency: [f64; 4],
    pub delivered: u64,
    /// `true` if a core was preempted.
    pub flagged: bool,
}

impl Window {
    const AWAY: Window = Window {
        latency: [0.0; 4],
        delivered: 0,
        flagged: true,
    };
}

/// A run.
#[derive(Clone, Debug)]
pub struct Live {
    pub windows: Vec<Window>,
    /// Time that auxiliary cores were active, as a share of the run's.
    pub auxiliary: f64,
    /// Packets by result.
    pub offered: u64,
    pub dropped: u64,
    pub lost: u64,
    /// Measured over expected batch duration in each step.
    pub pace: Vec<f64>,
    /// Start and duration of the dedicated core's interruptions.
    pub interruptions: Vec<(Nanos, Nanos)>,
    /// Processing time on all cores, nanoseconds per packet.
    pub busy: f64,
    /// Activations of auxiliary cores, and packets offloaded to them.
    pub recruited: u64,
    pub handed: u64,
}

impl Lab {
    /// Takes the first and the last of the available cores, if there are two.
    pub fn new() -> Option<Lab> {
        let cores = available();
        let (&auxiliary, &dedicated) = (cores.first()?, cores.last()?);
        (auxiliary != dedicated).then_some(Lab { dedicated, auxiliary })
    }

    /// Runs the policies in turn, `runs` times. Returns the runs of each policy.
    pub fn measure(
        &self,
        cell: &Cell,
        policies: &[&str],
        profile: &CapacityProfile,
        trace: &Trace,
        runs: usize,
    ) -> Vec<Vec<Live>> {
        let mut results: Vec<Vec<Live>> = policies.iter().map(|_| Vec::new()).collect();
        for _ in 0..runs {
            for (policy, results) in policies.iter().zip(&mut results) {
                let notes = BatchRecorder::new(MOST_BATCHES);
                let report = self.run(cell, policy, profile, trace.clone(), &notes);
                let mut workers = notes.take();
                // An auxiliary core has nothing but packets that were offloaded to it.
                workers.retain(|batches| batches.iter().any(|batch| batch.part != TimedPart::Helped));
                let batches = workers.concat();
                let pace = pace(trace, profile, &batches, STEP).expect("a trace in memory");
                let away = interruptions(trace, profile, &batches).expect("a trace in memory");
                let run = Live::of(&report, pace.expect("batches of the trace"), away);
                let away: u64 = run.interruptions.iter().map(|(_, length)| length.0).sum();
                eprintln!(
                    "{}: p50 {:.1} p99 {:.1} auxiliary {:.3} flagged {}/{} dropped {} lost {} pace {:.2} interrupted {} \
                     times, {:.2} % wake {:?} {:?} {:?}",
                    cell.name(policy),
                    report.latency_us.p50,
                    report.latency_us.p99,
                    report.cores.auxiliary_avg,
                    report.windows.flagged,
                    report.windows.count,
                    report.packets.dropped_by_nf,
                    report.packets.lost,
                    run.mean_pace(),
                    run.interruptions.len(),
                    100.0 * away as f64 / LENGTH.0 as f64,
                    report.wake_us,
                    report.scaling,
                    report.late_by_cause,
                );
                results.push(run);
            }
        }
        results
    }

    fn run(
        &self,
        cell: &Cell,
        policy: &str,
        profile: &CapacityProfile,
        trace: Trace,
        notes: &BatchRecorder,
    ) -> RunReport {
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
            keep_packets: None,
            not_matched: 0,
            seed: 1,
            scaling: mapper.map(|mapper| ScalingConfig {
                auxiliary: vec![self.auxiliary],
                dedicated_help: false,
                mapper,
                park: Mode::SpinThenSleep(std::time::Duration::from_nanos(SPIN.0)),
                buffers: BUFFERS,
            }),
            server: None,
            isolation: None,
        };
        let stop = AtomicBool::new(false);
        let plan = RunPlan::new(spec, config).expect("a plan");
        run(&plan, trace, RunControl::new(&stop).with_batches(notes)).expect("the run")
    }
}

/// Maximum recorded batches of a run.
const MOST_BATCHES: usize = 3_000_000;
/// Time step in which the machine's speed counts as constant.
pub const STEP: Nanos = Nanos::from_millis(2);

impl Live {
    /// Returns the mean over the steps.
    pub fn mean_pace(&self) -> f64 {
        self.pace.iter().sum::<f64>() / self.pace.len().max(1) as f64
    }

    fn of(report: &RunReport, pace: Vec<f64>, interruptions: Vec<(Nanos, Nanos)>) -> Live {
        // A window that is not in the list had no packets, since the core was preempted.
        let mut windows = vec![Window::AWAY; WINDOWS];
        for seen in &report.windows.list {
            let number = (seen.start_s / WINDOW.as_secs_f64()).round() as usize;
            if let Some(window) = windows.get_mut(number) {
                let latency = seen.latency_us;
                *window = Window {
                    latency: [latency.p50, latency.p99, latency.p999, latency.max],
                    delivered: seen.delivered,
                    flagged: seen.flagged,
                };
            }
        }
        let scaling = report.scaling.unwrap_or_default();
        let workers = if report.scaling.is_some() { 2.0 } else { 1.0 };
        let steps = report.timeline.list.iter();
        let busy: f64 = steps.map(|step| step.busy * workers).sum();
        let busy = busy * report.timeline.step_ms * 1e6;
        Live {
            windows,
            auxiliary: report.cores.auxiliary_avg,
            offered: report.packets.offered,
            dropped: report.packets.dropped_by_nf,
            lost: report.packets.lost,
            pace,
            interruptions,
            busy: busy / report.packets.delivered.max(1) as f64,
            recruited: scaling.activated,
            handed: scaling.packets_offloaded,
        }
    }

    fn file(directory: &Path, name: &str) -> std::path::PathBuf {
        directory.join(format!("{}.live.json", name.replace('/', "-")))
    }

    /// Stores runs.
    pub fn keep(directory: &Path, name: &str, runs: &[Live]) {
        let runs: Vec<Value> = runs
            .iter()
            .map(|run| {
                let windows = run.windows.iter().map(|w| json!([w.latency, w.delivered, w.flagged]));
                json!({
                    "windows": windows.collect::<Vec<_>>(),
                    "auxiliary": run.auxiliary,
                    "offered": run.offered, "dropped": run.dropped, "lost": run.lost,
                    "pace": run.pace, "busy": run.busy,
                    "interruptions": run.interruptions.iter().map(|(at, length)| [at.0, length.0]).collect::<Vec<_>>(),
                    "recruited": run.recruited, "handed": run.handed,
                })
            })
            .collect();
        let text = Value::from(runs).to_string();
        std::fs::write(Live::file(directory, name), text).expect("--save DIRECTORY");
    }

    /// Loads stored runs.
    pub fn kept(directory: &Path, name: &str) -> Vec<Live> {
        let text = std::fs::read(Live::file(directory, name)).expect("runs that were kept");
        let runs: Vec<Value> = serde_json::from_slice(&text).expect("as it was written");
        let number = |value: &Value| value.as_f64().expect("a number");
        let count = |value: &Value| value.as_u64().expect("a count");
        let runs = runs.iter().map(|run| {
            let windows = run["windows"].as_array().expect("a list").iter();
            let windows = windows.map(|window| Window {
                latency: std::array::from_fn(|at| number(&window[0][at])),
                delivered: count(&window[1]),
                flagged: window[2] == true,
            });
            Live {
                windows: windows.collect(),
                auxiliary: number(&run["auxiliary"]),
                offered: count(&run["offered"]),
                dropped: count(&run["dropped"]),
                lost: count(&run["lost"]),
                pace: run["pace"].as_array().expect("a list").iter().map(number).collect(),
                interruptions: run["interruptions"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|pair| (Nanos(count(&pair[0])), Nanos(count(&pair[1]))))
                    .collect(),
                busy: number(&run["busy"]),
                recruited: count(&run["recruited"]),
                handed: count(&run["handed"]),
            }
        });
        runs.collect()
    }
}
