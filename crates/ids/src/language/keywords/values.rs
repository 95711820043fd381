//! Values of options: texts, numbers and words.

use crate::language::numbers::{is_name, within};
use crate::language::options::{Opt, quotation};
use crate::language::problem::{Problem, nearest, quoted};

/// Largest position of contents and numbers, in bytes: beyond any packet or window.
pub(super) const FAR: u64 = 1 << 24;

pub(super) fn value<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    match option.value {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(Problem::wrong(format!("expected a value for {}", option.name))),
    }
}

/// Returns a quoted value.
pub(super) fn text<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    match quotation(value(option)?) {
        Some((false, text)) => Ok(text),
        _ => Err(Problem::wrong(format!(
            "expected a text in quotation marks for {}",
            option.name
        ))),
    }
}

/// Returns a value that is not a rule variable.
pub(super) fn plain<'a>(option: &Opt<'a>) -> Result<&'a str, Problem> {
    let value = value(option)?;
    match is_name(value) {
        true => Err(Problem::unsupported(format!("{}: variable", option.name))),
        false => Ok(value),
    }
}

pub(super) fn number<T: TryFrom<u64>>(option: &Opt<'_>, most: u64) -> Result<T, Problem> {
    within(value(option)?, most).map_err(Problem::wrong)
}

pub(super) fn one_of<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, Problem> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Problem::Wrong {
            at: 0,
            message: format!("expected one of {}, found {}", names.join(", "), quoted(text)),
            suggestion: nearest(text, names.into_iter()),
        }
    })
}
