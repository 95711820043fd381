//! Absorption of bursts in live runs: one dedicated core and one auxiliary core, policy by policy; and both cores as
//! dedicated ones.
//!
//! `cargo bench -p tailwater-profile --bench scaling [-- FILTER...] [--seconds S] [--load L] [--slo 100,200,500]
//! [--tries N] [--record DIRECTORY]` prints a JSON line per figure, and a table on standard error. A filter is part of
//! `chain/traffic/policy`.
//!
//! Traffic has a fixed rate for each chain ([`CELLS`]), so that every run of the benchmark offers the same packets.
//! Presets superpose more or fewer flows, whose bursts are preserved; captures are played faster. `--load` changes the
//! rate to that share of one core's saturated throughput, which is measured first in any case. Seeds are fixed. For
//! each objective the chain is trained anew, quickly, on other traffic of the same kind. A run with more than a third
//! of its windows flagged is repeated, at most `tries` times; the one with the fewest counts. [`bound`] identifies the
//! cells that no two cores can serve. Captures need TAILWATER_TEST_DATA.

mod bound;

use bound::{Best, Bound, bound};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::cores::available;
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
use tailwater_profile::{Depth, TrainOptions, train_capacity};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{CaptureReader, LoadOptions, ReadOptions, Trace};

/// Chain, traffic, and offered packets per second, in millions: about 68 % of the saturated throughput of one core of
/// the machine on which this was written. Presets yield a tenth less in so short a time.
const CELLS: &[(&str, &str, f64)] = &[
    ("acl-lb-accounting", "backbone", 3.9),
    ("acl-lb-accounting", "as", 4.1),
    ("acl-urlfilter-encrypt", "backbone", 1.07),
    ("acl-urlfilter-encrypt", "as", 1.07),
    ("acl-urlfilter-encrypt", "ndpi_webattack_rce", 2.5),
    ("acl-urlfilter-encrypt", "ddos_synack_reflection", 1.0),
    ("acl-nat", "backbone", 3.1),
    ("acl-nat", "as", 4.3),
];
/// Name of the row, policy, and `true` if both cores are dedicated. Contains the policies that make sense on two cores;
/// the others are for the simulator.
const ROWS: &[(&str, &str, bool)] = &[
    ("static", "static", false),
    ("netblaze", "netblaze", false),
    ("netblaze-core-static-safe", "netblaze-core-static-safe", false),
    ("netblaze-core-static-unsafe", "netblaze-core-static-unsafe", false),
    ("netblaze-no-boost", "netblaze-no-boost", false),
    ("netblaze-no-core-mapper", "netblaze-no-core-mapper", false),
    ("tailwater", "tailwater", false),
    ("static-two-dedicated", "static", true),
    ("rss++", "rss++", true),
];

/// Descriptors of the NIC's ring for every policy; large enough for late packets to be late rather than lost.
const RING: usize = 4096;
/// Length of generated traffic; it is repeated with renumbered flows.
const GENERATED: Nanos = Nanos::from_millis(600);
/// Length of a measurement window.
const WINDOW: Nanos = Nanos::from_millis(300);
/// Seeds of the measured traffic, and of the training traffic.
const SEED: u64 = 1;
const TRAINING_SEED: u64 = 1001;

struct Options {
    filters: Vec<String>,
    seconds: f64,
    load: Option<f64>,
    slos: Vec<u64>,
    tries: u32,
    buffers: u32,
    /// Directory for recorded decisions, for `tailwater explain`.
    record: Option<PathBuf>,
}

