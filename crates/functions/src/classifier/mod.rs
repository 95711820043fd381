//! Branches by rule: each packet, or each flow, goes where the first rule says that matches it.

mod function;
mod rules;
#[cfg(test)]
mod tests;

pub use function::Classifier;
pub use rules::{ClassifierRules, ClassifierTable};
