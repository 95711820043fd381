//! File with a chain's spec, for the processes of its functions.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// File with a chain's spec that exists as long as processes of its functions may be started. Removed when dropped.
#[derive(Debug)]
pub struct ChainFile(PathBuf);

impl ChainFile {
    /// Writes a new file, which only this user may read: a spec may contain keys.
    ///
    /// # Errors
    /// There is such a file already, or it cannot be written.
    pub fn create(path: PathBuf, text: &str) -> io::Result<ChainFile> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map(|file| (file, ChainFile(path)));
        file.and_then(|(mut file, created)| file.write_all(text.as_bytes()).map(|()| created))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ChainFile {
    fn drop(&mut self) {
        // It may have been removed with its folder.
        let _ = fs::remove_file(&self.0);
    }
}
