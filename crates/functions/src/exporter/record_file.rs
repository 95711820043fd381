//! File of records, one a line, written in blocks.

use super::UnwrittenRecords;
use crate::out_file::{OutFile, Pulse};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

/// Size of a block in bytes.
const BLOCK: usize = 8 << 10;

/// File of records. After the first error records are discarded and counted, so that workers do not wait for the file.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: OutFile,
    block: Vec<u8>,
    /// Records in the block, and lines of the header before them.
    records: u64,
    header: u64,
    outcome: io::Result<()>,
    written: u64,
    unwritten: Arc<UnwrittenRecords>,
}

impl RecordFile {
    /// Creates the file, which beats `pulse` with every accepted write, and puts `header`, which is empty or a line,
    /// into its first block, unless something is in the file by then. Records that are not written are added to
    /// `unwritten`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn create(
        path: &Path,
        header: &str,
        pulse: &Pulse,
        unwritten: Arc<UnwrittenRecords>,
    ) -> io::Result<RecordFile> {
        let mut block = Vec::with_capacity(2 * BLOCK);
        block.extend_from_slice(header.as_bytes());
        Ok(RecordFile {
            file: OutFile::create(path, pulse)?,
            block,
            records: 0,
            header: u64::from(!header.is_empty()),
            outcome: Ok(()),
            written: 0,
            unwritten,
        })
    }

    /// Writes one record, a line, with `encode`.
    #[inline]
    pub(crate) fn write(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
        self.records += 1;
        if self.outcome.is_err() {
            self.flush();
            return;
        }
        let before = self.block.len();
        if let Err(error) = encode(&mut self.block) {
            self.block.truncate(before);
            self.outcome = Err(error);
        }
        if self.block.len() >= BLOCK {
            self.flush();
        }
    }

    /// Writes the block, so that a reader that follows the file sees all records.
    pub(crate) fn flush(&mut self) {
        if self.header > 0 && self.file.is_begun() {
            let header = self.block.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.block.drain(..header);
            self.header = 0;
        }
        let (accepted, outcome) = match &self.outcome {
            Ok(()) => accept(&mut self.file, &self.block),
            Err(_) => (0, Ok(())),
        };
        let lines = self.block[..accepted].iter().filter(|byte| **byte == b'\n').count() as u64;
        let written = lines.saturating_sub(self.header);
        self.header = self.header.saturating_sub(lines);
        self.written += written;
        self.unwritten.add(written, self.records - written);
        (self.records, self.outcome) = (0, std::mem::replace(&mut self.outcome, Ok(())).and(outcome));
        self.block.clear();
    }

    /// Writes the block and returns the number of records in the file.
    ///
    /// # Errors
    /// The first write error.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.flush();
        self.outcome.map(|()| self.written)
    }
}

/// Writes bytes, and returns the number that the file accepted.
fn accept(file: &mut OutFile, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut accepted = 0;
    while accepted < bytes.len() {
        match file.write(&bytes[accepted..]) {
            Ok(0) => return (accepted, Err(ErrorKind::WriteZero.into())),
            Ok(count) => accepted += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (accepted, Err(error)),
        }
    }
    (accepted, Ok(()))
}
