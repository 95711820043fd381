//! Files that are written as they grow.

use crate::input::{expected_a_file, name_of};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time for which an output may accept nothing, and a named pipe may have no reader.
pub const GRACE: Duration = Duration::from_secs(5);

/// Interval at which a named pipe is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

thread_local! {
    static CONTINUING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, during which [`create`] on this thread keeps what is in a file: another process that writes it goes on, or
/// leaves it to this one.
pub fn continuing<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CONTINUING.set(self.0);
        }
    }
    let _restore = Restore(CONTINUING.replace(true));
    f()
}

/// Creates or truncates a file, and writes behind what is in it at the time. A named pipe is opened as soon as it has a
/// reader; writing to it then blocks. Within [`continuing`] the file is not truncated.
///
/// # Errors
/// If the file cannot be created, is a directory or a disk, or if a pipe has no reader for [`GRACE`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path, !CONTINUING.get())?;
    // Two processes may write the file at the end of one of them.
    fcntl_setfl(&file, (fcntl_getfl(&file)? - OFlags::NONBLOCK) | OFlags::APPEND)?;
    Ok(file)
}

/// Creates or truncates a file whose writes do not block.
///
/// # Errors
/// Same as [`create`].
pub(crate) fn create_nonblocking(path: &Path) -> io::Result<File> {
    open(path, true)
}

fn open(path: &Path, truncates: bool) -> io::Result<File> {
    if let Ok(there) = path.metadata()
        && (there.is_dir() || there.file_type().is_block_device())
    {
        return Err(expected_a_file(match there.is_dir() {
            true => name_of(there.file_type()),
            false => "a disk",
        }));
    }
    let since = Instant::now();
    loop {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(truncates);
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        match options.custom_flags(flags.bits() as i32).open(path) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                let is_pipe = path.metadata().is_ok_and(|file| file.file_type().is_fifo());
                if !is_pipe {
                    return Err(error);
                }
                if since.elapsed() >= GRACE {
                    let message = format!("expected a reader of this pipe within {GRACE:?}, found none");
                    return Err(io::Error::new(ErrorKind::TimedOut, message));
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            opened => return opened,
        }
    }
}
