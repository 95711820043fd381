//! Dedicated cores that help each other, with most of the load on one of two.
//!
//! `cargo bench -p tailwater-dataplane --bench helping [-- --rounds N --load F]` prints one JSON line per figure: the
//! median, minimum and maximum of the rounds. RSS maps three quarters of the packets to the first of two dedicated
//! cores, which they load to F of its capacity (0.7), measured just before. The cases take turns, in an order that
//! changes with every round:
//!
//! - `scaling/helping/static`: static RSS.
//! - `.../helped`: the buckets stay as with static RSS, and Tailwater's core mapper lets the cores help each other.
//! - `.../tailwater`: Tailwater's server mapper moves buckets, too.
//!
//! `late-percent` and `p99-us` are medians over the windows of a round without CPU interference, and over all of them
//! with `-all`. `helped-percent` is the share of packets that another dedicated core processed. `fewer-late` counts the
//! rounds in which fewer packets of undisturbed windows were late than with static RSS, in the same round.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use tailwater_baselines::catalog::Policy;
use tailwater_dataplane::cores::available;
use tailwater_dataplane::report::{RunReport, WindowReport};
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

const CHAIN: &str = "acl-urlfilter-encrypt";
const TRAFFIC: &str = "backbone";
const SLO: Nanos = Nanos::from_micros(200);
/// Duration of the traffic, which is played once: repeated with renumbered flows, it would be spread evenly.
const LASTS: Nanos = Nanos::from_millis(1500);
/// Of the flows in buckets of the second core, one in this many stays.
const STAYS: u32 = 3;
const CASES: [&str; 3] = ["static", "helped", "tailwater"];

/// Traffic without most of the flows of the second core.
struct Skewed<'s> {
    source: &'s mut dyn PacketSource,
    rss: RssHasher,
    frame: Vec<u8>,
}

impl PacketSource for Skewed<'_> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        loop {
            let Some(packet) = self.source.next_packet()? else {
                return Ok(None);
            };
            let hash = self.rss.hash_frame(packet.data);
            if bucket_of(hash) % 2 == 1 && !(hash >> 16).is_multiple_of(STAYS) {
                continue;
            }
            self.frame.clear();
            self.frame.extend_from_slice(packet.data);
            let (timestamp, wire_length) = (packet.timestamp, packet.wire_length);
            return Ok(Some(Packet {
                timestamp,
                data: &self.frame,
                wire_length,
            }));
        }
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

fn spec() -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = Path::new(examples).join(format!("{CHAIN}.yaml"));
    let mut spec = ChainSpec::read(&path).expect("an example");
    spec.slo.latency = SLO;
    spec
}

/// Traffic at `factor` of its rate, and its packets per second on the first core.
fn trace(factor: f64) -> (Trace, f64) {
    let preset = preset(TRAFFIC).expect("a preset").scaled(factor);
    let mut source = preset.with(1, LASTS).open().expect("traffic");
    let rss = spec().rss();
    let mut skewed = Skewed {
        source: &mut *source,
        rss: rss.clone(),
        frame: Vec::new(),
    };
    let options = LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    };
    let trace = Trace::load(&mut skewed, &options).expect("traffic fits");
    let first = (0..trace.len()).filter(|at| bucket_of(rss.hash_frame(trace.packet(*at))).is_multiple_of(2));
    let rate = first.count() as f64 / LASTS.as_secs_f64();
    (trace, rate)
}

