//! Files that a command reads and writes.

use crate::error::CliError;
use crate::input::Traffic;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tailwater_api::yaml::MAX_BYTES;
use tailwater_files::{AtomicFile, is_stdin, read, regular_only, write_whole};

/// Maximum attempts to lock a file that other commands create and remove concurrently.
const TRIALS: usize = 1000;

/// Returns the text of a spec, for the page.
pub fn spec_text(path: &Path) -> String {
    // A stream has already been read.
    let text = match is_stdin(path) {
        true => None,
        false => regular_only(|| read(path, MAX_BYTES as u64)).ok(),
    };
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    text.unwrap_or_else(|| "(the spec did not come from a file)".to_owned())
}

/// Checks early that an output file can be written and is not an input. Leaves no file behind.
///
/// # Errors
/// The file cannot be written, or is an input.
pub fn check_output(flag: &str, path: &Path, chain: &Path, traffic: Option<&Traffic>) -> Result<(), CliError> {
    let input = match traffic {
        Some(Traffic::File(file)) => Some(file.as_path()),
        Some(Traffic::Preset(_)) | None => None,
    };
    check_writable(flag, path, input.into_iter().chain([chain]))
}

/// Like [`check_output`], with arbitrary inputs.
///
/// # Errors
/// The file cannot be written, or is an input.
pub fn check_writable<'p>(flag: &str, path: &Path, inputs: impl Iterator<Item = &'p Path>) -> Result<(), CliError> {
    let refuse = |source: io::Error| refused(flag, path, &source);
    for input in inputs {
        if same_file(path, input) {
            return Err(CliError::Input(format!(
                "{flag}: {} would overwrite the input {}",
                path.display(),
                input.display()
            )));
        }
    }
    match fs::metadata(path) {
        // Opening a pipe would block until it has a reader.
        Ok(file) if !file.is_file() && !file.is_dir() => {}
        Ok(_) => drop(OpenOptions::new().append(true).open(path).map_err(refuse)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .map_err(refuse)?;
            fs::remove_file(path).map_err(refuse)?;
        }
        Err(error) => return Err(refuse(error)),
    }
    Ok(())
}

fn refused(flag: &str, path: &Path, source: &io::Error) -> CliError {
    CliError::of_file(format!("{flag}: {}: cannot write: {source}", path.display()), source)
}

/// Writes a result as a whole, or leaves the file as it is.
///
/// # Errors
/// The file cannot be written.
pub fn write_result(path: &Path, text: &str) -> Result<(), CliError> {
    write_whole(path, text.as_bytes()).map_err(failed(path))
}

/// Writes as [`write_result`] does a file that is named for nothing else: one that does not exist in a folder that does
/// not, or that may not be written, is a wrong argument.
///
/// # Errors
/// The file cannot be written.
pub fn write_argument(path: &Path, text: &str) -> Result<(), CliError> {
    write_whole(path, text.as_bytes()).map_err(|source| cannot_write(&path.display().to_string(), &source))
}

/// Error of a file or folder in an argument that cannot be written.
pub fn cannot_write(name: &str, source: &io::Error) -> CliError {
    CliError::of_file(format!("cannot write {name}: {source}"), source)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> CliError + '_ {
    |source| CliError::Report {
        file: path.display().to_string(),
        source,
    }
}

/// Report that is written at the end of a command. A pipe is opened at its beginning: one that nobody reads is a
/// mistake to find before the work.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
    pipe: Option<AtomicFile>,
}

impl ReportFile {
    /// Opens the file of a report, which has been [checked](check_writable).
    ///
    /// # Errors
    /// It is a pipe that nobody reads, or a directory.
    pub fn open(flag: &str, path: &Path) -> Result<ReportFile, CliError> {
        let is_other = path.metadata().is_ok_and(|file| !file.is_file());
        let pipe = is_other.then(|| AtomicFile::create(path)).transpose();
        Ok(ReportFile {
            path: path.to_owned(),
            pipe: pipe.map_err(|source| refused(flag, path, &source))?,
        })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the report.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(self, text: &str) -> Result<(), CliError> {
        match self.pipe {
            None => write_result(&self.path, text),
            Some(mut pipe) => pipe.write_all(text.as_bytes()).map_err(failed(&self.path)),
        }
    }
}

/// Opens and locks the file `beside`, which stands for the file at `path` while `tailwater COMMAND` replaces it.
///
/// # Errors
/// It cannot be written, or another command has locked it.
pub fn locked(flag: &str, path: &Path, beside: &Path, command: &str) -> Result<File, CliError> {
    let failed = |error| refused(flag, beside, &error);
    let busy = || {
        let path = path.display();
        CliError::Input(format!("{flag}: {path}: another `tailwater {command}` is using it"))
    };
    for _ in 0..TRIALS {
        let mut options = OpenOptions::new();
        // A pipe or link that somebody else put there neither blocks nor leads elsewhere.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let options = options.write(true).create(true).truncate(false).custom_flags(flags);
        let file = options.open(beside).map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => busy(),
            TryLockError::Error(source) => failed(source),
        })?;
        // The previous owner may have renamed or removed the file before this lock was acquired.
        let mine = file.metadata().map_err(failed)?;
        if fs::metadata(beside).is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())) {
            return Ok(file);
        }
    }
    Err(busy())
}

/// A file that one command at a time adds to, locked until this is dropped.
#[derive(Debug)]
pub struct Lock {
    beside: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks the file at `path`, which may not exist yet, by another one beside it.
    ///
    /// # Errors
    /// Another command has locked it, or its folder cannot be written.
    pub fn new(flag: &str, path: &Path, command: &str) -> Result<Lock, CliError> {
        let mut beside = place(path).unwrap_or_else(|| path.to_owned()).into_os_string();
        beside.push(".lock");
        let beside = PathBuf::from(beside);
        let file = locked(flag, path, &beside, command)?;
        Ok(Lock { beside, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.beside);
    }
}

/// Returns `true` if two paths, whose files may not exist yet, name the same file.
pub fn same_place(a: &Path, b: &Path) -> bool {
    same_file(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// Returns the canonical path of a file that may not exist yet.
pub fn place(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let folder = fs::canonicalize(absolute.parent()?).ok()?;
    Some(folder.join(absolute.file_name()?))
}

/// Returns `true` if two paths are the same file, also through links.
fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
