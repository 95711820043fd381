//! Reader for the profiles that NetBlaze's authors published.
//!
//! They are text files with one observation per line: `flows packets` (`short_*.pro`) or `flows packets-per-second`
//! (`long_*.pro`). The files named `_safe` and `_unsafe` hold one line. In NetBlaze's code the last line counts for all
//! flow counts without a line of their own, so a file of one line is a constant here too.

use super::error::{ProfileError, quoted};
use super::{EpochFrontier, MAX_BYTES, RateFrontier};
use crate::core::Load;

impl EpochFrontier {
    /// Parses a published file of `flows packets` lines. A single line holds for any flow count. `file` names the file
    /// in errors.
    ///
    /// # Errors
    /// The file is larger than [`MAX_BYTES`], has no line, or a line is not two whole numbers.
    pub fn from_published(text: &[u8], file: &str) -> Result<Self, ProfileError> {
        let lines = lines(text, file, "flows and packets in an epoch")?;
        if let [(_, packets)] = lines[..] {
            return Ok(EpochFrontier::constant(packets));
        }
        let mut frontier = EpochFrontier::new();
        for (flows, packets) in lines {
            frontier.insert(Load { flows, packets });
        }
        Ok(frontier)
    }
}

impl RateFrontier {
    /// Parses a published file of `flows packets-per-second` lines. A single line holds for any flow count. `file`
    /// names the file in errors.
    ///
    /// # Errors
    /// The file is larger than [`MAX_BYTES`], has no line, or a line is not two whole numbers.
    pub fn from_published(text: &[u8], file: &str) -> Result<Self, ProfileError> {
        let lines = lines(text, file, "flows and packets per second")?;
        if let [(_, rate)] = lines[..] {
            return Ok(RateFrontier::constant(f64::from(rate)));
        }
        let mut frontier = RateFrontier::new();
        for (flows, rate) in lines {
            frontier.insert(flows, f64::from(rate));
        }
        Ok(frontier)
    }
}

/// Returns the numbers of all lines that are not blank.
fn lines(text: &[u8], file: &str, what: &str) -> Result<Vec<(u32, u32)>, ProfileError> {
    let whole = |message: String| ProfileError::whole_file(file, message);
    if text.len() > MAX_BYTES {
        let limit = MAX_BYTES >> 20;
        return Err(whole(format!("expected at most {limit} MiB, found a larger file")));
    }
    let mut points = Vec::new();
    for (i, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = String::from_utf8_lossy(line);
        let numbers: Vec<&str> = line.split_ascii_whitespace().collect();
        if numbers.is_empty() {
            continue;
        }
        let number = |i: usize| numbers.get(i)?.parse::<u32>().ok();
        match (number(0), number(1), numbers.len()) {
            (Some(flows @ 1..), Some(amount), 2) => points.push((flows, amount)),
            _ => {
                let message = format!("expected {what}, found {}", quoted(line.trim()));
                return Err(whole(message).at(i + 1, 0));
            }
        }
    }
    if points.is_empty() {
        return Err(whole(format!("expected lines of {what}, found none")));
    }
    Ok(points)
}
