//! `Count`: packets and bytes by rule, each rule under its own name.

mod function;
mod kind;
mod rules;
mod spec;

pub use function::Count;
pub use kind::KIND;
pub use rules::{CountTable, Counter, Counters, MAX_COUNTERS};
pub use spec::CountConfig;

#[cfg(test)]
mod tests;
