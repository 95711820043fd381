//! Reading of a spec's files, bounded in size.

use crate::error::SpecError;
use crate::yaml::{MAX_BYTES, larger_than};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads the text of a file.
///
/// # Errors
/// If the file cannot be read, is larger than [`MAX_BYTES`], or is not UTF-8.
pub fn read_text(path: &Path, name: &str) -> Result<String, SpecError> {
    read_text_up_to(path, name, MAX_BYTES)
}

/// Same as [`read_text`], for a file of at most `most` bytes.
pub fn read_text_up_to(path: &Path, name: &str, most: usize) -> Result<String, SpecError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| SpecError::whole_file(name, format!("cannot be read: {error}")))?;
    if bytes.len() > most {
        return Err(larger_than(name, most));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let bad = error.as_bytes().get(good).copied().unwrap_or_default();
        let before = String::from_utf8_lossy(error.as_bytes().get(..good).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
        let message = format!("expected UTF-8 text, found the byte {bad:#04x}");
        SpecError::whole_file(name, message).at(line, column)
    })
}
