//! Evaluation of a rule's tests on the bytes of a buffer.
//!
//! Tests relative to the previous match are tried with every position of that match, as Suricata does. A [`Budget`]
//! bounds the cost.

use crate::buffer::BufferKey;
use crate::rule::{BufferTests, Comparison, NumberAt, PositionConstraint, Test};
use memchr::memmem::Finder;

/// Budget of an evaluation: one unit is a search, or a number of bytes scanned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: u32,
}

/// Bytes per unit that a content search scans, and a regular expression.
const CONTENT_BYTES: usize = 32;
const PATTERN_BYTES: usize = 4;

impl Budget {
    pub(crate) fn new(units: u32) -> Budget {
        Budget { left: units }
    }

    /// Returns the units left.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Returns `true` if the budget is exhausted, so that a request for units was refused.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    #[inline]
    fn spend(&mut self, units: usize) -> bool {
        self.left = self.left.saturating_sub(units.min(u32::MAX as usize) as u32);
        self.left > 0
    }
}

/// Compiled tests of one buffer.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(crate) buffer: BufferKey,
    tests: Vec<Check>,
    /// `true` if a test needs the buffer in lower case.
    pub(crate) nocase: bool,
}

#[derive(Debug)]
struct Check {
    test: Test,
    /// Searcher of a content test.
    finder: Option<Finder<'static>>,
    /// `true` if a later test depends on this one's position.
    retry: bool,
}

/// Bytes of a buffer, unmodified and in lower case. The latter may be missing if no test needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    pub(crate) plain: &'a [u8],
    pub(crate) lower: &'a [u8],
}

impl Checks {
    pub(crate) fn new(part: &BufferTests) -> Checks {
        let tests = &part.tests;
        let checks = tests.iter().enumerate().map(|(i, test)| Check {
            test: test.clone(),
            finder: match test {
                Test::Content(content) => Some(Finder::new(&content.bytes).into_owned()),
                _ => None,
            },
            retry: depends(&tests[i + 1..]),
        });
        Checks {
            buffer: part.buffer,
            tests: checks.collect(),
            nocase: tests
                .iter()
                .any(|test| matches!(test, Test::Content(content) if content.nocase)),
        }
    }

    /// Returns `true` if all tests hold; `false` when the budget runs out.
    pub(crate) fn all_match(&self, bytes: Bytes<'_>, budget: &mut Budget) -> bool {
        chain(&self.tests, bytes, 0, budget)
    }
}

/// Returns `true` if tests depend on the position of the one before them.
fn depends(rest: &[Test]) -> bool {
    for test in rest {
        if test.is_relative() {
            return true;
        }
        // The following tests are relative to this one.
        let moves = match test {
            Test::Content(content) => !content.negated,
            Test::Pattern { negated, .. } => !negated,
            Test::Jump { .. } => true,
            _ => false,
        };
        if moves {
            return false;
        }
    }
    false
}

