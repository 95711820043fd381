//! Memory that processes share, as words.
//!
//! One of the few modules with `unsafe` code. Other processes may write this memory at any time, whatever they
//! were asked to do. So it is only ever read and written through atomics, or copied as bytes of which any will do.

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::thread::futex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A file in memory of so many bytes, zero, whose size nobody can change any more: or a process could take pages
/// away from others, which would crash when they touch them.
pub(crate) fn file(name: &str, bytes: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The same file, from which memory can be mapped to read only.
pub(crate) fn read_only(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).open(path)
}

/// A file in memory, mapped.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapRaw,
    writable: bool,
}

impl Memory {
    /// Maps a whole file, of so many bytes at least.
    pub(crate) fn map(file: &File, bytes: usize, writable: bool) -> io::Result<Memory> {
        if file.metadata()?.len() < bytes as u64 || bytes < 8 {
            return Err(io::Error::other("the shared memory is too small"));
        }
        let mut options = MmapOptions::new();
        // All pages at once: the first packets are not to pay for them.
        options.len(bytes).populate();
        let map = match writable {
            true => options.map_raw(file)?,
            false => options.map_raw_read_only(file)?,
        };
        Ok(Memory { map, writable })
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.map.as_mut_ptr()
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
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(at) }
    }

    /// Reads a word.
    #[inline(always)]
    pub(crate) fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    /// Writes a word.
    ///
    /// # Panics
    /// If the memory was mapped to read only.
    #[inline(always)]
    pub(crate) fn store(&self, at: usize, value: u64, order: Ordering) {
        assert!(self.writable, "memory to read only");
        self.word(at).store(value, order);
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
    pub(crate) fn sleep(&self, at: usize, awake: impl FnOnce() -> bool) {
        let half = self.half(at);
        // Sequentially consistent, as in `wake`: who wakes sees the note, or the sleeper sees what there is to do.
        half.store(1, Ordering::SeqCst);
        if !awake() {
            // Woken, interrupted: the caller looks for itself.
            let _ = futex::wait(half, futex::Flags::empty(), 1, None);
        }
        half.store(0, Ordering::SeqCst);
    }

    /// Wakes the process that sleeps at word `at`, if one does. To be called after what there is to do was written
    /// with sequential consistency.
    #[inline]
    pub(crate) fn wake(&self, at: usize) {
        let half = self.half(at);
        if half.load(Ordering::SeqCst) != 0 {
            half.store(0, Ordering::SeqCst);
            let _ = futex::wake(half, futex::Flags::empty(), 1);
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they are beyond the memory, or it was mapped to read only.
    #[inline]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "memory to read only");
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: in bounds; no reference to these bytes lives in this process, in which the memory is reached
        // through this type only. Should another process touch them meanwhile, it gets some of either.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len());
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are beyond the memory.
    #[inline]
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.map.len() && bytes.len() <= self.map.len() - at);
        // SAFETY: as in `write`. Any bytes will do, and they are looked at in the copy only.
        unsafe {
            ptr::copy_nonoverlapping(self.map.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_one_writes_the_other_reads() {
        let file = file("test", 8192).unwrap();
        let (one, other) = (
            Memory::map(&file, 8192, true).unwrap(),
            Memory::map(&read_only(&file).unwrap(), 8192, false).unwrap(),
        );
        one.store(1023, 7, Ordering::Release);
        one.write(100, b"frame");
        let mut bytes = [0; 5];
        other.read(100, &mut bytes);
        assert_eq!((other.load(1023, Ordering::Acquire), &bytes), (7, b"frame"));
    }

    #[test]
    fn nobody_changes_its_size_or_writes_what_is_to_read() {
        let file = file("test", 4096).unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        let reader = read_only(&file).unwrap();
        assert!(reader.write_at(b"x", 0).is_err());
        assert!(Memory::map(&reader, 4096, true).is_err());
        assert!(Memory::map(&file, 4097, true).is_err());
    }

    #[test]
    fn a_sleeper_is_woken() {
        let file = file("test", 4096).unwrap();
        let memory = Memory::map(&file, 4096, true).unwrap();
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
