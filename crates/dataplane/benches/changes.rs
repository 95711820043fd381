//! Cost of reloading a function while packets pass: latencies with and without changes, losses, time to prepare a
//! change, and time until it takes effect.
//!
//! `cargo bench -p tailwater-dataplane --bench changes [-- CASE...] [--runs N] [--flows 10k] [--sizes imix]` prints one
//! JSON line per figure. The cases are [`CASES`]: one function each, on one core under steady traffic, with two
//! versions that differ in a realistic way. Periods with a change every 20 ms ([`EVERY`]), or as often as it can be
//! prepared, alternate with periods without. The changes are made as in `tailwater run`, by reading the spec and its
//! files again, on another core. `changes/<case>/<size>/<flows>/...`:
//!
//! - `quiet/p50`, `p99`, `p99.9`, `max`, `changing/...`: latencies of a period, from scheduled arrival to the end of
//!   sending.
//! - `more-p99`: the difference between consecutive periods.
//! - `ready`: reading, checking and building a version, off the data path: all the slow work. `taken`: time from then
//!   until it is in force and the worker begins a turn with it.
//! - `changes`: number of changes in a period. `lost`: packets that were not sent in a period with changes, for any
//!   reason.
//!
//! Exits with 1 if any packet was lost. One case takes no longer than [`LONGEST_CASE`]. `-- table FILE` makes a table
//! for `docs/lab/performance.md` from such lines.

#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod cases;
mod library;
#[allow(dead_code, reason = "other benchmarks use the rest of it")]
mod routes;
mod versions;

use cases::{Arguments, BATCH, files, print_runs, short};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::{available, default_core, pin_to};
use tailwater_dataplane::port::round_robin;
use tailwater_dataplane::telemetry::Window;
use tailwater_dataplane::trace_nic::{Pacing, Renumber, TraceNic, TraceNicConfig};
use tailwater_functions::build::{ChainBuilder, Reconfigure};
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_traffic::Trace;
use versions::CASES;

/// Interval between changes.
const EVERY: Nanos = Nanos::from_millis(20);
/// Minimum duration of a period. One with changes has at least one, and the period without changes that follows is as
/// long.
const PERIOD: Nanos = Nanos::from_millis(200);
/// Maximum duration, after which no more packets arrive.
const LONGEST: Nanos = Nanos::from_secs(60);
/// Time limit of a case, after which the benchmark is aborted.
const LONGEST_CASE: Duration = Duration::from_secs(150);
/// Size of the ring, in packets. A worker that is preempted for some milliseconds loses none, so all losses are due to
/// changes.
const RING: usize = 1 << 16;

/// State shared by the changing thread and the worker.
#[derive(Default)]
struct Exchange {
    /// Number of changes in force.
    put: AtomicU64,
    /// Number of changes the worker has seen. `at` is the start of the turn in which it saw the last.
    seen: AtomicU64,
    at: AtomicU64,
    over: AtomicBool,
}

/// Guard that ends the worker's run, also when its holder panics. Otherwise the join would never return.
struct Over<'e>(&'e Exchange);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Change: time to prepare it, and then to take effect.
struct Change {
    ready: Nanos,
    taken: Nanos,
}

/// Results of a period.
struct Period {
    window: Window,
    changes: Vec<Change>,
}

impl Period {
    /// Latency at a percentile, in microseconds.
    fn micros(&self, percentile: f64) -> f64 {
        self.window.latency.percentile(percentile).0 as f64 / 1e3
    }

    /// Packets that were not sent, except those left at the end of the time.
    fn lost(&self) -> u64 {
        let window = &self.window;
        window.offered - window.delivered - window.lost_undrained
    }
}

/// Function under traffic, with two versions.
struct Rig {
    name: String,
    case: &'static str,
    texts: [String; 2],
    reconfigure: Reconfigure,
    chain: Option<Chain>,
    nic: TraceNic,
    clock: Clock,
    /// Core of the worker.
    core: usize,
    /// Number of changes made.
    changes: u64,
}

