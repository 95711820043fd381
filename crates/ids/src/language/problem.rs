//! Reasons rules are not accepted.

/// Reason a rule is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The rule has an error at a byte offset.
    Wrong {
        at: usize,
        message: String,
        suggestion: Option<String>,
    },
    /// The rule uses an unsupported feature.
    Unsupported(String),
}

impl Problem {
    /// Creates an error whose position the caller adds.
    pub(super) fn wrong(message: impl Into<String>) -> Problem {
        Problem::at(0, message)
    }

    pub(super) fn at(at: usize, message: impl Into<String>) -> Problem {
        Problem::Wrong {
            at,
            message: message.into(),
            suggestion: None,
        }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> Problem {
        const MOST: usize = 80;
        let mut what = what.into();
        // A rule can name anything; notices list what is not supported.
        if let Some((end, _)) = what.char_indices().nth(MOST) {
            what.truncate(end);
            what.push_str("...");
        }
        Problem::Unsupported(what)
    }

    /// Returns the problem with its position shifted by this many bytes.
    pub(super) fn shifted(self, by: usize) -> Problem {
        match self {
            Problem::Wrong {
                at,
                message,
                suggestion,
            } => Problem::Wrong {
                at: at + by,
                message,
                suggestion,
            },
            other => other,
        }
    }
}

/// Shortens a text for quoting in errors.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}

/// Returns the most similar name, for a suggestion.
pub(super) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    // No name is this long, and the distance takes quadratic time.
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return None;
    }
    let near = names.map(|name| (strsim::damerau_levenshtein(text, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + text.len() / 5 && distance < text.len()).then(|| name.to_owned())
}
