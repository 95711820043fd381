//! Files that a command reads and writes.

use crate::error::CliError;
use crate::input::Traffic;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the text of a spec, for the page.
pub fn spec_text(path: &Path) -> String {
    // A pipe has already been read, and another read would block.
    match fs::metadata(path) {
        Ok(file) if file.is_file() => String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned(),
        _ => "(the spec did not come from a file)".to_owned(),
    }
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
    let refuse = |source: io::Error| CliError::Input(format!("{flag}: {}: cannot write: {source}", path.display()));
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
