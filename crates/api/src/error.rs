//! Errors in a spec, with their positions.

use std::fmt;

/// First error in a spec or in a file that it names.
///
/// It is displayed on one line, or on one line for each of several errors (see [`each`](Self::each)): `chain.yaml:12:9:
/// spec.slo.latency: expected a duration such as 200us, found "fast"`. If a valid value is close to the one found, `;
/// did you mean "..."?` follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SpecError {
    /// File, as the caller named it (a rules file: the spec's folder and the name in the spec).
    pub file: String,
    /// Line, from 1; 0 for an error about the whole file, such as an unreadable one.
    pub line: usize,
    /// Column in characters, from 1; 0 for an error about the whole line or file.
    pub column: usize,
    /// Field, such as `spec.functions[1].nat.external[0]`; empty where there is none (the text is not YAML, the file
    /// cannot be read).
    pub path: String,
    /// Expected and found value, without the position.
    pub message: String,
    /// Nearest valid name or value.
    pub suggestion: Option<String>,
    /// Next error, where all errors are reported at once (rules of a firewall).
    pub next: Option<Box<SpecError>>,
}

/// Maximum number of errors in a rules file that are reported individually.
pub const MAX_REPORTED: usize = 1000;

impl SpecError {
    /// Creates an error about a whole file.
    pub fn whole_file(file: &str, message: impl Into<String>) -> Self {
        SpecError {
            file: file.to_string(),
            line: 0,
            column: 0,
            path: String::new(),
            message: message.into(),
            suggestion: None,
            next: None,
        }
    }

    /// Same as [`all`](Self::all), for errors in a file's lines; `more` is the number of errors not reported
    /// individually.
    pub fn all_of_lines(mut errors: Vec<SpecError>, more: usize) -> Option<Self> {
        if let Some(error) = errors.first().filter(|_| more > 0) {
            let message = format!("{more} more invalid lines");
            errors.push(SpecError::whole_file(&error.file, message));
        }
        SpecError::all(errors)
    }

    /// Chains several errors into one; `None` if there are none.
    pub fn all(errors: Vec<SpecError>) -> Option<Self> {
        let errors = errors.into_iter().rev();
        errors.fold(None, |next, error| {
            Some(SpecError {
                next: next.map(Box::new),
                ..error
            })
        })
    }

    /// Iterates over this error and all that follow it.
    pub fn each(&self) -> impl Iterator<Item = &SpecError> {
        std::iter::successors(Some(self), |error| error.next.as_deref())
    }

    /// Formats this error without those that follow it.
    pub fn to_line(&self) -> String {
        struct WithoutNext<'a>(&'a SpecError);
        impl fmt::Display for WithoutNext<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(f)
            }
        }
        WithoutNext(self).to_string()
    }

    /// Writes this error without those that follow it.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", OneLine(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if self.column > 0 {
                write!(f, ":{}", self.column)?;
            }
        }
        if !self.path.is_empty() {
            write!(f, ": {}", OneLine(&self.path))?;
        }
        write!(f, ": {}", OneLine(&self.message))?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, "; did you mean \"{}\"?", OneLine(suggestion))?;
        }
        Ok(())
    }

    /// Sets the position of the error: line and column from 1.
    #[must_use]
    pub fn at(mut self, line: usize, column: usize) -> Self {
        (self.line, self.column) = (line, column);
        self
    }

    /// Sets the field of the error.
    #[must_use]
    pub fn in_field(mut self, path: String) -> Self {
        self.path = path;
        self
    }

    /// Sets the value that was probably meant.
    #[must_use]
    pub fn suggest(mut self, suggestion: Option<impl Into<String>>) -> Self {
        self.suggestion = suggestion.map(Into::into);
        self
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.each().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.write(f)?;
        }
        Ok(())
    }
}

/// Untrusted text with its control characters escaped: an error stays on one line, and cannot send escape sequences to
/// a terminal.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for c in self.0.chars() {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Returns the candidate of which `given` is probably a misspelling.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // No valid name is this long, and the distance takes quadratic time.
    if given.is_empty() || given.len() > 64 {
        return None;
    }
    let folded = given.to_lowercase();
    let distance = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let edits = strsim::osa_distance(&folded, &candidate);
        // An abbreviation counts as one edit.
        let abbreviated = folded.len() >= 3 && candidate.starts_with(&folded);
        if abbreviated { edits.min(1) } else { edits }
    };
    let allowed = (folded.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .filter(|&(edits, candidate)| edits <= allowed && edits < candidate.len())
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

/// Quotes and shortens untrusted text for a message.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}...\"", &text[..end]),
        None => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name() {
        let names = ["acl", "nat", "forward", "destinationPorts"];
        for (given, expected) in [
            ("natt", Some("nat")),
            ("ant", Some("nat")),
            ("ACL", Some("acl")),
            ("foward", Some("forward")),
            ("forwarding", Some("forward")),
            ("dest", Some("destinationPorts")),
            ("destination_ports", Some("destinationPorts")),
            ("x", None),
            ("", None),
            ("loadBalancer", None),
        ] {
            assert_eq!(nearest(given, names), expected, "{given}");
        }
    }

    #[test]
    fn display_is_one_line_whatever_the_text() {
        let error = SpecError::whole_file("a\nb.yaml", quoted("x\u{1b}[31m\r\ny"))
            .at(3, 4)
            .in_field("spec.\n".into())
            .suggest(Some("z\n"));
        assert_eq!(
            error.to_string(),
            r#"a\nb.yaml:3:4: spec.\n: "x\u{1b}[31m\r\ny"; did you mean "z\n"?"#
        );
    }
}
