//! Function that a program provides in code: it has no YAML.

use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory};
use std::fmt;
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;

/// Creates a worker's instance of a function.
type Make = dyn Fn() -> Box<dyn NetworkFunction> + Send + Sync;

/// Function that a program adds to a spec it has read, to run it without a name in YAML. Examples are a function under
/// development, and one that fails deliberately in a test.
#[derive(Clone)]
pub struct OwnFunction {
    kind: &'static str,
    make: Arc<Make>,
}

impl OwnFunction {
    /// Creates a function of this type, as named in reports. `make` is called for each worker's instance, and once
    /// more.
    pub fn new(kind: &'static str, make: impl Fn() -> Box<dyn NetworkFunction> + Send + Sync + 'static) -> OwnFunction {
        OwnFunction {
            kind,
            make: Arc::new(make),
        }
    }
}

impl FunctionConfig for OwnFunction {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(self.clone()))
    }

    fn tracks_connections(&self) -> bool {
        self.instance().properties().tracks_connections
    }

    fn decides_lifetimes(&self) -> bool {
        self.instance().lifetimes().is_some()
    }
}

impl FunctionFactory for OwnFunction {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        (self.make)()
    }
}

impl fmt::Debug for OwnFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnFunction").field(&self.kind).finish()
    }
}

/// Compares by identity: clones are equal.
impl PartialEq for OwnFunction {
    fn eq(&self, other: &OwnFunction) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}

impl Eq for OwnFunction {}
