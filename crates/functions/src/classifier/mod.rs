//! `Classifier`: sends each packet, or each flow, to the branch of the first matching rule.

mod function;
mod kind;
mod rules;
mod spec;
#[cfg(test)]
mod tests;

pub use function::Classifier;
pub use kind::KIND;
pub use rules::{ClassifierRules, ClassifierTable};
pub(crate) use spec::functions_of_branches;
pub use spec::{BranchConfig, ClassifierConfig, Target};
