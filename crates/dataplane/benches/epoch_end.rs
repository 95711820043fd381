//! Bursts absorbed, live: one dedicated core and one auxiliary core, policy by policy.
//!
//! `cargo bench -p tailwater-dataplane --bench scaling [-- FILTER...] [--seconds S] [--load L]
//! [--slo 100,200,500]` prints a JSON line a figure. A filter is part of `chain/traffic/policy`.
//!
//! For each chain and traffic the chain's capacity on the dedicated core is measured first, without
//! pace; the traffic then comes at `load` times that, flows superposed so that each flow's bursts stay
//! as they are. The seeds are fixed.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::overhead::EpochEnd;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, run};
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_nf::spec::ChainSpec;
use tailwater_policy::capacity::{EpochFrontier, SplitProfile};
use tailwater_policy::core::{CoreMapper, Load};
use tailwater_policy::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{LoadOptions, Trace};

const CHAINS: &[&str] = &["acl-lb-accounting", "acl-urlfilter-encrypt", "acl-nat"];
const TRAFFIC: &[&str] = &["backbone", "as"];
const POLICIES: &[&str] = &["static", "netblaze", "netblaze-no-boost", "tailwater"];

/// Traffic that is generated; it is repeated, with flows renumbered.
const GENERATED: Nanos = Nanos::from_millis(500);

struct Options {
    filters: Vec<String>,
    seconds: f64,
    load: f64,
    slos: Vec<u64>,
}

