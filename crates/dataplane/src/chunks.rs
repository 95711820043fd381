//! Bounded, recycled chunks that carry records from a worker to a thread that writes them.
//!
//! Each [`ChunkSender`] owns a fixed number of chunks. It fills one at a time and sends it when full; the
//! [`ChunkReceiver`] returns it empty. Nothing is allocated after the start, and memory is bounded. When the receiver
//! has all chunks, the sender either waits or skips the records. It waits only as long as the receiver makes progress:
//! the receiver's [`Pulse`] beats with each chunk.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tailwater_functions::out_file::Pulse;

/// Factory of senders: size of the chunks, and the channel to the receiver.
#[derive(Debug)]
pub struct Chunks<T> {
    items: usize,
    count: usize,
    full: SyncSender<Chunk<T>>,
    pulse: Pulse,
}

/// Full chunk, with the channel that returns it.
#[derive(Debug)]
struct Chunk<T> {
    items: Vec<T>,
    source: usize,
    back: SyncSender<Vec<T>>,
}

impl<T: Copy> Chunks<T> {
    /// Creates the channel for up to `senders` senders, each with `count` chunks (at least 2) of `items` items.
    pub fn new(senders: usize, count: usize, items: usize) -> (Chunks<T>, ChunkReceiver<T>) {
        let count = count.max(2);
        // Room for all chunks of all senders: sending never blocks.
        let (full, filled) = sync_channel(senders * count);
        let pulse = Pulse::default();
        let receiver = ChunkReceiver {
            filled,
            pulse: pulse.clone(),
        };
        let chunks = Chunks {
            items,
            count,
            full,
            pulse,
        };
        (chunks, receiver)
    }

    /// Progress indicator of the receiver.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Creates a sender. `source` identifies its chunks to the receiver.
    pub fn sender(&self, source: usize) -> ChunkSender<T> {
        let (back, empty) = sync_channel(self.count);
        for _ in 1..self.count {
            let _ = back.try_send(Vec::with_capacity(self.items));
        }
        ChunkSender {
            chunk: Vec::with_capacity(self.items),
            items: self.items,
            source,
            full: self.full.clone(),
            empty,
            back,
            pulse: self.pulse.clone(),
        }
    }
}

/// Worker's end. Dropping it sends the items it holds.
#[derive(Debug)]
pub struct ChunkSender<T> {
    chunk: Vec<T>,
    items: usize,
    source: usize,
    full: SyncSender<Chunk<T>>,
    empty: Receiver<Vec<T>>,
    back: SyncSender<Vec<T>>,
    pulse: Pulse,
}

impl<T: Copy> ChunkSender<T> {
    /// Makes room for `items` more items (at most a chunk's). Waits while the receiver has all chunks, and returns
    /// `false` from then on if it [hangs](Pulse::wait). Without a receiver, the items in the chunk are lost.
    #[inline]
    #[must_use]
    pub fn wait_for_room(&mut self, items: usize) -> bool {
        self.chunk.len() + items <= self.items || self.wait_for_chunk()
    }

    #[cold]
    fn wait_for_chunk(&mut self) -> bool {
        if self.pulse.is_given_up() {
            return false;
        }
        let mut next = None;
        let (empty, pulse) = (&self.empty, &self.pulse);
        let came = pulse.wait(|| {
            next = empty.try_recv().ok();
            next.is_some()
        });
        if let Some(next) = next {
            self.send_chunk(next);
        }
        came
    }

    /// Makes room for `items` more items. Returns `false` if the receiver has all chunks.
    #[inline]
    #[must_use]
    pub fn has_room(&mut self, items: usize) -> bool {
        if self.chunk.len() + items <= self.items {
            return true;
        }
        match self.empty.try_recv() {
            Ok(next) => {
                self.send_chunk(next);
                true
            }
            Err(_) => false,
        }
    }

