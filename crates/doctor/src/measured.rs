//! Measurements: preemption of a busy thread, and memory latency.

use crate::Purpose;
use memmap2::{Advice, MmapMut};
use serde::{Serialize, Serializer};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores;
use tailwater_net::Nanos;

/// Minimum pause between two readings of the clock that counts as a gap. In a gap the thread is preempted, or the
/// hypervisor has stopped the core.
const GAP: Nanos = Nanos::from_micros(5);

/// Shortest gap that a run's report counts as preemption.
const PREEMPTION: Nanos = Nanos::from_micros(20);

/// Length of the windows in which gaps are evaluated, as in a run.
const WINDOW: Nanos = Nanos::from_millis(300);

/// Maximum share of late packets.
const LATE_SHARE: f64 = 0.01;

/// Gaps of a thread that does nothing but read the clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gaps {
    /// Core of the thread.
    pub core: usize,
    /// Duration of the measurement.
    #[serde(rename = "watched_s", serialize_with = "seconds")]
    pub watched: Nanos,
    /// Number of gaps longer than 5 µs.
    pub count: u64,
    /// Total duration of the gaps.
    #[serde(rename = "all_us", serialize_with = "micros")]
    pub all: Nanos,
    /// Longest gap.
    #[serde(rename = "longest_us", serialize_with = "micros")]
    pub longest: Nanos,
    /// Number of windows of 300 ms.
    pub windows: u64,
    /// Number of windows in which gaps alone would make more than 1 % of the packets late.
    pub windows_missed: u64,
}

/// Latency of a load that depends on the previous one, at random addresses in 64 MiB.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryLatency {
    /// With ordinary pages.
    pub ordinary_ns: f64,
    /// With huge pages requested.
    pub huge_ns: f64,
}

/// Results of all measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Gaps of each core.
    pub gaps: Vec<Gaps>,
    /// Memory latency on the first core.
    pub memory: MemoryLatency,
}

fn seconds<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn micros<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_micros_f64())
}

/// Runs a thread on each core for `time` that only reads the clock, then measures the memory latency. `None` once
/// `stop` is set: a part allows no verdict.
///
/// # Errors
/// If a thread cannot be pinned to its core or dies, or if memory cannot be allocated.
pub fn measure(purpose: &Purpose, time: Nanos, stop: &AtomicBool) -> io::Result<Option<Measured>> {
    let gaps = measure_gaps(purpose, time, WINDOW, stop)?;
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let gaps = gaps.into_iter().map(|core| core.gaps).collect();
    let clock = Clock::start();
    let core = purpose.cores.first().copied().unwrap_or(0);
    let memory = std::thread::scope(|scope| {
        let memory = scope.spawn(|| {
            cores::pin_to(core).map_err(io::Error::other)?;
            Ok(MemoryLatency {
                ordinary_ns: chase(&clock, Advice::NoHugePage)?,
                huge_ns: chase(&clock, Advice::HugePage)?,
            })
        });
        memory
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
    })?;
    Ok(Some(Measured { gaps, memory }))
}

/// Gaps of one core, with the preempted time of each window.
#[derive(Clone, Debug, PartialEq)]
pub struct GapsByWindow {
    /// All gaps.
    pub gaps: Gaps,
    /// Sum of the gaps longer than 20 µs that end in each window: what a run's report counts as preemption.
    pub preempted: Vec<Nanos>,
}

/// Measures preemptions of a polling thread on each core, in the order of `purpose.cores`, in windows of length
/// `window`. Ends early, with partial results, once `stop` is set.
///
/// # Errors
/// If a thread cannot be pinned to its core or dies.
pub fn measure_gaps(purpose: &Purpose, time: Nanos, window: Nanos, stop: &AtomicBool) -> io::Result<Vec<GapsByWindow>> {
    let clock = Clock::start();
    let watch = |core| {
        let clock = clock.clone();
        move || {
            cores::pin_to(core).map_err(io::Error::other)?;
            let mut watch = InterferenceMonitor::new(core, purpose.slo, window, clock.now());
            let until = clock.now() + time;
            while watch.last < until && !stop.load(Ordering::Relaxed) {
                // Checks the shared flag only once per 64 readings of the clock.
                (0..64).for_each(|_| watch.at(clock.now()));
            }
            Ok(watch.end())
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = purpose.cores.iter().map(|&core| scope.spawn(watch(core))).collect();
        let gaps = threads.into_iter().map(|thread| {
            let died = |_| Err(io::Error::other("a measuring thread panicked"));
            thread.join().unwrap_or_else(died)
        });
        gaps.collect()
    })
}

