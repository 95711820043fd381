//! Error type for profile files: cause and position.

use std::fmt;

/// First error found in a profile file.
///
/// Displayed on one line: `acl-nat.profile.yaml:9:6: frontier[2]: expected a list of flows and packets, found "many"`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ProfileError {
    /// The file, as the caller named it.
    pub file: String,
    /// Line, from 1, or 0 if the error concerns the whole file.
    pub line: usize,
    /// Column in characters, from 1, or 0 if the error concerns a whole line or the whole file.
    pub column: usize,
    /// Field, such as `frontier[2]`. Empty if the error concerns no field.
    pub field: String,
    /// Expected and found values, as text.
    pub message: String,
}

impl ProfileError {
    /// Creates an error about a file as a whole.
    pub(super) fn whole_file(file: &str, message: impl Into<String>) -> Self {
        ProfileError {
            file: file.to_owned(),
            line: 0,
            column: 0,
            field: String::new(),
            message: message.into(),
        }
    }

    /// Adds a position: line and column from 1.
    #[must_use]
    pub(super) fn at(mut self, line: usize, column: usize) -> Self {
        (self.line, self.column) = (line, column);
        self
    }

    /// Adds a field.
    #[must_use]
    pub(super) fn in_field(mut self, field: &str) -> Self {
        self.field = field.to_owned();
        self
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.file.clone();
        for number in [self.line, self.column] {
            if number > 0 {
                text += &format!(":{number}");
            }
        }
        if !self.field.is_empty() {
            text += &format!(": {}", self.field);
        }
        text += &format!(": {}", self.message);
        // External text stays on one line and cannot send escape sequences to a terminal.
        for c in text.chars() {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Returns external text as it appears in a message: shortened and quoted.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}...\"", &text[..end]),
        None => format!("\"{text}\""),
    }
}
