//! Model checks: every interleaving, and every stale value that the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p tailwater-handover --release --test loom \
//!     --target-dir target/loom
//! ```
#![cfg(loom)]

mod model;

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use model::{Setup, Step, run, run_steps};
use std::sync::Arc as Counted;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_handover::helping::HelpOffers;
use tailwater_handover::owner::Placement;
use tailwater_handover::park::{Mode, park};
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_handover::scheduled_switch::ScheduledSwitch;

/// Checks all interleavings with at most `preemptions` preemptions.
fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}

/// Pushes 0, 1, ... in one thread with `push`, which returns the number pushed, and pops them in another with `pop`.
fn transfer(
    size: usize,
    items: u32,
    push: fn(&mut Producer<u32>, std::ops::Range<u32>) -> usize,
    pop: fn(&mut Consumer<u32>) -> Vec<u32>,
) {
    let (mut producer, mut consumer) = ring(size);
    let pusher = thread::spawn(move || {
        let mut next = 0;
        while next < items {
            match push(&mut producer, next..items) {
                0 => thread::yield_now(),
                count => next += count as u32,
            }
        }
    });
    let mut expected = 0;
    while expected < items {
        let popped = pop(&mut consumer);
        if popped.is_empty() {
            thread::yield_now();
        }
        for item in popped {
            assert_eq!(item, expected);
            expected += 1;
        }
    }
    assert!(consumer.is_empty());
    pusher.join().unwrap();
}

#[test]
fn ring_single_items() {
    check(3, || {
        transfer(
            2,
            5,
            |producer, mut items| {
                let item = items.next().unwrap();
                producer.push(item).map_or(0, |()| 1)
            },
            |consumer| consumer.pop().into_iter().collect(),
        );
    });
}

#[test]
fn ring_slices() {
    check(7, || {
        transfer(
            2,
            5,
            |producer, items| producer.push_slice(&items.collect::<Vec<u32>>()),
            |consumer| {
                let mut batch = [0; 3];
                let count = consumer.pop_slice(&mut batch);
                batch[..count].to_vec()
            },
        );
    });
}

#[test]
fn ring_iterators() {
    check(7, || {
        transfer(
            4,
            7,
            |producer, mut items| producer.push_from(&mut items),
            |consumer| {
                let mut popped = Vec::new();
                consumer.pop_each(3, |item| popped.push(item));
                popped
            },
        );
    });
}

#[test]
fn ring_items_put_and_taken() {
    check(4, || {
        transfer(
            2,
            4,
            |producer, items| {
                let put = items.take_while(|item| producer.put(*item).is_ok()).count();
                producer.flush();
                put
            },
            |consumer| {
                let taken = (0..2).map_while(|_| consumer.take()).collect();
                consumer.release();
                taken
            },
        );
    });
}

#[test]
fn ring_closed_by_its_producer_is_popped_to_the_end() {
    check(9, || {
        let (mut producer, mut consumer) = ring(2);
        let pusher = thread::spawn(move || {
            producer.push(0).unwrap();
            producer.push(1).unwrap();
        });
        let mut popped = Vec::new();
        loop {
            let closed = consumer.is_closed();
            let count = consumer.pop_each(2, |item| popped.push(item));
            if closed && count == 0 {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(popped, [0, 1]);
        pusher.join().unwrap();
    });
}

#[test]
fn ring_abandoned_at_any_moment_drops_every_item_once() {
    check(9, || {
        let item = Counted::new(());
        let (mut producer, mut consumer) = ring(2);
        let pusher = thread::spawn({
            let item = item.clone();
            move || {
                for _ in 0..3 {
                    let _ = producer.push(item.clone());
                }
                producer.is_closed()
            }
        });
        let popped = consumer.pop();
        drop(consumer);
        pusher.join().unwrap();
        assert_eq!(Counted::strong_count(&item), 1 + usize::from(popped.is_some()));
    });
}

/// Never reached: threads do not wake spuriously under the model checker.
const BOUND: Duration = Duration::from_secs(1);

/// The producer takes back what the consumer left, whenever that ends: no item is lost or seen twice.
#[test]
fn ring_abandoned_at_any_moment_gives_the_rest_back() {
    check(3, || {
        let (mut producer, mut consumer) = ring(2);
        let popping = thread::spawn(move || u32::from(consumer.pop().is_some()));
        let pushed = (0..3).filter(|item| producer.push(*item).is_ok()).count() as u32;
        let popped = popping.join().expect("no panic");
        let mut back = 0;
        while producer.take_back().is_some() {
            back += 1;
        }
        assert_eq!(popped + back, pushed);
    });
    check(3, || {
        let (mut producer, mut consumer) = ring(2);
        let popping = thread::spawn(move || consumer.pop());
        assert_eq!(producer.push(0), Ok(()));
        let early = producer.take_back();
        let popped = popping.join().expect("no panic");
        let late = producer.take_back();
        let seen = [early, popped, late].into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(seen, [0]);
    });
}

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

const ONE_HELPER: Setup = Setup {
    flows: 2,
    segments: 2,
    auxiliaries: 1,
    ring: 2,
    batch: 2,
    mode: Mode::Sleep,
    hasty: false,
};

#[test]
fn protocol_a_flow_goes_to_a_helper_and_comes_back() {
    // In some runs the last packet returns to the dispatcher, in others it has to follow the flow.
    static STAYED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let wanted = [
            Placement::Home,
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
            Placement::Home,
        ];
        let outcome = run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
        STAYED[outcome.stayed as usize].store(true, Ordering::Relaxed);
    });
    assert!(STAYED.iter().all(|seen| seen.load(Ordering::Relaxed)));
}

