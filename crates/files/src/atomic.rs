//! Outputs that appear as a whole or not at all.

use crate::output::{GRACE, create_nonblocking};
use crate::stop::stop_requested;
use crate::wait::Patience;
use rustix::event::PollFlags;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Bytes that a pipe accepts without blocking once it is ready, also if its writes block (`PIPE_BUF`).
const PIPE_BYTES: usize = 4096;

/// Output that replaces a file when it is [finished](AtomicFile::finish). Until then it is a hidden file beside it,
/// which is removed if it is dropped before. A pipe, a device or standard output is written as it comes.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    /// File being written, and the one that it replaces.
    replaces: Option<(PathBuf, PathBuf)>,
    /// Limits of writes; `None` for a regular file.
    patience: Option<Patience>,
}

impl AtomicFile {
    /// Begins to write a file.
    ///
    /// # Errors
    /// If it cannot be written, is a directory or a disk, or is a pipe without a reader for [`GRACE`].
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        // An open file of this process, such as `/dev/stdout`, has other users.
        let is_open = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
        // Behind a link, the file is replaced, and the link stays.
        let path = match is_open {
            true => path.to_owned(),
            false => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
        };
        let there = match fs::metadata(&path) {
            Ok(there) if is_open || !there.is_file() => {
                // The report of a stopped run is still written, so that a stop does not end this.
                let stop = Arc::new(AtomicBool::new(false));
                return Ok(AtomicFile {
                    file: create_nonblocking(&path)?,
                    replaces: None,
                    patience: Some(Patience {
                        longest: Some(GRACE),
                        stop,
                    }),
                });
            }
            Ok(there) => {
                // A file that must not be written is not replaced, either.
                OpenOptions::new().append(true).open(&path)?;
                Some(there)
            }
            Err(_) => None,
        };
        let (file, replaces) = match hidden(&path) {
            Ok((file, beside)) => (file, Some((beside, path))),
            // The folder admits no new file.
            Err(error) if there.is_some() && is_refusal(&error) => (create_nonblocking(&path)?, None),
            Err(error) => return Err(error),
        };
        let file = AtomicFile {
            file,
            replaces,
            patience: None,
        };
        if let Some(there) = there {
            // Only root can give a file away, and needs to.
            let _ = fchown(&file.file, Some(there.uid()), Some(there.gid()));
            file.file.set_permissions(there.permissions())?;
        }
        Ok(file)
    }

    /// Begins to write to standard output. A reader may take any time; a [request to stop](stop_requested) ends a write
    /// that waits for it.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn stdout() -> io::Result<AtomicFile> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let is_regular = file.metadata()?.is_file();
        Ok(AtomicFile {
            file,
            replaces: None,
            patience: (!is_regular).then(|| Patience {
                longest: None::<Duration>,
                stop: Arc::clone(stop_requested()),
            }),
        })
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn finish(mut self) -> io::Result<()> {
        match &self.replaces {
            None => Ok(()),
            Some((beside, path)) => {
                fs::rename(beside, path)?;
                self.replaces = None;
                Ok(())
            }
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(patience) = &self.patience else {
            return self.file.write(bytes);
        };
        loop {
            patience.wait(&self.file, PollFlags::OUT, "no data accepted")?;
            match self.file.write(&bytes[..bytes.len().min(PIPE_BYTES)]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.replaces {
            // Nothing else can be done about it.
            let _ = fs::remove_file(beside);
        }
    }
}

/// Writes a file as a whole: afterwards it has this content, or, after an error, the one from before.
///
/// # Errors
/// If the file cannot be written.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(content)?;
    file.finish()
}

/// Creates a hidden file beside this one.
fn hidden(path: &Path) -> io::Result<(File, PathBuf)> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}-{number}.new", std::process::id()));
        let beside = path.with_file_name(beside);
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o666).open(&beside) {
            // Left by a killed process that had the same number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, beside)),
        }
    }
}

/// Returns `true` if a folder may not be written at all, or the name has no room for a suffix.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidFilename
    )
}
