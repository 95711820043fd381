//! Counters shared by all instances of a function. They live within a process. If each instance has a process of its
//! own, they live in memory that all of these map and that outlives each of them.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tailwater_sdk::protocol::memory::Memory;

/// Counters in a cache line.
const LINE: usize = 8;

/// Source of the counters that a function's instances share. Every instance takes the same counters in the same order.
#[derive(Debug)]
pub struct SharedCounters(Option<Shared>);

/// Memory-backed file that several processes map.
#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    words: usize,
    taken: AtomicUsize,
}

impl SharedCounters {
    /// Creates counters for instances that are all in this process; their number is not limited.
    pub fn of_this_process() -> SharedCounters {
        SharedCounters(None)
    }

    /// Maps counters for instances in several processes, each of which has this file. They start at zero.
    ///
    /// # Errors
    /// If the file is empty or cannot be mapped.
    pub fn in_file(file: &File) -> io::Result<SharedCounters> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(SharedCounters(Some(Shared {
            memory: Arc::new(Memory::map(file, bytes, true)?),
            words: bytes / 8,
            taken: AtomicUsize::new(0),
        })))
    }

    /// Returns the file size in bytes that one [`take`](SharedCounters::take) of `count` counters requires.
    pub fn bytes_of(count: usize) -> usize {
        8 * count.next_multiple_of(LINE)
    }

    /// Takes the next `count` counters, in cache lines of their own. They are zero until an instance writes them.
    ///
    /// # Panics
    /// If the file is too short; [`bytes_of`](SharedCounters::bytes_of) gives the required size.
    pub fn take(&self, count: usize) -> CounterArray {
        match &self.0 {
            None => CounterArray::of_this_process(count),
            Some(shared) => {
                let lines = count.next_multiple_of(LINE);
                let start = shared.taken.fetch_add(lines, Ordering::Relaxed);
                assert!(
                    start <= shared.words && lines <= shared.words - start,
                    "as many shared counters as requested"
                );
                CounterArray {
                    memory: InMemory::Shared(Arc::clone(&shared.memory)),
                    range: start..start + count,
                }
            }
        }
    }
}

/// Counters that instances share.
#[derive(Debug)]
pub struct CounterArray {
    memory: InMemory,
    range: Range<usize>,
}

#[derive(Debug)]
enum InMemory {
    Own(Box<[AtomicU64]>),
    Shared(Arc<Memory>),
}

impl CounterArray {
    fn of_this_process(count: usize) -> CounterArray {
        let room = count.next_multiple_of(LINE) + LINE;
        let words: Box<[AtomicU64]> = (0..room).map(|_| AtomicU64::new(0)).collect();
        // A cache line begins at most seven words further on.
        let start = words.as_ptr().align_offset(LINE * size_of::<AtomicU64>());
        CounterArray {
            range: start..start + count,
            memory: InMemory::Own(words),
        }
    }
}

impl Deref for CounterArray {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        match &self.memory {
            InMemory::Own(words) => &words[self.range.clone()],
            InMemory::Shared(memory) => &memory.words()[self.range.clone()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::unlinked_file;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn instances_in_several_processes_have_the_same_numbers() {
        let file = unlinked_file(SharedCounters::bytes_of(3) + SharedCounters::bytes_of(9));
        let (one, other) = (
            SharedCounters::in_file(&file).unwrap(),
            SharedCounters::in_file(&file).unwrap(),
        );
        let [(few, more), (same_few, same_more)] =
            [&one, &other].map(|shared_counters| (shared_counters.take(3), shared_counters.take(9)));
        assert_eq!((few.len(), more.len()), (3, 9));
        few[2].store(7, Relaxed);
        more[8].fetch_add(5, Relaxed);
        assert_eq!(same_few[2].load(Relaxed), 7);
        assert_eq!(same_more[8].load(Relaxed), 5);
        let others = same_few[..2].iter().chain(&same_more[..8]);
        assert!(others.into_iter().all(|number| number.load(Relaxed) == 0));
        assert_eq!(same_more.as_ptr() as usize % 64, 0);
    }

    #[test]
    fn within_a_process_each_has_lines_of_its_own() {
        let shared_counters = SharedCounters::of_this_process();
        for count in 1..20 {
            let numbers = shared_counters.take(count);
            assert_eq!(numbers.len(), count);
            assert_eq!(numbers.as_ptr() as usize % 64, 0);
        }
    }

    #[test]
    #[should_panic(expected = "as many shared counters as requested")]
    fn no_more_is_taken_than_there_is() {
        let shared_counters = SharedCounters::in_file(&unlinked_file(64)).unwrap();
        shared_counters.take(8);
        shared_counters.take(1);
    }
}
