//! Probe loops: fixed work, each bound by one part of the memory hierarchy.

use super::source::SourceError;
use crate::cache::Caches;
use memmap2::{Advice, MmapMut};
use std::hint::black_box;
use std::time::Instant;
use tailwater_predict::metric::Resource;
use tailwater_predict::{Metric, Schema, Source};

/// Bytes of a cache line, and of the smallest page.
const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// Lines of a page.
const PAGE_LINES: usize = (PAGE / LINE) as usize;
/// Bounds of the memory beyond all caches, bytes.
const LEAST_FAR: u64 = 64 << 20;
const MOST_FAR: u64 = 256 << 20;
/// Timed parts of a pass over a loop. A pass takes about 8 ms.
const PARTS: usize = if cfg!(debug_assertions) { 6 } else { 40 };
/// Divisor of the work of a part in unoptimized builds.
const LESS: usize = if cfg!(debug_assertions) { 100 } else { 1 };
/// A part that took more than this multiple of the median was interrupted.
const INTERRUPTED: f64 = 2.0;
/// Share of interrupted parts from which on a pass is disturbed.
const MOST_INTERRUPTED: f64 = 0.1;
/// Passes over a loop until one is not disturbed.
const PASSES: u32 = 5;

/// A cache line of zeros. Loads from it feed the next address, so that the loads depend on each other.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Work of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Arithmetic without memory.
    Compute,
    /// Dependent loads of random lines, of so many.
    Chase(usize),
    /// Independent loads of random lines.
    Parallel(usize),
    /// Loads of successive lines.
    Read(usize),
    /// Stores to successive lines.
    Write(usize),
    /// Dependent loads, each from another of so many small pages.
    Pages(usize),
}

impl Work {
    /// Returns the operations of a part: about 200 µs.
    fn operations(self, private: u64) -> usize {
        let operations = match self {
            Work::Compute => 100_000,
            Work::Chase(lines) if lines as u64 * LINE <= private => 25_000,
            Work::Chase(lines) if lines as u64 * LINE <= 8 * private => 8_000,
            Work::Chase(_) => 2_000,
            Work::Parallel(_) => 15_000,
            Work::Read(_) => 32_768,
            Work::Write(_) => 16_384,
            Work::Pages(_) => 15_000,
        };
        operations / LESS
    }
}

/// A loop and its metric.
struct Loop {
    metric: Metric,
    work: Work,
}

/// Time of an operation of each loop, nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) nanos: Vec<f64>,
    pub(super) is_disturbed: bool,
}

/// All loops of a machine, with their memory.
pub(super) struct Loops {
    loops: Vec<Loop>,
    private: u64,
    /// Beyond all caches, in huge pages where the kernel has them.
    far: MmapMut,
    /// In small pages.
    pages: MmapMut,
}

impl Loops {
    /// Prepares loops for caches of these sizes.
    pub(super) fn new(caches: &Caches) -> Result<Loops, SourceError> {
        let far_bytes = (4 * caches.last_bytes).clamp(LEAST_FAR, MOST_FAR);
        let private = caches.private_bytes.clamp(64 << 10, far_bytes / 8);
        // Their lines take a quarter of the private cache; no level of a TLB has so many entries of small pages.
        let pages = (private / 4 / LINE).clamp(512, 16_384) as usize;
        let mut far = MmapMut::map_anon(far_bytes as usize)?;
        let _ = far.advise(Advice::HugePage);
        // Pages that were never written are all the same one.
        far.fill(0);
        let mut small = MmapMut::map_anon(pages * PAGE as usize)?;
        let _ = small.advise(Advice::NoHugePage);
        small.fill(0);
        Ok(Loops {
            loops: loops(private, caches.last_bytes, far_bytes, pages),
            private,
            far,
            pages: small,
        })
    }

    /// Returns the metrics.
    pub(super) fn schema(&self) -> Result<Schema, SourceError> {
        let metrics = self.loops.iter().map(|of| of.metric.clone());
        Ok(Schema::new(Source::Probes, metrics.collect())?)
    }

    /// Runs all loops once, on the calling thread's core.
    pub(super) fn pass(&mut self) -> Times {
        let far: &mut [Line] = bytemuck::cast_slice_mut(&mut self.far);
        let pages: &[Line] = bytemuck::cast_slice(&self.pages);
        let mut times = Times {
            nanos: Vec::new(),
            is_disturbed: false,
        };
        for of in &self.loops {
            let mut walk = Walk::new();
            let operations = of.work.operations(self.private);
            let mut tries = 0..PASSES;
            let (nanos, is_disturbed) = loop {
                tries.next();
                walk.warm(of.work, far, pages);
                let mut parts = [0.0; PARTS];
                for part in &mut parts {
                    let start = Instant::now();
                    walk.go(of.work, operations, far, pages);
                    *part = start.elapsed().as_nanos() as f64 / operations as f64;
                }
                let (nanos, is_disturbed) = summary(&mut parts);
                if !is_disturbed || tries.is_empty() {
                    break (nanos, is_disturbed);
                }
            };
            times.nanos.push(nanos);
            times.is_disturbed |= is_disturbed;
        }
        times
    }
}

