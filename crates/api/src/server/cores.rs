//! Lists of cores. Only the machine that runs the server knows which of them exist.

use crate::error::SpecError;
use crate::located::{Located, digits};

/// Description of a list of cores in errors.
pub const EXPECTED: &str = "a list of cores such as 1 or 0,2-3";
/// Largest number of a core.
const LAST: u64 = 65_535;
/// Maximum number of cores in a list.
const MOST: usize = 512;

/// Reads a list of cores. None of them may be in `taken` or be listed twice.
pub fn list(node: &Located<'_>, taken: &[u32]) -> Result<Vec<u32>, SpecError> {
    let mut cores = Vec::new();
    for part in node.text(EXPECTED)?.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| digits(text.trim()).filter(|&core| core <= LAST);
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(node.expected(EXPECTED));
        };
        if first > last || last - first >= MOST as u64 {
            return Err(node.expected(EXPECTED));
        }
        for core in first as u32..=last as u32 {
            if cores.contains(&core) {
                return Err(node.error(format!("expected each core once, found core {core} twice")));
            }
            if taken.contains(&core) {
                return Err(node.error(format!("expected cores that are not in cores, found core {core}")));
            }
            cores.push(core);
        }
    }
    match cores.len() <= MOST {
        true => Ok(cores),
        false => Err(node.error(format!("expected at most {MOST} cores, found {}", cores.len()))),
    }
}
