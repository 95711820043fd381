//! Counters shared by all instances of a function. They live within a process. If each instance has a process of its
//! own, they live in memory that all of these map and that outlives each of them.
//!
//! One of the few modules with `unsafe` code: arrays of atomic numbers in memory that somebody else owns.

use crate::region::Region;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tailwater_sdk::protocol::memory::Memory;

/// Counters in a cache line.
const LINE: usize = 8;
/// Words of a page, at which regions start.
const PAGE: usize = 4096 / size_of::<AtomicU64>();

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

impl Shared {
    /// Takes the next `count` words, which start at a multiple of `align` words.
    ///
    /// # Panics
    /// If there are too few.
    fn take(&self, count: usize, align: usize) -> usize {
        let end = |taken: usize| {
            let start = taken.next_multiple_of(align);
            (start <= self.words && count <= self.words - start).then(|| start + count)
        };
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end);
        let before = before.unwrap_or_else(|_| panic!("as many shared counters as requested"));
        before.next_multiple_of(align)
    }
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

    /// Returns `true` if other processes have the same counters.
    pub fn is_of_processes(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the file size in bytes that one [`take`](SharedCounters::take) of `count` counters requires.
    pub fn bytes_of(count: usize) -> usize {
        8 * count.next_multiple_of(LINE)
    }

    /// Returns the file size in bytes that one [`take_halves`](SharedCounters::take_halves) of `count` counters
    /// requires.
    pub fn bytes_of_halves(count: usize) -> usize {
        SharedCounters::bytes_of(count.div_ceil(2))
    }

    /// Returns the file size in bytes that one [`take_region`](SharedCounters::take_region) of `bytes` bytes requires
    /// at most.
    pub fn bytes_of_region(bytes: usize) -> usize {
        8 * PAGE + SharedCounters::bytes_of(bytes.div_ceil(8))
    }

    /// Takes the next `count` counters, in cache lines of their own. They are zero until an instance writes them.
    ///
    /// # Panics
    /// If the file is too short; [`bytes_of`](SharedCounters::bytes_of) gives the required size.
    pub fn take(&self, count: usize) -> CounterArray {
        match &self.0 {
            None => CounterArray::of_this_process((0..count + LINE).map(|_| AtomicU64::new(0)).collect(), count),
            Some(shared) => shared.array(count),
        }
    }

    /// Same as [`take`](SharedCounters::take). Within a process, pages are allocated on first access; `None` without
    /// enough memory.
    ///
    /// # Panics
    /// Same as [`take`](SharedCounters::take).
    pub fn try_take(&self, count: usize) -> Option<CounterArray> {
        Some(match &self.0 {
            None => {
                CounterArray::of_this_process(bytemuck::allocation::try_zeroed_slice_box(count + LINE).ok()?, count)
            }
            Some(shared) => shared.array(count),
        })
    }

    /// Same as [`try_take`](SharedCounters::try_take), for counters of 32 bits.
    ///
    /// # Panics
    /// If the file is too short; [`bytes_of_halves`](SharedCounters::bytes_of_halves) gives the required size.
    pub fn take_halves(&self, count: usize) -> Option<CounterArray<AtomicU32>> {
        let CounterArray { start, owner, .. } = self.try_take(count.div_ceil(2))?;
        Some(CounterArray {
            start: start.cast(),
            count,
            owner,
        })
    }

    /// Takes the next `bytes` bytes as a region, which starts at a page; `None` for instances of this process.
    ///
    /// # Errors
    /// Never: the size is checked before.
    ///
    /// # Panics
    /// If the file is too short; [`bytes_of_region`](SharedCounters::bytes_of_region) gives the required size.
    pub fn take_region(&self, bytes: usize) -> io::Result<Option<Region>> {
        let Some(shared) = &self.0 else {
            return Ok(None);
        };
        let start = shared.take(bytes.div_ceil(8).next_multiple_of(LINE), PAGE);
        Region::shared(&shared.memory, 8 * start, bytes).map(Some)
    }

    /// Takes the secret number, not 0, with which all instances key their hashes. The first one draws it.
    ///
    /// # Panics
    /// If the file is too short; it requires [`bytes_of(1)`](SharedCounters::bytes_of).
    pub fn take_seed(&self) -> u64 {
        let seed = &self.take(1)[0];
        let drawn = RandomState::new().hash_one(LINE).max(1);
        match seed.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => drawn,
            Err(present) => present,
        }
    }
}

impl Shared {
    fn array(&self, count: usize) -> CounterArray {
        let start = self.take(count.next_multiple_of(LINE), LINE);
        let words = &self.memory.words()[start..start + count];
        CounterArray {
            start: NonNull::from(words).cast(),
            count,
            owner: Owner::Shared(Arc::clone(&self.memory)),
        }
    }
}

/// Counters that instances share.
#[derive(Debug)]
pub struct CounterArray<T = AtomicU64> {
    start: NonNull<T>,
    count: usize,
    /// Keeps the memory.
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Behind a pointer of its own, so that the words may be accessed while the array moves.
    Own(#[expect(dead_code)] Arc<Box<[AtomicU64]>>),
    Shared(#[expect(dead_code)] Arc<Memory>),
}

// SAFETY: atomic numbers, which any thread may access, in memory that lives as long as this.
unsafe impl<T: Sync> Send for CounterArray<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for CounterArray<T> {}

impl CounterArray {
    /// Array of `count` of these words, which are at least a cache line more.
    fn of_this_process(words: Box<[AtomicU64]>, count: usize) -> CounterArray {
        // A cache line begins at most seven words further on.
        let words = Arc::new(words);
        let start = words.as_ptr().align_offset(LINE * size_of::<AtomicU64>());
        let inside = &words[start..start + count];
        CounterArray {
            start: NonNull::from(inside).cast(),
            count,
            owner: Owner::Own(words),
        }
    }
}

impl<T> Deref for CounterArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` numbers that `owner` keeps, taken from a slice of its words: as many words, or twice as many
        // halves at most. Both are atomic, valid with any bytes, and sufficiently aligned. The array is the only handle
        // of these words in this process, or a handle of the same type, so none is accessed in two sizes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
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
