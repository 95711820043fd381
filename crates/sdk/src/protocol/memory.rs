//! Memory that processes share, as words.
//!
//! One of the few modules with `unsafe` code. Other processes may write this memory at any time, whatever they
//! were asked to do. So it is only ever read and written through atomics, or copied as bytes of which any will do.

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
    /// Maps a whole file, of so many bytes at least.
    pub fn map(file: &File, bytes: usize, writable: bool) -> io::Result<Memory> {
        if file.metadata()?.len() < bytes as u64 || bytes < 8 {
            return Err(io::Error::other("the shared memory is too small"));
        }
        Ok(Memory {
            map: Map::new(file, bytes, writable)?,
            writable,
        })
    }

    /// Maps a whole file, to read and write, in huge pages where the file has them. Pages are had now, not when packets want
    /// them, as many as there is time for within `bound`.
    ///
    /// # Errors
    /// What the system says; the file has not even a word.
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

    /// Has the kernel put a file of zeros that nobody has used yet into huge pages, where it can: whoever maps it has one
    /// fault for each of them, and the processor one address to know, instead of 512.
    ///
    /// # Panics
    /// If the memory was mapped to read only.
    pub fn gather(&self) {
        // Only where there is a page already.
        for at in (0..self.map.len()).step_by(HUGE_PAGE) {
            self.store(at / size_of::<u64>(), 0, Ordering::Relaxed);
        }
        // Without huge pages everything works, slower.
        let _ = self.map.collapse();
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.map.base()
    }

    /// How many bytes there are, at least 8.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Word `at`, eight bytes.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.map.len() / 8, "a word of the shared memory");
        // SAFETY: in bounds, and aligned, since maps are to pages. The memory stays mapped as long as `self`. Any
        // bytes are a number; others touch them through atomics, or are other processes.
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
    /// If the memory was mapped to read only.
    #[inline(always)]
    pub fn store(&self, at: usize, value: u64, order: Ordering) {
        assert!(self.writable, "memory to read only");
        self.word(at).store(value, order);
    }

    /// All words.
    ///
    /// # Panics
    /// If the memory was mapped to read only.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        assert!(self.writable, "memory to read only");
        // SAFETY: so many are mapped, aligned, as long as `self` is; otherwise as in `word`.
        unsafe { std::slice::from_raw_parts(self.map.base().cast(), self.map.len() / 8) }
    }

    /// The eight words from `at` on, with one look at where the memory ends.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline(always)]
    fn line(&self, at: usize) -> &[AtomicU64; 8] {
        let words = self.map.len() / 8;
        assert!(at < words && 8 <= words - at, "a line of the shared memory");
        // SAFETY: as in `word`, for each of them.
        unsafe { &*self.map.base().cast::<AtomicU64>().add(at).cast() }
    }

    /// Reads eight words from `at` on: any of them, as the memory is when it is read.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline(always)]
    pub fn load_line(&self, at: usize) -> impl Fn(usize) -> u64 {
        let line = self.line(at);
        move |i| line[i].load(Ordering::Relaxed)
    }

    /// Writes eight words from `at` on.
    ///
    /// # Panics
    /// If there are not so many, or the memory was mapped to read only.
    #[inline(always)]
    pub fn store_line(&self, at: usize, line: [u64; 8]) {
        assert!(self.writable, "memory to read only");
        for (to, word) in self.line(at).iter().zip(line) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// The first half of word `at`, to sleep on. While anybody may sleep there, the word is touched through this
    /// function only.
    #[inline]
    fn half(&self, at: usize) -> &AtomicU32 {
        assert!(self.writable, "memory to read only");
        let word: *const AtomicU64 = self.word(at);
        // SAFETY: the first four of eight bytes, more than aligned. They are touched as 32 bits only.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Notes at word `at` that this process sleeps, and sleeps until woken, but not if `awake` says that there is
    /// something to do by now.
    pub fn sleep(&self, at: usize, awake: impl FnOnce() -> bool) {
        let half = self.half(at);
        // Sequentially consistent, as in `wake`: who wakes sees the note, or the sleeper sees what there is to do.
        half.store(1, Ordering::SeqCst);
        if !awake() {
            // Woken, interrupted: the caller looks for itself.
            futex_wait(half, 1);
        }
        half.store(0, Ordering::SeqCst);
    }

    /// Wakes the process that sleeps at word `at`, if one does: whether it did. To be called after what there is to do was written
    /// with sequential consistency.
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
    /// If they are beyond the memory, or it was mapped to read only.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "memory to read only");
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: in bounds; no reference to these bytes lives in this process, in which the memory is reached
        // through this type only. Should another process touch them meanwhile, it gets some of either.
        unsafe { copy(bytes.as_ptr(), self.map.base().add(at), bytes.len()) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are beyond the memory.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: as in `write`. Any bytes will do, and they are looked at in the copy only.
        unsafe { copy(self.map.base().add(at), bytes.as_mut_ptr(), bytes.len()) }
    }
}

/// Copies bytes. Short frames are many: those are copied by lines, the last of which overlaps the one before, without
/// a call that has to find out how.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    const LINE: usize = 64;
    // SAFETY: all lines are within the bytes, by the condition; the caller's word for these.
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A file of so many bytes, zero, that nobody else finds.
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
    fn a_file_that_is_too_short_is_refused() {
        assert!(Memory::map(&file(4096), 4097, true).is_err());
        assert!(Memory::map(&file(0), 0, true).is_err());
        assert!(Memory::whole(&file(0), Duration::MAX).is_err());
    }

    /// Page faults of this thread so far.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_are_there_before_they_are_touched() {
        const BYTES: usize = 3 * HUGE_PAGE + 4096;
        let file = file(BYTES as u64);
        // How many faults it takes to write to each page; with files on disks some are of the file system's own.
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
        // Huge pages can be had only where addresses are those of huge pages, too.
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
