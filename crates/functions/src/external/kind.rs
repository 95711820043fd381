//! Kind `external` of functions.

use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind};
use tailwater_api::external::{EXTERNAL, ExternalConfig, FIELDS};

/// Kind `external`.
pub static KIND: FunctionKind = FunctionKind {
    name: EXTERNAL,
    summary: "Third-party program behind a port",
    fields: &FIELDS,
    parse: |node, _| Ok(ExternalConfig::parse(node)?.into()),
};

impl FunctionConfig for ExternalConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Err("an external function requires ports, which only `tailwater run` opens".into())
    }
}
