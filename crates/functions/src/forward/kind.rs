//! Kind `forward` of functions.

use super::Forward;
use super::spec::ForwardConfig;
use crate::kind::{BuildContext, FunctionConfig, FunctionError, FunctionFactory, FunctionKind};
use tailwater_chain::function::NetworkFunction;

/// Kind `forward`.
pub static KIND: FunctionKind = FunctionKind {
    name: "forward",
    summary: "Forwarding, optionally with other Ethernet addresses",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(ForwardConfig::parse(node, context)?.into()),
};

impl FunctionConfig for ForwardConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        Ok(Box::new(Forward::new(self.source_mac, self.destination_mac)))
    }
}

impl FunctionFactory for Forward {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(self.clone())
    }
}
