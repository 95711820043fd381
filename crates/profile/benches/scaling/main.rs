//! Bursts absorbed, live: one dedicated core and one auxiliary core, policy by policy.
//!
//! `cargo bench -p tailwater-profile --bench scaling [-- FILTER...] [--seconds S] [--load L]
//! [--slo 100,200,500] [--tries N]` prints a JSON line a figure, and a table on standard error. A
//! filter is part of `chain/traffic/policy`.
//!
//! For each chain and traffic the chain's capacity on the dedicated core is measured first, without
//! pace. The traffic then comes at `load` times that on average, flows superposed so that each flow's
//! bursts stay as they are; seeds are fixed. For each objective the chain is trained anew, quickly,
//! on other traffic of the same kind. A run with more than a third of its windows flagged is
//! repeated, `tries` times at the most: the one with the fewest counts.

use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, run};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::catalog::Policy;
use tailwater_profile::{Depth, TrainOptions, train_capacity};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{LoadOptions, Trace};

/// The canonical chains 1 and 2 of NetBlaze, and one that binds.
const CHAINS: &[&str] = &["acl-lb-accounting", "acl-urlfilter-encrypt", "acl-nat"];
const TRAFFIC: &[&str] = &["backbone", "as"];
/// Those that mean something on two cores; the others are for the simulator.
const POLICIES: &[&str] = &[
    "static",
    "netblaze",
    "netblaze-core-static-safe",
    "netblaze-core-static-unsafe",
    "netblaze-no-boost",
    "tailwater",
];

/// Traffic that is generated; it is repeated, with flows renumbered.
const GENERATED: Nanos = Nanos::from_millis(600);
/// The seed of the traffic that is measured, and of that which is trained on.
const SEED: u64 = 1;
const TRAINING_SEED: u64 = 1001;

struct Options {
    filters: Vec<String>,
    seconds: f64,
    load: f64,
    slos: Vec<u64>,
    tries: u32,
    buffers: u32,
}

fn options() -> Options {
    let mut options = Options {
        filters: Vec::new(),
        seconds: 1.8,
        load: 0.75,
        slos: vec![100, 200, 500],
        tries: 2,
        buffers: 2048,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--bench" => {}
            "--seconds" => options.seconds = value().parse().expect("--seconds S"),
            "--load" => options.load = value().parse().expect("--load L"),
            "--tries" => options.tries = value().parse().expect("--tries N"),
            "--buffers" => options.buffers = value().parse().expect("--buffers N"),
            "--slo" => {
                let slos = value();
                let slo = |slo: &str| slo.parse().expect("--slo US,...");
                options.slos = slos.split(',').map(slo).collect();
            }
            _ => options.filters.push(argument),
        }
    }
    options
}

fn spec(chain: &str, slo_us: u64) -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = std::path::Path::new(examples).join(format!("{chain}.yaml"));
    let mut spec = ChainSpec::read(&path).expect("an example");
    spec.slo.latency = Nanos::from_micros(slo_us);
    spec
}

fn trace(traffic: &str, seed: u64, factor: f64) -> Trace {
    let preset = preset(traffic).expect("a preset").scaled(factor);
    let mut source = preset.with(seed, GENERATED).open().expect("traffic");
    let options = LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    };
    Trace::load(&mut *source, &options).expect("traffic fits")
}

