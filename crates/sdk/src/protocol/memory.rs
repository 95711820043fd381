//! Memory shared between processes, accessed as words.
//!
//! One of the few modules with `unsafe` code. Other processes may write this memory at any time, against all rules. So
//! it is only accessed through atomics, or copied as bytes for which any values are valid.

use crate::sys::{HUGE_PAGE, Map, futex_wait, futex_wake};
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A file in memory, mapped.
#[derive(Debug)]
pub struct Memory {
    map: Map,
    writable: bool,
}

impl Memory {
    /// Maps a whole file of at least `bytes` bytes.
    ///
    /// # Errors
    /// The file is smaller than `bytes`, or cannot be mapped.
    pub fn map(file: &File, bytes: usize, writable: bool) -> io::Result<Memory> {
        if file.metadata()?.len() < bytes as u64 || bytes < 8 {
            return Err(io::Error::other("the shared memory is too small"));
        }
        Ok(Memory {
            map: Map::new(file, bytes, writable)?,
            writable,
        })
    }

    /// Maps a whole file, read-write, in huge pages where the file has them. Pages are populated now rather than on
    /// first access, for at most `bound`.
    ///
    /// # Errors
    /// The file is smaller than one word, or cannot be mapped.
    pub fn whole(file: &File, bound: Duration) -> io::Result<Memory> {
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if bytes < size_of::<u64>() {
            return Err(io::Error::other("the shared memory is too small"));
        }
        let map = Map::lazily(file, bytes, true)?;
        if !bound.is_zero() {
            map.populate(bound);
        }
        Ok(Memory { map, writable: true })
    }

    /// Collapses an unused file of zeros into huge pages, where the kernel can. A later map then needs one page fault
    /// and one TLB entry for each, instead of 512.
    ///
    /// # Panics
    /// If the memory was mapped read-only.
    pub fn gather(&self) {
        // The kernel collapses only ranges that have a page already.
        for at in (0..self.map.len()).step_by(HUGE_PAGE) {
            self.store(at / size_of::<u64>(), 0, Ordering::Relaxed);
        }
        // Without huge pages everything works, but slower.
        let _ = self.map.collapse();
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.map.base()
    }