/// Returns `true` if the tests hold when the previous one ended at `at`.
fn chain(checks: &[Check], bytes: Bytes<'_>, at: usize, budget: &mut Budget) -> bool {
    let Some((check, rest)) = checks.split_first() else {
        return true;
    };
    let length = bytes.plain.len();
    if !budget.spend(1) {
        return false;
    }
    match &check.test {
        Test::Content(content) => {
            let Some(finder) = &check.finder else {
                return false;
            };
            let text = if content.nocase { bytes.lower } else { bytes.plain };
            let (mut from, to) = stretch(&content.position, at, length);
            if content.position.at_end {
                // Only one position is at the end.
                from = from.max(length.saturating_sub(content.bytes.len()));
            }
            loop {
                let found = match text.get(from..to) {
                    Some(text) => finder.find(text),
                    None => None,
                };
                let looked = found.unwrap_or(to.saturating_sub(from));
                if !budget.spend(1 + looked / CONTENT_BYTES) {
                    return false;
                }
                let end = found.map(|found| from + found + content.bytes.len());
                let end = end.filter(|end| !content.position.at_end || *end == length);
                if content.negated {
                    return end.is_none() && chain(rest, bytes, at, budget);
                }
                let Some(end) = end else {
                    return false;
                };
                if chain(rest, bytes, end, budget) {
                    return true;
                }
                if !check.retry || budget.is_spent() {
                    return false;
                }
                from = end - content.bytes.len() + 1;
            }
        }
        Test::Pattern {
            expression,
            relative,
            negated,
        } => {
            let start = if *relative { at } else { 0 };
            let Some(text) = bytes.plain.get(start..) else {
                return *negated && chain(rest, bytes, at, budget);
            };
            let mut from = 0;
            loop {
                if !budget.spend(8 + (text.len() - from.min(text.len())) / PATTERN_BYTES) {
                    return false;
                }
                let found = expression.find(text, from);
                if *negated {
                    return found.is_none() && chain(rest, bytes, at, budget);
                }
                let Some((begins, ends)) = found else {
                    return false;
                };
                if chain(rest, bytes, start + ends, budget) {
                    return true;
                }
                if !check.retry || budget.is_spent() {
                    return false;
                }
                from = begins + 1;
            }
        }
        Test::DataAt {
            bytes: wanted,
            relative,
            negated,
        } => {
            let wanted = *wanted as usize;
            let there = match relative {
                true => at + wanted <= length,
                false => wanted < length,
            };
            there != *negated && chain(rest, bytes, at, budget)
        }
        Test::Compare {
            number,
            comparison,
            value,
            negated,
        } => {
            let Some((found, _)) = read(number, bytes.plain, at) else {
                return false;
            };
            compares(*comparison, found, *value) != *negated && chain(rest, bytes, at, budget)
        }
        Test::Jump {
            number,
            multiplier,
            align,
            from_start,
            more,
        } => {
            let Some((found, end)) = read(number, bytes.plain, at) else {
                return false;
            };
            let mut by = found.saturating_mul(u64::from(*multiplier));
            if *align {
                by = by.saturating_add(3) & !3;
            }
            let start = if *from_start { 0 } else { end as u64 };
            let to = i64::try_from(start.saturating_add(by)).unwrap_or(i64::MAX);
            match usize::try_from(to.saturating_add(*more)) {
                Ok(to) if to <= length => chain(rest, bytes, to, budget),
                _ => false,
            }
        }
        Test::Size(range) => range.contains(&(length as u64)) && chain(rest, bytes, at, budget),
    }
}

/// Returns the range a content must lie in; its start may exceed its end.
fn stretch(place: &PositionConstraint, at: usize, length: usize) -> (usize, usize) {
    let (offset, at) = (i64::from(place.offset), at as i64);
    let depth = place.depth.map(i64::from);
    let (from, to) = if place.is_relative() {
        let distance = i64::from(place.distance.unwrap_or(0));
        let within = place.within.map(|within| at + distance + i64::from(within));
        let depth = depth.map(|depth| at + depth);
        let ends = [within, depth].into_iter().flatten();
        let to = ends.min().unwrap_or(i64::MAX);
        ((at + distance).max(offset), to)
    } else {
        (offset, depth.map_or(i64::MAX, |depth| offset + depth))
    };
    (from.max(0) as usize, to.clamp(0, length as i64) as usize)
}

/// Reads a number from a buffer, and returns it with its end position.
fn read(number: &NumberAt, bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let start = if number.relative { at as i64 } else { 0 };
    let start = usize::try_from(start + number.offset).ok()?;
    let Some(base) = number.text else {
        let end = start.checked_add(number.bytes as usize)?;
        let digits = bytes.get(start..end)?;
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        let value = match number.little {
            true => digits.iter().rev().fold(0, join),
            false => digits.iter().fold(0, join),
        };
        return Some((value, end));
    };
    // Like `strtoull`: white space, then as many digits as there are.
    let most = if number.bytes == 0 { 23 } else { number.bytes as usize };
    let text = bytes.get(start..)?;
    let text = &text[..text.len().min(most)];
    let blank = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let mut digits = &text[blank..];
    if base == 16
        && let [b'0', b'x' | b'X', rest @ ..] = digits
    {
        digits = rest;
    }
    let digits = digits.iter().map_while(|byte| char::from(*byte).to_digit(base));
    let (mut value, mut count) = (0u64, 0);
    for digit in digits {
        value = value.saturating_mul(base.into()).saturating_add(digit.into());
        count += 1;
    }
    (count > 0).then_some((value, start + text.len()))
}

fn compares(comparison: Comparison, found: u64, value: u64) -> bool {
    match comparison {
        Comparison::Less => found < value,
        Comparison::AtMost => found <= value,
        Comparison::Equal => found == value,
        Comparison::Greater => found > value,
        Comparison::AtLeast => found >= value,
        Comparison::And => found & value != 0,
        Comparison::Or => found ^ value != 0,
    }
}

#[cfg(test)]
mod tests;
