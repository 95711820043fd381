//! Bounded lock-free ring with a single producer and a single consumer.
//!
//! The only `unsafe` code in which two threads access the same memory. Slots are numbered without end; number `n` is at
//! index `n` modulo the size. `tail` counts the items ever pushed, and only the producer writes it. `head` counts those
//! ever popped, and only the consumer writes it. So `head <= tail <= head + size`, and of the slots
//!
//! - `head..tail` hold items: only the consumer accesses them,
//! - `tail..head + size` hold none: only the producer accesses them.
//!
//! A slot changes sides by a store to `tail` or `head`. Each is a release store after the last access to the slots it
//! gives away. The other side accesses a slot only after an acquire load of a value that gives it the slot. A side's
//! cached copy of the other's counter may be old. It then only underestimates the number of items, or the room.

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

#[cfg(all(test, not(loom)))]
mod tests;

/// Maximum number of items in a ring.
pub const MAX_SIZE: usize = 1 << 24;

/// Pads to a pair of cache lines: processors prefetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded<T>(T);

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

/// State shared by both ends. Only `tail` and `head` change while items pass.
#[derive(Debug)]
#[repr(C)]
struct Shared<T> {
    /// Items ever pushed, modulo 2^64.
    tail: CachePadded<AtomicUsize>,
    /// Items ever popped, modulo 2^64.
    head: CachePadded<AtomicUsize>,
    /// A power of two of slots.
    slots: CachePadded<Box<[Slot<T>]>>,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
}

