//! `Classifier`: sends each packet, or each flow, to the branch of the first matching rule.

mod function;
mod rules;
#[cfg(test)]
mod tests;

pub use function::Classifier;
pub use rules::{ClassifierRules, ClassifierTable};
