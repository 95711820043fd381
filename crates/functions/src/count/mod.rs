//! `Count`: packets and bytes by rule, each rule under its own name.

mod function;
mod rules;

pub use function::Count;
pub use rules::{CountTable, Counter, Counters, MAX_COUNTERS};

#[cfg(test)]
mod tests;
