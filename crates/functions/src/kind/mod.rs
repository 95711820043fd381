//! Interface between a function and the rest of this crate.
//!
//! The directory of a function provides three objects:
//! - its [`FunctionKind`]: name in YAML, summary, and parser, listed in [`KINDS`](crate::registry::KINDS);
//! - its [`FunctionConfig`]: the checked configuration of one function of a chain;
//! - its [`FunctionFactory`]: the state that the instances of all workers share, and updates while the chain runs.
//!
//! They are in its `kind.rs`, except the configuration's fields and parser in `spec.rs`. Those of `external`, which has
//! no code here, are in [`tailwater_api::external`].

mod config;
mod context;
mod factory;
mod host;
mod lists;
mod state_format;
mod update;

pub use config::{AnyConfig, ConfigObject, FunctionConfig, Requirements};
pub use context::Context;
pub use factory::{BuildContext, FunctionError, FunctionFactory, IsolationContext, SharedTable};
pub use host::{HostPart, HostServices};
pub(crate) use lists::{ALLOW_EMPTY, ALLOW_EMPTY_RULES, allows_empty, check_not_empty};
pub use state_format::{OpenImported, StateConversion, StateFormat, StateTransfer};
pub(crate) use update::count;
pub use update::{ConfigUpdate, PreparedUpdate, UpdateError};

use tailwater_api::error::SpecError;
use tailwater_api::located::Located;
use tailwater_api::schema::{FunctionSchema, Map};

/// Kind of function that a chain spec can name.
#[derive(Clone, Copy)]
pub struct FunctionKind {
    /// Key in YAML, such as `loadBalancer`.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Fields of the configuration under that key.
    pub fields: &'static Map,
    /// Reads and checks the configuration under that key.
    pub parse: fn(&Located<'_>, &Context<'_>) -> Result<AnyConfig, SpecError>,
}

impl FunctionKind {
    /// Returns the schema of its configuration.
    pub fn schema(&self) -> FunctionSchema {
        FunctionSchema {
            name: self.name,
            doc: self.summary,
            config: self.fields,
        }
    }
}
