//! Reading of a spec's files, bounded in size.

use crate::error::SpecError;
use crate::yaml::{MAX_BYTES, larger_than};
use std::io::{self, ErrorKind};
use std::path::Path;
use tailwater_files::{InputFile, STDIN, is_stdin, read};

/// Reads the text of a file that a spec names.
///
/// # Errors
/// If the file cannot be read, is larger than [`MAX_BYTES`], or is not UTF-8.
pub fn read_text(path: &Path, name: &str) -> Result<String, SpecError> {
    read_text_up_to(path, name, MAX_BYTES)
}

/// Same as [`read_text`], for a file that an argument names: `-` is standard input. Returns `true` with a text that
/// cannot be read again.
///
/// # Errors
/// Same as [`read_text`].
pub fn read_argument(path: &Path) -> Result<(String, bool), SpecError> {
    let name = argument_name(path);
    let input = InputFile::named(path).map_err(|error| unreadable(&name, MAX_BYTES, &error))?;
    let is_stream = input.is_stream() || is_stdin(path);
    let text = text(input.read_up_to(MAX_BYTES as u64), &name, MAX_BYTES)?;
    Ok((text, is_stream))
}

/// Returns the name of a file in messages that an argument names.
pub fn argument_name(path: &Path) -> String {
    match is_stdin(path) {
        true => STDIN.to_owned(),
        false => path.display().to_string(),
    }
}

/// Same as [`read_text`], for a file of at most `most` bytes.
pub fn read_text_up_to(path: &Path, name: &str, most: usize) -> Result<String, SpecError> {
    text(read(path, most as u64), name, most)
}

/// Reads a file of at most `most` bytes, which need not be text.
///
/// # Errors
/// The file cannot be read, or is larger.
pub fn read_bytes_up_to(path: &Path, name: &str, most: usize) -> Result<Vec<u8>, SpecError> {
    read(path, most as u64).map_err(|error| unreadable(name, most, &error))
}

fn unreadable(name: &str, most: usize, error: &io::Error) -> SpecError {
    match error.kind() {
        ErrorKind::FileTooLarge => larger_than(name, most),
        _ => SpecError::whole_file(name, format!("cannot be read: {error}")),
    }
}

fn text(read: io::Result<Vec<u8>>, name: &str, most: usize) -> Result<String, SpecError> {
    let bytes = read.map_err(|error| unreadable(name, most, &error))?;
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
