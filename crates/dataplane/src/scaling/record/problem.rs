//! Problems of a decision record's content, and checks of its numbers.

use super::format::VERSION;
use std::io;

/// Cause of a read error.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// Not a decision record.
    #[error("expected a record of decisions, found another file")]
    NotARecord,
    /// Unsupported version.
    #[error("expected a record of version {VERSION}, found version {0}")]
    Version(u64),
    /// The file is truncated.
    #[error("the record is cut short")]
    Cut,
    /// Data after the end.
    #[error("expected the file's end after the record's end, found more data")]
    AfterEnd,
    /// A number is out of range, or inconsistent with others.
    #[error("expected {expected} {what}, found {found}")]
    Number {
        /// Meaning of the number.
        what: &'static str,
        /// Expected value, such as `at most 5`.
        expected: String,
        /// Actual value.
        found: u64,
    },
    /// A number has more than 64 bits.
    #[error("expected a number of 64 bits, found a longer one")]
    Long,
    /// A text is not UTF-8.
    #[error("expected text in UTF-8 as the {0}")]
    Text(&'static str),
}

/// Returns `found` if it is at most `most`.
pub(super) fn at_most(what: &'static str, found: u64, most: u64) -> Result<u64, Problem> {
    if found <= most {
        return Ok(found);
    }
    Err(Problem::Number {
        what,
        expected: format!("at most {most}"),
        found,
    })
}

/// Requires `found` to equal `expected`.
pub(super) fn exactly(what: &'static str, found: u64, expected: u64) -> Result<(), Problem> {
    if found == expected {
        return Ok(());
    }
    Err(Problem::Number {
        what,
        expected: expected.to_string(),
        found,
    })
}

/// Returns `found` if it has at most 32 bits.
pub(super) fn half(what: &'static str, found: u64) -> Result<u32, Problem> {
    at_most(what, found, u64::from(u32::MAX)).map(|number| number as u32)
}
