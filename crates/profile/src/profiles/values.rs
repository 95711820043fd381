//! Values in files: limits, numbers, texts.

use std::fmt::{self, Write as _};
use tailwater_api::SpecError;
use tailwater_api::document::Located;

/// Version of the file format.
pub const VERSION: u64 = 1;
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
