//! Passing packets between cores: cost of a batch, latency, and wake-up time of an auxiliary core.
//!
//! `cargo bench -p tailwater-handover --bench ring [-- NAME]` runs the figures whose names contain NAME. It prints one
//! JSON line per figure: median, minimum and maximum of the runs. A batch is 32 parcels of 8 bytes.
//!
//! - `scaling/handover/one-core/...`: a batch pushed and popped by one thread, in ticks of the time-stamp counter,
//!   nanoseconds and core cycles. With 128 batches in the ring, push and pop are also measured separately.
//! - `scaling/handover/two-cores/...`: throughput of a stream of batches, and one-way latency of a single parcel (half
//!   the round trip).
//! - `scaling/handover/wake/...`: time from before the push to after the pop by an auxiliary core that sleeps or spins.
//!   Variants: ordinary or real-time priority (`fifo`), an idle core or one shared with an ordinary program (`busy`),
//!   150 µs or 3 ms (`long`) without work before. Also the cost of `wake` for its caller.

mod time;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tailwater_handover::park::{Mode, park};
use tailwater_handover::priority::Priority;
use tailwater_handover::ring::ring;
use time::{Ticks, ticks};

/// Parcels per batch.
const BATCH: usize = 32;
/// Measurements per figure.
const RUNS: usize = 21;
/// Batches per measurement on one core.
const BATCHES: usize = 100_000;
/// Round trips per measurement.
const TRIPS: usize = 20_000;
/// Wake-ups per measurement.
const WAKES: usize = 300;
/// Time between two wake-ups: long enough to fall asleep.
const PAUSE: Duration = Duration::from_micros(150);
/// Pause after which an idle core may be in a deep sleep state, and the number of such wake-ups.
const LONG: (Duration, usize) = (Duration::from_millis(3), 60);
/// Real-time priority of the auxiliary core's thread.
const FIFO: u8 = 50;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` runs this without the flag, as a smoke test.
    let runs = if arguments.iter().any(|a| a == "--bench") {
        RUNS
    } else {
        1
    };
    let wanted = arguments.iter().find(|a| !a.starts_with('-'));
    let bench = Bench {
        wanted: wanted.cloned().unwrap_or_default(),
        runs,
        ticks: Ticks::measure(),
    };
    let cores = cores();
    eprintln!("{}", bench.ticks);
    pin(cores[0]);
    bench.one_core();
    let Some(&other) = cores.get(1) else {
        eprintln!("two-cores, wake: only one core");
        return;
    };
    bench.two_cores(other);
    bench.wake(other);
}

struct Bench {
    /// Substring of the names to run.
    wanted: String,
    runs: usize,
    ticks: Ticks,
}

impl Bench {
    /// Returns `true` if a figure of the group is selected. A group's figures are measured together.
    fn wants<S: AsRef<str>>(&self, group: &str, figures: &[S]) -> bool {
        figures
            .iter()
            .any(|figure| full_name(group, figure.as_ref()).contains(&self.wanted))
    }

    /// Prints a selected figure: median, minimum and maximum.
    fn print(&self, group: &str, figure: &str, unit: &str, mut values: Vec<f64>) {
        let name = full_name(group, figure);
        if !name.contains(&self.wanted) || values.is_empty() {
            return;
        }
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        let (value, runs) = (values[values.len() / 2], values.len());
        println!(
            "{{\"name\": \"{name}\", \"value\": {value:.2}, \"unit\": \"{unit}\", \
             \"min\": {min:.2}, \"max\": {max:.2}, \"runs\": {runs}}}"
        );
    }

    /// Prints tick counts in three units.
    fn print_ticks(&self, group: &str, figure: &str, values: &[f64]) {
        let times = |factor: f64| values.iter().map(|ticks| ticks * factor).collect();
        self.print(group, &format!("{figure}-ticks"), "ticks", times(1.0));
        let nanos = times(self.ticks.nanos);
        self.print(group, &format!("{figure}-ns"), "ns", nanos);
        if let Some(cycles) = self.ticks.cycles {
            self.print(group, &format!("{figure}-cycles"), "cycles", times(cycles));
        }
    }

    fn one_core(&self) {
        let group = "one-core";
        let units = ["ticks", "ns", "cycles"];
        let figures = ["pair", "pair-iterator", "enqueue", "dequeue"];
        if !figures
            .iter()
            .any(|figure| self.wants(group, &units.map(|unit| format!("{figure}-{unit}"))))
        {
            return;
        }
        let per_batch = |ticks: u64| ticks as f64 / BATCHES as f64;
        let (mut producer, mut consumer) = ring::<u64>(1024);
        let (mut batch, mut into) = ([7_u64; BATCH], [0_u64; BATCH]);
        let (mut pairs, mut iterators) = (Vec::new(), Vec::new());
        let (mut enqueues, mut dequeues) = (Vec::new(), Vec::new());
        let (mut deep_producer, mut deep_consumer) = ring::<u64>(128 * BATCH);
        for _ in 0..self.runs {
            let start = ticks();
            for _ in 0..BATCHES {
                assert_eq!(producer.push_slice(black_box(&batch)), BATCH);
                assert_eq!(consumer.pop_slice(black_box(&mut into)), BATCH);
            }
            pairs.push(per_batch(ticks() - start));
            let start = ticks();
            for _ in 0..BATCHES {
                let mut items = black_box(&batch).iter().copied();
                assert_eq!(producer.push_from(&mut items), BATCH);
                let mut places = into.iter_mut();
                let popped = consumer.pop_each(BATCH, |item| {
                    if let Some(place) = places.next() {
                        *place = item;
                    }
                });
                assert_eq!(popped, BATCH);
                black_box(&mut into);
            }
            iterators.push(per_batch(ticks() - start));
            let (mut enqueue, mut dequeue) = (0, 0);
            let rounds = BATCHES / 128;
            for _ in 0..rounds {
                let start = ticks();
                for _ in 0..128 {
                    deep_producer.push_slice(black_box(&batch));
                }
                let middle = ticks();
                for _ in 0..128 {
                    deep_consumer.pop_slice(black_box(&mut batch));
                }
                (enqueue, dequeue) = (enqueue + middle - start, dequeue + ticks() - middle);
            }
            enqueues.push(enqueue as f64 / (rounds * 128) as f64);
            dequeues.push(dequeue as f64 / (rounds * 128) as f64);
        }
        self.print_ticks(group, "pair", &pairs);
        self.print_ticks(group, "pair-iterator", &iterators);
        self.print_ticks(group, "enqueue", &enqueues);
        self.print_ticks(group, "dequeue", &dequeues);
    }

    fn two_cores(&self, other: usize) {
        let group = "two-cores";
        if self.wants(group, &["throughput", "batch-ns"]) {
            let seconds: Vec<f64> = (0..self.runs).map(|_| stream(other)).collect();
            let rates = seconds.iter().map(|s| (BATCHES * BATCH) as f64 / s / 1e6);
            self.print(group, "throughput", "Mpps", rates.collect());
            let nanos = seconds.iter().map(|s| s * 1e9 / BATCHES as f64);
            self.print(group, "batch-ns", "ns", nanos.collect());
        }
        if self.wants(group, &["one-way-p50-ns", "one-way-p99-ns"]) {
            let (mut p50, mut p99) = (Vec::new(), Vec::new());
            for _ in 0..self.runs {
                let trips = round_trips(other);
                p50.push(percentile(&trips, 0.50) * self.ticks.nanos / 2.0);
                p99.push(percentile(&trips, 0.99) * self.ticks.nanos / 2.0);
            }
            self.print(group, "one-way-p50-ns", "ns", p50);
            self.print(group, "one-way-p99-ns", "ns", p99);
        }
    }

    fn wake(&self, other: usize) {
        let group = "wake";
        if self.wants(group, &["awake-ticks", "awake-ns", "awake-cycles"]) {
            let (_sleeper, waker) = park(Mode::Sleep);
            let runs = (0..self.runs).map(|_| {
                let start = ticks();
                for _ in 0..BATCHES {
                    black_box(black_box(&waker).wake());
                }
                (ticks() - start) as f64 / BATCHES as f64
            });
            self.print_ticks(group, "awake", &runs.collect::<Vec<f64>>());
        }
        let short = Case {
            other,
            mode: Mode::Sleep,
            fifo: false,
            busy: false,
            pause: PAUSE,
            wakes: WAKES,
        };
        let (pause, wakes) = LONG;
        let long = Case { pause, wakes, ..short };
        let spin_first = Mode::SpinThenSleep(Duration::from_millis(1));
        for (figure, case) in [
            ("sleep-ordinary", short),
            ("sleep-fifo", Case { fifo: true, ..short }),
            ("sleep-ordinary-busy", Case { busy: true, ..short }),
            (
                "sleep-fifo-busy",
                Case {
                    fifo: true,
                    busy: true,
                    ..short
                },
            ),
            ("sleep-ordinary-long", long),
            ("sleep-fifo-long", Case { fifo: true, ..long }),
            (
                "sleep-fifo-busy-long",
                Case {
                    fifo: true,
                    busy: true,
                    ..long
                },
            ),
            (
                "spin-then-sleep",
                Case {
                    mode: spin_first,
                    ..short
                },
            ),
            (
                "spin",
                Case {
                    mode: Mode::Spin,
                    ..short
                },
            ),
        ] {
            let names = ["p50-us", "p99-us", "call-p50-us"].map(|name| format!("{figure}-{name}"));
            if !self.wants(group, &names) {
                continue;
            }
            let (mut p50, mut p99, mut call) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..self.runs {
                let Some(wakes) = wake_ups(case) else {
                    break;
                };
                p50.push(percentile(&wakes.latency, 0.50) / 1e3);
                p99.push(percentile(&wakes.latency, 0.99) / 1e3);
                call.push(percentile(&wakes.call, 0.50) / 1e3);
            }
            for (name, values) in names.iter().zip([p50, p99, call]) {
                self.print(group, name, "us", values);
            }
        }
    }
}

fn full_name(group: &str, figure: &str) -> String {
    format!("scaling/handover/{group}/{figure}")
}

/// Value that `share` of the values do not exceed.
fn percentile(values: &[u64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values[((values.len() - 1) as f64 * share) as usize] as f64
}

/// Seconds to stream all batches from this core to another.
fn stream(other: usize) -> f64 {
    let (mut producer, mut consumer) = ring::<u64>(1024);
    thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            pin(other);
            let mut into = [0; BATCH];
            // The first batch starts the clock, so the thread's start does not count.
            let (mut start, mut popped) = (None, 0);
            while popped < (BATCHES + 1) * BATCH {
                let count = consumer.pop_slice(&mut into);
                black_box(&into);
                popped += count;
                if count == 0 {
                    spin_loop();
                } else if start.is_none() {
                    start = Some(Instant::now());
                }
            }
            start.map_or(f64::NAN, |start| start.elapsed().as_secs_f64())
        });
        let batch = [7; BATCH];
        for _ in 0..=BATCHES {
            let mut rest = black_box(&batch[..]);
            while !rest.is_empty() {
                rest = &rest[producer.push_slice(rest)..];
            }
        }
        consumer.join().expect("the consumer ends")
    })
}

/// One-way ticks of each round trip of a parcel to another core.
fn round_trips(other: usize) -> Vec<u64> {
    let (mut there, mut from) = ring::<u64>(64);
    let (mut to, mut back) = ring::<u64>(64);
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(other);
            while !from.is_closed() {
                if let Some(parcel) = from.pop() {
                    to.push(parcel).expect("there is one parcel only");
                }
            }
        });
        let trip = |_| {
            let start = ticks();
            there.push(start).expect("there is one parcel only");
            while back.pop().is_none() {}
            ticks() - start
        };
        let trips: Vec<u64> = (0..TRIPS).map(trip).collect();
        drop(there);
        trips
    })
}

/// Wake-up case: mode, priority and load of the auxiliary core.
#[derive(Clone, Copy)]
struct Case {
    /// Core that is woken.
    other: usize,
    mode: Mode,
    /// Use real-time priority.
    fifo: bool,
    /// An ordinary program uses the core at the same time.
    busy: bool,
    /// Time between two wake-ups.
    pause: Duration,
    wakes: usize,
}

/// Times of each wake-up, in nanoseconds.
struct WakeUps {
    /// From before the push to after the pop.
    latency: Vec<u64>,
    /// Push and call of `wake`.
    call: Vec<u64>,
}

/// Wakes an auxiliary core repeatedly. `None` if real-time priority is refused.
fn wake_ups(case: Case) -> Option<WakeUps> {
    let Case { other, mode, .. } = case;
    let (mut there, mut from) = ring::<Instant>(64);
    let (mut to, mut back) = ring::<u64>(64);
    let (mut sleeper, waker) = park(mode);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        if case.busy {
            scope.spawn(|| {
                pin(other);
                while !stop.load(Ordering::Relaxed) {
                    black_box(0);
                }
            });
        }
        let helper = scope.spawn(move || {
            pin(other);
            let _priority = match case.fifo.then(|| Priority::fifo(FIFO)).transpose() {
                Ok(priority) => priority,
                Err(error) => {
                    eprintln!("{error}");
                    return false;
                }
            };
            loop {
                let closed = from.is_closed();
                if let Some(pushed) = from.pop() {
                    let latency = pushed.elapsed().as_nanos() as u64;
                    to.push(latency).expect("there is one parcel only");
                } else if closed {
                    return true;
                } else {
                    sleeper.wait(Duration::from_secs(1), || !from.is_empty() || from.is_closed());
                }
            }
        });
        let mut wakes = WakeUps {
            latency: Vec::new(),
            call: Vec::new(),
        };
        // Round 0 finds the thread starting.
        for round in 0..=case.wakes {
            let pause = Instant::now();
            while pause.elapsed() < case.pause {
                spin_loop();
            }
            let start = Instant::now();
            there.push(start).expect("there is one parcel only");
            waker.wake();
            let call = start.elapsed().as_nanos() as u64;
            let latency = loop {
                match back.pop() {
                    Some(latency) => break Some(latency),
                    None if back.is_closed() => break None,
                    None => spin_loop(),
                }
            };
            let Some(latency) = latency else { break };
            if round > 0 {
                wakes.latency.push(latency);
                wakes.call.push(call);
            }
        }
        drop(there);
        waker.wake();
        stop.store(true, Ordering::Relaxed);
        helper.join().expect("the helper ends").then_some(wakes)
    })
}

/// Cores this process may use, last one first: the first ones serve interrupts.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).rev().filter(|&core| set.is_set(core)).collect()
}

/// Pins the calling thread.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).expect("the core is available");
}