#[test]
fn protocol_two_flows_cross_each_other() {
    check(2, || {
        let (home, away) = (Placement::Home, Placement::Auxiliary(0));
        let packets = [(0, away), (1, home), (0, home), (1, away)];
        run(&ONE_HELPER, packets.into_iter());
    });
}

#[test]
fn protocol_a_flow_goes_from_helper_to_helper() {
    check(2, || {
        let setup = Setup {
            auxiliaries: 2,
            flows: 1,
            ..ONE_HELPER
        };
        let wanted = [Placement::Auxiliary(0), Placement::Auxiliary(1), Placement::Home];
        run(&setup, wanted.map(|placement| (0, placement)).into_iter());
    });
}

const SPLIT: Placement = Placement::Split { from: 1, auxiliary: 0 };

/// Both cores process the flow at once, each its own segment.
#[test]
fn protocol_a_flow_is_split_and_becomes_whole_again() {
    static STAYED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let wanted = [Placement::Home, SPLIT, SPLIT, Placement::Home];
        let outcome = run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
        STAYED[outcome.stayed as usize].store(true, Ordering::Relaxed);
    });
    assert!(STAYED.iter().all(|seen| seen.load(Ordering::Relaxed)));
}

#[test]
fn protocol_a_split_flow_goes_to_a_helper_whole() {
    check(2, || {
        let wanted = [SPLIT, Placement::Auxiliary(0), SPLIT];
        run(&ONE_HELPER, wanted.map(|placement| (0, placement)).into_iter());
    });
}

const TWO_PARTS: Setup = Setup {
    flows: 1,
    segments: 3,
    auxiliaries: 2,
    ..ONE_HELPER
};

/// The last segment passes from one auxiliary core to another with packets in flight, and comes back without.
#[test]
fn protocol_a_part_is_divided_with_packets_in_flight() {
    check(2, || {
        let steps = [Step::Packet(0, SPLIT), Step::Divide(0, 2, 1), Step::Routed(0)];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_the_dispatchers_last_segment_is_given_away_with_packets_in_flight() {
    check(2, || {
        let split = Placement::Split { from: 2, auxiliary: 0 };
        let steps = [Step::Packet(0, split), Step::Divide(0, 1, 1), Step::Routed(0)];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_parts_are_joined_when_no_packet_is_on_its_way() {
    check(2, || {
        let steps = [
            Step::Packet(0, SPLIT),
            Step::Divide(0, 2, 1),
            Step::Routed(0),
            Step::Join(0),
            Step::Routed(0),
        ];
        run_steps(&TWO_PARTS, steps.into_iter());
    });
}

#[test]
fn protocol_full_rings_only_make_it_wait() {
    check(2, || {
        let setup = Setup {
            ring: 1,
            flows: 1,
            ..ONE_HELPER
        };
        let wanted = [
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
            Placement::Auxiliary(0),
        ];
        run(&setup, wanted.map(|placement| (0, placement)).into_iter());
    });
}

/// Shows that the checks above would detect packets out of order.
#[test]
fn protocol_without_counts_is_caught() {
    static CAUGHT: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
    check(2, || {
        let setup = Setup {
            hasty: true,
            ..ONE_HELPER
        };
        let wanted = [Placement::Auxiliary(0), Placement::Home];
        let outcome = run(&setup, wanted.map(|placement| (0, placement)).into_iter());
        CAUGHT[0].fetch_or(outcome.disordered > 0, Ordering::Relaxed);
    });
    check(2, || {
        let setup = Setup {
            hasty: true,
            ..ONE_HELPER
        };
        let wanted = [SPLIT, Placement::Home];
        let outcome = run(&setup, wanted.map(|placement| (0, placement)).into_iter());
        CAUGHT[1].fetch_or(outcome.disordered > 0, Ordering::Relaxed);
    });
    assert!(CAUGHT.iter().all(|caught| caught.load(Ordering::Relaxed)));
}

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
