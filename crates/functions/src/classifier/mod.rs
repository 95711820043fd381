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
pub use spec::{ClassifierConfig, Target};
pub use tailwater_api::chain::BranchConfig;
