//! Rings.

use loom::thread;
use std::sync::Arc as Counted;
use tailwater_handover::ring::{Consumer, Producer, ring};

use crate::check;

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
