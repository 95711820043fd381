use super::*;
use crate::ring::ring;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

/// Timeout longer than any test: never reached.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn ready_work_is_found_without_sleep() {
    let modes = [Mode::Sleep, Mode::SpinThenSleep(LONG), Mode::Spin];
    for mode in modes {
        let (mut sleeper, waker) = park(mode);
        assert!(sleeper.wait(LONG, || true));
        assert!(!waker.wake(), "it was awake");
    }
}

#[test]
fn every_mode_returns_at_its_bound() {
    let bound = Duration::from_millis(2);
    let short = Mode::SpinThenSleep(Duration::from_micros(1));
    for mode in [Mode::Sleep, short, Mode::SpinThenSleep(LONG), Mode::Spin] {
        let (mut sleeper, _waker) = park(mode);
        let start = Instant::now();
        let mut looks = 0;
        // It may return early, but not without end.
        while start.elapsed() < bound {
            assert!(!sleeper.wait(bound, || {
                looks += 1;
                false
            }));
        }
        assert!(looks >= 2, "{mode:?}");
    }
}

#[test]
fn work_found_at_the_last_look_leaves_the_worker_awake() {
    let (mut sleeper, waker) = park(Mode::Sleep);
    let mut looks = 0;
    assert!(sleeper.wait(LONG, || {
        looks += 1;
        looks == 2
    }));
    assert_eq!(looks, 2);
    assert!(!waker.wake());
}

#[test]
fn a_sleeper_is_woken_once() {
    let (mut sleeper, waker) = park(Mode::Sleep);
    let done = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let ready = || {
                looks.fetch_add(1, Ordering::Relaxed);
                done.load(Ordering::Acquire)
            };
            while !sleeper.wait(LONG, ready) {}
        });
        // After the second poll it sleeps, or is about to.
        while looks.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        done.store(true, Ordering::Release);
        assert!(waker.wake());
        // A clone of the waker does not wake it again.
        assert!(!waker.clone().wake());
    });
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    for mode in [Mode::Sleep, Mode::SpinThenSleep(Duration::from_micros(2))] {
        let (mut producer, mut consumer) = ring::<u32>(4);
        let (mut sleeper, waker) = park(mode);
        let items = 20_000;
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut expected = 0;
                while expected < items {
                    let popped = consumer.pop_each(4, |item| {
                        assert_eq!(item, expected);
                        expected += 1;
                    });
                    if popped == 0 {
                        // A lost wake-up would last a minute.
                        sleeper.wait(LONG, || !consumer.is_empty());
                    }
                }
            });
            for item in 0..items {
                while producer.push(item).is_err() {
                    thread::yield_now();
                }
                waker.wake();
            }
        });
    }
}
