//! Functions that a chain keeps from the one whose place it takes.

use crate::kind::FunctionFactory;
use std::fmt;
use std::sync::Arc;

/// Factory of a function that a chain keeps from the one whose place it takes, with the function's name.
#[derive(Clone)]
pub struct KeptFunction {
    pub(super) function: (String, Arc<dyn FunctionFactory>),
    /// Its chain finds flows as connections.
    pub(super) connections: bool,
}

impl KeptFunction {
    /// Name of the function.
    pub fn name(&self) -> &str {
        &self.function.0
    }
}

impl fmt::Debug for KeptFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptFunction").field(&self.function.0).finish()
    }
}