fn run_chain(
    spec: &ChainSpec,
    trace: Trace,
    pacing: Pacing,
    seconds: f64,
    scaling: Option<ScalingConfig>,
) -> RunReport {
    let config = RunConfig {
        cores: vec![available().last().copied().unwrap_or(0)],
        nic: TraceNicConfig {
            pacing,
            duration: Some(Nanos::from_secs_f64(seconds)),
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(300),
        capture_out: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server: None,
    };
    run(spec, trace, &config, &AtomicBool::new(false), |_| {}).expect("the run")
}

fn flagged(report: &RunReport) -> f64 {
    report.windows.flagged as f64 / report.windows.count.max(1) as f64
}

fn main() {
    let options = options();
    let cores = available();
    let (Some(&auxiliary), Some(&dedicated)) = (cores.first(), cores.last()) else {
        return;
    };
    if auxiliary == dedicated {
        eprintln!("scaling needs two cores: skipped");
        return;
    }
    for chain in CHAINS {
        for traffic in TRAFFIC {
            let wanted = |policy: &&&str| {
                let name = format!("{chain}/{traffic}/{policy}");
                let filters = &options.filters;
                filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
            };
            let policies: Vec<&str> = POLICIES.iter().filter(wanted).copied().collect();
            if policies.is_empty() {
                continue;
            }
            let other = trace(traffic, TRAINING_SEED, 1.0);
            let rate = other.len() as f64 / other.duration().as_secs_f64();
            let plain = trace(traffic, TRAINING_SEED, 1.0);
            let saturated = run_chain(&spec(chain, 200), plain, Pacing::Saturate, 0.6, None);
            let capacity = saturated.throughput_mpps * 1e6;
            let factor = options.load * capacity / rate;
            let trace = trace(traffic, SEED, factor);
            let offered = trace.len() as f64 / trace.duration().as_secs_f64() / 1e6;
            eprintln!(
                "{chain}/{traffic}: one core {:.2} Mpps without pace; offered {offered:.2} Mpps",
                capacity / 1e6
            );
            for &slo in &options.slos {
                let spec = spec(chain, slo);
                let training = TrainOptions {
                    core: dedicated,
                    depth: Depth::Quick,
                    seed: 1,
                };
                let stop = AtomicBool::new(false);
                let profile = train_capacity(&spec, &other, &training, &stop, |_| {});
                let profile = profile.expect("the chain can be trained");
                for policy in &policies {
                    let named = Policy::named(policy).expect("a policy");
                    let mappers = named.mappers(spec.slo.latency, &profile).expect("mappers");
                    let scaling = mappers.map(|mapper| ScalingConfig {
                        auxiliary: vec![auxiliary],
                        mapper,
                        park: Mode::SpinThenSleep(std::time::Duration::from_micros(50)),
                        buffers: options.buffers,
                    });
                    let once = || {
                        let (trace, scaling) = (trace.clone(), scaling.clone());
                        let pacing = Pacing::Arrivals;
                        run_chain(&spec, trace, pacing, options.seconds, scaling)
                    };
                    let mut best = once();
                    let mut tries = 1;
                    while tries < options.tries && flagged(&best) > 1.0 / 3.0 {
                        let next = once();
                        tries += 1;
                        if flagged(&next) < flagged(&best) {
                            best = next;
                        }
                    }
                    let name = format!("{chain}/{traffic}/{slo}/{policy}");
                    print(&name, &best, offered, tries);
                }
            }
        }
    }
}

fn print(name: &str, report: &RunReport, offered: f64, tries: u32) {
    let windows = &report.windows;
    let median = windows.median_latency_us;
    let unflagged = windows.list.iter().filter(|window| !window.flagged);
    let lost: u64 = unflagged.map(|window| window.lost).sum();
    let figures = [
        ("p50-us", median.p50, "us"),
        ("p99-us", median.p99, "us"),
        ("pooled-p99-us", report.latency_us.p99, "us"),
        ("loss", lost as f64, "packets"),
        ("cores", report.cores.avg, "cores"),
        ("kept", windows.unflagged_slo_met, "of unflagged windows"),
    ];
    for (figure, value, unit) in figures {
        println!(
            "{{\"name\":\"scaling/{name}/{figure}\",\"value\":{value:.3},\"unit\":\"{unit}\",\
             \"runs\":{tries},\"windows\":{},\"flagged\":{},\"offered_mpps\":{offered:.2}}}",
            windows.count, windows.flagged
        );
    }
    eprintln!(
        "{name:55} p50 {:7.1} p99 {:7.1} pooled {:7.1} cores {:.2} kept {:3.0} % lost {lost} \
         ({}) flagged {}/{}",
        median.p50,
        median.p99,
        report.latency_us.p99,
        report.cores.avg,
        100.0 * windows.unflagged_slo_met,
        report.packets.lost,
        windows.flagged,
        windows.count
    );
    if std::env::var_os("SCALING_DETAILS").is_some() {
        eprintln!("    {:?} {:?}", report.late_by_cause, report.scaling);
    }
}