// SAFETY: one end at a time accesses a slot, with the other end's accesses visible (the rule above), so an item is only
// ever moved from one thread to another. There is one producer and one consumer: neither can be cloned, and pushing and
// popping take them exclusively.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// `count` slots starting at number `from`: the part up to the end of the array, and the part after the wrap.
    #[inline(always)]
    fn span(&self, from: usize, count: usize) -> (&[Slot<T>], &[Slot<T>]) {
        let slots = &self.slots.0;
        let start = from & (slots.len() - 1);
        let (front, back) = slots.split_at(start);
        let first = count.min(back.len());
        (&back[..first], &front[..count - first])
    }

    /// The slot of this number.
    #[inline(always)]
    fn slot(&self, number: usize) -> &Slot<T> {
        let slots = &self.slots.0;
        &slots[number & (slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    /// Drops the items that were never popped.
    fn drop(&mut self) {
        // Both ends are gone, and their writes are visible: the reference count orders them.
        let (head, tail) = (&self.head.0, &self.tail.0);
        let head = head.load(Ordering::Relaxed);
        let left = tail.load(Ordering::Relaxed).wrapping_sub(head);
        let (first, second) = self.span(head, left);
        for slot in first.iter().chain(second) {
            // SAFETY: slots from head to tail hold items, and no other user is left.
            slot.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}

/// Creates a ring for at least `size` items, rounded up to a power of two. Allocates all its memory.
///
/// # Panics
/// If `size` is 0 or above [`MAX_SIZE`].
pub fn ring<T: Send>(size: usize) -> (Producer<T>, Consumer<T>) {
    assert!(
        (1..=MAX_SIZE).contains(&size),
        "expected a ring of 1 to {MAX_SIZE} items, found {size}"
    );
    let slots = (0..size.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit()));
    let shared = Arc::new(Shared {
        tail: CachePadded(AtomicUsize::new(0)),
        head: CachePadded(AtomicUsize::new(0)),
        slots: CachePadded(slots.collect()),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
    });
    let producer = Producer {
        shared: shared.clone(),
        tail: 0,
        head: 0,
        unpublished: 0,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        tail: 0,
    };
    (producer, consumer)
}

/// Pushing end.
#[derive(Debug)]
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Own counter: the value stored in `shared.tail`.
    tail: usize,
    /// Consumer's counter when last read.
    head: usize,
    /// Items put behind the tail, which the consumer does not see yet.
    unpublished: usize,
}

impl<T> Producer<T> {
    /// Capacity of the ring, in items.
    pub fn size(&self) -> usize {
        self.shared.slots.0.len()
    }

    /// Returns `true` if the consumer is gone: pushed items will never be popped.
    pub fn is_closed(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Acquire)
    }

    /// Returns the number of free slots. Reads the consumer's counter only if the cached value leaves fewer than
    /// `wanted`.
    #[inline(always)]
    pub fn room(&mut self, wanted: usize) -> usize {
        debug_assert!(self.unpublished == 0, "items were put and not flushed");
        self.free(wanted)
    }

    /// Same, while items were put that the consumer does not see yet: their slots count as free.
    #[inline(always)]
    pub fn free(&mut self, wanted: usize) -> usize {
        let room = self.size() - self.tail.wrapping_sub(self.head);
        if room >= wanted {
            return room;
        }
        // Acquire: the consumer is done with the slots before we write them.
        self.head = self.shared.head.0.load(Ordering::Acquire);
        self.size() - self.tail.wrapping_sub(self.head)
    }

    /// Pushes one item.
    ///
    /// # Errors
    /// Returns the item, if the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(item);
        }
        // SAFETY: there is room for one, so the slot at the tail is ours.
        self.shared.slot(self.tail).with_mut(|slot| unsafe {
            (*slot).write(item);
        });
        self.publish(1);
        Ok(())
    }

    /// Puts one item behind those in the ring. The consumer sees it after [`flush`](Self::flush), before which nothing
    /// may be pushed.
    ///
    /// # Errors
    /// Returns the item, if the ring is full.
    #[inline]
    pub fn put(&mut self, item: T) -> Result<(), T> {
        if self.free(self.unpublished + 1) <= self.unpublished {
            return Err(item);
        }
        // SAFETY: there is room for one more than those put before, so the slot behind them is ours.
        self.shared
            .slot(self.tail.wrapping_add(self.unpublished))
            .with_mut(|slot| unsafe {
                (*slot).write(item);
            });
        self.unpublished += 1;
        Ok(())
    }

    /// Passes the items that were [put](Self::put) to the consumer, by one store.
    #[inline]
    pub fn flush(&mut self) {
        let count = std::mem::take(&mut self.unpublished);
        self.publish(count);
    }

    /// Pushes the first items of a batch, up to the room in the ring. Returns their number. One store publishes them
    /// together.
    #[inline]
    pub fn push_slice(&mut self, items: &[T]) -> usize
    where
        T: Copy,
    {
        let count = items.len().min(self.room(items.len()));
        let (first, second) = self.shared.span(self.tail, count);
        let (items_first, items_second) = items[..count].split_at(first.len());
        for (slots, items) in [(first, items_first), (second, items_second)] {
            for (slot, &item) in slots.iter().zip(items) {
                // SAFETY: there is room for `count`, so these slots from the tail on are ours.
                slot.with_mut(|slot| unsafe {
                    (*slot).write(item);
                });
            }
        }
        self.publish(count);
        count
    }

    /// Pushes items of an iterator while there is room. Returns their number. One store publishes them together. Takes
    /// no item from the iterator without room for it.
    #[inline]
    pub fn push_from(&mut self, items: &mut impl Iterator<Item = T>) -> usize {
        let wanted = items.size_hint().0.max(1);
        let room = self.room(wanted);
        let (first, second) = self.shared.span(self.tail, room);
        let mut count = 0;
        // The slot before the item: an item taken from the iterator must have one.
        'full: for slots in [first, second] {
            for slot in slots {
                let Some(item) = items.next() else {
                    break 'full;
                };
                // SAFETY: there is room for `room`, so these slots from the tail on are ours.
                slot.with_mut(|slot| unsafe {
                    (*slot).write(item);
                });
                count += 1;
            }
        }
        self.publish(count);
        count
    }

    /// Moves the first items of a list into the ring, up to its room. Returns their number. One store publishes them
    /// together. The cheapest way to push items that are not `Copy`.
    #[inline]
    pub fn push_all(&mut self, items: &mut Vec<T>) -> usize {
        let (ready, count) = (items.len(), items.len().min(self.room(items.len())));
        let (first, second) = self.shared.span(self.tail, count);
        let from = items.as_ptr();
        for (slots, from) in [(first, from), (second, from.wrapping_add(first.len()))] {
            for (i, slot) in slots.iter().enumerate() {
                // SAFETY: there is room for `count`, so these slots from the tail on are ours; the list has `count`
                // items from its start on. `set_len` below removes them from the list, and nothing can panic before.
                slot.with_mut(|slot| unsafe {
                    (*slot).write(std::ptr::read(from.wrapping_add(i)));
                });
            }
        }
        // SAFETY: the first `count` items have been moved out. The rest moves to the start, and the
        // list is as long as the rest.
        unsafe {
            let start = items.as_mut_ptr();
            std::ptr::copy(start.add(count), start, ready - count);
            items.set_len(ready - count);
        }
        self.publish(count);
        count
    }

    /// Takes back the oldest item that the consumer left in the ring, once it is gone.
    pub fn take_back(&mut self) -> Option<T> {
        if !self.is_closed() {
            return None;
        }
        // The consumer's last store happened before it was seen to be gone.
        self.head = self.shared.head.0.load(Ordering::Relaxed);
        if self.head == self.tail {
            return None;
        }
        let (slot, _) = self.shared.span(self.head, 1);
        // SAFETY: slots from head to tail hold items, and the consumer, whose accesses happened before, is gone. The
        // slot holds none once the head has passed it, which only this end still reads or writes.
        let item = slot[0].with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Relaxed);
        Some(item)
    }

    /// Passes the next `count` slots to the consumer.
    #[inline(always)]
    fn publish(&mut self, count: usize) {
        if count > 0 {
            self.tail = self.tail.wrapping_add(count);
            // Release: the items are in their slots before the consumer sees the new tail.
            self.shared.tail.0.store(self.tail, Ordering::Release);
        }
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // So that no item is forgotten.
        self.flush();
        // Release: a consumer that sees the flag sees every item pushed before.
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

/// Popping end.
#[derive(Debug)]
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Own counter: the value stored in `shared.head`, except within a call, and until taken slots are released.
    head: usize,
    /// Producer's counter when last read.
    tail: usize,
}