impl Rig {
    fn new(case: &'static str, size: &str, flows: u32, core: usize) -> Rig {
        let (clock, chain) = (Clock::start(), versions::chain(case));
        let texts = versions::versions(case, flows).map(|functions| cases::spec_text(chain, &functions, flows));
        let file = files::write(&format!("changes-{case}.yaml"), &texts[0]);
        let spec = ChainSpec::read(&file).unwrap_or_else(|error| panic!("{case}: {error}"));
        let mut builder = ChainBuilder::new(&spec, &spec.rss(), 1).unwrap_or_else(|error| panic!("{case}: {error}"));
        let reconfigure = Reconfigure::of(std::iter::once(&builder));
        let nic = |trace: Trace, duration| {
            let config = TraceNicConfig {
                pacing: Pacing::Arrivals,
                ring: RING,
                duration,
                renumber: Renumber::None,
                ..TraceNicConfig::default()
            };
            let (rss, reta) = (spec.rss(), round_robin(1));
            let nic = TraceNic::new(trace, rss, 1, &reta, config, clock.clone());
            nic.unwrap_or_else(|error| panic!("{case}: {error}"))
        };
        // Whole rounds, and more than fits a cache.
        let mut trace = cases::traffic::trace(chain, size, flows, cases::trace_packets(chain, flows));
        let times = versions::packets_per_second(case) / 1e6;
        let scaled = trace.scale_rate(times);
        scaled.unwrap_or_else(|error| panic!("{case}: {error}"));
        let through = trace.duration().max(PERIOD);
        let opening = cases::traffic::opening(chain, size, flows).map(|trace| nic(trace, None));
        let mut rig = Rig {
            name: format!("changes/{case}/{size}/{}", short(flows)),
            case,
            texts,
            reconfigure: reconfigure.unwrap_or_else(|| panic!("{case} is in a file")),
            chain: Some(builder.instance(|_| true)),
            nic: nic(trace, Some(LONGEST)),
            clock,
            core,
            changes: 0,
        };
        if let Some(opening) = opening {
            let all = std::mem::replace(&mut rig.nic, opening);
            rig.pass(|_, exchange| wait(|| exchange.over.load(Ordering::Relaxed)));
            rig.nic = all;
        }
        // Warm-up: afterwards all flows are known, and the caches are filled.
        rig.quiet(through);
        rig
    }

    /// Sends packets through the chain while `other` runs on another core, until it returns or there are no more
    /// packets.
    fn pass<T>(&mut self, other: impl FnOnce(&mut Rig, &Exchange) -> T) -> (Window, T) {
        let exchange = Exchange::default();
        let (clock, core, mut chain) = (self.clock.clone(), self.core, self.chain.take());
        // The worker has begun before.
        let start = clock.now() + Nanos::from_millis(1);
        let pool = BufferPool::new(512, self.nic.longest_frame());
        let pool = pool.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let queue = Box::new(self.nic.queues(start).remove(0));
        let (window, chain, other) = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                pin(core);
                let seen = Cell::new(0);
                let stop = || {
                    let put = exchange.put.load(Ordering::Acquire);
                    if put != seen.get() {
                        seen.set(put);
                        exchange.at.store(clock.now().0, Ordering::Relaxed);
                        exchange.seen.store(put, Ordering::Release);
                    }
                    exchange.over.load(Ordering::Relaxed)
                };
                let (window, _) = cases::run(&mut chain, (queue, pool), BATCH, start, (&clock, &stop));
                exchange.over.store(true, Ordering::Relaxed);
                (window, chain)
            });
            let over = Over(&exchange);
            let other = other(self, &exchange);
            drop(over);
            let (window, chain) = worker.join().unwrap_or_else(|_| panic!("the worker died"));
            (window, chain, other)
        });
        self.chain = chain;
        (window, other)
    }

    /// Runs a period without changes, of duration `long`.
    fn quiet(&mut self, long: Nanos) -> Period {
        let long = Duration::from_nanos(long.0);
        let (window, ()) = self.pass(|_, _| thread::sleep(long));
        Period {
            window,
            changes: Vec::new(),
        }
    }

    /// Runs a period with changes. Returns its duration, too.
    fn changing(&mut self) -> (Period, Nanos) {
        let start = self.clock.now();
        let (window, changes) = self.pass(|rig, exchange| {
            let (mut due, mut changes) = (start + EVERY, Vec::new());
            loop {
                thread::sleep(Duration::from_nanos(due.saturating_sub(rig.clock.now()).0));
                let now = rig.clock.now();
                let enough = now - start >= PERIOD && !changes.is_empty();
                if enough || exchange.over.load(Ordering::Relaxed) {
                    break changes;
                }
                due = now + EVERY;
                changes.push(rig.change(exchange));
            }
        });
        (Period { window, changes }, self.clock.now() - start)
    }

    /// Applies the other version, and waits until the worker uses it.
    fn change(&mut self, exchange: &Exchange) -> Change {
        self.changes += 1;
        let text = &self.texts[self.changes as usize % 2];
        files::write(&format!("changes-{}.yaml", self.case), text);
        let (clock, name) = (&self.clock, &self.name);
        let begun = clock.now();
        let changes = self.reconfigure.prepare();
        let changes = changes.unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        let ready = clock.now();
        let put = changes.apply();
        exchange.put.store(self.changes, Ordering::Release);
        let new = put.news.iter();
        let new = new.filter(|line| line.contains("in force (version"));
        assert_eq!(new.count(), 1, "{name}: {:?}", put.news);
        wait(|| exchange.seen.load(Ordering::Acquire) == self.changes || exchange.over.load(Ordering::Relaxed));
        let at = Nanos(exchange.at.load(Ordering::Relaxed));
        Change {
            ready: ready - begun,
            taken: at.saturating_sub(ready),
        }
    }
}

/// Waits until the condition holds, for a long but limited time.
fn wait(so: impl Fn() -> bool) {
    let mut left = 1_000_000;
    while !so() {
        thread::sleep(Duration::from_micros(50));
        left -= 1;
        assert!(left > 0, "the worker does not go on");
    }
}

fn pin(core: usize) {
    if let Err(error) = pin_to(core) {
        eprintln!("not pinned: {error}");
    }
}

