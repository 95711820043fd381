//! Lines for operators.

use std::fmt;
use std::sync::Arc;

/// Receiver of warnings: one line each.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(&str) + Send + Sync>);

impl Notices {
    /// Calls `warn` with each line.
    pub fn new(warn: impl Fn(&str) + Send + Sync + 'static) -> Notices {
        Notices(Arc::new(warn))
    }

    pub(crate) fn warn(&self, line: &str) {
        (self.0)(line);
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}