fn options() -> Options {
    let mut options = Options {
        filters: Vec::new(),
        seconds: 1.5,
        load: None,
        slos: vec![100, 200, 500],
        tries: 2,
        buffers: 2048,
        record: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--bench" => {}
            "--seconds" => options.seconds = value().parse().expect("--seconds S"),
            "--load" => options.load = Some(value().parse().expect("--load L")),
            "--tries" => options.tries = value().parse().expect("--tries N"),
            "--buffers" => options.buffers = value().parse().expect("--buffers N"),
            "--record" => options.record = Some(value().into()),
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

fn spec(chain: &str, traffic: &str, slo_us: u64) -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = std::path::Path::new(examples).join(format!("{chain}.yaml"));
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

/// Returns traffic at `rate` packets per second; a capture ignores the seed.
fn trace(traffic: &str, seed: u64, rate: f64) -> Option<Trace> {
    let options = LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    };
    let Ok(preset) = preset(traffic) else {
        let data = PathBuf::from(std::env::var_os("TAILWATER_TEST_DATA")?);
        let file = ["pcap.zst", "pcapng.zst"].map(|end| data.join(format!("traces/{traffic}.{end}")));
        let file = file.iter().find(|file| file.exists())?;
        let mut capture = CaptureReader::open(file, &ReadOptions::default()).expect("a capture");
        let mut trace = Trace::load(&mut capture, &options).expect("traffic fits");
        let own = 1.0 / trace.mean_gap().as_secs_f64();
        trace.scale_rate(rate / own).expect("a rate above zero");
        return Some(trace);
    };
    let own = preset.mean_rate_pps();
    let mut source = preset.scaled(rate / own).with(seed, GENERATED).open().expect("traffic");
    Some(Trace::load(&mut *source, &options).expect("traffic fits"))
}

fn run_chain(
    spec: &ChainSpec,
    trace: Trace,
    pacing: Pacing,
    seconds: f64,
    cores: Vec<usize>,
    scaling: Option<ScalingConfig>,
    server: Option<ServerConfig>,
) -> RunReport {
    let config = RunConfig {
        cores,
        nic: TraceNicConfig {
            pacing,
            duration: Some(Nanos::from_secs_f64(seconds)),
            ring: RING,
            ..TraceNicConfig::default()
        },
        window: WINDOW,
        capture_out: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server,
        isolation: None,
    };
    let plan = RunPlan::new(spec.clone(), config).expect("a plan");
    run(&plan, trace, RunControl::new(&AtomicBool::new(false))).expect("the run")
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
    for &(chain, traffic, mpps) in CELLS {
        let wanted = |(row, _, _): &(&str, &str, bool)| {
            let name = format!("{chain}/{traffic}/{row}");
            let filters = &options.filters;
            filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
        };
        let rows: Vec<_> = ROWS.iter().copied().filter(wanted).collect();
        if rows.is_empty() {
            continue;
        }
        let Some(other) = trace(traffic, TRAINING_SEED, mpps * 1e6) else {
            eprintln!("{chain}/{traffic}: skipped: the captures (TAILWATER_TEST_DATA) are not there");
            continue;
        };
        let any = spec(chain, traffic, 200);
        let (alone, pacing) = (vec![dedicated], Pacing::Saturate);
        let saturated = run_chain(&any, other.clone(), pacing, 0.6, alone, None, None);
        let capacity = saturated.throughput_mpps * 1e6;
        let rate = options.load.map_or(mpps * 1e6, |load| load * capacity);
        let trace = trace(traffic, SEED, rate).expect("as above");
        let offered = 1e3 / trace.mean_gap().0 as f64;
        eprintln!(
            "{chain}/{traffic}: one core {:.2} Mpps without pace; offered {offered:.2} Mpps, {:.0} %",
            capacity / 1e6,
            100e6 * offered / capacity,
        );
        for &slo in &options.slos {
            let spec = spec(chain, traffic, slo);
            let training = TrainOptions {
                core: dedicated,
                depth: Depth::Quick,
                seed: 1,
            };
            let stop = AtomicBool::new(false);
            let profile = train_capacity(&spec, &other, &training, &stop, |_| {});
            let profile = profile.expect("the chain can be trained");
            let costs = profile.costs.unwrap_or_default();
            let bound = bound(&trace, WINDOW, spec.slo.budget(), costs, capacity);
            print_bound(&format!("{chain}/{traffic}/{slo}"), &bound);
            for &(row, policy, both) in &rows {
                // Without a core mapper the result does not depend on the objective.
                if both && slo != options.slos[options.slos.len() / 2] {
                    continue;
                }
                let named = Policy::named(policy).expect("a policy");
                let mappers = named.mappers(spec.slo.budget(), &profile).expect("mappers");
                let server = match both {
                    true => named.server_mappers(&profile, false).expect("it needs no rates"),
                    false => None,
                };
                let file = format!("{chain}-{traffic}-{slo}-{row}.decisions");
                let file = options.record.as_ref().map(|directory| directory.join(file));
                let recorder = file.map(|file| {
                    let header = Header {
                        chain: chain.to_owned(),
                        policy: named.name().to_owned(),
                        slo: spec.slo.budget(),
                        epoch: profile.epoch,
                        auxiliary: usize::from(!both),
                        started: Nanos::ZERO,
                        profile: profile.to_string(),
                    };
                    Recorder::create(&file, &header.now()).expect("--record DIRECTORY")
                });
                let record = |mapper| match &recorder {
                    Some(recorder) => recorder.recording(mapper),
                    None => mapper,
                };
                let server = server.map(|mapper| ServerConfig {
                    mapper: match &recorder {
                        Some(recorder) => recorder.recording_server(mapper),
                        None => mapper,
                    },
                });
                let mappers = mappers.filter(|_| !both);
                let scaling = mappers.map(record).map(|mapper| ScalingConfig {
                    auxiliary: vec![auxiliary],
                    mapper,
                    park: Mode::SpinThenSleep(std::time::Duration::from_micros(50)),
                    buffers: options.buffers,
                });
                let once = || {
                    let (trace, pacing) = (trace.clone(), Pacing::Arrivals);
                    let cores = match both {
                        true => vec![auxiliary, dedicated],
                        false => vec![dedicated],
                    };
                    run_chain(
                        &spec,
                        trace,
                        pacing,
                        options.seconds,
                        cores,
                        scaling.clone(),
                        server.clone(),
                    )
                };
                let mut best = once();
                let mut tries = 1;
                // With both cores dedicated, other programs preempt a core in any case.
                while !both && tries < options.tries && flagged(&best) > 1.0 / 3.0 {
                    let next = once();
                    tries += 1;
                    if flagged(&next) < flagged(&best) {
                        best = next;
                    }
                }
                let name = format!("{chain}/{traffic}/{slo}/{row}");
                print(&name, &best, offered, tries);
                if let Some(recorder) = recorder {
                    recorder.finish().expect("decisions are written");
                }
            }
        }
    }
}

fn print_bound(name: &str, bound: &Bound) {
    let figures = [
        ("whole-flows", bound.whole),
        ("split-flows", bound.split),
        ("work", bound.work),
    ];
    for (figure, best) in figures {
        for (figure, value, unit) in [
            (format!("{figure}/late"), best.late, "of packets"),
            (format!("{figure}/kept"), best.kept, "of windows"),
        ] {
            println!(
                "{{\"name\":\"scaling/{name}/bound/{figure}\",\"value\":{value:.5},\
                 \"unit\":\"{unit}\",\"runs\":1}}"
            );
        }
    }
    let text = |best: Best| format!("{:.2} % late, {:.0} % kept", 100.0 * best.late, 100.0 * best.kept);
    eprintln!(
        "{name:55} at best: whole flows {}; split {}; work {}{}",
        text(bound.whole),
        text(bound.split),
        text(bound.work),
        bound.reason().map_or_else(String::new, |reason| format!(": {reason}")),
    );
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
        let (scaling, server) = (report.scaling, report.server);
        eprintln!("    {:?} {scaling:?} {server:?}", report.late_by_cause);
    }
}
