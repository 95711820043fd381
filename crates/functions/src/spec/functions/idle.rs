//! What is told of rules that never decide anything.

use crate::acl::classifier::ClassifierError;
use std::path::Path;

/// A rule behind one that matches all that it does.
pub(super) struct Idle {
    /// Its line, or its place in the spec's list.
    pub(super) line: u32,
    /// That of the other.
    pub(super) by: u32,
    /// What the other says and what it says, if that differs.
    pub(super) conflict: Option<(String, String)>,
}

/// A line for each; of many, the first and how many more. `file` is where they are, unless in the spec.
pub(super) fn describe(found: Result<Vec<Idle>, ClassifierError>, file: Option<&Path>) -> Vec<String> {
    // What contradicts is told first, and more of it.
    const MOST: [usize; 2] = [20, 3];
    let file = file.map_or("rules".to_owned(), |path| path.display().to_string());
    let idle = match found {
        Ok(idle) => idle,
        Err(error) => {
            return vec![format!("{file}: whether rules shadow others is not told: {error}")];
        }
    };
    let (mut lines, mut untold) = (Vec::new(), 0);
    for (most, contradicts) in MOST.into_iter().zip([true, false]) {
        let of_kind = idle.iter().filter(|idle| idle.conflict.is_some() == contradicts);
        untold += of_kind.clone().count().saturating_sub(most);
        lines.extend(of_kind.take(most).map(|Idle { line, by, conflict }| match conflict {
            Some((first, second)) => format!(
                "{file}:{line}: this rule never decides: line {by} matches all that it does, and says {first} where \
                 this says {second}"
            ),
            None => format!("{file}:{line}: this rule is not needed: line {by} matches all that it does"),
        }));
    }
    if untold > 0 {
        let most = idle.len();
        lines.push(format!("{file}: {untold} more of {most} rules that never decide"));
    }
    lines
}
