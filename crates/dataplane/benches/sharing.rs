//! Share of an auxiliary core that is left to an ordinary program on the same core.
//!
//! `cargo bench -p tailwater-dataplane --bench sharing [-- --rounds N]` prints one JSON line per figure: the median,
//! minimum and maximum of the rounds. A thread of ordinary priority on the auxiliary core does nothing but count units
//! of work. `work-percent` is its work as a percentage of that when it runs alone. The cases take turns:
//!
//! - `scaling/sharing/alone`: nothing else runs.
//! - `.../asleep`: a chain runs on the dedicated core, and its auxiliary core is never activated.
//! - `.../tailwater`, `.../netblaze`: the auxiliary core is activated as the policy decides.
//! - `.../spinning`: the auxiliary worker never sleeps, as on a dedicated core.
//!
//! Further figures: `recruited-percent` is the share of the time for which the auxiliary core was activated, `p99-us`
//! the chain's latency. `wake-p50-us` and `wake-p99-us` are the time from the call to the auxiliary core until it runs.
//! They come from the runs themselves or, where it is never activated, from one that is called every millisecond.
//! Auxiliary workers have real-time priority (`SCHED_FIFO`), where that is permitted.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_baselines::catalog::{Policy, epoch};
use tailwater_dataplane::cores::{available, pin_to};
use tailwater_dataplane::report::RunReport;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::trace_nic::{Pacing, TraceNicConfig};
use tailwater_dataplane::{RunConfig, RunControl, RunPlan, run};
use tailwater_functions::spec::ChainSpec;
use tailwater_handover::park::{Mode, park};
use tailwater_handover::priority::Priority;
use tailwater_handover::ring::ring;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier};
use tailwater_traffic::generate::preset;
use tailwater_traffic::{LoadOptions, Trace};

const CHAIN: &str = "acl-urlfilter-encrypt";
const TRAFFIC: &str = "backbone";
const SLO: Nanos = Nanos::from_micros(200);
/// Mean load, as a share of the dedicated core's capacity without pacing.
const LOAD: f64 = 0.6;
/// Length of the generated traffic. It is repeated with renumbered flows.
const GENERATED: Nanos = Nanos::from_millis(600);
/// Duration of a case in a round.
const LASTS: Nanos = Nanos::from_millis(1200);
/// Time at the start of a case that is not measured.
const BEFORE: Nanos = Nanos::from_millis(150);
/// Calls of the auxiliary core that is never activated, and the time between them.
const CALLS: (u32, Duration) = (500, Duration::from_millis(1));
/// Priority of auxiliary workers in runs.
const FIFO: u8 = 1;

/// Case: its name, its policy, and the wait strategy of its auxiliary core.
type Case = (&'static str, Policy, Mode);

const CASES: [Case; 4] = [
    ("asleep", Policy::NetBlazeNoCoreMapper, Mode::Sleep),
    ("tailwater", Policy::Tailwater, Mode::Sleep),
    ("netblaze", Policy::NetBlaze, Mode::Sleep),
    ("spinning", Policy::Tailwater, Mode::Spin),
];

/// Start and end of a time span.
type Span = [Instant; 2];

/// Ordinary program: does units of work until the end, and records its progress periodically.
fn work(core: usize, end: &AtomicBool) -> Vec<(Instant, u64)> {
    /// Units between two records: less than a millisecond.
    const NOTED: u64 = 256;
    pin_to(core).expect("the core is available");
    let mut notes = Vec::with_capacity(1 << 16);
    let (mut state, mut units) = (1u64, 0);
    while !end.load(Ordering::Relaxed) {
        for _ in 0..1000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        black_box(state);
        units += 1;
        if units % NOTED == 0 {
            notes.push((Instant::now(), units));
        }
    }
    notes
}

/// Runs `case` at the same time as the program. Returns the program's units per second in the time span that `case`
/// returns.
fn beside<T>(core: usize, case: impl FnOnce() -> (Span, T)) -> (f64, T) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| work(core, &end));
        let ([from, to], outcome) = case();
        end.store(true, Ordering::Relaxed);
        let notes = program.join().expect("the program ends");
        let done = |by: Instant| {
            let before = notes.partition_point(|(time, _)| *time <= by);
            before.checked_sub(1).map_or(0, |last| notes[last].1)
        };
        let units = (done(to) - done(from)) as f64;
        (units / (to - from).as_secs_f64(), outcome)
    })
}

/// Measured time span of a case: from its first packet, without its start.
fn measured(first: Instant) -> Span {
    [BEFORE, LASTS].map(|time| first + Duration::from_nanos(time.0))
}

fn spec() -> ChainSpec {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = std::path::Path::new(examples).join(format!("{CHAIN}.yaml"));
    let mut spec = ChainSpec::read(&path).expect("an example");
    spec.slo.latency = SLO;
    spec
}

fn trace(factor: f64) -> Trace {
    let preset = preset(TRAFFIC).expect("a preset").scaled(factor);
    let mut source = preset.with(1, GENERATED).open().expect("traffic");
    let options = LoadOptions {
        memory_limit_bytes: 8 << 30,
        ..LoadOptions::default()
    };
    Trace::load(&mut *source, &options).expect("traffic fits")
}

fn run_chain((core, trace, pacing): (usize, Trace, Pacing), scaling: Option<ScalingConfig>) -> (Span, RunReport) {
    let config = RunConfig {
        cores: vec![core],
        nic: TraceNicConfig {
            pacing,
            duration: Some(LASTS),
            ..TraceNicConfig::default()
        },
        window: Nanos::from_millis(100),
        capture_out: None,
        keep_packets: None,
        not_matched: 0,
        seed: 1,
        scaling,
        server: None,
        isolation: None,
    };
    let plan = RunPlan::new(spec(), config).expect("a plan");
    let (mut first, stop) = (Instant::now(), AtomicBool::new(false));
    let control = RunControl::new(&stop).with_progress(|progress| {
        first = Instant::now() - Duration::from_nanos(progress.elapsed.0);
    });
    let report = run(&plan, trace, control);
    (measured(first), report.expect("the run"))
}