impl<T> Consumer<T> {
    /// Capacity of the ring, in items.
    pub fn size(&self) -> usize {
        self.shared.slots.0.len()
    }

    /// Returns `true` if the producer is gone. Its items may still be in the ring: a pop *after* this returned `true`
    /// finds all of them.
    pub fn is_closed(&self) -> bool {
        self.shared.producer_gone.load(Ordering::Acquire)
    }

    /// Returns `true` if there is nothing to pop now.
    pub fn is_empty(&self) -> bool {
        self.tail == self.head && self.shared.tail.0.load(Ordering::Acquire) == self.head
    }

    /// Returns the number of items to pop. Reads the producer's counter only if the cached value gives fewer than
    /// `wanted`.
    #[inline(always)]
    pub fn ready(&mut self, wanted: usize) -> usize {
        let ready = self.tail.wrapping_sub(self.head);
        if ready >= wanted {
            return ready;
        }
        // Acquire: the items are in their slots before we read them.
        self.tail = self.shared.tail.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head)
    }

    /// Pops one item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.take()?;
        self.release();
        Some(item)
    }

    /// Pops one item. The producer gets its slot with the next [release](Self::release) or pop.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: an item is ready, so the slot at the head holds one and is ours. The head, past which nothing is read
        // again, moves on.
        let item = self
            .shared
            .slot(self.head)
            .with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// The item that is popped next. It stays in the ring.
    #[inline]
    pub fn peek(&mut self) -> Option<&mut T> {
        if self.ready(1) == 0 {
            return None;
        }
        let slot = self.shared.slot(self.head);
        // SAFETY: an item is ready, so the slot at the head holds one and is ours until the head moves on, which takes
        // this end exclusively, as the returned reference does.
        Some(slot.with_mut(|slot| unsafe { (*slot).assume_init_mut() }))
    }

    /// Gives the slots of items that were [taken](Self::take) back to the producer, by one store.
    #[inline]
    pub fn release(&mut self) {
        // Release: the items are out of their slots before the producer writes there.
        self.shared.head.0.store(self.head, Ordering::Release);
    }

    /// Pops items into the beginning of `into`, as many as are ready and fit. Returns their number. One store returns
    /// their slots together.
    #[inline]
    pub fn pop_slice(&mut self, into: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = into.len().min(self.ready(into.len()));
        let (first, second) = self.shared.span(self.head, count);
        let (into_first, into_second) = into[..count].split_at_mut(first.len());
        for (slots, into) in [(first, into_first), (second, into_second)] {
            for (slot, into) in slots.iter().zip(into) {
                // SAFETY: `count` items are ready, so these slots from the head on hold items and
                // are ours.
                *into = slot.with(|slot| unsafe { (*slot).assume_init_read() });
            }
        }
        if count > 0 {
            self.head = self.head.wrapping_add(count);
            // Release: the items are out of their slots before the producer writes there.
            self.shared.head.0.store(self.head, Ordering::Release);
        }
        count
    }

    /// Pops up to `limit` items in order, passing each to `each`. Returns their number. One store returns their slots
    /// together, after the last.
    #[inline]
    pub fn pop_each(&mut self, limit: usize, mut each: impl FnMut(T)) -> usize {
        let count = limit.min(self.ready(limit));
        let before = self.head;
        let popping = PopGuard {
            shared: &self.shared,
            before,
            head: &mut self.head,
        };
        let (first, second) = popping.shared.span(before, count);
        for slots in [first, second] {
            for slot in slots {
                // SAFETY: `count` items are ready, so these slots from the head on hold items and
                // are ours. The head is past the slot before `each` could panic: it is not read
                // again.
                let item = slot.with(|slot| unsafe { (*slot).assume_init_read() });
                *popping.head = popping.head.wrapping_add(1);
                each(item);
            }
        }
        count
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Items that were taken are no longer in their slots.
        self.release();
        self.shared.consumer_gone.store(true, Ordering::Release);
    }
}

/// Returns slots to the producer at the end of a batch, also if a closure panics within it.
struct PopGuard<'a, T> {
    shared: &'a Shared<T>,
    before: usize,
    head: &'a mut usize,
}

impl<T> Drop for PopGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if *self.head != self.before {
            // Release: the items are out of their slots before the producer writes there.
            self.shared.head.0.store(*self.head, Ordering::Release);
        }
    }
}
