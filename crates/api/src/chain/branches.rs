//! Branches of a `classifier`, as far as they are structure: names, ends, and lists of functions.

use crate::error::{SpecError, quoted};
use crate::located::{Fields, Located};
use crate::schema::{Entries, Field, LABEL, Map, Type};
use tailwater_sdk::host::is_label;

/// Name of the kind of function that has branches.
pub const CLASSIFIER: &str = "classifier";
/// Rule target for leaving the chain.
pub const SEND: &str = "send";
/// Rule target for the function after the classifier.
pub const NEXT: &str = "next";
/// Maximum number of branches in a chain. Each has a function of its own, or is a classifier's only exit.
pub const MAX_BRANCHES: usize = 32;

/// Branches by their names.
pub static BRANCHES: Entries = Entries {
    key: "NAME",
    keys: &LABEL,
    value: Type::Map(&BRANCH),
    least: 1,
    most: MAX_BRANCHES,
};
static BRANCH: Map = Map {
    fields: &[
        Field::new(
            "functions",
            Type::Functions,
            "Functions of the branch, in order; at least one.",
        )
        .required(),
        Field::new(
            "then",
            Type::Words(&[NEXT, SEND]),
            "Where packets go at the branch's end: behind the classifier, or out of the chain.",
        )
        .or("next"),
    ],
    ..Map::PLAIN
};

/// Branch of a classifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchConfig {
    /// Name of the branch.
    pub name: String,
    /// `true` if packets leave the chain at the branch's end. Otherwise they continue with the function after the
    /// classifier.
    pub ends: bool,
}

/// Reads `branches` of a classifier: the names, and whether packets leave the chain at their ends.
///
/// # Errors
/// A name is not allowed, a field is unknown, or there are too many branches.
pub fn branches(node: &Located<'_>) -> Result<Vec<BranchConfig>, SpecError> {
    let entries = node.entries("branches")?;
    if entries.is_empty() || entries.len() > MAX_BRANCHES {
        let found = entries.len();
        let message = format!("expected 1 to {MAX_BRANCHES} branches, found {found}");
        return Err(node.error(message));
    }
    let branch = |(name, branch): &(&str, Located<'_>)| {
        if !is_label(name) || [NEXT, SEND].contains(name) {
            let message = format!(
                "expected as a branch's name lower-case letters, digits and inner dashes, at most 63, that are not \
                 {NEXT} or {SEND}, found {}",
                quoted(name)
            );
            return Err(node.error_at_key(name, message));
        }
        let fields = branch_fields(branch)?;
        let then = fields.optional("then");
        let then = then.map(|node| node.word(&[(NEXT, false), (SEND, true)]));
        Ok(BranchConfig {
            name: (*name).to_owned(),
            ends: then.transpose()?.unwrap_or(false),
        })
    };
    entries.iter().map(branch).collect()
}

fn branch_fields<'d>(branch: &Located<'d>) -> Result<Fields<'d>, SpecError> {
    branch.fields_of(&BRANCH)
}

/// Returns the node `branches` of a classifier's configuration, unless it is absent or empty.
pub(super) fn branches_of<'d>(classifier: &Located<'d>) -> Result<Option<Located<'d>>, SpecError> {
    let fields = classifier.entries("a classifier")?;
    let branches = fields.into_iter().find(|(key, _)| *key == "branches");
    Ok(branches.map(|(_, node)| node).filter(|node| !node.is_null()))
}

/// Returns the function list of each branch of the `classifier` in an item of a chain's list, in order, to be read like
/// the chain's own.
pub(super) fn functions_of_branches<'d>(item: &Located<'d>) -> Result<Vec<Located<'d>>, SpecError> {
    let entries = item.entries("a function")?;
    let classifier = entries.iter().find(|(key, _)| *key == CLASSIFIER);
    let Some((_, classifier)) = classifier else {
        return Ok(Vec::new());
    };
    let Some(branches) = branches_of(classifier)? else {
        return Ok(Vec::new());
    };
    let entries = branches.entries("branches")?;
    let functions = entries.iter().map(|(_, branch)| {
        let what = "a list of functions; in place of an empty branch, rules have `to: next` or `to: send`";
        branch_fields(branch)?.required("functions", what)
    });
    functions.collect()
}
