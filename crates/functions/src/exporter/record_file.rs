//! File of records, written through a buffer.

use crate::out_file::{OutFile, Pulse};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// File of records. After the first error records are discarded, so that workers do not wait for the file.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: BufWriter<OutFile>,
    outcome: io::Result<()>,
    written: u64,
}

impl RecordFile {
    /// Creates the file, which beats `pulse` with every accepted write, and puts `header` into its buffer.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn create(path: &Path, header: &str, pulse: &Pulse) -> io::Result<RecordFile> {
        let mut file = BufWriter::new(OutFile::create(path, pulse)?);
        let outcome = file.write_all(header.as_bytes());
        Ok(RecordFile {
            file,
            outcome,
            written: 0,
        })
    }

    /// Writes one record with `encode`.
    #[inline]
    pub(crate) fn write(&mut self, encode: impl FnOnce(&mut BufWriter<OutFile>) -> io::Result<()>) {
        if self.outcome.is_ok() {
            self.outcome = encode(&mut self.file);
            self.written += 1;
        }
    }

    /// Writes the buffer, so that a reader that follows the file sees all records.
    pub(crate) fn flush(&mut self) {
        if self.outcome.is_ok() {
            self.outcome = self.file.flush();
        }
    }

    /// Writes the buffer and returns the number of records in the file.
    ///
    /// # Errors
    /// The first write error.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.flush();
        self.outcome.map(|()| self.written)
    }
}