/// Returns the loops for these sizes, in bytes, and this number of small pages.
fn loops(private: u64, last: u64, far: u64, pages: usize) -> Vec<Loop> {
    let lines = |bytes: u64| (bytes / LINE) as usize;
    let of = |name: &str, bytes: u64, resource, work: fn(usize) -> Work| Loop {
        metric: Metric::new(name, &format!("added time in {} KiB", bytes / 1024), resource),
        work: work(lines(bytes)),
    };
    let mut loops = vec![
        Loop {
            metric: Metric::new("probe.core", "added time", Resource::Other),
            work: Work::Compute,
        },
        of("probe.privateCache", private / 2, Resource::Other, Work::Chase),
        of("probe.cacheSmall", 2 * private, Resource::Cache, Work::Chase),
        of("probe.cacheMedium", 4 * private, Resource::Cache, Work::Chase),
    ];
    if last / 2 > 4 * private && last / 2 < far {
        loops.push(of("probe.cacheLarge", last / 2, Resource::Cache, Work::Chase));
    }
    let memory = Resource::MemoryBandwidth;
    loops.extend([
        of("probe.memoryLatency", far, memory, Work::Chase),
        of("probe.memoryParallel", far, memory, Work::Parallel),
        of("probe.memoryRead", far, memory, Work::Read),
        of("probe.memoryWrite", far, memory, Work::Write),
        of(
            "probe.translation",
            pages as u64 * PAGE,
            Resource::Translation,
            |lines| Work::Pages(lines / PAGE_LINES),
        ),
    ]);
    loops
}

/// Returns the mean of the middle half of the parts, and `true` if too many were interrupted.
fn summary(parts: &mut [f64]) -> (f64, bool) {
    parts.sort_by(f64::total_cmp);
    let median = parts[parts.len() / 2];
    let outside = parts.len() / 4;
    let middle = &parts[outside..parts.len() - outside];
    let interrupted = parts.iter().filter(|part| **part > INTERRUPTED * median).count();
    let mean = middle.iter().sum::<f64>() / middle.len() as f64;
    (mean, interrupted as f64 > MOST_INTERRUPTED * parts.len() as f64)
}

/// Position of a loop.
struct Walk {
    state: u64,
    at: usize,
}

impl Walk {
    fn new() -> Walk {
        Walk {
            state: 0x9e37_79b9_7f4a_7c15,
            at: 0,
        }
    }

    /// Loads what a loop works on into the caches, as far as it fits.
    fn warm(&mut self, work: Work, far: &mut [Line], pages: &[Line]) {
        let lines = match work {
            Work::Chase(lines) if lines < far.len() => lines,
            Work::Pages(count) => return self.pages(count, 2 * count, pages),
            _ => return,
        };
        self.read(lines, lines, far);
    }

    fn go(&mut self, work: Work, operations: usize, far: &mut [Line], pages: &[Line]) {
        match work {
            Work::Compute => self.compute(operations),
            Work::Chase(lines) => self.chase(lines, operations, far),
            Work::Parallel(lines) => self.parallel(lines, operations, far),
            Work::Read(lines) => self.read(lines, operations, far),
            Work::Write(lines) => self.write(lines, operations, far),
            Work::Pages(count) => self.pages(count, operations, pages),
        }
    }

    fn compute(&mut self, operations: usize) {
        let mut lanes = [1, 2, 3, 4].map(|lane| self.state ^ lane);
        for _ in 0..operations {
            for lane in &mut lanes {
                *lane = (lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (*lane >> 29)).wrapping_add(1);
            }
        }
        self.state = black_box(lanes).iter().fold(0, |all, lane| all ^ lane);
    }

    fn chase(&mut self, lines: usize, operations: usize, far: &[Line]) {
        let mut state = self.state;
        for _ in 0..operations {
            let line = far[below(state, lines)].0[0];
            state = advance(state ^ line);
        }
        self.state = black_box(state);
    }

    fn parallel(&mut self, lines: usize, operations: usize, far: &[Line]) {
        let (mut state, mut sum) = (self.state, 0u64);
        for _ in 0..operations {
            sum = sum.wrapping_add(far[below(state, lines)].0[0]);
            state = advance(state);
        }
        self.state = black_box(state ^ sum);
    }

