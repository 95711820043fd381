//! Kind `Chain`: the traffic that a chain processes, its functions in order, and its objectives.
//!
//! A [`ChainDocument`] holds all of it without any function's code: a function is the name of its kind and its
//! configuration as written. The crate of the functions reads the same text with [`ChainNode`] and [`visit`]. It
//! resolves each configuration on the way, so that the first error in the list of functions is reported first.

mod branches;
mod document;
mod item;
mod on_failure;
mod sequence;
mod settings;
mod specificity;

pub use branches::{BRANCHES, BranchConfig, CLASSIFIER, MAX_BRANCHES, NEXT, SEND, branches};
pub use document::{ChainBranch, ChainDocument, ChainFunction};
pub use item::{BESIDE, FunctionItem};
pub use on_failure::OnFailure;
pub use sequence::{Exits, MAX_FUNCTIONS, Visitor, duplicate_name, misplaced_external, short_path, too_many, visit};
pub use settings::{ChainNode, ChainSettings, DESCRIPTION, FunctionFacts, Match, SCHEMA};
pub use specificity::{CommonPart, MatchKey, Specificity, ambiguity};

#[cfg(test)]
mod tests;
