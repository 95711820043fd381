//! Files that are read.

use crate::stop::stop_requested;
use crate::wait::{Patience, interrupted};
use rustix::event::PollFlags;
use rustix::fs::{OFlags, major, minor};
use std::cell::Cell;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time for which the writer of a stream may send nothing.
pub const SILENCE: Duration = Duration::from_secs(30);

/// Name of standard input in messages.
pub const STDIN: &str = "standard input";

/// Major and minor device number of `/dev/null`, which is an empty file.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Major device numbers of terminals: consoles and serial lines, `/dev/tty`, and pseudoterminals.
const TERMINALS: [RangeInclusive<u32>; 2] = [4..=5, 136..=143];

thread_local! {
    static REGULAR_ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, during which this thread opens regular files only. A run that reads its files again must not wait for a
/// named pipe that has taken the place of one.
pub fn regular_only<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            REGULAR_ONLY.set(self.0);
        }
    }
    let _restore = Restore(REGULAR_ONLY.replace(true));
    f()
}

/// Returns `true` if a path means standard input: `-`.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Open file to read: a regular one, or a stream whose reads are bounded in time.
#[derive(Debug)]
pub struct InputFile {
    file: File,
    /// Limits of a stream's reads; `None` for a regular file.
    patience: Option<Patience>,
}

impl InputFile {
    /// Opens a file. A named pipe needs no writer yet.
    ///
    /// # Errors
    /// If there is no such file, or it is a directory, a device, or in [`regular_only`] a stream.
    pub fn open(path: &Path) -> io::Result<InputFile> {
        // Some devices act when they are opened, so the kind is checked before, and again after for a file that has
        // been replaced meanwhile. A socket cannot be opened by its name at all.
        let kind = path.metadata()?;
        if kind.file_type().is_socket() {
            return Err(expected_a_file("a socket"));
        }
        Kind::of(&kind)?;
        let mut options = OpenOptions::new();
        // Does not wait for a writer, nor become the process's terminal.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = options.read(true).custom_flags(flags.bits() as i32).open(path)?;
        InputFile::of(file)
    }

    /// Opens standard input, once in a process.
    ///
    /// # Errors
    /// If it is a directory or a device, has been opened before, or in [`regular_only`] a stream.
    pub fn stdin() -> io::Result<InputFile> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::Relaxed) {
            let message = "standard input can be read only once: name a file instead";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        InputFile::of(File::from(io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Opens a file that a user names in an argument: `-` is standard input.
    ///
    /// # Errors
    /// Same as [`open`](InputFile::open) and [`stdin`](InputFile::stdin).
    pub fn named(path: &Path) -> io::Result<InputFile> {
        match is_stdin(path) {
            true => InputFile::stdin(),
            false => InputFile::open(path),
        }
    }

    fn of(file: File) -> io::Result<InputFile> {
        let longest = match Kind::of(&file.metadata()?)? {
            Kind::Regular => return Ok(InputFile { file, patience: None }),
            Kind::Terminal => None,
            Kind::Stream => Some(SILENCE),
        };
        let stop = Arc::clone(stop_requested());
        let patience = Some(Patience { longest, stop });
        Ok(InputFile { file, patience })
    }

    /// Replaces the limits of a stream.
    #[cfg(test)]
    pub(crate) fn with_patience(self, patience: Patience) -> InputFile {
        let patience = self.patience.map(|_| patience);
        InputFile { patience, ..self }
    }

    /// Returns `true` if the file can be read only once.
    pub fn is_stream(&self) -> bool {
        self.patience.is_some()
    }

    /// Reads the whole content, of at most `most` bytes.
    ///
    /// # Errors
    /// If the content is larger ([`ErrorKind::FileTooLarge`]) or cannot be read.
    pub fn read_up_to(self, most: u64) -> io::Result<Vec<u8>> {
        let length = self.file.metadata().map_or(0, |file| file.len());
        // One more byte than a regular file has, in which the reader finds its end. Streams have no length.
        let mut bytes = Vec::with_capacity(length.min(most) as usize + 1);
        self.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            let message = match most >> 20 {
                0 => format!("expected at most {most} bytes, found more"),
                mib => format!("expected at most {mib} MiB, found more"),
            };
            return Err(io::Error::new(ErrorKind::FileTooLarge, message));
        }
        Ok(bytes)
    }
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// Same as [`InputFile::open`] and [`InputFile::read_up_to`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    InputFile::open(path)?.read_up_to(most)
}

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(patience) = &self.patience else {
            return self.file.read(buffer);
        };
        loop {
            if patience.is_over() {
                return Err(interrupted());
            }
            patience.wait(&self.file, PollFlags::IN, "expected data, found none")?;
            match self.file.read(buffer) {
                // Another process may have read it first.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

/// Kinds of files that can be read.
#[derive(Clone, Copy)]
enum Kind {
    Regular,
    Stream,
    Terminal,
}

impl Kind {
    fn of(file: &Metadata) -> io::Result<Kind> {
        let found = file.file_type();
        let device = (major(file.rdev()), minor(file.rdev()));
        let kind = if found.is_file() {
            return Ok(Kind::Regular);
        } else if found.is_fifo() || found.is_socket() {
            Kind::Stream
        } else if found.is_char_device() && device == NULL_DEVICE {
            // Ends at once.
            Kind::Stream
        } else if found.is_char_device() && TERMINALS.iter().any(|majors| majors.contains(&device.0)) {
            Kind::Terminal
        } else {
            return Err(expected_a_file(name_of(found)));
        };
        match REGULAR_ONLY.get() {
            false => Ok(kind),
            true => {
                let message = format!("expected a regular file, found {}", name_of(found));
                Err(io::Error::new(ErrorKind::InvalidInput, message))
            }
        }
    }
}

/// Names a kind of files that are not regular.
pub(crate) fn name_of(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a named pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

pub(crate) fn expected_a_file(found: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("expected a file, found {found}"))
}
