//! Wake-ups of parked cores.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::time::Duration;
use tailwater_handover::park::{Mode, park};
use tailwater_handover::ring::{Consumer, ring};

use crate::check;

/// Never reached: threads do not wake spuriously under the model checker.
const BOUND: Duration = Duration::from_secs(1);

#[test]
fn park_loses_no_wake_up() {
    check(9, || {
        let (mut producer, mut consumer) = ring(2);
        let (mut sleeper, waker) = park(Mode::Sleep);
        let worker = thread::spawn(move || {
            let mut expected = 0;
            while expected < 2 {
                match consumer.pop() {
                    Some(item) => {
                        assert_eq!(item, expected);
                        expected += 1;
                    }
                    None => {
                        sleeper.wait(BOUND, || !consumer.is_empty());
                    }
                }
            }
        });
        for item in 0..2 {
            producer.push(item).unwrap();
            waker.wake();
        }
        worker.join().unwrap();
    });
}

#[test]
fn park_loses_no_wake_up_of_two_wakers() {
    check(3, || {
        let (mut sleeper, waker) = park(Mode::Sleep);
        let mut consumers = Vec::new();
        for _ in 0..2 {
            let (mut producer, consumer) = ring(1);
            let waker = waker.clone();
            thread::spawn(move || {
                producer.push(()).unwrap();
                waker.wake();
            });
            consumers.push(consumer);
        }
        let mut popped = 0;
        while popped < 2 {
            let now: usize = consumers.iter_mut().filter_map(Consumer::pop).count();
            popped += now;
            if now == 0 {
                sleeper.wait(BOUND, || consumers.iter().any(|ring| !ring.is_empty()));
            }
        }
    });
}

#[test]
fn park_is_woken_by_the_end_of_the_ring() {
    check(9, || {
        let (producer, consumer) = ring::<()>(1);
        let (mut sleeper, waker) = park(Mode::Sleep);
        let worker = thread::spawn(move || {
            while !consumer.is_closed() {
                sleeper.wait(BOUND, || consumer.is_closed());
            }
        });
        drop(producer);
        waker.wake();
        worker.join().unwrap();
    });
}

/// Counterexample to `park`: both sides store, then load, and neither sees the other's store. Shows that the checks
/// above would detect a lost wake-up.
#[test]
#[should_panic(expected = "sleeps for ever")]
fn plain_flags_lose_wake_ups() {
    check(9, || {
        let (asleep, work) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let worker = thread::spawn({
            let (asleep, work) = (asleep.clone(), work.clone());
            move || {
                asleep.store(1, Ordering::Release);
                work.load(Ordering::Acquire) == 0
            }
        });
        work.store(1, Ordering::Release);
        let wakes = asleep.load(Ordering::Acquire) == 1;
        let sleeps = worker.join().unwrap();
        assert!(wakes || !sleeps, "sleeps for ever");
    });
}
