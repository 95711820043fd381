//! Order of a chain's functions, including those of branches.

use super::branches::functions_of_branches;
use crate::error::SpecError;
use crate::located::Located;

/// Maximum number of functions in a chain.
pub const MAX_FUNCTIONS: usize = 16;

/// Reader of a chain's functions, which [`visit`] passes to it one by one.
pub trait Visitor<'d> {
    /// Reads a function from its item. `branch` is the index of the innermost branch that contains it, if any, in the
    /// reader's list of branches. Returns the ways by which packets continue.
    ///
    /// # Errors
    /// If the function is invalid: the first problem, with its position.
    fn function(&mut self, item: &Located<'d>, branch: Option<usize>) -> Result<Exits, SpecError>;
}

/// Ways by which packets continue behind a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// `true` if packets continue with the next function of the list.
    pub next: bool,
    /// Index of the first branch that begins here, in the reader's list of branches. The others follow it.
    pub first_branch: usize,
    /// `true` for each branch at whose end packets leave the chain.
    pub ends: Vec<bool>,
}

impl Exits {
    /// Returns the exits of a function without branches.
    pub fn linear() -> Exits {
        Exits {
            next: true,
            ..Exits::default()
        }
    }
}

/// Passes all functions of a chain's list to `visitor`, in the order in which packets pass them: a classifier is
/// followed by the functions of its branches, and then by the functions after it.
///
/// # Errors
/// If a list is invalid, or no packet reaches a function, or the visitor reports an error.
pub fn visit<'d>(functions: &Located<'d>, visitor: &mut impl Visitor<'d>) -> Result<(), SpecError> {
    list(functions, None, visitor).map(|_| ())
}

/// Visits a list of functions, of a branch or of none. Returns `true` if packets continue behind its end.
// The recursion is bounded by the maximum nesting of YAML.
fn list<'d>(node: &Located<'d>, branch: Option<usize>, visitor: &mut impl Visitor<'d>) -> Result<bool, SpecError> {
    let mut reached = true;
    for item in node.list("functions", MAX_FUNCTIONS)? {
        if !reached {
            let message = "expected no unreachable function: all packets leave the chain before it";
            return Err(item.error(message));
        }
        let exits = visitor.function(&item, branch)?;
        reached = exits.next;
        for (at, functions) in functions_of_branches(&item)?.iter().enumerate() {
            let goes_on = list(functions, Some(exits.first_branch + at), visitor)?;
            reached |= goes_on && exits.ends.get(at) != Some(&true);
        }
    }
    Ok(reached)
}

/// Returns the message for a function beyond the [maximum](MAX_FUNCTIONS).
pub fn too_many() -> String {
    format!("expected at most {MAX_FUNCTIONS} functions in a chain, those of branches included, found more")
}

/// Returns the message for a function whose name the function at path `other` has, too. `named` is `true` if the spec
/// gives the name.
pub fn duplicate_name(name: &str, other: &str, named: bool) -> String {
    let hint = if named { "" } else { "; give one of them a name" };
    format!("expected a different name for each function, found \"{name}\" as in {other}{hint}")
}

/// Returns the message for an external function in a branch, or after branches that leave the chain, if it is there.
pub fn misplaced_external(in_branch: bool, after_exit: bool) -> Option<&'static str> {
    if in_branch {
        return Some(
            "expected no external function in a branch: packets that return from it enter a separate chain at its \
             start",
        );
    }
    after_exit.then_some("expected no external function after branches that leave the chain: all packets must pass it")
}

/// Returns the path of an item below `spec`, as errors about other functions name it.
pub fn short_path(item: &Located<'_>) -> String {
    let path = item.path();
    path.strip_prefix("spec.").unwrap_or(&path).to_owned()
}
