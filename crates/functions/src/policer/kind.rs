//! Kind `policer` of functions.

use super::spec::PolicerConfig;
use super::{Policer, PolicerRules};
use crate::kind::{
    BuildContext, ConfigUpdate, FunctionConfig, FunctionError, FunctionFactory, FunctionKind, PreparedUpdate,
    StateTransfer, UpdateError, count,
};
use std::sync::Arc;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::live::Live;

/// Kind `policer`.
pub static KIND: FunctionKind = FunctionKind {
    name: "policer",
    summary: "Rate limits of packets",
    fields: &super::spec::FIELDS,
    parse: |node, context| Ok(PolicerConfig::parse(node, context)?.into()),
};

impl FunctionConfig for PolicerConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn can_be_bypassed(&self) -> bool {
        true
    }

    fn state_transfer(&self) -> StateTransfer {
        StateTransfer::Converted(super::function::state_format())
    }

    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn FunctionFactory>, FunctionError> {
        let rules = PolicerRules::new(self.limits.clone(), self.default);
        Ok(Box::new(PolicerFactory {
            live: Arc::new(Live::new(rules)),
        }))
    }
}

/// Limits that all instances share.
struct PolicerFactory {
    live: Arc<Live<PolicerRules>>,
}

impl FunctionFactory for PolicerFactory {
    fn instance(&self) -> Box<dyn NetworkFunction> {
        Box::new(Policer::new(Arc::clone(&self.live)))
    }

    fn prepare_update(&self, update: &ConfigUpdate<'_>) -> Result<PreparedUpdate, UpdateError> {
        let (_, new) = update.configs::<PolicerConfig>()?;
        let now = self.live.current();
        let next = now.value.next_version(new.limits.clone(), new.default);
        if next.need_missing_flow_state() {
            return Err(UpdateError::Fixed("the use of limits per flow"));
        }
        let summary = count(next.limits().len(), "limit");
        Ok(PreparedUpdate::of_live(summary, &self.live, next, |live| live))
    }
}