    /// Returns the size in bytes, at least 8.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns word `at`, eight bytes.
    ///
    /// # Panics
    /// If it is beyond the memory.
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.map.len() / 8, "a word of the shared memory");
        // SAFETY: in bounds, and aligned, because maps are page-aligned. The memory stays mapped as long as `self`. Any
        // bytes are a valid number; all other accesses are atomic, or come from other processes.
        unsafe { &*self.map.base().cast::<AtomicU64>().add(at) }
    }

    /// Reads a word.
    #[inline(always)]
    pub fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    /// Writes a word.
    ///
    /// # Panics
    /// If the memory was mapped read-only.
    #[inline(always)]
    pub fn store(&self, at: usize, value: u64, order: Ordering) {
        assert!(self.writable, "memory to read only");
        self.word(at).store(value, order);
    }

    /// Returns all words.
    ///
    /// # Panics
    /// If the memory was mapped read-only.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        assert!(self.writable, "memory to read only");
        // SAFETY: this number of words is mapped, aligned, as long as `self` lives; otherwise as in `word`.
        unsafe { std::slice::from_raw_parts(self.map.base().cast(), self.map.len() / 8) }
    }

    /// Returns the eight words from `at` on, with a single bounds check.
    ///
    /// # Panics
    /// If they are beyond the memory.
    #[inline(always)]
    fn line(&self, at: usize) -> &[AtomicU64; 8] {
        let words = self.map.len() / 8;
        assert!(at < words && 8 <= words - at, "a line of the shared memory");
        // SAFETY: as in `word`, for each of them.
        unsafe { &*self.map.base().cast::<AtomicU64>().add(at).cast() }
    }

    /// Returns a reader of the eight words from `at` on. Each call loads one word.
    ///
    /// # Panics
    /// If they are beyond the memory.
    #[inline(always)]
    pub fn load_line(&self, at: usize) -> impl Fn(usize) -> u64 {
        let line = self.line(at);
        move |i| line[i].load(Ordering::Relaxed)
    }

    /// Writes eight words from `at` on.
    ///
    /// # Panics
    /// If they are beyond the memory, or it was mapped read-only.
    #[inline(always)]
    pub fn store_line(&self, at: usize, line: [u64; 8]) {
        assert!(self.writable, "memory to read only");
        for (to, word) in self.line(at).iter().zip(line) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the first half of word `at`, used as a futex. While a process may sleep on it, the word is accessed
    /// through this function only.
    #[inline]
    fn half(&self, at: usize) -> &AtomicU32 {
        assert!(self.writable, "memory to read only");
        let word: *const AtomicU64 = self.word(at);
        // SAFETY: the first four of eight bytes, sufficiently aligned. They are accessed as 32 bits only.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Records at word `at` that this process sleeps, and sleeps until woken, unless `awake` returns `true` by then.
    pub fn sleep(&self, at: usize, awake: impl FnOnce() -> bool) {
        let half = self.half(at);
        // Sequentially consistent, as in `wake`: either the waker sees this store, or the sleeper sees the work.
        half.store(1, Ordering::SeqCst);
        if !awake() {
            // Woken or interrupted: the caller checks for itself.
            futex_wait(half, 1);
        }
        half.store(0, Ordering::SeqCst);
    }

    /// Wakes the process that sleeps at word `at`, if there is one. Returns `true` if there was. The caller must first
    /// publish the work with sequential consistency.
    #[inline]
    pub fn wake(&self, at: usize) -> bool {
        let half = self.half(at);
        let slept = half.load(Ordering::SeqCst) != 0;
        if slept {
            half.store(0, Ordering::SeqCst);
            futex_wake(half);
        }
        slept
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they are beyond the memory, or it was mapped read-only.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "memory to read only");
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: in bounds; no reference to these bytes exists in this process, which accesses the memory through this
        // type only. If another process accesses them meanwhile, it reads a mixture.
        unsafe { copy(bytes.as_ptr(), self.map.base().add(at), bytes.len()) }
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// If they are beyond the memory, or it was mapped read-only.
    #[inline]
    pub fn wipe(&self, at: usize, bytes: usize) {
        assert!(self.writable, "memory to read only");
        assert!(at <= self.map.len() && bytes <= self.map.len() - at);
        // SAFETY: as in `write`.
        unsafe { zero(self.map.base().add(at), bytes) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are beyond the memory.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: as in `write`. Any bytes are valid, and only the copy is read.
        unsafe { copy(self.map.base().add(at), bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Copies bytes. Most frames are short: they are copied in cache lines, the last of which overlaps the one before,
/// which avoids a call that first selects a method.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    const LINE: usize = 64;
    // SAFETY: all lines are within the bytes by the condition; the caller guarantees these.
    unsafe {
        if !(LINE..=4 * LINE).contains(&bytes) {
            return ptr::copy_nonoverlapping(from, to, bytes);
        }
        let last = bytes - LINE;
        for at in (0..last).step_by(LINE).chain([last]) {
            let line = from.add(at).cast::<[u8; LINE]>().read_unaligned();
            to.add(at).cast::<[u8; LINE]>().write_unaligned(line);
        }
    }
}

/// Writes zeros, as [`copy`] copies.
///
/// # Safety
/// As for [`ptr::write_bytes`].
#[inline(always)]
unsafe fn zero(to: *mut u8, bytes: usize) {
    const LINE: usize = 64;
    // SAFETY: all lines are within the bytes by the condition; the caller guarantees these.
    unsafe {
        if !(LINE..=4 * LINE).contains(&bytes) {
            return ptr::write_bytes(to, 0, bytes);
        }
        let last = bytes - LINE;
        for at in (0..last).step_by(LINE).chain([last]) {
            to.add(at).cast::<[u8; LINE]>().write_unaligned([0; LINE]);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Creates an anonymous, zeroed file of `bytes` bytes.
    pub(in crate::protocol) fn file(bytes: u64) -> File {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tailwater-sdk-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        let file = file(8192);
        let (one, other) = (
            Memory::map(&file, 8192, true).unwrap(),
            Memory::map(&file, 8192, false).unwrap(),
        );
        one.store(1023, 7, Ordering::Release);
        one.write(100, b"frame");
        let mut bytes = [0; 5];
        other.read(100, &mut bytes);
        assert_eq!((other.load(1023, Ordering::Acquire), &bytes), (7, b"frame"));
    }

    #[test]
    fn frames_of_all_lengths_are_copied_and_nothing_else() {
        let file = file(4096);
        let memory = Memory::map(&file, 4096, true).unwrap();
        let bytes: Vec<u8> = (0..1600u32).map(|i| 1 + (i % 251) as u8).collect();
        for length in 0..1600 {
            memory.write(0, &[0; 2000]);
            memory.write(100, &bytes[..length]);
            let (mut all, mut back) = ([9; 2000], vec![0; length]);
            memory.read(0, &mut all);
            memory.read(100, &mut back);
            assert_eq!(back, bytes[..length]);
            assert_eq!(all[100..100 + length], bytes[..length]);
            assert!(all[..100].iter().chain(&all[100 + length..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn frames_of_all_lengths_are_wiped_and_nothing_else() {
        let file = file(4096);
        let memory = Memory::map(&file, 4096, true).unwrap();
        for length in 0..1600 {
            memory.write(0, &[7; 2000]);
            memory.wipe(100, length);
            let mut all = [9; 2000];
            memory.read(0, &mut all);
            assert!(all[100..100 + length].iter().all(|byte| *byte == 0));
            assert!(all[..100].iter().chain(&all[100 + length..]).all(|byte| *byte == 7));
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        assert!(Memory::map(&file(4096), 4097, true).is_err());
        assert!(Memory::map(&file(0), 0, true).is_err());
        assert!(Memory::whole(&file(0), Duration::MAX).is_err());
    }

    /// Returns the page faults of this thread so far.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_are_there_before_they_are_touched() {
        const BYTES: usize = 3 * HUGE_PAGE + 4096;
        let file = file(BYTES as u64);
        // Page faults of one write to each page; on a disk file system, some are caused by the file system itself.
        let touched = |memory: &Memory| {
            let before = faults();
            for at in (0..memory.len()).step_by(4096) {
                memory.store(at / 8, 1, Ordering::Relaxed);
            }
            faults() - before
        };
        let late = touched(&Memory::whole(&file, Duration::ZERO).unwrap());
        let before = faults();
        let memory = Memory::whole(&file, Duration::MAX).unwrap();
        assert_eq!((memory.len(), touched(&memory)), (BYTES, 0));
        assert!(late > 0 && faults() > before, "{late}");
        // Huge pages require an address with their alignment.
        assert_eq!(memory.base() as usize % HUGE_PAGE, 0);
    }

    #[test]
    fn memory_that_is_gathered_is_zero() {
        const BYTES: usize = 2 * HUGE_PAGE + 8;
        let file = file(BYTES as u64);
        let memory = Memory::whole(&file, Duration::ZERO).unwrap();
        memory.gather();
        let other = Memory::map(&file, BYTES, false).unwrap();
        assert!((0..BYTES / 8).all(|at| other.load(at, Ordering::Relaxed) == 0));
        memory.store(BYTES / 8 - 1, 7, Ordering::Relaxed);
        assert_eq!(other.load(BYTES / 8 - 1, Ordering::Relaxed), 7);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let memory = Memory::map(&file(4096), 4096, true).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while memory.load(8, Ordering::SeqCst) == 0 {
                    memory.sleep(0, || memory.load(8, Ordering::SeqCst) != 0);
                }
            });
            memory.store(8, 1, Ordering::SeqCst);
            memory.wake(0);
        });
    }
}
