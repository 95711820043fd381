//! Writes copies to pcap files of bounded size.

use super::cells::Copied;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tailwater_net::{Nanos, pcap};

/// Write buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Current pcap file `NAME` with its rotated predecessors `NAME.1` (newest), `NAME.2` and so on.
#[derive(Debug)]
pub(super) struct CaptureFile {
    path: PathBuf,
    /// `None` after an error.
    file: Option<File>,
    max_bytes: u64,
    files: u32,
    /// Bytes of the file including those in the buffer.
    bytes: u64,
    full: bool,
    /// Another process has begun the file, and may still be writing it.
    resumes: bool,
    buffer: Vec<u8>,
    /// Copies in the buffer.
    waiting: u64,
    pub(super) written: u64,
    /// Copies past the size limit, and copies that could not be written.
    pub(super) copies_past_limit: u64,
    pub(super) failed: u64,
    pub(super) error: Option<io::Error>,
}

impl CaptureFile {
    /// Creates the file.
    ///
    /// # Errors
    /// The file cannot be created, or rotation is configured for a path that is not a regular file.
    pub(super) fn create(path: &Path, max_bytes: u64, files: u32) -> io::Result<CaptureFile> {
        let file = tailwater_files::create(path)?;
        if files > 1 && !file.metadata()?.is_file() {
            let message = "expected a regular file for more than 1 file";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let mut capture = CaptureFile {
            path: path.to_owned(),
            file: Some(file),
            max_bytes,
            files,
            bytes: 0,
            full: false,
            resumes: false,
            buffer: Vec::with_capacity(BUFFER + pcap::MAX_FRAME as usize + 64),
            waiting: 0,
            written: 0,
            copies_past_limit: 0,
            failed: 0,
            error: None,
        };
        capture.resumes = capture.length() > 0;
        if !capture.resumes {
            capture.begin();
        }
        // Readers find a valid capture even if no packet arrives for long.
        capture.write_out();
        match capture.error.take() {
            None => Ok(capture),
            Some(error) => Err(error),
        }
    }

    /// Bytes in the file; 0 of a pipe.
    fn length(&self) -> u64 {
        let found = self.file.as_ref().and_then(|file| file.metadata().ok());
        found.filter(fs::Metadata::is_file).map_or(0, |found| found.len())
    }

    /// Opens the file that another process has begun again: it may have rotated it meanwhile.
    #[cold]
    fn resume(&mut self) {
        self.resumes = false;
        match tailwater_files::continuing(|| tailwater_files::create(&self.path)) {
            Ok(file) => self.file = Some(file),
            Err(error) => return self.fail(error),
        }
        match self.length() {
            0 => self.begin(),
            bytes => self.bytes = bytes,
        }
    }

    fn begin(&mut self) {
        let header = pcap::file_header();
        self.buffer.extend_from_slice(&header);
        self.bytes = header.len() as u64;
    }

    /// Adds a copy. `time` is its arrival since 1970.
    pub(super) fn put(&mut self, time: Nanos, copied: &Copied<'_>) {
        if self.resumes {
            self.resume();
        }
        let captured = copied.frame.len() as u32;
        let header = pcap::record_header(time, captured, copied.length);
        let Some(header) = header.filter(|_| self.file.is_some()) else {
            self.failed += 1;
            return;
        };
        let size = header.len() as u64 + u64::from(captured);
        if self.full || self.bytes + size > self.max_bytes {
            if self.files == 1 {
                // Later, smaller copies are refused, too: the file is a prefix of the copies.
                self.full = true;
                self.copies_past_limit += 1;
                return;
            }
            self.write_out();
            if self.file.is_some()
                && let Err(error) = self.rotate()
            {
                self.fail(error);
            }
            if self.file.is_none() {
                self.failed += 1;
                return;
            }
        }
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(copied.frame);
        self.bytes += size;
        self.waiting += 1;
        if self.buffer.len() >= BUFFER {
            self.write_out();
        }
    }

    /// Writes the buffer to the file.
    pub(super) fn write_out(&mut self) {
        if let Some(file) = &mut self.file {
            match file.write_all(&self.buffer) {
                Ok(()) => self.written += self.waiting,
                Err(error) => self.fail(error),
            }
        }
        self.buffer.clear();
        self.waiting = 0;
    }

    fn fail(&mut self, error: io::Error) {
        self.failed += self.waiting;
        self.waiting = 0;
        self.file = None;
        self.error.get_or_insert(error);
    }

    /// Renames each full file to the next number and replaces the one with the last.
    fn rotate(&mut self) -> io::Result<()> {
        for number in (0..self.files - 1).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        self.file = Some(tailwater_files::create(&self.path)?);
        self.begin();
        Ok(())
    }
}

/// Returns the path of the current file (0), or of the rotated file with this number.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => {
            let mut name = OsString::from(path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    }
}
