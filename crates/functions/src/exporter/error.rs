//! Result of an export.

use std::io;
use std::path::{Path, PathBuf};

/// Failure to export every record.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file cannot be written.
    #[error("{}: cannot write records: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Only some records are in the file.
    #[error("{}: cannot write records: {source}; lost {lost} of them", file.display())]
    Unwritten {
        /// The file.
        file: PathBuf,
        /// Missing records.
        lost: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Records arrived faster than they could be written.
    #[error("lost {lost} of {records} flow records: they arrived faster than they could be written")]
    Lost {
        /// The file.
        file: PathBuf,
        /// Missing records.
        lost: u64,
        /// Records in total.
        records: u64,
    },
    /// Some or all copies of packets cannot be written.
    #[error("{}: cannot write copies of packets: {source}", to.display())]
    Copies {
        /// The file or the interface.
        to: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A collector rejected the records or was too slow.
    #[error("{}: {lost} of {records} flow records were not delivered", file.display())]
    Undelivered {
        /// The collector, or the file.
        file: PathBuf,
        /// Missing records.
        lost: u64,
        /// Records in total.
        records: u64,
    },
}

impl ExportError {
    /// Returns a conversion of errors of writing this file, of whose records this many are lost.
    pub(crate) fn unwritten(file: &Path, lost: u64) -> impl Fn(io::Error) -> ExportError + '_ {
        move |source| match lost {
            0 => ExportError::write(file)(source),
            lost => ExportError::Unwritten {
                file: file.to_owned(),
                lost,
                source,
            },
        }
    }

    /// Returns a conversion of errors of writing this file.
    pub(crate) fn write(file: &Path) -> impl Fn(io::Error) -> ExportError + '_ {
        |source| ExportError::Write {
            file: file.to_owned(),
            source,
        }
    }
}

/// Result of a completed export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The file.
    pub file: PathBuf,
    /// Number of records written.
    pub records: u64,
}