fn run_chain(
    (cores, trace, pacing): (&[usize], Trace, Pacing),
    scaling: Option<ScalingConfig>,
    server: Option<ServerConfig>,
) -> RunReport {
    let config = RunConfig {
        nic: TraceNicConfig {
            pacing,
            duration: (pacing == Pacing::Saturate).then_some(LASTS),
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(100),
        seed: 1,
        scaling,
        server,
        ..RunConfig::new(cores.to_vec())
    };
    let stop = AtomicBool::new(false);
    let plan = RunPlan::new(spec(), config).expect("a plan");
    run(&plan, trace, RunControl::new(&stop)).expect("the run")
}

/// Values of the rounds, by figure.
#[derive(Default)]
struct Figures(Vec<(String, &'static str, Vec<f64>)>);

impl Figures {
    fn add(&mut self, case: &str, figure: &str, unit: &'static str, value: f64) {
        let name = format!("scaling/helping/{case}/{figure}");
        match self.0.iter_mut().find(|(known, ..)| *known == name) {
            Some((.., values)) => values.push(value),
            None => self.0.push((name, unit, vec![value])),
        }
    }

    fn print(mut self) {
        for (name, unit, values) in &mut self.0 {
            let runs = values.len();
            let (median, least, most) = (median(values), values[0], values[runs - 1]);
            println!(
                "{{\"name\": \"{name}\", \"value\": {median:.3}, \"unit\": \"{unit}\", \
                 \"min\": {least:.3}, \"max\": {most:.3}, \"runs\": {runs}}}"
            );
        }
    }
}

/// Sorts the values, and returns their median; 0 if there are none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Share of late and lost packets, and p99, of these windows: medians.
fn figures_of(windows: &[&WindowReport]) -> [f64; 2] {
    let ended = |window: &WindowReport| window.delivered + window.lost;
    let windows = || windows.iter().filter(|window| ended(window) > 0);
    let late = |window: &&WindowReport| 100.0 * (window.late + window.lost) as f64 / ended(window) as f64;
    let mut late: Vec<f64> = windows().map(late).collect();
    let mut p99: Vec<f64> = windows().map(|window| window.latency_us.p99).collect();
    [median(&mut late), median(&mut p99)]
}

/// Value after this option.
fn option<T: std::str::FromStr>(name: &str, default: T) -> T {
    let mut arguments = std::env::args();
    let value = arguments.find(|argument| argument == name).and(arguments.next());
    match value.map(|value| value.parse()) {
        None => default,
        Some(Ok(value)) => value,
        Some(Err(_)) => panic!("{name}: expected a number"),
    }
}

fn main() {
    let (rounds, load) = (option("--rounds", 5), option("--load", 0.7));
    let cores = available();
    let [first, second, ..] = cores[..] else {
        eprintln!("helping needs two cores: skipped");
        return;
    };
    let both = [first, second];
    let (given, offered) = trace(1.0);
    let most = run_chain((&[first], given, Pacing::Saturate), None, None).throughput_mpps * 1e6;
    let (traffic, rate) = trace(load * most / offered);
    let all = traffic.len() as f64 / LASTS.as_secs_f64();
    eprintln!(
        "{CHAIN}, {TRAFFIC}: {:.2} of {:.3} Mpps on the first core, {:.0} % of all",
        rate / most,
        most / 1e6,
        100.0 * rate / all
    );
    let profile = CapacityProfile {
        frontier: EpochFrontier::constant(64),
        rates: RateFrontier::constant(most),
        ..CapacityProfile::default()
    };
    let mut figures = Figures::default();
    let mut fewer = [0_u32; 3];
    for round in 0..rounds {
        let mut late = [0.0; 3];
        for at in (0..3).map(|at| (at + round) % 3) {
            let scaling = (at > 0).then(|| ScalingConfig {
                auxiliary: Vec::new(),
                dedicated_help: true,
                mapper: Policy::Tailwater
                    .mappers(SLO, &profile)
                    .expect("an objective")
                    .expect("a mapper"),
                park: Mode::Sleep,
                buffers: 2048,
            });
            let server = (at == 2).then(|| ServerConfig {
                mapper: Policy::Tailwater
                    .server_mappers(SLO, &profile, false)
                    .expect("rates")
                    .expect("a mapper"),
            });
            let report = run_chain((&both, traffic.clone(), Pacing::Arrivals), scaling, server);
            let all: Vec<_> = report.windows.list.iter().collect();
            let quiet: Vec<_> = all.iter().copied().filter(|window| !window.flagged).collect();
            for (name, windows) in [("", &quiet), ("-all", &all)] {
                let [late, p99] = figures_of(windows);
                figures.add(CASES[at], &format!("late-percent{name}"), "%", late);
                figures.add(CASES[at], &format!("p99-us{name}"), "us", p99);
            }
            late[at] = figures_of(&quiet)[0];
            let quiet = 100.0 * quiet.len() as f64 / all.len().max(1) as f64;
            figures.add(CASES[at], "undisturbed-percent", "%", quiet);
            figures.add(CASES[at], "lost-percent", "%", 100.0 * report.loss_rate);
            let helped = report.scaling.map_or(0, |scaling| scaling.packets_to_dedicated);
            let helped = 100.0 * helped as f64 / report.packets.offered.max(1) as f64;
            figures.add(CASES[at], "helped-percent", "%", helped);
            eprintln!(
                "round {}, {}: {:.2} % late in {quiet:.0} % of the windows, {helped:.1} % helped",
                round + 1,
                CASES[at],
                late[at]
            );
        }
        for at in 1..3 {
            fewer[at] += u32::from(late[at] < late[0]);
        }
    }
    for at in 1..3 {
        figures.add(CASES[at], "fewer-late", "rounds", fewer[at].into());
    }
    figures.print();
}
