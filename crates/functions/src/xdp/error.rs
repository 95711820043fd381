//! Errors of reading objects and programs.

use std::fmt;

/// Reason why an object or program is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    /// Index of the instruction, from 0; `None` for the object as a whole.
    pub at: Option<usize>,
    /// Description of the error.
    pub why: String,
}

impl std::error::Error for ProgramError {}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "instruction {at}: {}", self.why),
            None => write!(f, "{}", self.why),
        }
    }
}

impl ProgramError {
    pub(super) fn whole(why: impl Into<String>) -> ProgramError {
        ProgramError {
            at: None,
            why: why.into(),
        }
    }

    pub(super) fn at(at: usize, why: String) -> ProgramError {
        ProgramError { at: Some(at), why }
    }
}
