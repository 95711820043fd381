//! The same accesses on the machine at hand.

use crate::print;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WORDS_PER_LINE: usize = 8;

/// Next pseudo-random number (an LCG of Knuth's).
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// One cycle through all lines, in random order (Sattolo).
fn cycle(bytes: u64) -> Vec<u64> {
    let lines = (bytes / 64) as usize;
    let mut order: Vec<u64> = (0..lines as u64).collect();
    let mut state = 1;
    for last in (1..lines).rev() {
        order.swap(last, next(&mut state) as usize % last);
    }
    let mut words = vec![0; lines * WORDS_PER_LINE];
    for (line, to) in order.iter().enumerate() {
        words[line * WORDS_PER_LINE] = *to;
    }
    words
}

/// Nanoseconds of a load that depends on the one before, in a working set. The fastest of many short runs counts: other
/// programs interrupt long ones.
fn chase_ns(bytes: u64) -> f64 {
    const STEPS: u64 = 20_000;
    let words = cycle(bytes);
    let mut at = 0;
    let mut run = || {
        let begin = Instant::now();
        for _ in 0..STEPS {
            at = words[at as usize * WORDS_PER_LINE];
        }
        black_box(at);
        begin.elapsed().as_nanos() as f64 / STEPS as f64
    };
    (0..100 + bytes / 64 / STEPS).map(|_| run()).fold(f64::MAX, f64::min)
}

/// Nanoseconds of an independent random read, in a working set.
fn read_ns(words: &[u64], state: &mut u64) -> f64 {
    const STEPS: u64 = 200_000;
    let lines = (words.len() / WORDS_PER_LINE) as u64;
    let begin = Instant::now();
    let mut sum = 0_u64;
    for _ in 0..STEPS {
        sum = sum.wrapping_add(words[(next(state) % lines) as usize * WORDS_PER_LINE]);
    }
    black_box(sum);
    begin.elapsed().as_nanos() as f64 / STEPS as f64
}

/// Slowdown of random reads in a working set beside a thread that writes 256 MiB again and again, for each of `runs`
/// interleaved pairs.
fn slowdown_beside_writer(bytes: u64, runs: usize) -> Vec<f64> {
    let words = vec![1_u64; bytes as usize / 8];
    let (writes, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut target = vec![0_u64; 32 << 20];
            let mut value = 0;
            while !ends.load(Ordering::Relaxed) {
                if !writes.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                value += 1;
                for part in target.chunks_mut(1 << 17) {
                    part.fill(value);
                    if !writes.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            black_box(&target);
        });
        let mut state = 1;
        let mut slowdowns = Vec::new();
        for _ in 0..runs {
            let alone = read_ns(&words, &mut state);
            writes.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
            let beside = read_ns(&words, &mut state);
            writes.store(false, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
            slowdowns.push(beside / alone);
        }
        ends.store(true, Ordering::Relaxed);
        slowdowns
    })
}

/// `sweep` and `writer` of this machine.
pub fn print_all() {
    for kib in crate::model::SWEEP_KIB {
        print(&format!("machine/sweep/{kib}KiB"), chase_ns(kib << 10), "ns", None);
    }
    let mut slowdowns = slowdown_beside_writer(64 << 20, 101);
    slowdowns.sort_by(f64::total_cmp);
    for (name, at) in [("p25", 25), ("p50", 50), ("p75", 75)] {
        print(&format!("machine/writer/64MiB/{name}"), slowdowns[at], "ratio", None);
    }
}
