//! Kind `external` of functions.

use super::spec::ExternalConfig;
use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind};

/// Kind `external`.
pub static KIND: FunctionKind = FunctionKind {
    name: "external",
    summary: "Third-party program behind a port",
    parse: |node, context| Ok(ExternalConfig::parse(node, context)?.into()),
};

impl FunctionConfig for ExternalConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Err("an external function requires ports, which only `tailwater run` opens".into())
    }
}