    /// Adds items for which room was made.
    ///
    /// # Panics
    /// If there is too little room.
    #[inline]
    pub fn extend(&mut self, items: &[T]) {
        assert!(self.chunk.len() + items.len() <= self.items, "no room");
        self.chunk.extend_from_slice(items);
    }

    #[cold]
    fn send_chunk(&mut self, next: Vec<T>) {
        let items = std::mem::replace(&mut self.chunk, next);
        let chunk = Chunk {
            items,
            source: self.source,
            back: self.back.clone(),
        };
        // Without a receiver (its thread has panicked), the items are lost.
        if let Err(unsent) = self.full.send(chunk) {
            let mut items = unsent.0.items;
            items.clear();
            let _ = self.back.try_send(items);
        }
    }
}

impl<T> Drop for ChunkSender<T> {
    fn drop(&mut self) {
        let _ = self.full.send(Chunk {
            items: std::mem::take(&mut self.chunk),
            source: self.source,
            back: self.back.clone(),
        });
    }
}

/// Writing thread's end.
#[derive(Debug)]
pub struct ChunkReceiver<T> {
    filled: Receiver<Chunk<T>>,
    pulse: Pulse,
}

impl<T> ChunkReceiver<T> {
    /// Runs `each` on the source and items of every chunk until [`Chunks`] and all senders are dropped.
    pub fn for_each(self, mut each: impl FnMut(usize, &[T])) {
        while let Ok(Chunk {
            mut items,
            source,
            back,
        }) = self.filled.recv()
        {
            each(source, &items);
            self.pulse.beat();
            items.clear();
            let _ = back.try_send(items);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_in_order_of_its_source() {
        let (chunks, receiver) = Chunks::new(2, 3, 10);
        let senders: Vec<_> = (0..2).map(|source| chunks.sender(source)).collect();
        drop(chunks);
        let mut seen = [0u32; 2];
        std::thread::scope(|scope| {
            for mut sender in senders {
                scope.spawn(move || {
                    for i in 0..1000u32 {
                        assert!(sender.wait_for_room(1));
                        sender.extend(&[i]);
                    }
                });
            }
            receiver.for_each(|source, items| {
                for item in items {
                    assert_eq!(*item, seen[source]);
                    seen[source] += 1;
                }
            });
        });
        assert_eq!(seen, [1000, 1000]);
    }

    #[test]
    fn chunks_are_bounded_and_come_back() {
        let (chunks, receiver) = Chunks::new(1, 2, 4);
        let mut sender = chunks.sender(0);
        drop(chunks);
        let mut sent = 0;
        while sent < 100 && sender.has_room(1) {
            sender.extend(&[sent]);
            sent += 1;
        }
        assert_eq!(sent, 8, "two chunks of four");
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| receiver.for_each(|_, items| received.extend_from_slice(items)));
            assert!(sender.wait_for_room(1));
            sender.extend(&[8]);
            drop(sender);
        });
        assert_eq!(received, (0..9).collect::<Vec<u8>>());
    }

    #[test]
    fn a_receiver_that_hangs_is_waited_for_once() {
        let (chunks, receiver) = Chunks::new(1, 2, 1);
        let mut sender = chunks.sender(0);
        for i in 0..2u8 {
            assert!(sender.wait_for_room(1));
            sender.extend(&[i]);
        }
        assert!(!sender.wait_for_room(1));
        assert!(chunks.pulse().is_given_up());
        // `false` even if it accepts a chunk later: the remaining data would have a gap.
        drop(chunks);
        let mut received = Vec::new();
        drop(sender);
        receiver.for_each(|_, items| received.extend_from_slice(items));
        assert_eq!(received, [0, 1]);
    }

    #[test]
    fn without_a_receiver_nothing_blocks() {
        let (chunks, receiver) = Chunks::new(1, 2, 4);
        let mut sender = chunks.sender(0);
        drop(receiver);
        for i in 0..100u8 {
            assert!(sender.wait_for_room(1));
            sender.extend(&[i]);
        }
    }
}
