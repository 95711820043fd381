//! Parsers of numbers and ranges in options.

use super::problem::quoted;
use std::ops::RangeInclusive;

/// Parses an integer in decimal, or with `0x` in hexadecimal digits.
pub(super) fn whole(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

/// Parses a number up to a limit, with a message on failure.
pub(super) fn within<T: TryFrom<u64>>(text: &str, most: u64) -> Result<T, String> {
    let number = whole(text.trim()).filter(|number| *number <= most);
    let number = number.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("expected a number from 0 to {most}, found {}", quoted(text)))
}

/// Parses a signed number with a limit on its magnitude.
pub(super) fn signed(text: &str, most: i64) -> Result<i64, String> {
    let text = text.trim();
    let number = match text.strip_prefix('-') {
        Some(digits) => whole(digits).and_then(|n| i64::try_from(n).ok()).map(|n| -n),
        None => whole(text).and_then(|n| i64::try_from(n).ok()),
    };
    let number = number.filter(|number| (-most..=most).contains(number));
    number.ok_or_else(|| format!("expected a number from -{most} to {most}, found {}", quoted(text)))
}

/// Returns `true` if a text is a variable name (set by another option) instead of a number.
pub(super) fn is_name(text: &str) -> bool {
    let mut bytes = text.trim().bytes();
    let first = bytes.next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
}

/// Parses a range: `5`, `<5`, `>5`, `<=5`, `>=5`, `5<>9` (exclusive), `5-9` (inclusive); optionally negated by `!`.
pub(super) fn range(text: &str, most: u64) -> Result<(RangeInclusive<u64>, bool), String> {
    let wrong = || {
        format!(
            "expected a number up to {most}, or a range of them (5, <5, >5, 5<>9), found {}",
            quoted(text)
        )
    };
    let number = |text: &str| {
        let number = whole(text.trim()).filter(|number| *number <= most);
        number.ok_or_else(wrong)
    };
    let (negated, plain) = match text.trim().strip_prefix('!') {
        Some(rest) => (true, rest.trim()),
        None => (false, text.trim()),
    };
    let (first, last) = if let Some((first, last)) = plain.split_once("<>") {
        let (first, last) = (number(first)?, number(last)?);
        (first + 1, last.checked_sub(1).ok_or_else(wrong)?)
    } else if let Some(last) = plain.strip_prefix("<=") {
        (0, number(last)?)
    } else if let Some(first) = plain.strip_prefix(">=") {
        (number(first)?, most)
    } else if let Some(last) = plain.strip_prefix('<') {
        (0, number(last)?.checked_sub(1).ok_or_else(wrong)?)
    } else if let Some(first) = plain.strip_prefix('>') {
        (number(first)? + 1, most)
    } else if let Some((first, last)) = plain.split_once('-') {
        (number(first)?, number(last)?)
    } else {
        let number = number(plain)?;
        (number, number)
    };
    match first <= last {
        true => Ok((first..=last, negated)),
        false => Err(wrong()),
    }
}