/// Detector of gaps between readings of the clock.
struct InterferenceMonitor {
    slo: Nanos,
    window: Nanos,
    /// Preempted time in each window, the current one last.
    preempted: Vec<Nanos>,
    began: Nanos,
    last: Nanos,
    window_end: Nanos,
    /// Time in this window in which arriving packets would be late.
    late: Nanos,
    gaps: Gaps,
}

impl InterferenceMonitor {
    fn new(core: usize, slo: Nanos, window: Nanos, now: Nanos) -> InterferenceMonitor {
        InterferenceMonitor {
            slo,
            window,
            preempted: vec![Nanos::ZERO],
            began: now,
            last: now,
            window_end: now + window,
            late: Nanos::ZERO,
            gaps: Gaps {
                core,
                watched: Nanos::ZERO,
                count: 0,
                all: Nanos::ZERO,
                longest: Nanos::ZERO,
                windows: 0,
                windows_missed: 0,
            },
        }
    }

    #[inline]
    fn at(&mut self, now: Nanos) {
        let gap = now.saturating_sub(self.last);
        if gap > GAP {
            self.gaps.count += 1;
            self.gaps.all += gap;
            self.gaps.longest = self.gaps.longest.max(gap);
            if gap > PREEMPTION {
                self.note_preemption(gap);
            }
            // Packets that arrive in the first part of the gap wait longer than the objective. At 50 % load, draining
            // the queue takes as long again.
            self.late += Nanos(2 * gap.saturating_sub(self.slo).0);
        }
        self.last = now;
        if now >= self.window_end {
            self.close();
        }
    }

    /// Adds a gap to the current window. A gap of several windows fills as many.
    fn note_preemption(&mut self, gap: Nanos) {
        if let Some(window) = self.preempted.last_mut() {
            *window += gap;
        }
        let filled = gap.0 / self.window.0.max(1);
        (0..filled).for_each(|_| self.preempted.push(self.window));
    }

    fn close(&mut self) {
        let late = self.late.as_secs_f64() / self.window.as_secs_f64();
        self.gaps.windows += 1;
        self.gaps.windows_missed += u64::from(late > LATE_SHARE);
        self.late = Nanos::ZERO;
        self.window_end = self.last + self.window;
        self.preempted.push(Nanos::ZERO);
    }

    fn end(mut self) -> GapsByWindow {
        if self.gaps.windows == 0 || self.late > Nanos::ZERO {
            self.close();
        }
        self.gaps.watched = self.last.saturating_sub(self.began);
        // The last window has just begun.
        self.preempted.pop();
        GapsByWindow {
            gaps: self.gaps,
            preempted: self.preempted,
        }
    }
}

/// Memory for pointer chasing, larger than a core's private caches.
const BYTES: usize = 64 << 20;

/// Number of loads of the pointer chase.
const LOADS: u32 = 1 << 20;

/// Words in a cache line.
const STEP: usize = 64 / size_of::<u32>();

