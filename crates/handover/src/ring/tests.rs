use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc as Counted;

/// One call of the ring's interface.
#[derive(Clone, Debug)]
enum Call {
    Push,
    PushSlice(usize),
    PushFrom(usize),
    Put(usize),
    Pop,
    Take(usize),
    PopSlice(usize),
    PopEach(usize),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        Just(Call::Push),
        (0..40_usize).prop_map(Call::PushSlice),
        (0..40_usize).prop_map(Call::PushFrom),
        (0..40_usize).prop_map(Call::Put),
        Just(Call::Pop),
        (0..40_usize).prop_map(Call::Take),
        (0..40_usize).prop_map(Call::PopSlice),
        (0..40_usize).prop_map(Call::PopEach),
    ]
}

proptest! {
    #[test]
    fn is_a_bounded_queue(
        size in 1..40_usize,
        start in prop_oneof![Just(0), any::<usize>(), Just(usize::MAX - 20)],
        calls in prop::collection::vec(call(), 0..100),
    ) {
        let (mut producer, mut consumer) = ring::<u64>(size);
        // As if `start` items had passed before: counters wrap.
        producer.shared.tail.0.store(start, Ordering::Relaxed);
        producer.shared.head.0.store(start, Ordering::Relaxed);
        (producer.tail, producer.head) = (start, start);
        (consumer.tail, consumer.head) = (start, start);
        let size = size.next_power_of_two();
        prop_assert_eq!((producer.size(), consumer.size()), (size, size));
        let mut oracle: VecDeque<u64> = VecDeque::new();
        let mut next = 0_u64;
        for call in calls {
            let free = size - oracle.len();
            let batch = |count: usize| (next..next + count as u64).collect::<Vec<u64>>();
            let pushed = match call {
                Call::Push => {
                    let pushed = producer.push(next);
                    prop_assert_eq!(pushed, if free > 0 { Ok(()) } else { Err(next) });
                    free.min(1)
                }
                Call::PushSlice(count) => {
                    prop_assert_eq!(producer.push_slice(&batch(count)), count.min(free));
                    count.min(free)
                }
                Call::PushFrom(count) => {
                    let items = batch(count);
                    let mut rest = items.iter().copied();
                    prop_assert_eq!(producer.push_from(&mut rest), count.min(free));
                    prop_assert_eq!(rest.len(), count - count.min(free));
                    count.min(free)
                }
                Call::Put(count) => {
                    let items = batch(count);
                    let put = items.iter().take_while(|item| producer.put(**item).is_ok()).count();
                    prop_assert_eq!(put, count.min(free));
                    // Nobody sees them before.
                    prop_assert_eq!(consumer.ready(size), oracle.len());
                    producer.flush();
                    put
                }
                Call::Pop => {
                    prop_assert_eq!(consumer.pop(), oracle.pop_front());
                    0
                }
                Call::Take(count) => {
                    let taken: Vec<u64> = (0..count).map_while(|_| consumer.take()).collect();
                    prop_assert_eq!(taken.len(), count.min(oracle.len()));
                    let expected: Vec<u64> = oracle.drain(..taken.len()).collect();
                    prop_assert_eq!(&taken, &expected);
                    // Their slots are not free yet.
                    prop_assert_eq!(producer.room(size), free);
                    consumer.release();
                    0
                }
                Call::PopSlice(count) => {
                    let mut into = vec![0; count];
                    let popped = consumer.pop_slice(&mut into);
                    prop_assert_eq!(popped, count.min(oracle.len()));
                    let expected: Vec<u64> = oracle.drain(..popped).collect();
                    prop_assert_eq!(&into[..popped], expected);
                    0
                }
                Call::PopEach(limit) => {
                    let mut items = Vec::new();
                    let popped = consumer.pop_each(limit, |item| items.push(item));
                    prop_assert_eq!(popped, limit.min(oracle.len()));
                    let expected: Vec<u64> = oracle.drain(..popped).collect();
                    prop_assert_eq!(items, expected);
                    0
                }
            };
            oracle.extend(next..next + pushed as u64);
            next += pushed as u64;
            prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
            prop_assert_eq!(consumer.ready(size), oracle.len());
            prop_assert_eq!(producer.room(size), size - oracle.len());
        }
    }
}

