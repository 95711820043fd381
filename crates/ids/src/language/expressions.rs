//! Compiled regular expressions of rules.

use crate::pattern::{Expression, ExpressionError, Flags};
use std::collections::HashMap;
use std::sync::Arc;

/// Cache of compiled expressions, which rules often share.
#[derive(Debug, Default)]
pub(super) struct Expressions(HashMap<(String, String), Result<Arc<Expression>, ExpressionError>>);

impl Expressions {
    /// Returns the compiled expression, which is compiled on first use.
    ///
    /// # Errors
    /// The expression is wrong or not supported.
    pub(super) fn get(
        &mut self,
        source: &str,
        letters: &str,
        flags: Flags,
    ) -> Result<Arc<Expression>, ExpressionError> {
        let key = (source.to_owned(), letters.to_owned());
        let known = self.0.entry(key);
        known
            .or_insert_with(|| Expression::new(source, flags).map(Arc::new))
            .clone()
    }
}
