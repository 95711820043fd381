//! Chains, traffic and live runs.

use crate::comparison::{PolicyRun, Window};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::record::{Header, Recorder};
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, run};
use tailwater_functions::acl::{AclConfig, Action};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_traffic::generate::preset;
use tailwater_traffic::{CaptureReader, LoadOptions, ReadOptions, Trace};

/// Descriptors of the NIC's ring for every policy; large enough for late packets to be late rather than lost.
const RING: usize = 4096;
/// Length of generated traffic; it is repeated with renumbered flows.
const GENERATED: Nanos = Nanos::from_millis(600);
/// Length of a measurement window.
pub const WINDOW: Nanos = Nanos::from_millis(200);

/// Returns the example `chain` with this objective, in microseconds.
pub fn spec(chain: &str, traffic: &str, slo_us: u64) -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = Path::new(examples).join(format!("{chain}.yaml"));
    let mut spec = ChainSpec::read(&path).expect("an example");
    spec.slo.latency = Nanos::from_micros(slo_us);
    if preset(traffic).is_err() {
        // Captures come from networks that the rules do not cover.
        for function in &mut spec.functions {
            if let Some(acl) = function.config.get_mut::<AclConfig>() {
                acl.default = Action::Allow;
            }
        }
    }
    spec
}

/// Preset or capture, at any rate.
pub enum Source {
    /// Name of the preset.
    Preset(&'static str),
    /// Whole capture.
    Capture(Box<Trace>),
}

impl Source {
    /// Opens a preset, or a capture of TAILWATER_TEST_DATA. `None` if that is not there.
    pub fn open(traffic: &'static str) -> Option<Source> {
        if preset(traffic).is_ok() {
            return Some(Source::Preset(traffic));
        }
        let data = PathBuf::from(std::env::var_os("TAILWATER_TEST_DATA")?);
        let file = ["pcap.zst", "pcapng.zst"].map(|end| data.join(format!("traces/{traffic}.{end}")));
        let file = file.iter().find(|file| file.exists())?;
        let mut capture = CaptureReader::open(file, &ReadOptions::default()).expect("a capture");
        let trace = Trace::load(&mut capture, &options()).expect("traffic fits");
        Some(Source::Capture(Box::new(trace)))
    }

    /// Returns traffic at `rate` packets per second; a capture ignores the seed.
    ///
    /// A preset superposes more or fewer flows. What so short a time deviates from the mean rate is corrected by
    /// playing it faster or slower.
    pub fn trace(&self, seed: u64, rate: f64) -> Trace {
        let mut trace = match self {
            Source::Capture(trace) => Trace::clone(trace),
            Source::Preset(name) => {
                let preset = preset(name).expect("a preset");
                let factor = rate / preset.mean_rate_pps();
                let mut source = preset.scaled(factor).with(seed, GENERATED).open().expect("traffic");
                Trace::load(&mut *source, &options()).expect("traffic fits")
            }
        };
        trace.scale_rate(rate / rate_pps(&trace)).expect("a rate above zero");
        trace
    }
}

fn options() -> LoadOptions {
    LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    }
}

/// Mean rate of a trace, in packets per second.
pub fn rate_pps(trace: &Trace) -> f64 {
    // The mean gap in whole nanoseconds would be too coarse.
    let last = trace.arrival(trace.len() - 1).as_secs_f64();
    (trace.len() - 1) as f64 / last.max(1e-9)
}

/// Cores of a run, and how they are used.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Dedicated core; also the one whose capacity is measured.
    pub dedicated: usize,
    /// Auxiliary core, or second dedicated one.
    pub second: usize,
    /// Packet buffers of a dispatcher.
    pub buffers: u32,
    /// Duration of a run in seconds.
    pub seconds: f64,
}

/// Runs `policy` on `trace`. Records its decisions in `record`, if given.
pub fn run_policy(
    setup: &Setup,
    spec: &ChainSpec,
    trace: &Trace,
    profile: &CapacityProfile,
    (policy, two_dedicated): (Policy, bool),
    record: Option<&Path>,
) -> RunReport {
    let recorder = record.map(|file| {
        let header = Header {
            chain: spec.name.clone(),
            policy: policy.name().to_owned(),
            slo: spec.slo.budget(),
            epoch: profile.epoch,
            auxiliary: usize::from(!two_dedicated),
            dedicated: 0,
            started: Nanos::ZERO,
            profile: profile.to_string(),
            ..Header::default()
        };
        Recorder::create(file, &header.now()).expect("--record DIRECTORY")
    });
    let (mut scaling, mut server) = (None, None);
    if two_dedicated {
        let mapper = policy
            .server_mappers(spec.slo.budget(), profile, false)
            .expect("a profile with rates");
        server = mapper.map(|mapper| ServerConfig {
            mapper: match &recorder {
                Some(recorder) => recorder.recording_server(mapper),
                None => mapper,
            },
        });
    } else {
        let mapper = policy.mappers(spec.slo.budget(), profile).expect("mappers");
        scaling = mapper.map(|mapper| ScalingConfig {
            auxiliary: vec![setup.second],
            dedicated_help: false,
            mapper: match &recorder {
                Some(recorder) => recorder.recording(mapper),
                None => mapper,
            },
            park: Mode::SpinThenSleep(std::time::Duration::from_micros(50)),
            buffers: setup.buffers,
        });
    }
    let config = RunConfig {
        cores: match two_dedicated {
            true => vec![setup.second, setup.dedicated],
            false => vec![setup.dedicated],
        },
        nic: TraceNicConfig {
            pacing: Pacing::Arrivals,
            duration: Some(Nanos::from_secs_f64(setup.seconds)),
            ring: RING,
            ..TraceNicConfig::default()
        },
        window: WINDOW,
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server,
        isolation: None,
    };
    let plan = RunPlan::new(spec.clone(), config).expect("a plan");
    let stop = AtomicBool::new(false);
    let report = run(&plan, trace.clone(), RunControl::new(&stop)).expect("the run");
    if let Some(recorder) = recorder {
        recorder.finish().expect("decisions are written");
    }
    report
}

/// Returns the figures of a run, without the window in which it ends.
pub fn policy_run(report: &RunReport, seconds: f64) -> PolicyRun {
    let length = WINDOW.as_secs_f64();
    let whole = |start_s: f64| start_s + length <= seconds + length / 1000.0;
    let windows = report.windows.list.iter().filter(|window| whole(window.start_s));
    let windows = windows.map(|window| {
        let packets = window.delivered + window.lost;
        Window {
            index: (window.start_s / length).round() as u64,
            p99_us: window.latency_us.p99,
            late: (window.late + window.lost) as f64 / packets.max(1) as f64,
            flagged: window.flagged,
        }
    });
    PolicyRun {
        windows: windows.collect(),
        cores: report.cores.avg,
        lost: report.packets.lost,
    }
}
