//! Tests of sequence numbers and windows against plain sets, single-threaded and with threads.

use super::super::sequence::{Refused, Sequence, Window};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tailwater_chain::shared_counters::SharedCounters;

/// Reference model of a window: the set of all numbers received.
struct Plain {
    size: u64,
    first: u64,
    seen: BTreeSet<u64>,
}

impl Plain {
    fn top(&self) -> u64 {
        self.seen.last().copied().unwrap_or(self.first - 1)
    }

    fn take(&mut self, sequence: u64) -> Result<(), Refused> {
        if sequence < self.first || sequence + self.size <= self.top() {
            return Err(Refused::TooOld);
        }
        self.seen.insert(sequence).then_some(()).ok_or(Refused::Replayed)
    }
}

fn take(window: &Window, sequence: u64) -> Result<(), Refused> {
    let found = window.check(sequence as u32)?;
    assert_eq!(found, sequence);
    window.mark(sequence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn a_window_is_a_set(
        size in 32u32..600,
        start in prop_oneof![Just(0u64), (1u64 << 32) - 5000..(1 << 32) - 4000],
        steps in prop::collection::vec((-700i64..800, any::<bool>()), 1..300),
    ) {
        let window = Window::new(size, false, 1, &SharedCounters::of_this_process());
        let mut plain = Plain { size: size.into(), first: 1, seen: BTreeSet::new() };
        for (step, near) in steps {
            // Mostly near the top, sometimes near the start.
            let from = if near { plain.top().max(start) } else { start };
            let sequence = from.saturating_add_signed(step).min(u32::MAX.into());
            prop_assert_eq!(take(&window, sequence), plain.take(sequence), "{}", sequence);
        }
    }

    /// Packets carry only the low half of a 64-bit number; near the window the whole number is recovered.
    #[test]
    fn extended_numbers_are_found_from_their_low_half(
        size in 32u32..600,
        start in prop_oneof![
            Just(1u64),
            (1u64 << 32) - 1000..(1 << 32) + 1000,
            (7u64 << 32) - 1000..(7 << 32) + 1000,
            (u64::MAX - (1 << 34))..u64::MAX - (1 << 33),
        ],
        steps in prop::collection::vec(-200i64..800, 1..300),
    ) {
        let window = Window::new(size, true, start, &SharedCounters::of_this_process());
        let mut plain = Plain { size: size.into(), first: start, seen: BTreeSet::new() };
        for step in steps {
            let sequence = plain.top().saturating_add_signed(step);
            let expected = plain.take(sequence);
            if let Err(Refused::TooOld) = expected {
                // It is taken for a number 2^32 ahead, which then fails authentication, or is already known to be too
                // low.
                let found = window.check(sequence as u32);
                let ahead = sequence.checked_add(1 << 32).ok_or(Refused::TooOld);
                prop_assert!(found == ahead || found == Err(Refused::TooOld), "{:?}", found);
            } else {
                prop_assert_eq!(take(&window, sequence), expected, "{}", sequence);
            }
        }
    }
}

#[test]
fn the_last_numbers_are_taken_once() {
    let window = Window::new(64, false, 1, &SharedCounters::of_this_process());
    for sequence in [u64::from(u32::MAX) - 1, u32::MAX.into()] {
        assert_eq!(take(&window, sequence), Ok(()));
        assert_eq!(take(&window, sequence), Err(Refused::Replayed));
    }
    assert_eq!(window.check(0), Err(Refused::TooOld));
    assert_eq!(window.check(u32::MAX - 63), Ok(u64::from(u32::MAX) - 63));
    assert_eq!(window.check(u32::MAX - 64), Err(Refused::TooOld));
}

/// An association may start at any number, at both ends.
#[test]
fn no_number_below_the_first_is_taken() {
    let first = (5 << 32) + 3;
    let window = Window::new(64, true, first, &SharedCounters::of_this_process());
    for below in 1..60 {
        assert_eq!(window.check((first - below) as u32), Err(Refused::TooOld), "{below}");
    }
    assert_eq!(take(&window, first), Ok(()));
    assert_eq!(take(&window, first + 1), Ok(()));
    assert_eq!(window.check((first - 1) as u32), Err(Refused::TooOld));
}

/// Checking an unauthenticated number does not move the window.
#[test]
fn looking_moves_nothing() {
    let window = Window::new(64, false, 1, &SharedCounters::of_this_process());
    assert_eq!(window.check(1_000_000), Ok(1_000_000));
    assert_eq!(take(&window, 1), Ok(()));
}

/// Threads offer the same numbers in different orders: each number is accepted once. As long as all threads are within
/// the window, no number is lost.
#[test]
fn of_many_threads_one_takes_a_number() {
    const NUMBERS: u64 = 20_000;
    const SIZE: u32 = 1024;
    let window = Window::new(SIZE, false, 1, &SharedCounters::of_this_process());
    let taken: Vec<AtomicU64> = (0..=NUMBERS).map(|_| AtomicU64::new(0)).collect();
    let (turn, threads) = (AtomicU64::new(0), 4);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (window, taken, turn) = (&window, &taken, &turn);
            scope.spawn(move || {
                // Blocks of half a window; a block starts when all threads have finished the previous one.
                for block in 0..NUMBERS / 512 {
                    while turn.load(Ordering::Acquire) < block * threads {
                        thread::yield_now();
                    }
                    for i in 0..512 {
                        // An odd factor gives each thread its own order.
                        let sequence = 1 + block * 512 + i * (2 * thread + 1) % 512;
                        if take(window, sequence).is_ok() {
                            taken[sequence as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    turn.fetch_add(1, Ordering::Release);
                }
            });
        }
    });
    let whole = (NUMBERS / 512 * 512) as usize;
    assert!(taken[1..=whole].iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

/// Unsynchronised threads: a slow thread may find numbers too old, but none is accepted twice.
#[test]
fn threads_far_apart_take_no_number_twice() {
    const NUMBERS: u64 = 50_000;
    let window = Window::new(64, false, 1, &SharedCounters::of_this_process());
    let taken: Vec<AtomicU64> = (0..=NUMBERS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for sequence in 1..=NUMBERS {
                    if take(&window, sequence).is_ok() {
                        taken[sequence as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let counts = taken.iter().map(|count| count.load(Ordering::Relaxed));
    assert!(counts.clone().all(|count| count <= 1));
    assert!(counts.sum::<u64>() > 0);
}

#[test]
fn numbers_are_given_once_and_end() {
    let last = u64::from(u32::MAX);
    let sequence = Sequence::new(last - 9_999, false, &SharedCounters::of_this_process());
    let given: Vec<Vec<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn({
                    let sequence = &sequence;
                    move || {
                        let mut given = Vec::new();
                        for _ in 0..5_000 {
                            given.extend(sequence.take(1 + thread));
                        }
                        given
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all: Vec<u64> = given.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(last - 9_999..=last));
    for _ in 0..100 {
        assert!(sequence.take(256).is_empty());
    }
    // 64-bit numbers continue.
    let sequence = Sequence::new(last, true, &SharedCounters::of_this_process());
    assert_eq!(sequence.take(3), last..last + 3);
}
