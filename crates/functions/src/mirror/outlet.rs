//! Destinations of copies.

use super::capture_file::numbered;
use std::path::PathBuf;

/// Options that are fixed during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Destination of copies. With `None` copies are made and discarded.
    pub to: Option<Outlet>,
    /// Bytes of each worker's ring: a power of two, at least 64 KiB.
    pub buffer: usize,
}

/// Destination of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// A pcap file, created anew. The path is relative to the working directory.
    File {
        /// Path.
        path: PathBuf,
        /// Largest size of one file, in bytes.
        max_bytes: u64,
        /// Largest number of files. With 1, copies beyond a full file are not written; otherwise a full file is
        /// renamed.
        files: u32,
    },
    /// Network interface of this name.
    Interface(String),
}

impl Outlet {
    /// Returns the name used in error messages.
    pub fn name(&self) -> PathBuf {
        match self {
            Outlet::File { path, .. } => path.clone(),
            Outlet::Interface(name) => name.into(),
        }
    }

    /// Returns the paths of all files it may create: the current one, and the names of rotated ones.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Outlet::File { path, files, .. } => (0..*files).map(|number| numbered(path, number)).collect(),
            Outlet::Interface(_) => Vec::new(),
        }
    }
}