    fn read(&mut self, lines: usize, operations: usize, far: &[Line]) {
        let mut sum = 0u64;
        self.each(lines, operations, |lines| {
            sum = lines.clone().fold(sum, |sum, at| sum.wrapping_add(far[at].0[0]));
        });
        black_box(sum);
    }

    fn write(&mut self, lines: usize, operations: usize, far: &mut [Line]) {
        let zero = black_box(0u64);
        self.each(lines, operations, |lines| {
            far[lines.clone()].iter_mut().for_each(|line| line.0 = [zero; 8]);
        });
    }

    fn pages(&mut self, count: usize, operations: usize, pages: &[Line]) {
        let mut state = self.state;
        for _ in 0..operations {
            let page = below(state, count);
            // Another line in each page, so that the lines do not share a cache set.
            let line = pages[page * PAGE_LINES + page % PAGE_LINES].0[0];
            state = advance(state ^ line);
        }
        self.state = black_box(state);
    }

    /// Calls `work` with ranges of successive lines, from the position on and again from the start.
    fn each(&mut self, lines: usize, operations: usize, mut work: impl FnMut(&std::ops::Range<usize>)) {
        let mut left = operations;
        while left > 0 {
            let end = lines.min(self.at + left);
            work(&(self.at..end));
            left -= end - self.at;
            self.at = if end == lines { 0 } else { end };
        }
    }
}

/// Next state of a linear congruential generator (Knuth's MMIX): four cycles between dependent loads.
fn advance(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// Returns a number below `count` from the upper half of a state.
fn below(state: u64, count: usize) -> usize {
    (((state >> 32) * count as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: Caches = Caches {
        last_bytes: 32 << 20,
        last_ways: 16,
        private_bytes: 1 << 20,
    };

    #[test]
    fn metrics_name_what_was_measured_and_where() {
        let loops = Loops::new(&CACHES).unwrap();
        let schema = loops.schema().unwrap();
        assert_eq!(schema.source(), Source::Probes);
        let unit = |name| &*schema.metrics()[schema.position(name).unwrap()].unit;
        assert_eq!(unit("probe.cacheSmall"), "added time in 2048 KiB");
        assert_eq!(unit("probe.cacheLarge"), "added time in 16384 KiB");
        assert_eq!(unit("probe.memoryLatency"), "added time in 131072 KiB");
        // Sizes are part of the unit, so that campaigns of other sizes are refused.
        let larger = Loops::new(&Caches {
            private_bytes: 2 << 20,
            ..CACHES
        })
        .unwrap();
        assert!(larger.schema().unwrap().positions_in(&schema).is_err());
        // Without room between the private cache and memory there is no large one.
        let flat = Loops::new(&Caches {
            last_bytes: 2 << 20,
            ..CACHES
        })
        .unwrap();
        assert_eq!(flat.schema().unwrap().position("probe.cacheLarge"), None);
    }

    #[test]
    fn every_loop_takes_time() {
        let mut loops = Loops::new(&CACHES).unwrap();
        let times = loops.pass();
        assert_eq!(times.nanos.len(), loops.schema().unwrap().metrics().len());
        assert!(times.nanos.iter().all(|nanos| *nanos > 0.0), "{times:?}");
        let lines: &[Line] = bytemuck::cast_slice(&loops.far);
        assert!(
            lines.iter().step_by(61).all(|line| line.0 == [0; 8]),
            "loads must return zeros"
        );
    }

    #[test]
    fn a_chase_comes_to_nearly_all_lines() {
        let (mut state, mut seen) = (1, [false; 1000]);
        for _ in 0..10_000 {
            seen[below(state, 1000)] = true;
            state = advance(state);
        }
        assert!(seen.iter().filter(|seen| **seen).count() > 990);
    }

    #[test]
    fn streams_continue_at_the_start() {
        let mut walk = Walk::new();
        let mut ranges = Vec::new();
        walk.each(10, 25, |range| ranges.push(range.clone()));
        walk.each(10, 3, |range| ranges.push(range.clone()));
        assert_eq!(ranges, [0..10, 0..10, 0..5, 5..8]);
    }

    #[test]
    fn interruptions_do_not_count_and_many_are_told() {
        let mut quiet = [10.0; 20];
        quiet[3] = 4000.0;
        assert_eq!(summary(&mut quiet), (10.0, false));
        let mut busy = [10.0; 20];
        busy[..3].fill(4000.0);
        assert_eq!(summary(&mut busy), (10.0, true));
    }
}
