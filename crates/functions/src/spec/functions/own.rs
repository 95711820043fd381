//! A function that a program brings along: there is no YAML for it.

use std::fmt;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Makes a worker's instance of a function.
type Make = dyn Fn() -> Box<dyn NetworkFunction> + Send + Sync;

/// A function that a program adds to a spec it has read, to run it without giving it a name in YAML:
/// one's own under development, or one that fails on purpose.
#[derive(Clone)]
pub struct OwnFunction {
    kind: &'static str,
    make: Arc<Make>,
}

impl OwnFunction {
    /// Of this kind, for reports; `make` is called for each worker's instance, and once more.
    pub fn new(kind: &'static str, make: impl Fn() -> Box<dyn NetworkFunction> + Send + Sync + 'static) -> OwnFunction {
        OwnFunction {
            kind,
            make: Arc::new(make),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// An instance for a worker.
    pub(crate) fn instance(&self) -> Box<dyn NetworkFunction> {
        (self.make)()
    }
}

impl fmt::Debug for OwnFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnFunction").field(&self.kind).finish()
    }
}

/// Clones are equal.
impl PartialEq for OwnFunction {
    fn eq(&self, other: &OwnFunction) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl Eq for OwnFunction {}
