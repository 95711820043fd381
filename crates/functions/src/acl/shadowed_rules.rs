//! Warnings about shadowed rules, which never match.

use crate::acl::classifier::ClassifierError;
use std::path::Path;

/// Rule shadowed by an earlier one that matches all its packets.
pub(crate) struct Idle {
    /// Line of the rule, or its position in the spec's list.
    pub(crate) line: u32,
    /// Line or position of the earlier rule.
    pub(crate) by: u32,
    /// Decisions of the earlier rule and of this one, if they differ.
    pub(crate) conflict: Option<(String, String)>,
}

/// Formats one line for each shadowed rule; of many, the first ones and the number of others. `file` holds the rules,
/// unless they are in the spec.
pub(crate) fn describe(found: Result<Vec<Idle>, ClassifierError>, file: Option<&Path>) -> Vec<String> {
    // Conflicts come first, and more of them are listed.
    const MOST: [usize; 2] = [20, 3];
    let file = file.map_or("rules".to_owned(), |path| path.display().to_string());
    let idle = match found {
        Ok(idle) => idle,
        Err(error) => {
            return vec![format!("{file}: shadowed rules not checked: {error}")];
        }
    };
    let (mut lines, mut untold) = (Vec::new(), 0);
    for (most, contradicts) in MOST.into_iter().zip([true, false]) {
        let of_kind = idle.iter().filter(|idle| idle.conflict.is_some() == contradicts);
        untold += of_kind.clone().count().saturating_sub(most);
        lines.extend(of_kind.take(most).map(|Idle { line, by, conflict }| match conflict {
            Some((first, second)) => format!(
                "{file}:{line}: shadowed rule: line {by} matches all of its packets with {first}, this rule has \
                 {second}"
            ),
            None => format!("{file}:{line}: redundant rule: line {by} matches all of its packets"),
        }));
    }
    if untold > 0 {
        let most = idle.len();
        lines.push(format!("{file}: {untold} more of {most} shadowed rules"));
    }
    lines
}
