//! Changes at an agreed time, and cores that help each other.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use std::sync::atomic::AtomicBool;
use tailwater_handover::helping::HelpOffers;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_handover::scheduled_switch::ScheduledSwitch;

use crate::check;

/// Each reading of the clock is later than all before, as with one real clock. Between the writer's two readings there
/// is room for one reading of another core, which may be past the proposed time.
#[test]
fn cores_agree_on_the_time_of_a_change() {
    const TICK: u64 = 400;
    check(3, || {
        let switch = Arc::new(ScheduledSwitch::new());
        let clock = Arc::new(AtomicU64::new(0));
        let tell = |clock: &AtomicU64| clock.fetch_add(TICK, Ordering::AcqRel);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (switch, clock) = (Arc::clone(&switch), Arc::clone(&clock));
                thread::spawn(move || {
                    [(); 2].map(|()| {
                        let now = tell(&clock);
                        (now, switch.at(now).is_some_and(|at| at <= now))
                    })
                })
            })
            .collect();
        let at = switch.settle(0, 0, || tell(&clock));
        for reader in readers {
            for (now, new) in reader.join().unwrap() {
                assert_eq!(new, at <= now, "at {now}, settled for {at}");
            }
        }
    });
}

/// Bucket whose state one core at a time uses: loom panics if two do, or if one has not synchronised with the other.
struct Bucket(loom::cell::UnsafeCell<()>);

// SAFETY: nothing is read or written through the cell; loom checks that nobody could do so wrongly.
unsafe impl Sync for Bucket {}

impl Bucket {
    fn of_each_core() -> Arc<[Bucket; 2]> {
        Arc::new([(); 2].map(|()| Bucket(loom::cell::UnsafeCell::new(()))))
    }

    fn touch(&self) {
        self.0.with_mut(|_| ());
    }
}

#[test]
fn help_is_given_to_one_core_at_a_time() {
    static BOTH: AtomicBool = AtomicBool::new(false);
    check(3, || {
        let offers = HelpOffers::new(3);
        offers.offer(2);
        let holders = Arc::new(AtomicU32::new(0));
        let others: Vec<_> = (0..2)
            .map(|by| {
                let (offers, holders) = (offers.clone(), Arc::clone(&holders));
                thread::spawn(move || {
                    let is_active = offers.activate(2, by);
                    if is_active {
                        assert_eq!(offers.activated_by(2), Some(by));
                        assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two at a time");
                        holders.fetch_sub(1, Ordering::Relaxed);
                        offers.release(2);
                    }
                    is_active
                })
            })
            .collect();
        let activated = others
            .into_iter()
            .filter_map(|other| other.join().ok())
            .filter(|it| *it);
        BOTH.fetch_or(activated.count() == 2, Ordering::Relaxed);
    });
    assert!(BOTH.load(Ordering::Relaxed), "one after the other");
}

/// A core that withdraws its offer sleeps only if no other core will push packets to it.
#[test]
fn a_core_that_helps_does_not_sleep() {
    static ENDS: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(9, || {
        let offers = HelpOffers::new(2);
        offers.offer(1);
        let (mut parcels, mut theirs) = ring(1);
        let behind = thread::spawn({
            let offers = offers.clone();
            move || {
                let is_active = offers.activate(1, 0);
                if is_active {
                    parcels.push(()).unwrap();
                }
                is_active
            }
        });
        let sleeps = offers.withdraw(1);
        if !sleeps {
            while theirs.pop().is_none() {
                thread::yield_now();
            }
        }
        assert_eq!(behind.join().unwrap(), !sleeps);
        ENDS[usize::from(sleeps)].store(true, Ordering::Relaxed);
    });
    assert!(ENDS.iter().all(|seen| seen.load(Ordering::Relaxed)));
}

/// Core that lends its bucket to the other, if that offers help, and then processes what the other lends, to the end.
/// Returns `true` if it was helped.
fn help_each_other(
    me: usize,
    offers: &HelpOffers,
    buckets: &[Bucket; 2],
    (mut parcels, mut receipts): (Producer<()>, Consumer<()>),
    (mut theirs, mut done): (Consumer<()>, Producer<()>),
) -> bool {
    let other = 1 - me;
    let mut serve = || {
        let is_served = theirs.pop().is_some();
        if is_served {
            buckets[other].touch();
            done.push(()).unwrap();
        }
        (is_served, theirs.is_closed())
    };
    buckets[me].touch();
    let is_helped = offers.activate(other, me);
    if is_helped {
        parcels.push(()).unwrap();
        while receipts.pop().is_none() {
            serve();
            thread::yield_now();
        }
        buckets[me].touch();
        offers.release(other);
    }
    drop(parcels);
    let mut was_closed = false;
    loop {
        let (is_served, closed) = serve();
        if was_closed && !is_served {
            return is_helped;
        }
        was_closed = closed;
        thread::yield_now();
    }
}

/// Each lends its bucket to the other at the same time: none waits for the other, and no bucket has two users.
#[test]
fn two_cores_that_help_each_other_end() {
    static MUTUAL: AtomicBool = AtomicBool::new(false);
    check(2, || {
        let (offers, buckets) = (HelpOffers::new(2), Bucket::of_each_core());
        offers.offer(0);
        offers.offer(1);
        let ((to_1, from_0), (to_0, from_1)) = (ring(1), ring(1));
        let ((done_by_1, receipts_0), (done_by_0, receipts_1)) = (ring(1), ring(1));
        let second = thread::spawn({
            let (offers, buckets) = (offers.clone(), Arc::clone(&buckets));
            move || help_each_other(1, &offers, &buckets, (to_0, receipts_1), (from_0, done_by_1))
        });
        let first = help_each_other(0, &offers, &buckets, (to_1, receipts_0), (from_1, done_by_0));
        let second = second.join().unwrap();
        assert_eq!([0, 1].map(|core| offers.activated_by(core)), [None, None]);
        MUTUAL.fetch_or(first && second, Ordering::Relaxed);
    });
    assert!(MUTUAL.load(Ordering::Relaxed));
}