fn options() -> Options {
    let mut options = Options {
        filters: Vec::new(),
        seconds: 3.0,
        load: 0.75,
        slos: vec![100, 200, 500],
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--bench" => {}
            "--seconds" => options.seconds = value().parse().expect("--seconds S"),
            "--load" => options.load = value().parse().expect("--load L"),
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

fn trace(traffic: &str, factor: f64, length: Nanos) -> Trace {
    let preset = preset(traffic).expect("a preset").scaled(factor);
    let mut source = preset.with(1, length).open().expect("traffic");
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
    };
    run(spec, trace, &config, &AtomicBool::new(false), |_| {}).expect("the run")
}

fn mapper(policy: &str, slo: Nanos, ns_per_packet: f64) -> Option<Box<dyn CoreMapper>> {
    let mut frontier = EpochFrontier::default();
    let epoch = slo.0 as f64 / 2.0;
    let packets = (epoch / ns_per_packet) as u32;
    frontier.insert(Load {
        flows: u32::MAX,
        packets,
    });
    let netblaze = |options: NetBlazeOptions| {
        let options = NetBlazeOptions {
            network_allowance: Nanos::ZERO,
            ..options
        };
        let mapper = NetBlazeMapper::new(options, &frontier, SplitProfile::default());
        Some(Box::new(mapper.expect("an epoch")) as Box<dyn CoreMapper>)
    };
    match policy {
        "static" => None,
        "netblaze" => netblaze(NetBlazeOptions::new(slo)),
        "netblaze-no-boost" => netblaze(NetBlazeOptions {
            boost_after: None,
            ..NetBlazeOptions::new(slo)
        }),
        "tailwater" => {
            let options = TailwaterOptions {
                network_allowance: Nanos::ZERO,
                ..TailwaterOptions::new(slo)
            };
            let mapper = TailwaterMapper::new(options, SplitProfile::default());
            Some(Box::new(mapper.expect("a budget")))
        }
        _ => unreachable!("a policy"),
    }
}

/// Planning and re-mapping at an epoch's end, on the deciding core.
fn epoch_ends() {
    const RUNS: usize = 301;
    for packets in [128u32, 256, 512, 1024] {
        for flows in [1u32, 32, 310] {
            for groups in [2u32, 3, 4] {
                let flows = flows.min(packets);
                let mut frontier = EpochFrontier::default();
                // As many groups as wanted, with a little to spare.
                let most = (packets / groups + packets / 16).max(packets / flows);
                frontier.insert(Load {
                    flows: u32::MAX,
                    packets: most,
                });
                let options = NetBlazeOptions {
                    network_allowance: Nanos::ZERO,
                    boost_after: None,
                    release_after: u32::MAX,
                    ..NetBlazeOptions::new(Nanos::from_micros(200))
                };
                let mapper = NetBlazeMapper::new(options, &frontier, SplitProfile::default());
                let helpers = groups as usize;
                let mapper = Box::new(mapper.expect("an epoch"));
                let mut rig = EpochEnd::new(packets as usize, flows, helpers, mapper);
                let mut moved = 0;
                let mut times: Vec<f64> = (1..=RUNS as u64)
                    .map(|run| {
                        let (took, handed) = rig.run(Nanos::from_millis(run));
                        moved = handed;
                        took.as_micros_f64()
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                println!(
                    "{{\"name\":\"scaling/epoch-end/{packets}-packets/{flows}-flows/{groups}-groups\",\
                     \"value\":{:.3},\"unit\":\"us\",\"min\":{:.3},\"max\":{:.3},\"runs\":{RUNS},\
                     \"moved\":{moved}}}",
                    times[RUNS / 2],
                    times[RUNS / 20],
                    times[RUNS * 19 / 20]
                );
            }
        }
    }
}

fn main() {
    let options = options();
    if options.filters.is_empty() || options.filters.iter().any(|filter| filter == "epoch-end") {
        epoch_ends();
    }
    let cores = available();
    if cores.len() < 2 {
        eprintln!("scaling needs two cores: skipped");
        return;
    }
    for chain in CHAINS {
        for traffic in TRAFFIC {
            let wanted = |policy: &str| {
                let name = format!("{chain}/{traffic}/{policy}");
                options.filters.is_empty()
                    || options.filters.iter().any(|f| name.contains(f.as_str()))
            };
            if !POLICIES.iter().any(|policy| wanted(policy)) {
                continue;
            }
            let plain = trace(traffic, 1.0, GENERATED);
            let rate = plain.len() as f64 / plain.duration().as_secs_f64();
            let spec_of = |slo| spec(chain, slo);
            let saturated = run_chain(&spec_of(200), plain, Pacing::Saturate, 0.6, None);
            let capacity = saturated.throughput_mpps * 1e6;
            let factor = options.load * capacity / rate;
            eprintln!(
                "{chain}/{traffic}: {:.2} Mpps one core, traffic x{factor:.2}",
                capacity / 1e6
            );
            let trace = trace(traffic, factor, GENERATED);
            let offered = trace.len() as f64 / trace.duration().as_secs_f64();
            for &slo in &options.slos {
                for policy in POLICIES.iter().filter(|policy| wanted(policy)) {
                    let latency = Nanos::from_micros(slo);
                    let policy_name = (*policy).to_owned();
                    let ns = 1e9 / capacity;
                    let scaling = mapper(policy, latency, ns)
                        .is_some()
                        .then(|| ScalingConfig {
                            auxiliary: vec![cores[0]],
                            mapper: Arc::new(move || {
                                mapper(&policy_name, latency, ns).expect("checked")
                            }),
                            park: Mode::SpinThenSleep(std::time::Duration::from_micros(50)),
                            buffers: 8192,
                        });
                    let report = run_chain(
                        &spec_of(slo),
                        trace.clone(),
                        Pacing::Arrivals,
                        options.seconds,
                        scaling,
                    );
                    print_cell(
                        &format!("{chain}/{traffic}/{slo}/{policy}"),
                        &report,
                        offered,
                    );
                }
            }
        }
    }
}

fn print_cell(name: &str, report: &RunReport, offered: f64) {
    let median = report.windows.median_latency_us;
    let lost: u64 = report
        .windows
        .list
        .iter()
        .filter(|w| !w.flagged)
        .map(|w| w.lost)
        .sum();
    let figures = [
        ("p50-us", median.p50, "us"),
        ("p99-us", median.p99, "us"),
        ("pooled-p99-us", report.latency_us.p99, "us"),
        ("loss", lost as f64, "packets"),
        ("cores", report.cores.avg, "cores"),
        (
            "kept",
            report.windows.unflagged_slo_met,
            "share of unflagged windows",
        ),
    ];
    for (figure, value, unit) in figures {
        println!(
            "{{\"name\":\"scaling/{name}/{figure}\",\"value\":{value:.3},\"unit\":\"{unit}\",\
             \"windows\":{},\"flagged\":{},\"offered_mpps\":{:.2}}}",
            report.windows.count,
            report.windows.flagged,
            offered / 1e6
        );
    }
    eprintln!(
        "{name}: p50 {:.1} p99 {:.1} pooled {:.1} max {:.0} cores {:.2} kept {:.2} lost {} ({} in all) flagged {}/{} {:?} {:?}",
        median.p50,
        median.p99,
        report.latency_us.p99,
        report.latency_us.max,
        report.cores.avg,
        report.windows.unflagged_slo_met,
        lost,
        report.packets.lost,
        report.windows.flagged,
        report.windows.count,
        report.late_by_cause,
        report.scaling
    );
}