/// Measures a case. Returns the number of lost packets.
fn measure(case: &'static str, (size, flows): (&str, u32), runs: usize, core: usize) -> u64 {
    let mut rig = Rig::new(case, size, flows, core);
    let pairs: Vec<[Period; 2]> = (0..runs.max(1))
        .map(|_| {
            let (changing, long) = rig.changing();
            [rig.quiet(long), changing]
        })
        .collect();
    let print = |what: &str, unit, values: Vec<f64>| {
        print_runs(format!("{}/{what}", rig.name), unit, values, None);
    };
    let percentiles = [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)];
    for (at, when) in ["quiet", "changing"].into_iter().enumerate() {
        for (what, percentile) in percentiles {
            let values = pairs.iter().map(|pair| pair[at].micros(percentile));
            print(&format!("{when}/{what}"), "us", values.collect());
        }
        let most = pairs.iter().map(|pair| pair[at].window.latency.max());
        let most = most.map(|most| most.0 as f64 / 1e3);
        print(&format!("{when}/max"), "us", most.collect());
    }
    let more = pairs
        .iter()
        .map(|[quiet, changing]| changing.micros(99.0) - quiet.micros(99.0));
    print("more-p99", "us", more.collect());
    let changes = || pairs.iter().flat_map(|[_, changing]| &changing.changes);
    let ready = changes().map(|change| change.ready.0 as f64 / 1e6);
    print("ready", "ms", ready.collect());
    let taken = changes().map(|change| change.taken.0 as f64 / 1e3);
    print("taken", "us", taken.collect());
    let number = pairs.iter().map(|[_, changing]| changing.changes.len() as f64);
    print("changes", "changes", number.collect());
    let lost = || pairs.iter().map(|[_, changing]| changing.lost());
    print("lost", "packets", lost().map(|lost| lost as f64).collect());
    for (period, when) in pairs.iter().flatten().zip(["quiet", "changing"].into_iter().cycle()) {
        let window = &period.window;
        if period.lost() > 0 {
            eprintln!(
                "{}: of {} packets of a {when} period {} were dropped, {} lost in the chain, {} at a full ring; \
                 the worker was off its core for up to {} ms",
                rig.name,
                window.offered,
                window.dropped,
                window.lost_in_chain,
                window.lost_ring_full,
                window.longest_gap.0 / 1_000_000
            );
        }
    }
    eprintln!("{}: {} changes", rig.name, rig.changes);
    lost().sum()
}

/// Makes a table of the figures in a file: a row for each case, at each size and number of flows.
fn table(file: &str) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut figures: BTreeMap<String, f64> = BTreeMap::new();
    let mut rows: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("{\"name\":\"changes/")) {
        let figure: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}: {error}"));
        let name = figure["name"].as_str().unwrap_or_default();
        let parts: Vec<&str> = name.splitn(5, '/').collect();
        let row = parts[..4.min(parts.len())].join("/");
        if rows.last() != Some(&row) {
            rows.push(row);
        }
        figures.insert(name.to_owned(), figure["value"].as_f64().unwrap_or_default());
    }
    println!("| change | p50, µs | p99, µs | p99.9, µs | max, µs | p99 more, µs | ready, ms | taken, µs | lost |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for row in &rows {
        let of = |what: &str| figures.get(&format!("{row}/{what}")).copied();
        let of = |what: &str| of(what).map_or("–".to_owned(), |value| value.to_string());
        let both = |what: &str| format!("{} / {}", of(&format!("quiet/{what}")), of(&format!("changing/{what}")));
        let name = row.split('/').nth(1).unwrap_or_default();
        println!(
            "| `{name}` | {} | {} | {} | {} | {} | {} | {} | {} |",
            both("p50"),
            both("p99"),
            both("p99.9"),
            both("max"),
            of("more-p99"),
            of("ready"),
            of("taken"),
            of("lost")
        );
    }
}

fn main() -> ExitCode {
    let plain: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let ["table", file] = &plain.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        table(file);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::read(CASES, &["64B"], &[10_000]);
    // Determined before this thread is pinned: afterwards only one core is available.
    let core = default_core();
    match available().into_iter().find(|other| *other != core) {
        Some(other) => pin(other),
        None => eprintln!("one core only: whoever makes versions keeps the worker off it"),
    }
    let mut lost = 0;
    for case in arguments.chains() {
        if !cases::is_there(case) {
            eprintln!("{case} is left out: TAILWATER_TEST_DATA is not set");
            continue;
        }
        for size in &arguments.sizes {
            for &flows in &arguments.flows {
                let (done, over) = channel::<()>();
                thread::spawn(move || {
                    if over.recv_timeout(LONGEST_CASE) == Err(RecvTimeoutError::Timeout) {
                        eprintln!("{case} hangs: given up after {LONGEST_CASE:?}");
                        std::process::exit(1);
                    }
                });
                lost += measure(case, (size, flows), arguments.runs, core);
                drop(done);
            }
        }
    }
    library::clean();
    match lost {
        0 => ExitCode::SUCCESS,
        _ => {
            eprintln!("{lost} packets were lost while functions were changed");
            ExitCode::FAILURE
        }
    }
}
