//! Errors as Python's exceptions.

// The macro makes a type without documentation.
#[allow(missing_docs, reason = "documented in python/tailwater/_errors.py")]
mod imported {
    pyo3::import_exception!(tailwater._errors, InputError);
    pyo3::import_exception!(tailwater._errors, TailwaterError);
}

pub use imported::{InputError, TailwaterError};
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use tailwater_traffic::TrafficError;

/// Exception of input that cannot be used, with this message on one line.
pub fn wrong(message: impl ToString) -> PyErr {
    InputError::new_err(message.to_string())
}

/// Exception of traffic that cannot be read or written.
pub fn of_traffic(error: &TrafficError) -> PyErr {
    if let TrafficError::Write { .. } = error {
        return PyOSError::new_err(error.to_string());
    }
    // The library's message names its option; Python's is the keyword.
    wrong(error.to_string().replace("skip_bad_packets", "skip_bad_packets=True"))
}