/// Wake-up times of an auxiliary worker that sleeps on `core`, from the call until it runs, in microseconds, ascending.
fn wake_ups(core: usize) -> Vec<f64> {
    let (mut to, mut from) = ring::<Instant>(8);
    let (mut sleeper, waker) = park(Mode::Sleep);
    std::thread::scope(|scope| {
        let helper = scope.spawn(move || {
            pin_to(core).expect("the core is available");
            let (_priority, _refused) = Priority::fifo_or_ordinary(FIFO);
            let mut took = Vec::with_capacity(CALLS.0 as usize);
            while !from.is_closed() || !from.is_empty() {
                match from.pop() {
                    Some(called) => took.push(called.elapsed().as_nanos() as f64 / 1e3),
                    None => {
                        sleeper.wait(Duration::from_secs(1), || !from.is_empty() || from.is_closed());
                    }
                }
            }
            took
        });
        for _ in 0..CALLS.0 {
            std::thread::sleep(CALLS.1);
            to.push(Instant::now()).expect("there is one call at a time");
            waker.wake();
        }
        drop(to);
        waker.wake();
        let mut took = helper.join().expect("the helper ends");
        took.sort_by(f64::total_cmp);
        took
    })
}

/// Values of the rounds, by figure.
#[derive(Default)]
struct Figures(Vec<(String, &'static str, Vec<f64>)>);

impl Figures {
    fn add(&mut self, case: &str, figure: &str, unit: &'static str, value: f64) {
        let name = format!("scaling/sharing/{case}/{figure}");
        match self.0.iter_mut().find(|(known, ..)| *known == name) {
            Some((.., values)) => values.push(value),
            None => self.0.push((name, unit, vec![value])),
        }
    }

    fn print(mut self) {
        for (name, unit, values) in &mut self.0 {
            values.sort_by(f64::total_cmp);
            let (least, most, runs) = (values[0], values[values.len() - 1], values.len());
            let median = values[runs / 2];
            println!(
                "{{\"name\": \"{name}\", \"value\": {median:.2}, \"unit\": \"{unit}\", \
                 \"min\": {least:.2}, \"max\": {most:.2}, \"runs\": {runs}}}"
            );
        }
    }
}

fn main() {
    let mut arguments = std::env::args();
    let rounds = arguments
        .find(|argument| argument == "--rounds")
        .and(arguments.next())
        .map_or(5, |rounds| rounds.parse().expect("--rounds N"));
    let cores = available();
    let (Some(&auxiliary), Some(&dedicated)) = (cores.first(), cores.last()) else {
        return;
    };
    if auxiliary == dedicated {
        eprintln!("sharing needs two cores: skipped");
        return;
    }
    let saturated = (dedicated, trace(1.0), Pacing::Saturate);
    let most = run_chain(saturated, None).1.throughput_mpps * 1e6;
    let given = trace(1.0);
    let offered = given.len() as f64 / GENERATED.as_secs_f64();
    let traffic = trace(LOAD * most / offered);
    drop(given);
    eprintln!("{CHAIN}, {TRAFFIC}: {LOAD} of {:.2} Mpps", most / 1e6);
    // Work of the core in an epoch, for any number of flows.
    let epoch = epoch(SLO).expect("an epoch");
    let packets = most * epoch.as_secs_f64();
    let profile = CapacityProfile {
        frontier: EpochFrontier::constant(packets as u32),
        ..CapacityProfile::default()
    };
    let mut figures = Figures::default();
    for round in 1..=rounds {
        let (alone, ()) = beside(auxiliary, || {
            let first = Instant::now();
            std::thread::sleep(Duration::from_nanos(LASTS.0));
            (measured(first), ())
        });
        figures.add("alone", "work-percent", "%", 100.0);
        eprintln!("round {round}: alone {:.1} million units a second", alone / 1e6);
        for (name, policy, park) in CASES {
            let mapper = policy.mappers(SLO, &profile).expect("an epoch");
            let scaling = ScalingConfig {
                auxiliary: vec![auxiliary],
                dedicated_help: false,
                mapper: mapper.expect("a mapper"),
                park,
                buffers: 2048,
            };
            let (rate, report) = beside(auxiliary, || {
                let traffic = (dedicated, traffic.clone(), Pacing::Arrivals);
                run_chain(traffic, Some(scaling))
            });
            figures.add(name, "work-percent", "%", 100.0 * rate / alone);
            let recruited = 100.0 * report.cores.auxiliary_avg;
            figures.add(name, "recruited-percent", "%", recruited);
            let median = report.windows.median_latency_us.p99;
            figures.add(name, "p99-us", "us", median);
            let wake = report.wake_us.unwrap_or_default();
            let (p50, p99) = match recruited > 0.0 {
                true => (wake.p50, wake.p99),
                false => {
                    let (_, took) = beside(auxiliary, || {
                        let start = Instant::now();
                        let took = wake_ups(auxiliary);
                        ([start, Instant::now()], took)
                    });
                    (took[took.len() / 2], took[took.len() * 99 / 100])
                }
            };
            if park == Mode::Sleep {
                figures.add(name, "wake-p50-us", "us", p50);
                figures.add(name, "wake-p99-us", "us", p99);
            }
        }
    }
    figures.print();
}
