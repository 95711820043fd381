//! Limits of a classifier, and the errors beyond them.

/// Maximum number of rules of a classifier.
pub const MAX_RULES: usize = 1_000_000;

/// Maximum memory of a classifier, in bytes.
pub const MAX_MEMORY_BYTES: usize = 1 << 30;

/// Failure to build a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassifierError {
    /// The list has more than [`MAX_RULES`] rules.
    #[error("expected at most {MAX_RULES} rules, found {rules}")]
    TooManyRules {
        /// The number of rules.
        rules: usize,
    },
    /// The rules overlap in so many ways that the tables would exceed the memory limit.
    #[error("expected at most {} MiB of tables, the rules require more", limit_bytes >> 20)]
    TooLarge {
        /// The limit, in bytes.
        limit_bytes: usize,
    },
}