#[test]
fn an_iterator_that_promises_little_fills_the_ring_again() {
    let (mut producer, mut consumer) = ring::<u32>(4);
    // A filter has a size hint of 0, so only one free slot is requested.
    let mut items = (0..100).filter(|n| n % 2 == 0);
    assert_eq!(producer.push_from(&mut items), 4);
    assert_eq!(producer.push_from(&mut items), 0);
    assert_eq!(consumer.pop_each(4, |_| ()), 4);
    let mut popped = Vec::new();
    while producer.push_from(&mut items) > 0 {
        consumer.pop_each(usize::MAX, |item| popped.push(item));
    }
    assert_eq!(popped, (8..100).step_by(2).collect::<Vec<u32>>());
}

#[test]
fn items_left_are_dropped_once_when_both_ends_are_gone() {
    let item = Counted::new(());
    for producer_first in [true, false] {
        let (mut producer, mut consumer) = ring(8);
        let mut items = std::iter::repeat_n(item.clone(), 5);
        assert_eq!(producer.push_from(&mut items), 5);
        drop(items);
        drop(consumer.pop());
        assert_eq!(Counted::strong_count(&item), 5);
        if producer_first {
            assert!(!consumer.is_closed());
            drop(producer);
            assert!(consumer.is_closed());
            assert_eq!(Counted::strong_count(&item), 5);
            drop(consumer);
        } else {
            assert!(!producer.is_closed());
            drop(consumer);
            assert!(producer.is_closed());
            assert_eq!(Counted::strong_count(&item), 5);
            drop(producer);
        }
        assert_eq!(Counted::strong_count(&item), 1);
    }
}

#[test]
fn a_panic_among_the_popped_loses_and_doubles_nothing() {
    let item = Counted::new(());
    let (mut producer, mut consumer) = ring(4);
    producer.push_from(&mut std::iter::repeat_n(item.clone(), 4));
    let mut seen = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        consumer.pop_each(4, |_item| {
            seen += 1;
            assert!(seen < 2, "on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(producer.room(4), 2);
    assert_eq!(consumer.pop_each(4, drop), 2);
    assert_eq!(Counted::strong_count(&item), 1);
}

#[test]
fn nothing_is_allocated_after_creation() {
    let (mut producer, mut consumer) = ring::<u64>(64);
    let mut batch = [0; 32];
    let info = allocation_counter::measure(|| {
        for _ in 0..100 {
            producer.push_slice(&batch);
            producer.push_from(&mut (0..16));
            consumer.pop_slice(&mut batch);
            consumer.pop_each(16, drop);
            let _ = producer.push(1);
            consumer.pop();
        }
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn counters_do_not_share_cache_lines() {
    let (producer, _consumer) = ring::<u64>(1);
    let shared = &*producer.shared;
    let at = |address: *const AtomicUsize| address as usize / 128;
    let (tail, head) = (at(&shared.tail.0), at(&shared.head.0));
    let slots = std::ptr::from_ref(&shared.slots) as usize / 128;
    assert!(tail != head && head != slots && slots != tail);
}

#[test]
#[should_panic(expected = "expected a ring of 1 to")]
fn a_ring_of_nothing_is_refused() {
    let _ = ring::<u64>(0);
}

/// Each item is dropped once, whoever has it at the end.
#[test]
fn the_producer_takes_back_what_the_consumer_left() {
    let item = Counted::new(());
    let (mut producer, mut consumer) = ring(4);
    for _ in 0..3 {
        assert!(producer.push(Counted::clone(&item)).is_ok());
    }
    assert!(consumer.pop().is_some());
    assert_eq!(producer.take_back(), None, "the consumer is there");
    drop(consumer);
    assert!(producer.take_back().is_some());
    assert_eq!(Counted::strong_count(&item), 2, "one is in the ring");
    assert!(producer.push(Counted::clone(&item)).is_ok());
    assert!(producer.take_back().is_some() && producer.take_back().is_some());
    assert_eq!(producer.take_back(), None);
    drop(producer);
    assert_eq!(Counted::strong_count(&item), 1);
}
