//! Values in files: limits, numbers, texts.

use crate::curve::Measured;
use std::fmt::{self, Write as _};
use tailwater_api::SpecError;
use tailwater_api::document::Located;

/// Version of the file format that is written. Version 1 had no information about interference; it is read, too.
pub const VERSION: u64 = 2;
/// Oldest version that is read.
pub const OLDEST_VERSION: u64 = 1;
/// Maximum number of profiles in a file.
pub const MAX_PROFILES: usize = 10_000;
/// Maximum number of points of a curve.
pub const MAX_POINTS: usize = 1024;
/// Maximum length of a text in a file, in bytes.
pub const MAX_TEXT: usize = 256;

/// Largest number in a file: no rate, time or size is larger.
const MAX_NUMBER: f64 = 1e15;

/// Reads a number from 0 to `MAX_NUMBER`.
pub(super) fn one(node: &Located<'_>) -> Result<f64, SpecError> {
    let number = node.number("a number from 0 up")?;
    match (0.0..=MAX_NUMBER).contains(&number) {
        true => Ok(number),
        false => Err(node.expected("a number from 0 up")),
    }
}

pub(super) fn numbers<const N: usize>(node: &Located<'_>) -> Result<[f64; N], SpecError> {
    let list = node.list("numbers", N)?;
    if list.len() != N {
        return Err(node.error(format!("expected {N} numbers, found {}", list.len())));
    }
    let mut numbers = [0.0; N];
    for (number, node) in numbers.iter_mut().zip(list) {
        *number = one(&node)?;
    }
    Ok(numbers)
}

/// Reads `N` numbers and, if there is one more, a count.
pub(super) fn numbers_and_count<const N: usize>(node: &Located<'_>) -> Result<([f64; N], u32), SpecError> {
    let list = node.list("numbers", N + 1)?;
    if list.len() < N {
        let found = list.len();
        return Err(node.error(format!("expected {N} or {} numbers, found {found}", N + 1)));
    }
    let mut numbers = [0.0; N];
    for (number, node) in numbers.iter_mut().zip(&list) {
        *number = one(node)?;
    }
    let count = list.get(N).map(|node| node.whole(0..=u64::from(u32::MAX)));
    Ok((numbers, count.transpose()?.unwrap_or(0) as u32))
}

/// Value with its noise, runs, and disturbed runs if there are any.
pub(super) struct Value<'a>(pub &'a Measured);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            value,
            noise,
            runs,
            disturbed,
        } = self.0;
        write!(f, "{value}, {noise}, {runs}")?;
        match disturbed {
            0 => Ok(()),
            disturbed => write!(f, ", {disturbed}"),
        }
    }
}

/// Text as a double-quoted YAML scalar.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // YAML does not allow all printable characters: byte order marks, surrogates and others are excluded.
                ' '..='~' | '\u{a0}'..='\u{d7ff}' if c != '\u{2028}' && c != '\u{2029}' => {
                    f.write_char(c)?;
                }
                c => write!(f, "\\U{:08X}", u32::from(c))?,
            }
        }
        f.write_char('"')
    }
}
