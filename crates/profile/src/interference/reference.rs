//! Reference loops: fixed work that shows the speed of a core.

use super::Speed;
use super::host::preemptions;
use crate::cache::Caches;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Maximum size of the private cache's buffer, bytes, and its size if the kernel does not describe the cache.
const MOST_BYTES: u64 = 256 << 10;
const USUAL_BYTES: u64 = 128 << 10;
/// Iterations of the arithmetic loop, and accesses of the other one: each some 20 µs, also in unoptimized builds.
const ITERATIONS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };
const ACCESSES: usize = if cfg!(debug_assertions) { 500 } else { 5_000 };
/// Passes over both loops. The first one fills the cache and does not count; the median of the others does, which one
/// timer interrupt does not change.
const PASSES: usize = 8;

/// A line of the buffer, which holds the index of the next one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(u32);

/// Both loops.
pub(super) struct Loops {
    lines: Vec<Line>,
}

impl Loops {
    /// Prepares loops for a core.
    pub(super) fn of(core: usize) -> Loops {
        let private = Caches::of(core).map_or(2 * USUAL_BYTES, |caches| caches.private_bytes);
        let bytes = (private / 2).clamp(LINE as u64 * 16, MOST_BYTES);
        Loops {
            lines: cycle(bytes as usize / LINE),
        }
    }

    /// Measures the calling thread's core. `None` if the thread was preempted.
    pub(super) fn measure(&self) -> Option<Speed> {
        let before = preemptions();
        let (mut compute, mut private) = ([0.0; PASSES], [0.0; PASSES]);
        for (pass, (compute, private)) in compute.iter_mut().zip(&mut private).enumerate() {
            let start = Instant::now();
            black_box(arithmetic(black_box(pass as u64)));
            let middle = Instant::now();
            black_box(self.chase(black_box(0)));
            let end = Instant::now();
            *compute = (middle - start).as_nanos() as f64;
            *private = (end - middle).as_nanos() as f64;
        }
        let median = |passes: &mut [f64]| {
            passes.sort_by(f64::total_cmp);
            passes[passes.len() / 2]
        };
        (preemptions() == before).then(|| Speed {
            compute: median(&mut compute[1..]),
            private: Some(median(&mut private[1..])),
        })
    }

    fn chase(&self, mut at: u32) -> u32 {
        for _ in 0..ACCESSES {
            at = self.lines[at as usize].0;
        }
        at
    }
}

/// Runs four chains of dependent instructions at once: they fill the core's arithmetic units, so that a busy
/// hyper-thread sibling shows, not only the clock.
fn arithmetic(seed: u64) -> u64 {
    let mut lanes = [seed, seed ^ 1, seed ^ 2, seed ^ 3];
    for _ in 0..ITERATIONS {
        for lane in &mut lanes {
            *lane = (lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (*lane >> 29)).wrapping_add(1);
        }
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}

/// Returns lines that form one cycle in random order (Sattolo).
fn cycle(lines: usize) -> Vec<Line> {
    let mut cycle: Vec<Line> = (0..lines as u32).map(Line).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for line in (1..lines).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        cycle.swap(line, (state % line as u64) as usize);
    }
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_of_all_lines() {
        for lines in [1, 2, 17, 4096] {
            let cycle = cycle(lines);
            let (mut at, mut steps) = (0, 0);
            loop {
                at = cycle[at as usize].0;
                steps += 1;
                if at == 0 {
                    break;
                }
            }
            assert_eq!(steps, lines);
        }
    }

    #[test]
    fn loops_take_time() {
        let loops = Loops::of(tailwater_dataplane::cores::default_core());
        assert!(loops.lines.len() >= 16 && loops.lines.len() <= MOST_BYTES as usize / LINE);
        // On a busy machine every attempt may be preempted.
        let speed = (0..20).find_map(|_| loops.measure());
        assert!(speed.is_none_or(|speed| speed.compute > 0.0 && speed.private.is_some_and(|time| time > 0.0)));
    }
}