/// Measures the latency of dependent loads, in nanoseconds.
fn chase(clock: &Clock, pages: Advice) -> io::Result<f64> {
    let mut memory = MmapMut::map_anon(BYTES)?;
    // Without huge pages the kernel returns an error, which is ignored.
    let _ = memory.advise(pages);
    let next: &mut [u32] = bytemuck::cast_slice_mut(&mut memory);
    // One cycle through all lines in a random order (Sattolo), which defeats prefetchers.
    let lines = BYTES / 64;
    for line in 0..lines {
        next[line * STEP] = (line * STEP) as u32;
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for line in (1..lines).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        next.swap(line * STEP, (state % line as u64) as usize * STEP);
    }
    let mut at = 0_u32;
    let began = clock.now();
    for _ in 0..LOADS {
        at = next[at as usize];
    }
    let took = clock.now().saturating_sub(began);
    std::hint::black_box(at);
    Ok(took.0 as f64 / f64::from(LOADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(slo: Nanos, readings: impl IntoIterator<Item = Nanos>) -> Gaps {
        let mut watch = InterferenceMonitor::new(3, slo, WINDOW, Nanos::ZERO);
        readings.into_iter().for_each(|now| watch.at(now));
        watch.end().gaps
    }

    #[test]
    fn preempted_time_is_counted_by_window() {
        let (ms, us) = (Nanos::from_millis, Nanos::from_micros);
        let mut watch = InterferenceMonitor::new(0, us(200), ms(20), Nanos::ZERO);
        // Readings every 10 us, but for a gap of 3 ms in the second window, and one of 50 ms in the fourth.
        let readings = (0..3_000).chain(3_300..7_000).chain(12_000..14_001);
        readings.for_each(|tens| watch.at(us(10 * tens)));
        let preempted = watch.end().preempted;
        assert_eq!(preempted[0], Nanos::ZERO);
        assert_eq!(preempted[1], us(3_010));
        assert_eq!(preempted[2], Nanos::ZERO);
        assert_eq!(preempted[3..6], [us(50_010), ms(20), ms(20)]);
        assert_eq!(preempted[6..], vec![Nanos::ZERO; preempted.len() - 6]);
    }

    #[test]
    fn gaps_are_counted_and_judged_by_window() {
        let slo = Nanos::from_micros(200);
        let steady = |from: u64, to: u64| (from..to).map(Nanos::from_micros);
        // A gap of 0.1 ms makes no packet late.
        let gaps = watched(slo, steady(0, 1000).chain(steady(1100, 600_002)));
        let us = Nanos::from_micros;
        assert_eq!((gaps.count, gaps.all, gaps.longest), (1, us(101), us(101)));
        assert_eq!((gaps.windows, gaps.windows_missed), (2, 0));
        assert_eq!(gaps.watched, us(600_001));
        // A gap of 2 ms: 2 × 1.8 ms of 300 ms are more than 1 %, in the window that contains it.
        let gaps = watched(slo, steady(0, 310_000).chain(steady(312_000, 1_000_000)));
        assert_eq!((gaps.windows, gaps.windows_missed), (3, 1));
        assert!(gaps.longest > us(1999));
        // With an objective of 2 ms the same gap has no effect.
        let gaps = watched(us(2000), steady(0, 310_000).chain(steady(312_000, 1_000_000)));
        assert_eq!(gaps.windows_missed, 0);
    }

    #[test]
    fn what_is_cut_short_is_judged_all_the_same() {
        let late = [Nanos::ZERO, Nanos::from_millis(20)];
        let gaps = watched(Nanos::from_micros(100), late);
        assert_eq!((gaps.windows, gaps.windows_missed), (1, 1));
    }

    #[test]
    fn this_machine_is_measured() {
        let purpose = Purpose {
            slo: Nanos::from_millis(1),
            cores: vec![cores::default_core()],
            has_dpdk: false,
        };
        let time = Nanos::from_millis(20);
        let measured = measure(&purpose, time, &AtomicBool::new(false)).unwrap().unwrap();
        assert!(measured.gaps[0].watched >= time);
        assert!(measured.memory.ordinary_ns > 0.5 && measured.memory.huge_ns > 0.5);
        let (long, stop) = (Nanos::from_secs(60), AtomicBool::new(true));
        assert_eq!(measure(&purpose, long, &stop).unwrap(), None);
        let stopped = measure_gaps(&purpose, long, WINDOW, &stop).unwrap();
        assert!(stopped[0].gaps.watched < long);
    }
}
