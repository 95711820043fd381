//! Why a rule cannot be read.

/// Why a rule is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Something in it, at a byte, is wrong.
    Wrong {
        at: usize,
        message: String,
        suggestion: Option<String>,
    },
    /// It asks for what there is not.
    Unsupported(String),
}

impl Problem {
    /// Something wrong that is known elsewhere by its place.
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
        Problem::Unsupported(what.into())
    }

    /// The same, so many bytes further on.
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

/// What of a text is quoted in an error.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}

/// The name that one was probably meant to be.
pub(super) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = names.map(|name| (strsim::damerau_levenshtein(text, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + text.len() / 5 && distance < text.len()).then(|| name.to_owned())
}
