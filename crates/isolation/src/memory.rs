//! Memory files shared between processes.

pub(crate) use tailwater_sdk::protocol::memory::Memory;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, memfd_create};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Creates a zeroed memory file of `bytes` bytes with a sealed size. Otherwise a process could truncate it, and others
/// would crash on access.
pub(crate) fn file(name: &str, bytes: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes as u64)?;
    // Any holder of a descriptor may reopen a memory file with any rights; restrict that to this user.
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Like [`file()`], with all pages allocated now rather than on first access. Uses huge pages where the kernel has
/// them, so that a process maps the file quickly.
pub(crate) fn filled(name: &str, bytes: usize) -> io::Result<File> {
    let file = file(name, bytes)?;
    Memory::whole(&file, Duration::ZERO)?.gather();
    fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
    Ok(file)
}

/// Reopens the same file so that it can only be mapped read-only.
pub(crate) fn read_only(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_writes_the_other_reads() {
        let file = file("test", 8192).unwrap();
        let (one, other) = (
            Memory::map(&file, 8192, true).unwrap(),
            Memory::map(&read_only(&file).unwrap(), 8192, false).unwrap(),
        );
        one.store(1023, 7, Ordering::Release);
        assert_eq!(other.load(1023, Ordering::Acquire), 7);
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
}
