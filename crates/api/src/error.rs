//! What is wrong in a spec, and where.

use std::fmt;

/// The first thing found wrong in a spec or in a file that it names.
///
/// Displayed on one line, or one for each where [all](Self::each) that is wrong is told: `chain.yaml:12:9: spec.slo.latency: expected a duration such as 200us,
/// found "fast"`, followed by `; did you mean "..."?` if a valid value is close to the one found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SpecError {
    /// The file, as the caller named it (a rules file: the spec's folder and the name it gives).
    pub file: String,
    /// Line, from 1; 0 if the file as a whole is wrong (it cannot be read, say).
    pub line: usize,
    /// Column in characters, from 1; 0 if the line, or the file, as a whole is wrong.
    pub column: usize,
    /// The field, such as `spec.functions[1].nat.external[0]`; empty where there is none (the
    /// text is not YAML, the file cannot be read).
    pub path: String,
    /// What was expected and what was found, without the position.
    pub message: String,
    /// The nearest valid name or value.
    pub suggestion: Option<String>,
    /// The next thing that is wrong, where all of it is told at once (rules of a firewall).
    pub next: Option<Box<SpecError>>,
}

/// The most mistakes of a file of rules that are told one by one.
pub const MOST_TOLD: usize = 1000;

impl SpecError {
    /// An error about a file as a whole.
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

    /// As [`all`](Self::all), of mistakes in a file's lines, of which `more` are not told one by one.
    pub fn all_of_lines(mut errors: Vec<SpecError>, more: usize) -> Option<Self> {
        if let Some(error) = errors.first().filter(|_| more > 0) {
            let message = format!("{more} more lines are wrong");
            errors.push(SpecError::whole_file(&error.file, message));
        }
        SpecError::all(errors)
    }

    /// Several errors as one; `None` of none.
    pub fn all(errors: Vec<SpecError>) -> Option<Self> {
        let errors = errors.into_iter().rev();
        errors.fold(None, |next, error| {
            Some(SpecError {
                next: next.map(Box::new),
                ..error
            })
        })
    }

    /// This error and all that come after it.
    pub fn each(&self) -> impl Iterator<Item = &SpecError> {
        std::iter::successors(Some(self), |error| error.next.as_deref())
    }

    /// This error as text, without those after it.
    pub fn alone(&self) -> String {
        struct Alone<'a>(&'a SpecError);
        impl fmt::Display for Alone<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(f)
            }
        }
        Alone(self).to_string()
    }

    /// Writes this error without those after it.
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

    /// The same error at a place: line and column from 1.
    #[must_use]
    pub fn at(mut self, line: usize, column: usize) -> Self {
        (self.line, self.column) = (line, column);
        self
    }

    /// The same error in a field.
    #[must_use]
    pub fn in_field(mut self, path: String) -> Self {
        self.path = path;
        self
    }

    /// The same error with what was probably meant.
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

/// Text from outside with its control characters escaped: an error stays on one line, and
/// cannot send a terminal escape sequences.
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

/// The candidate that `given` is probably a misspelling of.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nothing valid is this long, and the distance takes quadratic time.
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

/// Text from outside as it appears in a message: shortened, in quotes.
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
