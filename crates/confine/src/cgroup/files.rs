//! Files of control groups.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::Error;

pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| Error::File {
        path: path.to_owned(),
        error,
    })
}

pub(super) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::File {
        path: path.to_owned(),
        error,
    })
}

/// Treats `NotFound` as success.
pub(super) fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
