//! Paths in a server spec.

use crate::error::SpecError;
use crate::located::Located;
use crate::values::line;
use std::path::{Path, PathBuf};

/// Longest path in bytes.
pub(super) const LONGEST_PATH: usize = 4096;

/// Reads a path of at most `most` bytes after joining it to the spec's folder.
pub(super) fn path(node: &Located<'_>, base_dir: &Path, most: usize) -> Result<PathBuf, SpecError> {
    let text = line(node, LONGEST_PATH)?;
    let path = base_dir.join(text);
    let length = path.as_os_str().len();
    match text.is_empty() || length > most {
        true => Err(node.error(format!("expected a path of 1 to {most} bytes, found {length}"))),
        false => Ok(path),
    }
}
